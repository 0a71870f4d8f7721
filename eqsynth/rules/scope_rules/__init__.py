"""Rules of scopes as text: ``[*x] = sum(k, *y) F(k) * [k == E] => [*x] = sum(*y) F(E) if ...``.

``syntax.py`` is what such a text says, ``parser.py`` reads it and finds what is wrong with it,
``expansion.py`` makes the rule file's forms of it. Matching it against scopes is
``egraph/scope_rules``'.
"""
