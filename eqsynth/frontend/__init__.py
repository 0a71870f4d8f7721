"""Frontends: each turns what a user gives into a program of the IR.

A user gives a torch module, an exported program, an ONNX model or an expression of eqsynth's own
builder (``expr.py``, ``expression.py``). All of them become a ``Captured`` (``captured.py``).
"""
