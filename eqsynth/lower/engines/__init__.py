"""Engines: libraries that compile and run a whole region of a program, besides eqsynth's own
kernels.

``engine.py`` defines an engine and makes a backend of it. ``inductor.py``, ``onnx_runtime.py`` and
``open_vino.py`` are engines. An engine that isn't installed isn't imported, and has no kernels. Not
here: which regions run on which engine (``extract/regions.py``).
"""
