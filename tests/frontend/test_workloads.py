"""Every workload, at reduced size: captured whole, and computing what torch computes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from benchmarks.workloads import WORKLOADS
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.tensor import Op

# In float64, where the oracle computes, so that only another formula can differ.
TOLERANCE = 1e-10


@pytest.mark.rotating
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_captured_without_opaque_operators(
    name: str, run: Callable[..., Any]
) -> None:
    module, inputs = WORKLOADS[name].reduced()
    captured = capture(module.double(), tuple(x.double() for x in inputs))
    opaque = [t.label for t in captured.program.terms() if isinstance(t, Op) and t.name == "Opaque"]
    assert opaque == []
    inputs = tuple(x.double() for x in inputs)
    expected = tree_leaves(module(*inputs))
    for got, want in zip(tree_leaves(run(captured, *inputs)), expected, strict=True):
        assert want.abs().max() > 1e-6  # else any tolerance would do
        torch.testing.assert_close(got, want, rtol=0, atol=TOLERANCE * float(want.abs().max()))


def test_the_comparison_can_fail(run: Callable[..., Any]) -> None:
    module, inputs = WORKLOADS["transition"].reduced()
    captured = capture(module, inputs)
    got = run(captured, *tree_map(lambda x: x + 1e-3, inputs))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(got, module(*inputs), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["resnet18", "lstm", "longformer_gather"])
def test_workloads_are_the_same_each_time(name: str) -> None:
    first, second = WORKLOADS[name].reduced(), WORKLOADS[name].reduced()
    for a, b in zip(first[0].state_dict().values(), second[0].state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))


def test_building_a_workload_leaves_the_random_state_alone() -> None:
    state = torch.random.get_rng_state()
    WORKLOADS["lstm"].reduced()
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("resnet18", 11_689_512), ("resnet50", 25_557_032), ("resnext50", 25_028_904),
     ("vgg16", 14_714_688), ("bert128", 2 * 7_087_872)],
)  # fmt: skip
def test_the_nets_have_the_published_sizes(name: str, parameters: int) -> None:
    with torch.device("meta"):
        module, _ = WORKLOADS[name].full(1)
    assert sum(p.numel() for p in module.parameters()) == parameters


def test_batch_norms_have_statistics_of_their_own() -> None:
    module, _ = WORKLOADS["resnet18"].reduced()
    norms = [m for m in module.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert norms
    for norm in norms:
        assert norm.running_mean is not None and norm.running_var is not None
        for values, trivial in ((norm.running_mean, 0), (norm.running_var, 1),
                                (norm.weight, 1), (norm.bias, 0)):  # fmt: skip
            assert (values - trivial).abs().min() > 0


def test_the_two_longformers_are_one_attention() -> None:
    gather, inputs = WORKLOADS["longformer_gather"].reduced()
    masked, _ = WORKLOADS["longformer_masked"].reduced()
    torch.testing.assert_close(gather(*inputs), masked(*inputs))
