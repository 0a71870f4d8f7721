"""The e-graph: equality saturation of tensor programs on egglog, and proofs from its log.

``session.py`` adds terms (``relu(x @ w)``) and runs rounds of rules, ``schedule.py`` orders the
rounds in phases, and ``saturation.py`` runs it all in a worker process. ``graph.py`` is the result,
a table of e-classes. ``tactics/`` proposes derivations. Not here: the rules (``rules/*.egg``), the
laws (``calculus``), the choice of the best term (``extract``).
"""
