"""The law of expanded forms, in which proofs of equality meet. The trusted part of proofs.

    L_i {cat(x, y)}[i] * 2  =  cat(L_i 2 * x[i], L_i 2 * y[i])      a scope equals its expanded form

Like a law of the calculus, :func:`expanded.expanded` turns a scope and arguments into an equal
term, and decides nothing else. ``egraph/tactics/expanding.py`` proposes the arguments: for each
tensor that is read, the map to write out in its place. That the tensor equals the map is a
hypothesis, which ``egraph/answers.py`` looks up in the e-graph.

The room isn't a part of the calculus, because its equalities hold only where both sides are finite
(``exp(x - y)`` for ``exp(x) / exp(y)``): numerics ``proof``, which ``optimize`` never runs. So a
fault in ``calculus/`` can make a program wrong, a fault here only a proof. The room imports ``ir/``
and ``errors``.

``expanded.py`` has the law and its proof; ``pieces.py`` what holds in one piece of a scope's box;
``sums.py`` and ``extrema.py`` the reductions; ``polynomial.py`` a body as a polynomial, ``ring.py``
the arithmetic of polynomials, ``lattice.py`` maxima and minima, ``truths.py`` conditions,
``whole.py`` integers, ``complements.py`` functions that add up to 1 and the like, ``made.py``
functions that are composed of others.
"""
