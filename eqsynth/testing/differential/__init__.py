"""Differential tests: every operator that eqsynth takes from torch, compared with torch itself.

The tests form a table. A row (``row.py``) is an operator with arguments; ``table.py`` collects all
rows from ``pointwise.py`` and its neighbours. A column (``columns.py``) is one of the ways in which
eqsynth computes: by the interpreter, by a backend, compiled, optimized. ``judge.py`` decides
whether a result is right, and ``harness.py`` runs the table.
"""
