"""Engines: what compiles and runs a whole region of a program, beside eqsynth's own kernels.

``engine.py`` says what an engine is and makes a backend of it; ``inductor.py``, ``onnx_runtime.py``
and ``open_vino.py`` are engines. An engine that isn't installed costs no import and offers nothing.
Not here: which regions run on which engine (``extract/regions.py``).
"""
