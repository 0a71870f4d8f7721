"""Scopes as formulas: a scope that is a matmul, sum, convolution or map is written as an operator.

L[i<2, j<32, l<32] sum[k0<512] . v[i, k0, l] * k[i, k0, j]   is   kᵀ @ v
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from eqsynth.ir.formulas.parts import (
    ATOM,
    MATMUL,
    PRODUCT,
    SUM,
    Formula,
    Operands,
    infix,
    tight,
    window,
)  # fmt: skip
from eqsynth.ir.formulas.reads import broadcast, cut_out, slots_of, view
from eqsynth.ir.index import Index, It
from eqsynth.ir.printing import render_term
from eqsynth.ir.scalar import (
    Call,
    Cast,
    Num,
    Prod,
    Read,
    Scalar,
    Sum,
    factors_of,
    iterators,
    product,
    reads,
    substitute,
    tensors,
    tree_size,
)  # fmt: skip
from eqsynth.ir.tensor import Scope, Tensor, args_of, is_literal

# The most leaves of an elementwise body that is written as a formula.
_LONGEST_BODY: Final = 24
_LETTERS: Final = "bijklmnopqrstuvwxyzacdefgh"


def scope_formula(scope: Scope, operands: Operands) -> Formula:
    """Return a scope as the operator that it computes, or else in EinNet's notation, L[i<4] . …"""
    found = _as_operator(scope, operands)
    return found if found is not None else (_notation(scope, operands), SUM)


def _as_operator(scope: Scope, operands: Operands) -> Formula | None:
    found = _contraction(scope, operands) or _convolution(scope, operands)
    return found or _map(scope, operands) or _reduced_map(scope, operands)


def is_written_out(scope: Scope) -> bool:
    """Whether a scope computes no known operator, so that it is written in full: L[i<4] . …"""
    return _as_operator(scope, _anything) is None


def scope_kind(scope: Scope) -> str:
    """Return the kind of a scope: ``matmul``, ``einsum``, ``conv3x3``, ``sum``, ``map``, …; a sum
    of one tensor through a window is an ``offset-reduce`` [EinNet]."""
    single = isinstance(scope.body, Read)
    if any(map(is_literal, args_of(scope))):
        return "transform"  # by literals, which the optimizer introduces: Winograd's matrices
    if not scope.reduction:
        return "view" if single else "map"
    found = _contraction(scope, _anything)
    if found is not None:
        return scope.reducer if single else "matmul" if found[1] == MATMUL else "einsum"
    windowed = _windowed(scope)
    if windowed is not None:
        return f"conv{windowed[2]}"
    if _reduced_map(scope, _anything) is not None:
        return scope.reducer
    if single:
        return "offset-reduce" if scope.reducer == "sum" else f"offset-{scope.reducer}"
    return f"{scope.reducer} of products"


def _anything(_term: Tensor) -> Formula:
    return "_", ATOM


def _contraction(scope: Scope, operands: Operands) -> Formula | None:
    """Return a reduction of a product of tensors or slices: a matmul, an einsum, a sum; or None."""
    rank = len(scope.traversal)
    out = [slot for slot, extent in enumerate(scope.traversal) if extent != 1]
    factors = factors_of(scope.body)
    read_by = [part for part in factors if isinstance(part, Read)]
    if not scope.reduction or not read_by or len(read_by) != len(factors):
        return None
    own = [found for read in read_by if (found := cut_out(read, operands(read.tensor))) is not None]
    if len(own) < len(read_by):
        return None
    used = {slot for _, found in own for slot in found}
    reduced = [rank + n for n, extent in enumerate(scope.reduction) if extent != 1]
    if used != {*out, *reduced}:
        return None
    if len(own) == 1:
        ((source, kept),) = own
        if [slot for slot in kept if slot < rank] != out:
            return None
        if slots_of(read_by[0]) is None:
            axes = [n for n, slot in enumerate(kept) if slot >= rank]
        else:
            its = [(n, index.bare()) for n, index in enumerate(read_by[0].index)]
            axes = [n for n, it in its if it is not None and it.slot >= rank]
        return _reduced(scope, source, axes)
    if scope.reducer != "sum":
        return None
    if len(own) == 2 and len(reduced) == 1:
        for (a, left), (b, right) in (own, own[::-1]):
            found_product = _product(out, reduced[0], left, right)
            if found_product is not None:
                sides = zip((a, b), found_product, strict=True)
                first, second = (_transposed(side, flip) for side, flip in sides)
                return infix(" @ ", MATMUL, first, second)
    letter = {slot: _LETTERS[n % 26] for n, slot in enumerate([*out, *reduced])}
    subscripts = ",".join("".join(letter[s] for s in found) for _, found in own)
    names = ", ".join(text for (text, _), _ in own)
    return f'einsum("{subscripts}->{"".join(letter[s] for s in out)}", {names})', ATOM


def _reduced(scope: Scope, source: Formula, axes: Sequence[int]) -> Formula:
    text = f"axis {axes[0]}" if len(axes) == 1 else f"axes {tuple(axes)}"
    return f"{scope.reducer}({source[0]}, {text})", ATOM


def _reduced_map(scope: Scope, operands: Operands) -> Formula | None:
    """Return a reduction of an elementwise body, ``sum(relu(x) * w, axis 1)``, if the body reads
    one whole tensor that has all axes of the scope; otherwise None."""
    extents = (*scope.traversal, *scope.reduction)
    every = {slot for slot, extent in enumerate(extents) if extent != 1}
    whole = [(r, s) for r in reads(scope.body) if set(s := slots_of(r) or []) == every]
    if not scope.reduction or not whole:
        return None
    (read, slots), rank = whole[0], len(scope.traversal)
    if (kept := [slot for slot in slots if slot < rank]) != sorted(kept):
        return None
    place = {it.slot: axis for axis, index in enumerate(read.index) if (it := index.bare())}
    body = substitute(scope.body, lambda it: Index.iterator(place[it.slot], it.extent))
    inner = _map(Scope(read.tensor.shape, (), body), operands)
    if inner is None:
        return None
    return _reduced(scope, inner, [place[slot] for slot in slots if slot >= rank])


