"""What is worth deriving: tactics, which answer what a rule asks for.

A tactic takes the scope (or operator) that a rule's match named and says steps of the calculus
(``eqsynth/calculus``), never a term, so that none can be unsound. ``table.py`` says which function
answers which request; the few that it calls ``COMPUTED`` still compute their terms themselves.
"""
