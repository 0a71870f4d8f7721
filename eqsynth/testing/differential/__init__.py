"""Differential tests: every operator that eqsynth takes from torch, held against torch itself.

``row.py`` says what a row of the table is, ``table.py`` has all rows (``pointwise.py`` and its
neighbours list them), ``columns.py`` computes a case in every way that eqsynth has, ``judge.py``
says what is right, ``harness.py`` puts them together.
"""
