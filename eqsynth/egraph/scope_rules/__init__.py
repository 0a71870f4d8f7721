"""Applies rules of scopes: matches a rule's left side against a scope, and builds the right side.

``matching.py`` finds the bindings of the rule's names, ``binding.py`` holds a binding and checks
conditions, ``building.py`` builds the right side, and ``law.py`` makes a law of the rule. The
rule's equality is its author's claim, which the checker tests; this room only guarantees that an
answer is the rule's right side for a match. Not here: parsing of rules (``rules/scope_rules``).
"""
