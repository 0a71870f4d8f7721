"""Terms of the IR as ONNX models: for engines that read ONNX, and for users who want a file.

``graph.py`` has nodes and values as plain data, ``functions.py`` scalar functions, ``operators.py``
the table of operators, ``calls.py`` calls of torch that the IR has no operator for,
``foreign.py`` operators of ONNX that ran as they are, ``scopes.py`` scopes; ``model.py`` makes a
``ModelProto``. A term is refused if ONNX can't express what it means in the IR. There is one
exception, which is left to runtimes: whether a maximum over NaN (``MaxPool``, ``ReduceMax``) is
NaN, as it is in the IR.

Not here: ONNX models as input (``frontend/onnx/``), engines (``engines/``).
"""
