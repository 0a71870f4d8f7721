"""Lowering: a plan (which kernel computes which value) becomes a program that runs.

Three parts:

- Backends build kernels: ``vendor.py`` (oneDNN), ``tvm_backend.py`` (generated loops),
  ``torch_backend.py`` (plain torch), ``engines/`` (whole regions by OpenVINO, ONNX Runtime,
  Inductor), ``cuda/``; ``backends.py`` lists and times them.
- The program: ``assemble.py`` builds the kernels of a plan, ``steps.py`` writes Python code that
  calls them, and ``program.py`` is the ``torch.nn.Module`` around that code.
- After that: ``check.py`` compares the program with the original, ``bundle.py`` saves and loads it.

Which of the equal programs is chosen is decided in ``eqsynth/extract``, not here.
"""
