"""``torch.einsum`` in pairs: the values of torch, for random equations in random orders."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

import eqsynth
from eqsynth.errors import EqsynthError, ShapeError, UnsupportedOperatorError
from eqsynth.frontend.ops.einsum_pairs import einsum_in_pairs
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import Op, topological
from tests.turns import by_turns

LETTERS = "abcdef"


def equation(r: random.Random) -> tuple[str, list[tuple[int, ...]]]:
    """An equation of up to four operands, and their shapes. Some have an ellipsis."""
    extents = {letter: r.randint(1, 4) for letter in LETTERS}
    more = tuple(r.randint(1, 3) for _ in range(r.randint(0, 2)))
    terms, shapes = [], []
    for _ in range(r.randint(1, 4)):
        letters = r.sample(LETTERS, r.randint(0, 4))
        place = r.randint(0, len(letters)) if r.random() < 0.3 else None
        shape = [extents[letter] for letter in letters]
        if place is not None:
            letters.insert(place, "...")
            shape[place:place] = more
        terms.append("".join(letters))
        shapes.append(tuple(shape))
    used = sorted({*"".join(terms)} - {"."})
    out = r.sample(used, r.randint(0, len(used)))
    dots = "..." * any("..." in term for term in terms)
    return ",".join(terms) + f"->{dots}{''.join(out)}" * (r.random() < 0.8), shapes


def order(r: random.Random, operands: int) -> list[int] | None:
    """A path as torch writes it, or None."""
    if r.random() < 0.5:
        return None
    return [n for left in range(operands, 1, -1) for n in r.sample(range(left), 2)]


@by_turns
def test_random_equations(turn: int) -> None:
    for seed in range(8 * turn, 8 * turn + 8):
        r = random.Random(seed)
        text, shapes = equation(r)
        g = torch.Generator().manual_seed(seed)
        values = [torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes]
        args = [eqsynth.input(f"x{n}", shape, dtype="float64") for n, shape in enumerate(shapes)]
        made = einsum_in_pairs(text, args, order(r, len(args)))
        env = {f"x{n}": value.numpy() for n, value in enumerate(values)}
        wanted = torch.einsum(text, *values).numpy()
        got = evaluate(made.tensor, env)
        assert got.shape == wanted.shape, text
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9, err_msg=text)


@pytest.mark.parametrize(
    ("text", "shapes", "error"),
    [
        ("ii->i", [(3, 3)], UnsupportedOperatorError),
        ("ij,jk->ik", [(3, 1), (4, 5)], ShapeError),
        ("...i,...i->...", [(2, 3), (2, 2, 3)], UnsupportedOperatorError),
        ("...ij,i->j", [(3,), (3,)], UnsupportedOperatorError),
        ("ij,jk->ik", [(3, 4)], ShapeError),
        ("ijk->i", [(3, 4)], ShapeError),
    ],
)
def test_what_torch_decomposes(
    text: str, shapes: list[tuple[int, ...]], error: type[EqsynthError]
) -> None:
    args = [eqsynth.input(f"x{n}", shape) for n, shape in enumerate(shapes)]
    with pytest.raises(error):
        einsum_in_pairs(text, args)
    integers = [eqsynth.input(f"x{n}", shape, dtype="int64") for n, shape in enumerate(shapes)]
    with pytest.raises(EqsynthError):
        einsum_in_pairs(text, integers)


class Einsum(torch.nn.Module):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        return torch.einsum(self.text, *x)


@pytest.mark.parametrize(
    ("text", "shapes", "products"),
    [
        ("bhid,bhjd->bhij", [(2, 3, 5, 4), (2, 3, 6, 4)], 1),
        ("ijk,ia,jb,kc->abc", [(5, 6, 7), (5, 2), (6, 3), (7, 4)], 3),
        ("ij,kj->kji", [(3, 4), (5, 4)], 0),  # nothing is summed
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)], 1),
        ("ii,ij->j", [(3, 3), (3, 4)], None),  # decomposed by torch
    ],
)
def test_a_module_with_einsum(
    text: str, shapes: list[tuple[int, ...]], products: int | None
) -> None:
    module, values = Einsum(text).eval(), [torch.randn(shape) for shape in shapes]
    captured = capture(module, tuple(values), {})
    assert not captured.opaque
    terms = [*topological(captured.program.outputs)]
    found = sum(isinstance(term, Op) and term.name == "Matmul" for term in terms)
    # No views but those that flatten groups of axes: at most three for an operand, four after it.
    if products is not None:
        assert found == products
        assert len(terms) <= len(shapes) + 10 * max(products, 1)
    env = {i.name: v.numpy() for i, v in zip(captured.program.inputs, values, strict=True)}
    got = evaluate(captured.program.outputs[0], env)
    np.testing.assert_allclose(got, module(*values).numpy(), rtol=1e-5, atol=1e-5)
