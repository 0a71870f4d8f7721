"""Rules of scopes: the left side found in a scope, the right side built from what was found.

``binding.py`` is what names stand for, with the conditions; ``matching.py`` finds it,
``building.py`` builds from it, ``law.py`` asks as for any law. What such a rule says, as a tree, is
``rules/scope_rules``'. A rule's equality is its author's claim, and the checker's to test; what is
promised here is that the answer is the right side of that claim and nothing else.
"""
