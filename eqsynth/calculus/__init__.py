"""The calculus: laws that turn a scope into an equal term. The trusted part of the optimizer.

A law is a pure function ``law(scope, arguments)`` that returns a term equal to ``scope``. The
arguments, a frozen dataclass with the law's name, say which rewrite is meant: which read to inline,
which factors to group. A law checks every condition of its equality and raises a ``LawError`` with
the name of a condition that fails; it never judges whether a rewrite pays. ``tests/calculus`` draws
arguments at random and compares each result with the interpreter's. In the table, ``L_x`` runs over
the iterators x of the result, ``R_y`` is a reduction over y, ``{s}[p]`` reads the scope s at p.

    inline     L_x f({L_z g(z)}[p(x)])  =  L_x f(g(p(x)))            a read becomes the scope's body
    close      L_x sum_{y,z} a * b  =  L_x sum_y a * {L sum_z b}     operands become a scope
    same       L_x sum_y (f + g)  =  L_x {L sum_y f} + {L sum_y g}   any sums of one set of products
    rearrange  L_x R_y f  =  L_x R_y g                               f and g are one polynomial
    recount    L_x R_k f(k)  =  L_x R_{q,r} f(d*q + r)               each value of k once
               L_x sum_k t[x - k] f(k)  =  L_x sum_q t[q] f(x - q)   f = 0 before 0
    pick       L_x sum_{p,u} A * B * f(u)  =  L_x f(m(x))            sum_p A * B = [u = m(x)]
    commute    L_x max_y f(g)  =  L_x f({max_y g})                   f keeps the order
    number     L_x R_y f(t[p])  =  L_x R_y f(c)                      each element of t is c
    define     matmul(a, b)  =  L_{i,j} sum_k a[i, k] * b[k, j]      an operator is its scope
    match      L_{i,j} sum_k a[i, k] * b[k, j]  =  matmul(a, b)      what opens to the scope

``egraph/tactics`` decides which rewrites are worth doing: a tactic reads the e-graph and proposes
arguments. A tactic can't be unsound, because only a law turns its arguments into an equal term.

An argument may state a hypothesis: that a tensor equals a scope (both are members of one e-class),
or that an operator is what a rule file defines it as. The law's equality then holds if the
hypothesis does; ``deriving.hypotheses`` lists the hypotheses, for the caller to justify.

``views.py`` gives views, reductions and fused operators as scopes; ``deriving.py`` applies a
sequence of laws; ``conditions.py`` holds the conditions that laws share, ``checking.py`` how a law
refuses. The room imports only ``ir`` and ``errors``. Not here: canonical forms (``ir/normal.py``),
builders of scopes (``ir/scopes.py``), the text of comprehensions (``ir/notation.py``).
"""
