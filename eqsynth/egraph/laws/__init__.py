"""The computed derivations: what Python computes when a rule asks for it.

Each law is a pure function of terms: it takes the scope (or operator) that a rule's match named
and gives terms that are equal to it. ``table.py`` says which function answers which request.
"""
