"""Write an element of a term as a sum of products of elements of other tensors (atoms).

    reshape(x, (6, 4))[i, j]    ->    x[i // 3, i % 3, j]
    (a @ pad(b))[i, j]          ->    sum_k a[i, k] * b[k - 1, j]     in the box 0 <= k - 1 < n

Views, products, reductions, functions and scopes are unfolded as the reference defines them
(``ir/reference.py``). A tensor that isn't unfolded is an atom. Equality is over the reals: products
of float sums are multiplied out, provided that no function in them can be infinite for finite
arguments. Not here: the comparison of two sums (``matching.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Any, Final

from eqsynth.certificates.digits import simple
from eqsynth.certificates.forms import (
    Apply,
    At,
    Box,
    Fold,
    Form,
    NotClosed,
    Padded,
    Place,
    Product,
    apply,
    is_finite,
    number,
    one,
    scaled,
    times,
)
from eqsynth.ir.index import Index, It, row_major
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, Value, dtype_of
from eqsynth.ir.tensor import Input, Op, Scope, Tensor
from eqsynth.ir.types import is_float

# The most parts of terms that are unfolded, and their deepest nesting.
_PARTS: Final = 400
_DEPTH: Final = 40


class Elements:
    """Writes elements of terms as sums of products of elements of atoms.

    Args:
        atoms: tensors that aren't unfolded. Inputs, and operators that this module doesn't know,
            are atoms too.
    """

    def __init__(self, atoms: Collection[Tensor]) -> None:
        self._atoms, self._slots = atoms, count()
        self._left, self._depth = _PARTS, 0

    def fresh(self, extent: int) -> Index:
        """A new iterator as an index."""
        return Index.iterator(next(self._slots), extent)

    def split(self, it: It, block: int) -> tuple[It, It]:
        """New iterators ``(first, second)`` for ``it = block * first + second``."""
        return It(next(self._slots), it.extent // block), It(next(self._slots), block)

    def narrowed(self, extent: int) -> It:
        """A new iterator, for a part of another iterator's range."""
        return It(next(self._slots), extent)

    def element(self, term: Tensor, at: Sequence[Index]) -> Form:
        """The element at an index that is in range.

        Raises:
            NotClosed: it can't be written as a sum of products.
        """
        self._left -= 1
        if self._left < 0 or self._depth > _DEPTH:
            raise NotClosed
        self._depth += 1
        try:
            at = [simple(index) for index in at]
            if term not in self._atoms:
                if isinstance(term, Scope):
                    return self._scope(term, at)
                if isinstance(term, Op):
                    return self._operator(term, at)
            if not isinstance(term, Input) and term.type.size == 0:
                raise NotClosed
            return one(At(term, tuple(at)))
        finally:
            self._depth -= 1

    def read(self, tensor: Tensor, at: Sequence[Index], fill: float = 0.0) -> Form:
        """The element at an index, or the number ``fill`` where the index is out of range."""
        at = [simple(index) for index in at]
        box = []
        for index, extent in zip(at, tensor.shape, strict=True):
            low, high = index.range()
            if high < 0 or low >= extent:
                return number(fill)
            if low < 0 or high >= extent:
                box.append((index, extent))
        form = self.element(tensor, at)
        if not box:
            return form
        if not fill and is_finite(form):
            return tuple(Product(p.number, p.bound, (*box, *p.box), p.factors) for p in form)
        if not is_float(tensor.dtype):
            raise NotClosed
        return one(Padded(tuple(box), fill, form))

    def fold(self, reducer: str, bound: Sequence[Index], form: Form) -> Form:
        """A reduction over iterators. Iterators of extent 1 are dropped: they are constants, and
        their reduction is the body itself."""
        its = tuple(it for index in bound if (it := index.bare()) is not None)
        if reducer == "sum":
            return tuple(Product(p.number, its + p.bound, p.box, p.factors) for p in form)
        if reducer == "prod" or not its:
            return one(Fold(reducer, its, (), form)) if its else form
        box: Box = ()
        while len(form) == 1 and len(form[0].factors) == 1 and form == one(form[0].factors[0]):
            inner = form[0].factors[0]
            if isinstance(inner, Fold) and inner.reducer == reducer:
                its, box, form = its + inner.bound, box + inner.box, inner.form
            elif isinstance(inner, Padded) and inner.fill == _NEUTRAL[reducer]:
                box, form = box + inner.box, inner.form
            else:
                break
        return one(Fold(reducer, its, box, form))

    # ---- scopes --------------------------------------------------------------------------------

    def _scope(self, scope: Scope, at: Sequence[Index]) -> Form:
        bound = [self.fresh(extent) for extent in scope.reduction]
        if bound and not is_float(scope.dtype):
            raise NotClosed
        images = [*at, *bound]
        return self.fold(scope.reducer, bound, self._body(scope.body, images))

    def _body(self, body: Scalar, images: Sequence[Index]) -> Form:
        self._left -= 1
        if self._left < 0:
            raise NotClosed

        def placed(index: Index) -> Index:
            return simple(index.substitute(lambda it: images[it.slot]))

        match body:
            case Num(value=value):
                return number(value)
            case Value(index=index):
                return one(Place(placed(index)))
            case Read(tensor=tensor, index=at, fill=fill):
                return self.read(tensor, [placed(index) for index in at], fill)
            case Cast(dtype=dtype, arg=arg):
                return one(Apply(f"cast {dtype}", (self._body(arg, images),)))
            case Call(fn=fn, args=args):
                return self._called(fn, args, images)
            case Prod(factors=parts) | Sum(terms=parts):
                if not _are_floats((body, *parts)):
                    raise NotClosed
                forms = [self._body(part, images) for part in parts]
                return times(*forms) if isinstance(body, Prod) else sum(forms, ())
        raise NotClosed

    def _called(self, fn: str, args: Sequence[Scalar], images: Sequence[Index]) -> Form:
        if fn == "div" and not _are_floats(args):
            raise NotClosed
        return apply(fn, *(self._body(arg, images) for arg in args))

    # ---- operators -----------------------------------------------------------------------------

    def _operator(self, op: Op, at: Sequence[Index]) -> Form:
        if op.row.expand is not None:
            return self.element(op.row.expand(op.args, op.attrs), at)
        if op.row.kind == "elementwise":
            return self._elementwise(op, at)
        if op.row.kind == "view":
            return self._view(op, at)
        if op.name == "Full" and is_float(op.dtype):
            return number(float(op.attrs[1]))  # type: ignore[arg-type]
        if op.args and is_float(op.dtype):
            if op.row.reducer:
                return self._reduced(op, at)
            written = _WRITTEN.get(op.name)
            if written is not None:
                return written(self, op, at)
        return one(At(op, tuple(at)))

    def _elementwise(self, op: Op, at: Sequence[Index]) -> Form:
        forms = []
        for arg in op.args:
            own = at[len(at) - len(arg.shape) :]
            index = [Index(0) if e == 1 else i for i, e in zip(own, arg.shape, strict=True)]
            forms.append(self.element(arg, index))
        if op.name == "Cast":
            return one(Apply(f"cast {op.dtype}", tuple(forms)))
        name = op.row.function.lower()
        if name in ("add", "sub", "neg", "mul", "div") and not all(
            is_float(term.dtype) for term in (op, *op.args)
        ):
            raise NotClosed
        return apply(name, *forms)

    def _view(self, op: Op, at: Sequence[Index]) -> Form:
        if op.name == "Concat":
            axis, start = int(str(op.attrs[0])), 0
            parts: Form = ()
            if not is_float(op.dtype):
                raise NotClosed
            for arg in op.args:
                index = [*at[:axis], at[axis] - start, *at[axis + 1 :]]
                parts += self.read(arg, index)
                start += arg.shape[axis]
            return parts
        (x,) = op.args
        place = _placed(op, list(at))
        if op.name not in ("Pad", "Unfold"):
            return self.element(x, place)
        return self.read(x, place, float(str(op.attrs[2])) if op.name == "Pad" else 0.0)

    def _reduced(self, op: Op, at: Sequence[Index]) -> Form:
        axes, keepdim = op.attrs
        (x,) = op.args
        assert isinstance(axes, tuple)
        if not is_float(x.dtype):
            raise NotClosed
        bound, kept, index = [], iter(at), []
        for axis, extent in enumerate(x.shape):
            if axis in axes:
                bound.append(self.fresh(extent))
                index.append(bound[-1])
                if keepdim:
                    next(kept)
            else:
                index.append(next(kept))
        form = self.element(x, index)
        reducer = op.row.reducer
        if reducer == "mean":
            form = scaled(form, 1 / math.prod(x.shape[axis] for axis in axes))
            reducer = "sum"
        return self.fold(reducer, bound, form)

    def _matmul(self, op: Op, at: Sequence[Index]) -> Form:
        a, b = op.args[:2]
        *batch, i, j = at
        k = self.fresh(a.shape[-1])
        return self.fold("sum", [k], times(
            self.element(a, _broadcast([*batch, i, k], a)),
            self.element(b, _broadcast([*batch, k, j], b)),
        ))  # fmt: skip

    def _conv2d(self, op: Op, at: Sequence[Index]) -> Form:
        x, w = op.args[:2]
        n, f, *places = at
        groups, bound = int(str(op.attrs[3])), [self.fresh(extent) for extent in w.shape[1:]]
        first = f // (w.shape[0] // groups) * w.shape[1] if groups > 1 else Index(0)
        index = [n, first + bound[0], *self._window(op, places, bound[1:])]
        return self.fold("sum", bound, times(self.read(x, index), self.element(w, [f, *bound])))

    def _window(self, op: Op, places: Sequence[Index], bound: Sequence[Index]) -> list[Index]:
        given: Any = dict(zip((name for name, _ in op.row.attrs), op.attrs, strict=True))
        steps = (given[name] for name in ("stride", "padding", "dilation"))
        rows = zip(places, bound, *steps, strict=True)
        return [at * s - p + r * d for at, r, s, p, d in rows]

    def _pooled(self, op: Op, at: Sequence[Index]) -> Form:
        (x,) = op.args
        kernel = op.attrs[0]
        assert isinstance(kernel, tuple)
        bound = [self.fresh(extent) for extent in kernel]
        index = [*at[:2], *self._window(op, at[2:], bound)]
        if op.name == "MaxPool2d":
            return self.fold("max", bound, self.read(x, index, -math.inf))
        return self.fold("sum", bound, scaled(self.read(x, index), 1 / math.prod(kernel)))

    def _fused(self, op: Op, at: Sequence[Index]) -> Form:
        form = (self._conv2d if op.row.images else self._matmul)(op, at)
        bias, *residual = op.args[2:]
        own = [at[1]] if op.row.images else _broadcast(at, bias)
        form = form + self.element(bias, own)
        for tensor in residual:
            form = form + self.element(tensor, _broadcast(at, tensor))
        post = str(op.attrs[-1])
        return form if post == "none" else apply(post, form)

    def _band(self, op: Op, at: Sequence[Index]) -> Form:
        a, b = op.args
        n, m, last = at
        summed = self.fresh(a.shape[2])
        # The last axis of a G2BMM's result is the place in the band; GBMM sums over that place.
        place, column = (last, summed) if op.name == "G2BMM" else (summed, last)
        half = int(str(op.attrs[0])) if op.name == "G2BMM" else a.shape[2] // 2
        row = m + (place - half) * int(str(op.attrs[-1]))
        product = times(self.element(a, [n, m, summed]), self.read(b, [n, row, column]))
        return self.fold("sum", [summed], product)

    def _softmax(self, op: Op, at: Sequence[Index]) -> Form:
        (x,) = op.args
        axis = int(str(op.attrs[0]))

        def along(index: Index) -> Form:
            return self.element(x, [*at[:axis], index, *at[axis + 1 :]])

        def power(index: Index) -> Form:
            k = self.fresh(x.shape[axis])
            largest = self.fold("max", [k], along(k))
            return apply("exp", apply("sub", along(index), largest))

        j = self.fresh(x.shape[axis])
        return apply("div", power(at[axis]), self.fold("sum", [j], power(j)))

    def _layer_norm(self, op: Op, at: Sequence[Index]) -> Form:
        x, scale, shift = op.args
        axes, eps = int(str(op.attrs[0])), float(str(op.attrs[1]))
        before, own = list(at[: len(at) - axes]), list(at[len(at) - axes :])
        extents = x.shape[len(at) - axes :]

        def mean(of: Callable[[list[Index]], Form]) -> Form:
            bound = [self.fresh(extent) for extent in extents]
            return self.fold("sum", bound, scaled(of(bound), 1 / math.prod(extents)))

        def value(index: list[Index]) -> Form:
            return self.element(x, [*before, *index])

        def centred(index: list[Index]) -> Form:
            return apply("sub", value(index), mean(value))

        variance = mean(lambda index: times(centred(index), centred(index)))
        factor = apply("rsqrt", variance + number(eps))
        return times(centred(own), factor, self.element(scale, own)) + self.element(shift, own)


