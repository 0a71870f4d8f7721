"""Terms as text for people, one line a term; a shared term is named and printed once.

    t0 = L[i<4, j<8] sum[k0<16] . x[i, k0] * w[k0, j]  # float32[4, 8]

Not here: shorter formulas, as ``x @ w`` (``formulas/``).
"""

from __future__ import annotations

import string

from eqsynth.ir.index import It
from eqsynth.ir.program import Program
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, Value, children, uses
from eqsynth.ir.tensor import (
    ClassRef,
    Input,
    Op,
    Region,
    Scope,
    Tensor,
    Weight,
    args_of,
    topological,
)

_TRAVERSAL = "ijlmnopqtuvwxyz"


def iterator_name(scope: Scope, it: It) -> str:
    """Return a letter for a traversal iterator (``i j l …``), ``k0 k1 …`` for a reduction's."""
    if it.slot >= len(scope.traversal):
        return f"k{it.slot - len(scope.traversal)}"
    if it.slot < len(_TRAVERSAL):
        return _TRAVERSAL[it.slot]
    return f"{string.ascii_lowercase[0]}{it.slot}"


def render_scalar(scalar: Scalar, scope: Scope, names: dict[Tensor, str]) -> str:
    """Return a scope's body as text, with tensors by their names. A part that is used more than
    once gets a name: ``let v0 = relu(x[i]) in v0 * v0 + v0``."""
    repeated = {part for part, count in uses(scalar).items() if count > 1 and children(part)}
    known: dict[Scalar, str] = {}
    lets: list[str] = []

    def text(part: Scalar, tight: bool = False) -> str:
        if part not in repeated:
            return written(part, tight)
        if part not in known:
            value = written(part)
            known[part] = f"v{len(lets)}"
            lets.append(f"{known[part]} = {value}")
        return known[part]

    def written(part: Scalar, tight: bool = False) -> str:
        match part:
            case Num(value=value):
                return f"{value:g}"
            case Value(index=index):
                return f"({index.render(lambda it: iterator_name(scope, it))})"
            case Cast(dtype=dtype, arg=arg):
                return f"{dtype}({text(arg)})"
            case Call(fn=fn, args=args):
                return f"{fn}({', '.join(map(text, args))})"
            case Prod(factors=parts):
                return " * ".join(text(p, True) for p in parts)
            case Sum(terms=parts):
                joined = " + ".join(text(p) for p in parts)
                return f"({joined})" if tight else joined
        assert isinstance(part, Read)
        at = ", ".join(i.render(lambda it: iterator_name(scope, it)) for i in part.index)
        fill = "" if part.fill == 0 or part.in_range() else f" else {part.fill:g}"
        return f"{names.get(part.tensor, part.tensor.label)}[{at}{fill}]"

    whole = text(scalar)
    return f"let {'; '.join(lets)} in {whole}" if lets else whole


def render_term(term: Tensor, names: dict[Tensor, str]) -> str:
    """Return one term as text, with its arguments by their names."""
    if isinstance(term, Op):
        parts = [names.get(arg, arg.label) for arg in term.args]
        parts += [str(attr) for attr in term.attrs]
        return f"{term.name}({', '.join(parts)})"
    if isinstance(term, Scope):
        traversal = ", ".join(
            f"{iterator_name(term, It(slot, e))}<{e}" for slot, e in enumerate(term.traversal)
        )
        line = f"L[{traversal}] "
        if term.reduction:
            reduced = ", ".join(f"k{j}<{e}" for j, e in enumerate(term.reduction))
            line += f"{term.reducer}[{reduced}] "
        return line + ". " + render_scalar(term.body, term, names)
    if isinstance(term, Region):
        inner = render_program(Program((), term.outputs)).replace("\n", "; ")
        return f"Region({', '.join(names.get(arg, arg.label) for arg in term.args)}) {{{inner}}}"
    return f"{term.label}: {term.type}"


def render(root: Tensor) -> str:
    """Return a term and its subterms as text, one line each."""
    return "\n".join(_lines((root,)))


def render_alone(term: Tensor) -> str:
    """Return one term as text, with letters for its arguments, and their types.

    >>> from eqsynth.ir.types import TensorType
    >>> render_alone(Op("Relu", (Input("x17", TensorType((2, 3), "float32")),)))
    'Relu(a): float32[2, 3], a: float32[2, 3]'
    """
    args = args_of(term)
    alphabet = string.ascii_lowercase
    letters = {arg: f"{alphabet[n % 26]}{n // 26 or ''}" for n, arg in enumerate(args)}
    types = [f"{letter}: {arg.type}" for arg, letter in letters.items()]
    return ", ".join([f"{render_term(term, letters)}: {term.type}", *types])


def render_program(program: Program) -> str:
    """Return a program as text: one line a term, then the outputs."""
    names: dict[Tensor, str] = {}
    lines = _lines(program.outputs, names)
    outputs = ", ".join(names[term] for term in program.outputs)
    return "\n".join([*lines, f"return {outputs}"])


def _lines(roots: tuple[Tensor, ...], names: dict[Tensor, str] | None = None) -> list[str]:
    names = {} if names is None else names
    lines: list[str] = []
    for term in topological(roots):
        if isinstance(term, Input | Weight | ClassRef):
            names[term] = term.label
        else:
            line = render_term(term, names)
            names[term] = f"t{len(lines)}"
            lines.append(f"{names[term]} = {line}  # {term.type}")
    return lines or [root.label for root in roots]
