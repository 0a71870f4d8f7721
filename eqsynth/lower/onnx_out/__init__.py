"""Terms of the IR as ONNX: for engines that take ONNX, and for users who want a file.

``graph.py`` holds nodes and values as plain data, ``functions.py`` scalar functions,
``operators.py`` the table of operators, ``scopes.py`` scopes, ``model.py`` makes a ``ModelProto``.
What ONNX can't say as the IR means it is refused. One thing it leaves to runtimes: whether a
maximum over NaN (``MaxPool``, ``ReduceMax``) is NaN, as it is in the IR.

Not here: ONNX models as input (``frontend/onnx/``), engines (``engines/``).
"""
