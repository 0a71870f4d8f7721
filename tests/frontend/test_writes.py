"""Assignments to parts of a tensor are captured as operators that rules know, and compute what
torch computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import eqsynth
from eqsynth.frontend.recognized import filled
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import Op, Tensor, Weight, topological

X, Y = torch.linspace(-1, 2, 60).reshape(6, 10), torch.linspace(3, 4, 30).reshape(6, 5)


def _rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.zeros_like(x)
    z[1:] = x[:-1]
    z[0] += 1
    return z


def _block(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z[2:-1, -4:] = y[2:5, :4]
    z[2:4] *= 2
    return z


def _strided(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.empty_like(x)
    z[:, ::2], z[:, 1::2] = y, -y
    z[1::4, 2::3] = 7
    return z


def _columns(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z[:, -1] = y[:, 0]
    z[..., 2:4] = y[:, :1]
    z.T[3] = 5
    return z


def _diagonals(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z.fill_diagonal_(9)
    z.diagonal(2)[:3] = y[0, :3]
    return z + torch.diagonal_scatter(x, y[:5, 0], -1)


def _masked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x.clone()
    z[x > 1] = 0
    z[:, x[0] > -0.8] = 2
    z = z.index_put((x > 0.5,), torch.tensor(1.0), accumulate=True)
    z[y[:, 0] > 3.5] = x[0]
    return z


def _of_another_dtype(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.zeros(6, 10, dtype=torch.int32)
    z[:, 2:7] = y
    z[0] = True
    return z


WRITES = [_rows, _block, _strided, _columns, _diagonals, _masked, _of_another_dtype]


class Writing(torch.nn.Module):
    def __init__(self, write: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.write = write

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.write(x, y)


def _parts(*roots: Tensor) -> list[Tensor]:
    return [*topological(roots)]


@pytest.mark.parametrize("write", WRITES)
def test_an_assignment_is_an_operator(
    write: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    program = capture(Writing(write).eval(), (X, Y)).program
    parts = _parts(*program.outputs)
    assert not [part for part in parts if isinstance(part, Op) and part.name == "Opaque"]
    # Numbers that are written are numbers, and not constants of one element.
    assert not [part for part in parts if isinstance(part, Weight)]


@pytest.mark.rotating
@pytest.mark.parametrize("write", WRITES)
def test_an_assignment_computes_what_torch_computes(
    write: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    module = Writing(write).eval()
    options = {"objective": "flops", "progress": False}
    program = eqsynth.optimize(module, (X, Y), **options)
    torch.testing.assert_close(program(X, Y), module(X, Y), rtol=0, atol=0)
    assert program.original is None


def test_other_positions_stay_with_torch() -> None:
    def write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x.clone()
        z[:, [3, 1]] = y[:, :2]
        return z

    program = capture(Writing(write).eval(), (X, Y)).program
    assert [p for p in _parts(*program.outputs) if isinstance(p, Op) and p.name == "Opaque"]


@pytest.mark.parametrize(
    ("tensor", "number"),
    [
        (torch.tensor(0.5), 0.5),
        (torch.full((2, 3), -torch.inf, dtype=torch.float16), -torch.inf),
        (torch.tensor([3, 3]), 3.0),
        (torch.tensor(True), 1.0),
    ],
)
def test_a_tensor_of_one_number_is_said_as_the_number(tensor: torch.Tensor, number: float) -> None:
    said = filled(tensor)
    assert said is not None and isinstance(said.tensor, Op) and said.tensor.name == "Full"
    assert said.tensor.attrs[1] == number and said.shape == tensor.shape
    assert said.dtype == str(tensor.dtype).removeprefix("torch.")
    assert torch.equal(torch.from_numpy(evaluate(said.tensor, {})), tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.0, 2.0]), torch.tensor(torch.nan), torch.tensor(-0.0),
        torch.tensor([0.0, -0.0]), torch.tensor(2**53 + 1), torch.zeros(0), torch.tensor(1j),
        torch.eye(3).to_sparse(),
    ],
)  # fmt: skip
def test_other_tensors_are_not(tensor: torch.Tensor) -> None:
    assert filled(tensor) is None


def test_a_buffer_of_one_number_stays_data() -> None:
    """It may be replaced by `refresh`."""

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.tensor(2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    program = capture(Scaled().eval(), (X,)).program
    assert [part for part in _parts(*program.outputs) if isinstance(part, Weight)]
