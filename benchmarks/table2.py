"""Prove the 43 operator properties of TASO [TASO Table 2]; none of them is a rule of eqsynth.

    python -m benchmarks.table2              prove each property in both ways
    python -m benchmarks.table2 --json FILE

Each property is proved in two independent ways:

- for all sizes, by ``eqsynth rules verify`` from ``tests/verify/table2.egg``;
- at a few sizes and parameters (stride, padding, activation), by the proof search behind
  ``prove_equal``, which derives it from eqsynth's rules.

All times are processor time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from eqsynth.egraph.proving import meet
from eqsynth.egraph.schedule import Limits
from eqsynth.generate.primitives import conv_identity, identity
from eqsynth.ir.tensor import Input, Op, Tensor
from eqsynth.ir.types import TensorType
from eqsynth.numerics import rules_of
from eqsynth.rules import DEFAULT_FILES, load_rules
from eqsynth.verify import verify_rule

FILE: Final = Path(__file__).resolve().parents[1] / "tests" / "verify" / "table2.egg"
LIMITS: Final = Limits(20_000, 60.0)

PROPERTIES: Final[dict[str, tuple[str, str, str]]] = {
    # name: (shapes of the variables, left side, right side); "x y: mn" makes x and y m x n matrices
    "ewadd-associative": ("x y z: mn", "add(x, add(y, z))", "add(add(x, y), z)"),
    "ewadd-commutative": ("x y: mn", "add(x, y)", "add(y, x)"),
    "ewmul-associative": ("x y z: mn", "mul(x, mul(y, z))", "mul(mul(x, y), z)"),
    "ewmul-commutative": ("x y: mn", "mul(x, y)", "mul(y, x)"),
    "ewmul-distributes": ("x y z: mn", "mul(add(x, y), z)", "add(mul(x, z), mul(y, z))"),
    "smul-associative": ("x: mn; y w:", "mul(mul(x, y), w)", "mul(x, mul(y, w))"),
    "smul-distributes": ("x y: mn; w:", "mul(add(x, y), w)", "add(mul(x, w), mul(y, w))"),
    "smul-of-ewmul": ("x y: mn; w:", "mul(mul(x, y), w)", "mul(x, mul(y, w))"),
    "transpose-inverse": ("x: mn", "t(t(x))", "x"),
    "transpose-of-ewadd": ("x y: mn", "t(add(x, y))", "add(t(x), t(y))"),
    "transpose-of-ewmul": ("x y: mn", "t(mul(x, y))", "mul(t(x), t(y))"),
    "transpose-of-smul": ("x: mn; w:", "mul(t(x), w)", "t(mul(x, w))"),
    "matmul-associative": (
        "x: mk; y: kn; z: nl", "matmul(x, matmul(y, z))", "matmul(matmul(x, y), z)"
    ),
    "matmul-of-smul": ("x: mk; y: kn; w:", "mul(matmul(x, y), w)", "matmul(x, mul(y, w))"),
    "matmul-of-ewadd": (
        "x: mk; y z: kn", "matmul(x, add(y, z))", "add(matmul(x, y), matmul(x, z))"
    ),
    "matmul-transposed": ("x: mk; y: kn", "t(matmul(x, y))", "matmul(t(y), t(x))"),
    "conv-smul-moves": ("x: bchw; y: dcrr; w:", "conv(mul(x, w), y)", "conv(x, mul(y, w))"),
    "conv-of-smul": ("x: bchw; y: dcrr; w:", "mul(plain(x, y), w)", "plain(mul(x, w), y)"),
    "conv-of-kernels": (
        "x: bchw; y z: dcrr", "plain(x, add(y, z))", "add(plain(x, y), plain(x, z))"
    ),
    "conv-of-images": (
        "x y: bchw; z: dcrr", "plain(add(x, y), z)", "add(plain(x, z), plain(y, z))"
    ),
    "conv-enlarged": ("x: bchw; y: dcrr", "same(x, y)", "same(x, enlarge(y))"),
    "conv-with-relu": ("x: bchw; y: dcrr", "fused(x, y)", "relu(plain(x, y))"),
    "relu-of-transpose": ("x: mn", "relu(t(x))", "t(relu(x))"),
    "pool-by-conv": ("x: bchw", "plain(x, c_pool(x))", "avg(x)"),
    "conv-identity": ("x: bchw", "at_stride_1(x, i_conv(x))", "x"),
    "matmul-identity": ("x: mn", "matmul(x, i_matmul(x))", "x"),
    "ewmul-identity": ("x: mn", "mul(x, ones(x))", "x"),
    "split-first": ("x: mn; y: kn", "part(concat(0, x, y), x, 0)", "x"),
    "split-second": ("x: mn; y: kn", "part(concat(0, x, y), x, 1)", "y"),
    "concat-geometry": (
        "x: mn; y: mk; z: ln; w: lk", "concat(0, concat(1, x, y), concat(1, z, w))",
        "concat(1, concat(0, x, z), concat(0, y, w))",
    ),
    "concat-of-smul": (
        "x: mn; y: kn; w:", "concat(0, mul(x, w), mul(y, w))", "mul(concat(0, x, y), w)"
    ),
    "concat-of-ewadd": (
        "x y: mn; z w: kn", "concat(0, add(x, y), add(z, w))",
        "add(concat(0, x, z), concat(0, y, w))",
    ),
    "concat-of-ewmul": (
        "x y: mn; z w: kn", "concat(0, mul(x, y), mul(z, w))",
        "mul(concat(0, x, z), concat(0, y, w))",
    ),
    "concat-of-relu": ("x: mn; y: kn", "concat(0, relu(x), relu(y))", "relu(concat(0, x, y))"),
    "concat-of-transpose": ("x: mn; y: kn", "concat(1, t(x), t(y))", "t(concat(0, x, y))"),
    "matmul-of-columns": (
        "x: mk; y: kn; z: kl", "concat(1, matmul(x, y), matmul(x, z))",
        "matmul(x, concat(1, y, z))",
    ),
    "matmul-of-blocks": (
        "x: mk; y: kn; z: ml; w: ln", "matmul(concat(1, x, z), concat(0, y, w))",
        "add(matmul(x, y), matmul(z, w))",
    ),
    "conv-of-batches": (
        "x y: bchw; z: dcrr", "concat(0, conv(x, z), conv(y, z))", "conv(concat(0, x, y), z)"
    ),
    "conv-of-filters": (
        "x: bchw; y z: dcrr", "concat(1, conv(x, y), conv(x, z))", "conv(x, concat(0, y, z))"
    ),
    "conv-of-channels": (
        "x z: bchw; y w: dcrr", "plain(concat(1, x, z), concat(1, y, w))",
        "add(plain(x, y), plain(z, w))",
    ),
    "avg-pool-of-channels": (
        "x y: bchw", "concat(1, avg(x), avg(y))", "avg(concat(1, x, y))"
    ),
    "max-pool-of-batches": (
        "x y: bchw", "concat(0, top(x), top(y))", "top(concat(0, x, y))"
    ),
    "max-pool-of-channels": (
        "x y: bchw", "concat(1, top(x), top(y))", "top(concat(1, x, y))"
    ),
}  # fmt: skip

CASES: Final[tuple[tuple[Mapping[str, int], int, bool, bool], ...]] = (
    # (sizes, stride, whether padding keeps the size of an image, whether there is an activation)
    (dict(m=2, n=3, k=4, l=5, b=1, c=2, d=3, h=5, w=4, r=3), 1, True, False),
    (dict(m=5, n=1, k=3, l=2, b=2, c=1, d=2, h=6, w=7, r=3), 2, False, True),
    (dict(m=4, n=6, k=2, l=1, b=2, c=3, d=4, h=7, w=5, r=1), 2, True, True),
)


@dataclass(frozen=True)
class Found:
    """The results of proving one property.

    Attributes:
        sizes: the number of cases (``CASES``) in which it was derived.
        verified: the outcome of ``rules verify``.
        left: what ``rules verify`` leaves to show; empty if the property is proved.
    """

    name: str
    sizes: int
    derived_s: float
    verified: str
    verified_s: float
    left: str


def sides(
    name: str, sizes: Mapping[str, int], stride: int, same: bool, relu: bool
) -> tuple[Tensor, Tensor]:
    """Both sides of a property as terms, at one choice of sizes and parameters."""
    shapes, left, right = PROPERTIES[name]
    known: dict[str, Any] = dict(_functions(stride, same, relu))
    for group in shapes.split(";"):
        names, _, axes = group.partition(":")
        for variable in names.split():
            kind = TensorType(tuple(sizes[axis] for axis in axes.strip()), "float32")
            known[variable] = Input(variable, kind)
    return eval(left, {}, known), eval(right, {}, known)


def _functions(stride: int, same: bool, relu: bool) -> dict[str, Callable[..., Tensor]]:
    def conv(x: Tensor, y: Tensor, s: int = stride, keep: bool = same) -> Tensor:
        pads = tuple(extent // 2 if keep else 0 for extent in y.shape[2:])
        return Op("Conv2d", (x, y), ((s, s), pads, (1, 1), x.shape[1] // y.shape[1]))

    def activated(x: Tensor, y: Tensor) -> Tensor:
        return Op("Relu", (conv(x, y),))

    def fused(x: Tensor, y: Tensor) -> Tensor:
        plain = conv(x, y)
        assert isinstance(plain, Op)
        none = full((y.shape[0],), 0.0)
        return Op("FusedConv2d", (x, y, none), (*plain.attrs, "relu"))

    def pool(name: str) -> Callable[[Tensor], Tensor]:
        pad = (1, 1) if same else (0, 0)
        return lambda x: Op(name, (x,), ((3, 3), (stride, stride), pad, (1, 1)))

    def enlarge(y: Tensor) -> Tensor:
        return Op("Pad", (y,), ((0, 0, 1, 1), (0, 0, 1, 1), 0.0))

    def part(whole: Tensor, first: Tensor, which: int) -> Tensor:
        bounds = ((0, first.shape[0]), (first.shape[0], whole.shape[0]))[which]
        return Op("Slice", (whole,), (0, *bounds, 1))

    def full(shape: tuple[int, ...], value: float) -> Tensor:
        return Op("Full", (), (shape, value, "float32"))

    return {
        "add": lambda x, y: Op("Add", (x, y)), "mul": lambda x, y: Op("Mul", (x, y)),
        "t": lambda x: Op("Permute", (x,), ((1, 0),)), "relu": lambda x: Op("Relu", (x,)),
        "matmul": lambda x, y: Op("Matmul", (x, y)),
        "concat": lambda axis, *xs: Op("Concat", xs, (axis,)), "part": part,
        "plain": conv, "fused": fused, "conv": activated if relu else conv,
        "same": lambda x, y: conv(x, y, keep=True),
        "at_stride_1": lambda x, y: conv(x, y, 1, True), "enlarge": enlarge,
        "avg": pool("AvgPool2d"), "top": pool("MaxPool2d"),
        "c_pool": lambda x: full((x.shape[1], 1, 3, 3), 1 / 9),
        "i_conv": lambda x: conv_identity(x.shape[1], 3),
        "i_matmul": lambda x: identity(x.shape[1]), "ones": lambda x: full(x.shape, 1.0),
    }  # fmt: skip


def derived(name: str) -> Iterator[tuple[bool, float]]:
    """For each case: whether the property is derived, and the processor time (s)."""
    rules = rules_of((), "cancels", where="benchmarks.table2", proving=True)
    for sizes, stride, same, relu in CASES:
        begin = time.process_time()
        left, right = sides(name, sizes, stride, same, relu)
        yield (
            left == right or meet([left], [right], rules, LIMITS).proved,
            (time.process_time() - begin),
        )


def properties() -> Iterator[Found]:
    """Prove every property; yield the results one by one."""
    rules = load_rules([*DEFAULT_FILES, FILE])
    written = {rule.name: rule for rule in rules.rules if rule.file == str(FILE)}
    for name in PROPERTIES:
        at = list(derived(name))
        verdict = verify_rule(rules, written[name], samples=False, limit_s=60.0)
        why = "" if verdict.outcome == "proved" else verdict.why
        yield Found(
            name, sum(proved for proved, _ in at), sum(s for _, s in at), verdict.outcome,
            verdict.seconds, why,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = []
    for found in properties():
        rows.append(found)
        print(
            f"{found.name:22}  derived at {found.sizes} of {len(CASES)} ({found.derived_s:.1f} s)  "
            f"{found.verified:10} ({found.verified_s:.1f} s)  {found.left}",
            flush=True,
        )
    print(
        f"{len(rows)} properties: "
        f"{sum(r.verified == 'proved' for r in rows)} proved for all sizes, "
        f"{sum(r.sizes == len(CASES) for r in rows)} derived at all of {len(CASES)} sizes, "
        f"{sum(r.verified == 'proved' or r.sizes == len(CASES) for r in rows)} one or the other; "
        f"{sum(r.verified_s + r.derived_s for r in rows):.0f} s of the processor"
    )
    if asked.json:
        asked.json.write_text(json.dumps([asdict(r) for r in rows], indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
