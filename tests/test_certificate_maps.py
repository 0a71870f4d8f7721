"""Equality by maps: seen at full sizes, and never where values differ."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from eqsynth.certificates.grounding import Ground, pair
from eqsynth.certificates.judging import judged
from eqsynth.certificates.maps import holds_by_maps
from eqsynth.certificates.values import Unknown, draws
from eqsynth.egraph.graph import Log
from eqsynth.errors import CertificateError, EqsynthError
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import (
    Call,
    Num,
    Read,
    Scalar,
    children,
    leaves,
    product,
    rebuild,
    total,
)
from eqsynth.ir.tensor import Input, Op, Scope, Tensor, args_of, over, topological
from eqsynth.rules.claim import Claim
from tests.egraph.programs import PROGRAMS, saturated
from tests.terms import INF, it, leaf, op
from tests.test_certificates import of

N = 720


def reads_of(tensor: Tensor, *index: Index, fill: float = 0.0) -> Read:
    return Read(tensor, index, fill)


@dataclass(frozen=True)
class Pair:
    """Two large tensors that are equal, and one that is nearly the second."""

    left: Tensor
    right: Tensor
    wrong: Tensor


def pairs() -> dict[str, Pair]:
    """One for each part of a certificate: the map, its inverse, the box, what is outside of it."""
    i, j, k = it(0, 80), it(1, 80), it(2, 80)
    flat, x, y = it(0, N), leaf("x", 80, 80), leaf("y", 80, 80)
    blocks, row = leaf("b", 80, 9), leaf("row", 80)
    digits = Scope((N,), (), reads_of(blocks, flat // 9, flat % 9))
    exchanged = Scope((N,), (), reads_of(blocks, flat % 80, flat // 80))

    def product_of(p: Scalar, q: Scalar) -> Scope:
        return Scope((80, 80), (80,), product([p, q]))

    def shifted(by: int, extent: int, fill: float = 0.0) -> Scope:
        first = reads_of(row, it(2, extent) + by, fill=fill)
        return Scope((80, 80), (extent,), product([first, reads_of(x, i, j)]))

    def padded(value: float) -> Tensor:
        return op("Pad", x, attrs=((1, 1), (1, 1), value))

    def along(reducer: str) -> Scope:
        return Scope((80,), (80,), reads_of(x, it(0, 80), it(1, 80)), reducer)

    def outside(fill: float) -> Scope:
        at = [it(n, 82) - 1 for n in range(2)]
        return Scope((82, 82), (), Call("relu", (reads_of(x, *at, fill=fill),)))

    def joined(*parts: Tensor) -> Tensor:
        return op("Matmul", x, op("Concat", *parts, attrs=(1,)))

    last = k * -1 + 79
    once = op("Slice", joined(x, y), attrs=(1, 80, 160, 1))
    apart = op("Concat", op("Matmul", x, x), op("Matmul", x, y), attrs=(1,))
    image, w = leaf("image", 1, 4, 32, 32), leaf("w", 8, 2, 3, 3)

    def windows(step: int) -> Scope:
        at, r, s = it(1, 8), it(5, 3), it(6, 3)
        index = (it(0, 1), at // 4 * 2 + it(4, 2), it(2, 32) * step + r - 1, it(3, 32) + s - 1)
        body = product([reads_of(image, *index), reads_of(w, at, it(4, 2), r, s)])
        return Scope((1, 8, 32, 32), (2, 3, 3), body)

    conv = op("Conv2d", image, w, attrs=((1, 1), (1, 1), (1, 1), 2))
    both = product_of(reads_of(x, i, k), reads_of(y, k, j))
    return {
        "digits": Pair(op("Reshape", blocks, attrs=((N,),)), digits, exchanged),
        "product": Pair(op("Matmul", x, y), both,
                        product_of(reads_of(x, i, k), reads_of(y, j, k))),
        "reversed": Pair(both, product_of(reads_of(x, i, last), reads_of(y, last, j)),
                         product_of(reads_of(x, i, last), reads_of(y, k, j))),
        "reversed operands": Pair(
            op("Matmul", op("Reverse", x, attrs=((1,),)), op("Reverse", y, attrs=((0,),))),
            op("Matmul", x, y), op("Matmul", x, op("Reverse", y, attrs=((1,),)))),
        "narrowed": Pair(shifted(-3, 83), shifted(0, 80), shifted(0, 79)),
        "begins later": Pair(shifted(-3, 83), shifted(0, 80), shifted(1, 79)),
        "fill of a maximum": Pair(
            op("MaxPool2d", op("Reshape", x, attrs=((1, 1, 80, 80),)),
               attrs=((3, 1), (1, 1), (1, 0), (1, 1))),
            Scope((1, 1, 80, 80), (3,), reads_of(
                x, it(2, 80) + it(4, 3) - 1, it(3, 80), fill=-INF), "max"),
            Scope((1, 1, 80, 80), (3,), reads_of(
                x, it(2, 80) + it(4, 3) - 1, it(3, 80), fill=0.5), "max"),
        ),
        "reducer": Pair(op("ReduceMax", x, attrs=((1,), 0)), along("max"), along("min")),
        "fill": Pair(op("Relu", padded(0.5)), outside(0.5), outside(0.25)),
        "no fill": Pair(op("Relu", padded(0.5)), outside(0.5), outside(0.0)),
        "part of a product": Pair(once, op("Matmul", x, y), op("Matmul", x, x)),
        "joined": Pair(joined(x, y), apart, joined(y, x)),
        "groups": Pair(conv, windows(1), windows(2)),
        "number": Pair(
            op("ReduceMean", x, attrs=((1,), 0)),
            Scope((80,), (80,), product([Num(1 / 80), reads_of(x, it(0, 80), it(1, 80))])),
            Scope((80,), (80,), product([Num(1 / 79), reads_of(x, it(0, 80), it(1, 80))])),
        ),
        "distributed": Pair(
            op("Matmul", op("Add", x, y), y),
            op("Add", op("Matmul", x, y), op("Matmul", y, y)),
            op("Add", op("Matmul", x, y), op("Matmul", y, x)),
        ),
        "twice": Pair(
            Scope((80, 80), (), total([reads_of(x, i, j), reads_of(x, j, i)])),
            op("Add", x, op("Permute", x, attrs=((1, 0),))),
            op("Add", x, x),
        ),
    }  # fmt: skip


PAIRS = pairs()


@pytest.mark.parametrize("name", PAIRS)
def test_a_large_equality_is_seen_by_a_map_and_a_wrong_one_refused(name: str) -> None:
    given = PAIRS[name]
    assert holds_by_maps(given.left, given.right)
    assert not holds_by_maps(given.left, given.wrong)
    found = of(given.left, given.wrong)
    (error,) = found.failures
    assert not found.checked and error.rules == ("planted",) and error.index
    assert error.expected != error.got.split()[0]


def nearly(term: Tensor) -> Iterator[Tensor]:
    """Terms that differ from one in a single place: an index, a fill, a number, an attribute."""
    for part in topological([term]):
        for other in _changed(part):
            images: dict[Tensor, Tensor] = {part: other}
            try:
                for outer in topological([term]):
                    if outer not in images:
                        same = all(images[arg] == arg for arg in args_of(outer))
                        images[outer] = outer if same else over(outer, images)
            except EqsynthError:
                continue
            if images[term].type == term.type:
                yield images[term]


def _changed(part: Tensor) -> Iterator[Tensor]:
    if isinstance(part, Scope):
        for at, found in enumerate(leaves(part.body)):
            for new in _leaves(found):
                yield replace(part, body=_with_leaf(part.body, at, new))
        if part.reduction:
            yield replace(part, reducer="max" if part.reducer == "sum" else "sum")
    if isinstance(part, Op) and part.defined is None:
        for at, attr in enumerate(part.attrs):
            new: Any = attr
            if isinstance(attr, tuple) and attr:
                new = (*attr[1:], attr[0])
            elif isinstance(attr, float | int):
                new = attr + 1
            if new != attr:
                try:
                    yield Op(part.name, part.args, (*part.attrs[:at], new, *part.attrs[at + 1 :]))
                except (EqsynthError, ValueError):
                    continue


def _leaves(found: Scalar) -> Iterator[Scalar]:
    if isinstance(found, Num):
        yield Num(found.value + 1)
    if isinstance(found, Read):
        yield replace(found, fill=found.fill + 1 if abs(found.fill) < INF else 0.0)
        for axis, index in enumerate(found.index):
            for moved in (index + 1, index * -1 + (found.tensor.shape[axis] - 1)):
                yield replace(found, index=(*found.index[:axis], moved, *found.index[axis + 1 :]))


def _with_leaf(body: Scalar, at: int, new: Scalar) -> Scalar:
    seen = -1

    def changed(part: Scalar) -> Scalar:
        nonlocal seen
        if children(part):
            return rebuild(part, [changed(p) for p in children(part)])
        seen += 1
        return new if seen == at else part

    return changed(body)


def sides(log: Log) -> Iterator[tuple[Tensor, Tensor]]:
    """Both sides of the equalities of tensors that aren't read as one term."""
    ground = Ground(log)
    for equality in log.equalities:
        left, right = pair(ground.read, equality.left, equality.right)
        if isinstance(left, Tensor) and left != right:
            yield left, right


@pytest.mark.rotating(table="programs")
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_map_shows_is_so_on_data(name: str) -> None:
    """A few equalities, and what differs from them in one place."""
    log = saturated(name).log
    assert log is not None
    rng = random.Random(zlib.crc32(name.encode()))
    known = list(sides(log))
    for left, right in rng.sample(known, min(len(known), 2)):
        wrong = list(nearly(right))
        tried = [right, *rng.sample(wrong, min(len(wrong), 6))]
        claimed = [one for one in tried if holds_by_maps(left, one)]
        data = list(draws([left, *claimed], seed=0))
        given = [term for term in topological([left, right]) if isinstance(term, Input)]
        for one in claimed:
            try:
                judged("planted", left, one, given, Claim("real"), data)
            except Unknown:
                continue
            except CertificateError as error:
                pytest.fail(f"a map shows what isn't so: {error}")


@pytest.mark.rotating
def test_most_equalities_are_seen_by_maps() -> None:
    for name in ("attention", "strided-conv", "mlp", "pad-and-crop", "band-attention"):
        log = saturated(name).log
        assert log is not None
        seen = [holds_by_maps(left, right) for left, right in sides(log)]
        assert sum(seen) >= 0.8 * len(seen) > 0, name
