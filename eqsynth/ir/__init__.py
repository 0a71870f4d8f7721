"""The intermediate representation: tensor terms, their types, canonical forms and values.

A term is an input, a weight, an operator, or a scope (``tensor.py``). A scope computes each element
of its result by a scalar body (``scalar.py``), which reads tensors at indices (``index.py``):
``L[i<2, j<4] sum[k<3] . a[i, k] * b[k, j]``. ``operators.py`` is the table of operators,
``interpret.py`` evaluates terms. Not here: which terms are equal (``calculus``, ``rules``).
"""
