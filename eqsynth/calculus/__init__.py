"""The calculus: what is equal to a scope. The trusted part of the optimizer.

A law is a function ``law(scope, arguments) -> scope``: a pure function of terms that gives a term
equal to the one it was given. Its arguments say what is done (which read is replaced, which factors
are taken together); they are a frozen dataclass of the law's name. A law checks every condition
that its equality has and raises a ``LawError`` where one fails, naming it; it decides nothing, and
so has no limit of sizes, no order of preference and no flag. Given any arguments at all it gives an
equal term or none. ``tests/calculus`` proposes arguments at random, and holds what isn't refused
against the interpreter.

    inline     L_x f({L_z g(z)}[p(x)])  =  L_x f(g(p(x)))            what is read is written out
    close      L_x sum_{y,z} a * b  =  L_x sum_y a * {L sum_z b}     operands become a scope
    same       L_x sum_y (f + g)  =  L_x {L sum_y f} + {L sum_y g}   any sums of one set of products
    rearrange  L_x R_y f  =  L_x R_y g                               f and g are one polynomial
    recount    L_x R_k f(k)  =  L_x R_{q,r} f(d*q + r)               and back (``uncount``)
    pick       L_x sum_{p,u} A * B * f(u)  =  L_x f(m(x))            sum_p A * B = [u = m(x)]
    commute    L_x max_y f(g)  =  L_x f({max_y g})                   f keeps the order
    select     embedding({L_r f(r)}, ids)  =  L_i f(ids[i])          rows and constants
    define     matmul(a, b)  =  L_{i,j} sum_k a[i, k] * b[k, j]      an operator is its scope
    match      L_{i,j} sum_k a[i, k] * b[k, j]  =  matmul(a, b)      what opens to the scope

What is worth doing stands in ``egraph/tactics``: a tactic looks at the e-graph and proposes
arguments, which whoever unites applies. It can't be unsound, whatever it proposes.

An argument may state a hypothesis: that a tensor equals a scope, as a class of the e-graph equals
its members, or that an operator is what a rule file defines it as. The law holds under it; who
proposes it says where it is from (``hypotheses``).

``notation.py`` reads comprehensions, the text of definitions; ``views.py`` says what views,
reductions and fused operators are.
``deriving.py`` applies laws in a row; ``scopes.py`` makes scopes of parts,
``conditions.py`` is what laws ask of scopes, ``checking.py`` how they refuse. Nothing is imported
but ``ir`` and ``errors``. Not here: canonical forms, which are one name for one thing
(``ir/normal.py``).
"""