def _are_floats(scalars: Sequence[Scalar]) -> bool:
    return all(is_float(dtype) for part in scalars if (dtype := dtype_of(part)) is not None)


_NEUTRAL: Final = {"max": -math.inf, "min": math.inf}

_WRITTEN: Final = {
    "Matmul": Elements._matmul, "Conv2d": Elements._conv2d, "Softmax": Elements._softmax,
    "LayerNorm": Elements._layer_norm,
    "MaxPool2d": Elements._pooled, "AvgPool2d": Elements._pooled,
    "G2BMM": Elements._band, "GBMM": Elements._band,
    "FusedMatmul": Elements._fused, "FusedMatmulAdd": Elements._fused,
    "FusedConv2d": Elements._fused, "FusedConv2dAdd": Elements._fused,
}  # fmt: skip


def _broadcast(at: Sequence[Index], tensor: Tensor) -> list[Index]:
    own = at[len(at) - len(tensor.shape) :]
    return [Index(0) if e == 1 else i for i, e in zip(own, tensor.shape, strict=True)]


def _placed(op: Op, at: list[Index]) -> list[Index]:
    """The index in a view's argument of the view's element at ``at``."""
    (x,) = op.args
    source, attrs = x.shape, op.attrs
    if op.name == "Reshape":
        linear = sum((i * s for i, s in zip(at, row_major(op.shape), strict=True)), Index(0))
        digits = zip(row_major(source), source, strict=True)
        # The index is in range, so the first coordinate needs no ``%``.
        return [linear // s % e if n else linear // s for n, (s, e) in enumerate(digits)]
    if op.name == "Expand":
        return _broadcast(at, x)
    first = attrs[0]
    if op.name == "Permute":
        assert isinstance(first, tuple)
        return [at[first.index(axis)] for axis in range(len(first))]
    if op.name == "Pad":
        assert isinstance(first, tuple)
        return [i - before for i, before in zip(at, first, strict=True)]
    if op.name == "Reverse":
        assert isinstance(first, tuple)
        last = [e - 1 - i for i, e in zip(at, source, strict=True)]
        return [last[axis] if axis in first else i for axis, i in enumerate(at)]
    axis, *more = (int(str(attr)) for attr in attrs)
    before, own, after = at[:axis], at[axis], at[axis + 1 :]
    match op.name:
        case "Slice":
            return [*before, own * more[2] + more[0], *after]
        case "Stride":
            return [*before, own * more[0], *after]
        case "Shift":
            return [*before, (own + more[0]) % source[axis], *after]
        case "Split":
            return [*before, own * more[0] + after[0], *after[1:]]
        case "Merge":
            block = source[axis + 1]
            return [*before, own // block, own % block, *after]
        case "Unfold":
            return [*before, own + after[0] - more[0] // 2, *after[1:]]
    raise NotClosed
