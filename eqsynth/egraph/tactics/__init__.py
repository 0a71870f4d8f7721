"""Tactics: functions that answer the requests of rules with derivations worth trying.

A tactic takes the scope (or operator) that a rule matched and returns steps of the calculus
(``eqsynth/calculus``), not a term: the laws of the calculus check every step, so a tactic can't be
unsound. ``table.py`` maps each request to the tactic that answers it. The tactics of expanded forms
return arguments of the law of ``eqsynth/expansion`` instead.
"""
