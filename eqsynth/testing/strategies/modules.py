"""Hypothesis strategies of torch modules in evaluation mode, with arguments for them.

The simplest module is a ReLU of a vector of one element.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st

from eqsynth.testing.module_case import ModuleCase
from eqsynth.testing.strategies.growing import Growing
from eqsynth.testing.strategies.layers import lines_of
from eqsynth.testing.strategies.types import shapes


@st.composite
def torch_modules(
    draw: st.DrawFn,
    *,
    steps: int = 4,
    dtypes: Sequence[str] = ("float32",),
    empty: bool = False,
    largest: int = 4,
    size: int = 1024,
) -> ModuleCase:
    """Modules of a few lines, over images, sequences, matrices and vectors.

    They have layers, functions and opaque operators. Values, layers and parameters may be used
    several times. The result is a tensor, a tuple, a list or a dict.

    Args:
        steps: the most lines, without the last one.
        dtypes: the dtypes of the first argument, the simplest first. Layers have the first float
            dtype among them.
        empty: whether extents of arguments may be 0.
        largest: the largest extent of the first argument; images may be twice as large.
        size: the most elements of a value.

    >>> from hypothesis import find
    >>> find(torch_modules(), lambda case: "Conv2d" in repr(case))
    ModuleCase(
        inputs=(Argument((1, 1, 1, 1)),),
        layers=(
            'l0 = nn.Conv2d(1, 1, (1, 1), padding=(0, 0))',
        ),
        forward=(
            'v0 = self.l0(x0)',
            'return v0',
        ),
    )
    """
    dtype = draw(st.sampled_from(list(dtypes)))
    floats = [d for d in (dtype, *dtypes, "float32") if getattr(torch, d).is_floating_point]
    g = Growing(draw, floats[0], size)
    rank = draw(st.sampled_from([1, 2, 4, 3, 2, 4]))
    shape = draw(shapes((rank, rank), largest, empty=empty))
    if rank == 4:
        shape = (*shape[:2], *(extent * draw(st.integers(1, 2)) for extent in shape[2:]))
    values = [g.argument(shape, dtype)]
    # Whether to stop is drawn even after the last step, so that hypothesis can remove a step from
    # the middle without changing the meaning of the draws after it.
    while draw(st.integers(0, 9)) and steps > 0:
        steps -= 1
        value = draw(_lines(g, values))
        values += [value] if value else []
    if len(values) == 1:
        value = g.grow(lambda _g, x: f"F.relu({x})", values[0])
        values += [value] if value else []
    return g.case(_result(draw, values), draw(st.integers(0, 1 << 16)))


@st.composite
def _lines(draw: st.DrawFn, g: Growing, values: Sequence[str]) -> str | None:
    """A line over one of the last values. It is one draw, so that shrinking removes it as a
    whole."""
    x = values[-1 - draw(st.sampled_from([0, 0, 0, 0, 1, 2])) % len(values)]
    return g.grow(draw(st.sampled_from(list(lines_of(g.values[x])))), x)


def _result(draw: st.DrawFn, values: Sequence[str]) -> str:
    """Code of the result: the last value, or a tuple, list or dict with it."""
    last, other = values[-1], values[draw(st.integers(0, len(values) - 1))]
    forms = [last] * 5 + [f"({last}, {other})", f"[{last}]", f"{{'a': {last}, 'b': ({other},)}}"]
    return str(draw(st.sampled_from(forms)))
