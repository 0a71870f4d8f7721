"""Index tensors that are computed from nothing become affine reads; all others stay data."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from eqsynth.frontend.torch_export import capture
from eqsynth.ir.index import Index
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.program import positions
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Input, Op, Region, Scope, Tensor, over, topological
from eqsynth.ir.types import TensorType
from eqsynth.lower.torch_ops import region_function

arange = torch.arange

AFFINE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a window with steps": lambda x: x[:, arange(3)[:, None] + 2 * arange(2)],
    "a diagonal": lambda x: x[:, arange(5), arange(5)],
    "an antidiagonal": lambda x: x[:, arange(5), 4 - arange(5)],
    "an offset diagonal, first": lambda x: x[arange(3), arange(3) + 2],
    "axes that are no neighbours": lambda x: x[arange(3), :, arange(3) + 1],
    "an outer product of positions": lambda x: x[:, arange(3)[:, None], arange(4)[None, :]],
    "from the end": lambda x: x[:, arange(3) - 5],
    "repeated": lambda x: x[:, torch.zeros(4, dtype=torch.int64)],
    "one position": lambda x: x[:, arange(1) + 3],
    "quotients that are steps": lambda x: x[:, (4 * arange(4)) // 4 + 1],
    "int32": lambda x: x[:, arange(3, dtype=torch.int32)],
}
DATA: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a square": lambda x: x[:, (arange(3) ** 2)],
    "round the end": lambda x: x[:, arange(4) - 2],
    "alternating": lambda x: x[:, arange(4) % 2],
}


class Of(torch.nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.function(*args)


@pytest.mark.parametrize("affine", [True, False], ids=["affine", "data"])
def test_positions_that_are_affine_are_indices(affine: bool) -> None:
    x, wrong = torch.randn(3, 5, 6), []
    for name, function in (AFFINE if affine else DATA).items():
        captured = capture(Of(function).eval(), (x,))
        (term,) = captured.program.outputs
        (given,) = captured.program.inputs
        arrays = {given.name: x.numpy()}
        arrays |= {key: value.numpy() for key, value in captured.weights.items()}
        value = torch.from_numpy(evaluate(term, arrays)).float()
        looked_up = [t for t in captured.program.terms() if isinstance(t, Op)
                     and t.name in ("Embedding", "Gather", "Opaque")]  # fmt: skip
        if not torch.equal(value, function(x)):
            wrong.append(f"{name}: another value")
        if affine != (isinstance(term, Scope) and not looked_up):
            wrong.append(f"{name}: {term}")
    assert not wrong, wrong


def test_positions_from_an_input_are_data() -> None:
    class Rows(torch.nn.Module):
        def forward(self, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
            return x[:, i + arange(3)]

    captured = capture(Rows().eval(), (torch.randn(3, 5), torch.tensor([0, 1, 1])))
    assert any(isinstance(t, Op) and t.name == "Embedding" for t in captured.program.terms())


def test_a_gathered_band_is_a_band_product() -> None:
    """Longformer's scores, gathered in plain torch: (q k[position]) is found to be G2BMM."""
    from eqsynth.egraph.schedule import saturate
    from eqsynth.egraph.session import Session
    from eqsynth.rules import load_rules

    class Scores(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            position = arange(8)[:, None] + 2 * arange(5)[None, :]
            keys = torch.nn.functional.pad(k, (0, 0, 4, 4))[:, position]
            return (q[:, :, None, :] @ keys.transpose(-1, -2))[:, :, 0]

    captured = capture(Scores().eval(), (torch.randn(2, 8, 3), torch.randn(2, 8, 3)))
    session = Session(load_rules(), log_matches=False)
    session.add(captured.program.outputs)
    report = saturate(session)
    graph = session.graph(captured.program.outputs, report.stop, report.seconds, {})
    members = [m for terms in graph.classes.values() for m in terms if isinstance(m, Op)]
    assert any(m.name == "G2BMM" and m.attrs == (2, 2) for m in members)


SEVERAL: dict[str, Callable[..., torch.Tensor]] = {
    "a place of each row": lambda x, i: x[arange(3), i],
    "the other way round": lambda x, i: x[i, arange(3)],
    "axes behind": lambda x, i: x[:, arange(3), i],
    "axes that are no neighbours": lambda x, i: x[arange(3), :, i],
    "three axes": lambda x, i: x[arange(3), i, arange(3) + 2],
    "known ones count from the end": lambda x, i: x[arange(3) - 3, i],
    "broadcast": lambda x, i: x[arange(2)[:, None], i[None, :]],
    "int32": lambda x, i: x[arange(3, dtype=torch.int32), i],
    "several places of each row": lambda x, i: x[arange(3)[:, None], i[:, None] - arange(2) % 1],
    "of each row and column": lambda x, i: x[arange(3)[:, None], :, i[:, None].expand(3, 2)],
    "two axes that count": lambda x, i: x[arange(3)[:, None], i[:, None].expand(3, 6), arange(6)],
    "two axes that count together": lambda x, i: x[:, :3, :3][arange(3), i, arange(3)],
    "whole axes behind": lambda x, i: x[:, :3][:, arange(3), i],
    "places first": lambda x, i: x[arange(3)[None], i.expand(2, 3)],
    "a batch of one": lambda x, i: x[:1][arange(1), i],
    "the last largest of each row": lambda x, i: x[
        arange(3), (i[:, None] * arange(5)).argmax(-1), (i[:, None] + arange(4)).argmin(-1)
    ],
    "one that both bounds hold": lambda x, i: x[arange(3), torch.where(i > 1, 2, -1)],
}


@pytest.mark.parametrize("name", SEVERAL)
def test_one_of_several_positions_may_be_data(name: str) -> None:
    """It may count from the end, and one that there isn't is an error."""
    model, x = Of(SEVERAL[name]).eval(), torch.randn(3, 5, 6)
    given = torch.tensor([2, 0, 1])
    captured = capture(model, (x, given))
    assert not captured.opaque, captured.opaque
    leaves = [*captured.program.inputs, *captured.program.weights()]
    images: dict[Tensor, Tensor] = {a: Input(str(n), a.type) for n, a in enumerate(leaves)}
    for term in topological(captured.program.outputs):
        if term not in images:
            images[term] = over(term, images)
    outputs = tuple(images[o] for o in captured.program.outputs)
    weights = [captured.weights[a.label] for a in captured.program.weights()]
    run = region_function(Region(outputs, tuple(images[a] for a in leaves)))
    data = "one that" not in name and "largest" not in name
    for places in (given, given - 3, torch.tensor([-1, 2, -3])):
        assert torch.equal(run(x, places, *weights)[0], model(x, places))
    for places in (torch.tensor([0, 7, 1]), torch.tensor([-8, 1, 1]), torch.tensor([0, 0, 600])):
        if not data:
            assert torch.equal(run(x, places, *weights)[0], model(x, places))
            continue
        with pytest.raises(IndexError):
            model(x, places)
        with pytest.raises((IndexError, RuntimeError)):  # as torch.gather
            run(x, places, *weights)


def test_no_places_of_each_row_are_no_rows() -> None:
    model = Of(lambda x, i: x[arange(3)[:, None], i]).eval()
    x, none = torch.randn(3, 5, 6), torch.zeros(3, 0, dtype=torch.int64)
    captured = capture(model, (x, none))
    arrays = {i.name: v.numpy() for i, v in zip(captured.program.inputs, (x, none), strict=True)}
    arrays |= {key: value.numpy() for key, value in captured.weights.items()}
    assert evaluate(captured.program.outputs[0], arrays).shape == (3, 0, 6)


def test_positions_of_test_data_are_those_of_what_a_view_shows() -> None:
    ids = Input("ids", TensorType((2, 3), "int64"))
    rows = Op("Reshape", (Op("Slice", (ids,), (0, 0, 1, 1)),), ((3,),))
    taken = Op("Embedding", (Input("table", TensorType((5, 4), "float32")), rows))
    assert positions([taken]) == {rows: 5}
    assert positions([taken], views=True)[ids] == 5
    shown = Scope((3, 2), (), Read(ids, (Index.iterator(1, 2), Index.iterator(0, 3))))
    table = Input("table", TensorType((5, 2), "float32"))
    assert positions([Op("Gather", (table, shown), (0,))], views=True)[ids] == 5


def test_two_positions_of_data_stay_with_torch() -> None:
    """Of one number for both nobody could say which of them is out of range."""
    captured = capture(Of(lambda x, i: x[i, i + 1]).eval(), (torch.randn(3, 5), torch.tensor([1])))
    assert captured.opaque
