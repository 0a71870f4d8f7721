"""Rules of scopes as text: ``[*x] = sum(k, *y) F(k) * [k == E] => [*x] = sum(*y) F(E) if ...``.

``syntax.py`` is the syntax tree, ``parser.py`` parses a text and finds its mistakes, and
``expansion.py`` expands the form in a rule file to other forms. Not here: matching a rule against
scopes (``egraph/scope_rules``).
"""