def _transposed(source: Formula, flip: bool) -> Formula:
    return (f"{tight(source, ATOM)}ᵀ", ATOM) if flip else source


def _product(out: list[int], k: int, left: list[int], right: list[int]) -> tuple[bool, bool] | None:
    """Return whether the left and the right operand are transposed, if operands with these axes
    form a product of matrices over ``k``; otherwise None."""
    n = [slot for slot in out if slot in right and slot not in left]
    m = [slot for slot in out if slot in left and slot not in right]
    shared = [slot for slot in out if slot in left and slot in right]
    if len(n) > 1 or out != [*shared, *m, *n] or (shared and not m):
        return None
    if left == [*shared, *m, k]:
        a = False
    elif len(m) == 1 and left == [*shared, k, *m]:
        a = True
    else:
        return None
    if not n:
        return (a, False) if right == [*shared, k] and not shared else None
    if right == [*shared, k, *n]:
        return a, False
    return (a, True) if right == [*shared, *n, k] else None


def _convolution(scope: Scope, operands: Operands) -> Formula | None:
    found = _windowed(scope)
    if found is None:
        return None
    read, kernel, size, step = found
    told = "" if step == 1 else f", stride {step}"
    both = iterators(read) & iterators(kernel)
    told += ", grouped" if any(it.slot < len(scope.traversal) for it in both) else ""
    text = f"{operands(read.tensor)[0]}, {operands(kernel.tensor)[0]}{told}"
    return f"conv{size}({text})", ATOM


def _windowed(scope: Scope) -> tuple[Read, Read, str, int] | None:
    """Return the parts of a convolution, a sum of products of a kernel and a tensor that is read
    through a window: the tensor, the kernel, the window's size and the largest stride; or None."""
    factors = factors_of(scope.body)
    if scope.reducer != "sum" or len(factors) != 2:
        return None
    rank = len(scope.traversal)
    for read, kernel in (factors, factors[::-1]):
        if not isinstance(read, Read) or not isinstance(kernel, Read):
            return None
        windows = [index for index in read.index if len(index.terms) == 2 and index.is_affine]
        plain = [index for index in (*read.index, *kernel.index) if index not in windows]
        if not windows or any(index.terms and index.bare() is None for index in plain):
            continue
        sides = [[atom for atom, _ in index.terms if isinstance(atom, It)] for index in windows]
        inside = iterators(kernel)
        if all(at.slot < rank <= by.slot and by in inside for at, by in sides):
            steps = (i.coefficient(at.slot) for i, (at, _) in zip(windows, sides, strict=True))
            return read, kernel, window(by.extent for _, by in sides), max(steps)
    return None


def _map(scope: Scope, operands: Operands) -> Formula | None:
    """Return an elementwise body over broadcast tensors, or a view of a tensor; otherwise None."""
    if scope.reduction or tree_size(scope.body) > _LONGEST_BODY:
        return None
    if isinstance(scope.body, Read):
        return view(scope, scope.body, operands(scope.body.tensor))
    return _scalar(scope.body, lambda read: broadcast(scope, read, operands(read.tensor)))


def _scalar(part: Scalar, read: Callable[[Read], Formula | None]) -> Formula | None:
    match part:
        case Num(value=value):
            return f"{value:g}", ATOM if value >= 0 else SUM
        case Read():
            return read(part)
        case Cast(dtype=dtype, arg=arg):
            inner = _scalar(arg, read)
            return None if inner is None else (f"{dtype}({inner[0]})", ATOM)
        case Call(fn=fn, args=args):
            found = [_scalar(arg, read) for arg in args]
            inside = [text for text in found if text is not None]
            if len(inside) < len(args):
                return None
            return f"{fn}({', '.join(text for text, _ in inside)})", ATOM
        case Prod(factors=parts) if Num(-1) in parts and len(parts) > 1:
            rest = product([other for other in parts if other != Num(-1)])
            inner = _scalar(rest, read)
            return None if inner is None else (f"-{tight(inner, PRODUCT)}", PRODUCT)
        case Prod(factors=parts):
            return _joined(" * ", PRODUCT, parts, read)
        case Sum(terms=parts):
            return _joined(" + ", SUM, parts, read)
    return None


def _joined(
    sign: str, binds: int, parts: Sequence[Scalar], read: Callable[[Read], Formula | None]
) -> Formula | None:
    # A body's operands are sorted by digest. People write numbers first in a product, last in a
    # sum: 2 * x * w + 1.
    def last(part: Scalar) -> tuple[bool, bool]:
        is_number = isinstance(part, Num)
        constant = all(tensor.constant for tensor in tensors(part))
        return (is_number, constant) if binds == SUM else (not is_number, constant)

    parts = sorted(parts, key=last)
    found = [_scalar(part, read) for part in parts]
    inside = [text for text in found if text is not None]
    if len(inside) < len(parts):
        return None
    return sign.join(tight(text, binds) for text in inside).replace("+ -", "- "), binds


def _notation(scope: Scope, operands: Operands) -> str:
    """Return a scope in EinNet's notation, with the tensors that it reads by their names."""
    names = {arg: tight(operands(arg), ATOM) for arg in args_of(scope)}
    return render_term(scope, names)
