"""Places: what was captured on the host, moved to another device (torch's ``meta``, which is one
that every machine has)."""

from __future__ import annotations

import pytest
import torch
from gpu_cases import GPU

from eqsynth.errors import LoweringError
from eqsynth.lower.places import HOST, Place, Ported, elsewhere, ported
from eqsynth.lower.torch_calls import Argument, Named, TorchCall

THERE = Place(torch.device("meta"))


def test_an_opaque_call_is_made_where_its_arguments_are() -> None:
    """With its fixed tensors, and the devices that it names, also of calls within."""
    line = TorchCall(torch.ops.aten.arange.default, "arange", (3,), {"device": HOST})
    fixed = Named("table", torch.ones(3))
    inner = TorchCall(torch.ops.aten.add.Tensor, "add", (line, fixed), {})
    call = TorchCall(torch.ops.aten.mul.Tensor, "mul", (Argument(0), inner), {})
    (moved,) = ported({"call": call}, THERE).values()
    assert moved(torch.ones(3, device="meta")).device == THERE.device
    assert torch.equal(call(torch.ones(3)), torch.tensor([1.0, 2.0, 3.0]))
    given = {"call": call}
    assert ported(given, Place()) is given


def test_what_is_no_call_of_torch_runs_on_the_host() -> None:
    seen: list[torch.device] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.device)
        return x.cpu()

    (moved,) = ported({"f": function}, THERE).values()
    assert moved(torch.ones(2)).device == THERE.device and seen == [HOST]


def test_a_module_that_is_called_from_the_host() -> None:
    asked: list[torch.device] = []

    def call(x: torch.Tensor, *, y: list[torch.Tensor]) -> torch.Tensor:
        asked.extend((x.device, y[0].device))
        return torch.ones(2)

    result = Ported(call, THERE)(torch.ones(3), y=[torch.ones(3)])
    assert asked == [THERE.device] * 2 and result.device == HOST


def test_a_device_that_is_not_here() -> None:
    place = elsewhere(GPU)
    assert (place.device.type, place.home, place.here) == (GPU.name, HOST, False)
    with pytest.raises(LoweringError) as caught:
        place.recorded(lambda: [])()
    assert GPU.device.model in caught.value.got
