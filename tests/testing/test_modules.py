"""Random torch modules: what is drawn runs, repeats, prints as code, is varied, and shrinks."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, Phase, find, given, seed, settings
from torch.utils._pytree import tree_flatten

from eqsynth.testing import Argument, ModuleCase
from eqsynth.testing.strategies import torch_modules
from eqsynth.testing.strategies.layers import (
    IMAGES,
    MATRICES,
    OPAQUE,
    POINTWISE,
    REDUCTIONS,
    SHAPES,
)
from tests.terms import times

SEARCH = settings(
    max_examples=3000, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
DTYPES = ("float32", "float64", "int64", "bool", "float16")


def drawn(count: int, empty: bool = False) -> list[ModuleCase]:
    found: list[ModuleCase] = []
    for number in range(count // 20):

        @seed(number)
        @settings(SEARCH, max_examples=20, phases=[Phase.generate])
        @given(torch_modules(steps=6, dtypes=DTYPES, empty=empty))
        def collect(case: ModuleCase) -> None:
            found.append(case)

        collect()
    return found


@settings(max_examples=times(2))
@given(torch_modules(steps=5, dtypes=DTYPES, empty=True))
def test_a_case_is_its_code(case: ModuleCase) -> None:
    """Pasted, it is the same case, with the same weights, arguments and results."""
    again: ModuleCase = eval(repr(case), {"ModuleCase": ModuleCase, "Argument": Argument})
    assert again == case
    before = torch.get_rng_state()
    module, other = case.module(), again.module()
    assert torch.equal(torch.get_rng_state(), before), "torch's own seed stays"
    assert not any(part.training for part in module.modules())
    for kind in ("normal", "zeros"):
        args = case.arguments(kind)
        assert all(torch.equal(a, b) for a, b in zip(args, again.arguments(kind), strict=True))
        with torch.no_grad():
            mine, theirs = (tree_flatten(m(*args))[0] for m in (module, other))
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num())
                   for a, b in zip(mine, theirs, strict=True))  # fmt: skip


def test_a_case_is_plain_torch_too() -> None:
    case = ModuleCase(
        (Argument((2, 3)), Argument((2,), "int64", below=4)),
        ("l0 = nn.Linear(3, 1)", "l1 = nn.Embedding(4, 1)"),
        ("v0 = self.l0(x0) + self.l1(x1)", "return v0"),
        seed=3,
    )
    scope: dict[str, object] = {}
    exec(case.source(), scope)
    plain = scope["Drawn"]()  # type: ignore[operator]
    plain.load_state_dict(case.module().state_dict())
    args = case.arguments()
    assert 0 <= args[1].min() and args[1].max() < 4
    torch.testing.assert_close(plain(*args), case.module()(*args))
    assert not torch.equal(case.module().l0.weight, ModuleCase(
        case.inputs, case.layers, case.forward, seed=4).module().l0.weight)  # fmt: skip


# ---- shrinking -------------------------------------------------------------------


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ("Conv2d", "inputs=(Argument((1, 1, 1, 1)),)|'l0 = nn.Conv2d(1, 1, |'v0 = self.l0(x0)'"),
        ("cumsum", "inputs=(Argument((1,)),)|'v0 = torch.cumsum(x0, 0)'"),
        ("gather", "Argument((1,), 'int64', below=1)|'v0 = torch.gather(x0, 0, x1)'"),
    ],
)
def test_a_module_shrinks_to_the_line_that_matters(wanted: str, code: str) -> None:
    case = find(torch_modules(), lambda case: wanted in repr(case), settings=SEARCH)
    assert len(case.forward) == 2 and case.forward[-1] == "return v0" and case.seed == 0
    assert all(part in repr(case) for part in code.split("|")), case


@pytest.mark.rotating
def test_two_lines_that_matter_stay() -> None:
    """The planted fault: a function of what a linear layer gave."""

    def wrong(case: ModuleCase) -> bool:
        return "nn.Linear(" in repr(case) and "(x0)',\n        'v1 = F." in repr(case)

    case = find(torch_modules(), wrong, settings=SEARCH)
    assert repr(case) == """ModuleCase(
    inputs=(Argument((1,)),),
    layers=(
        'l0 = nn.Linear(1, 1)',
    ),
    forward=(
        'v0 = self.l0(x0)',
        'v1 = F.relu(v0)',
        'return v1',
    ),
)"""


def test_extents_shrink_by_themselves() -> None:
    case = find(torch_modules(), lambda case: case.inputs[0].shape[-1] == 3, settings=SEARCH)
    assert case == ModuleCase((Argument((3,)),), (), ("v0 = F.relu(x0)", "return v0"))


# ---- variety -----------------------------------------------------------------------


@pytest.mark.rotating
def test_modules_are_varied() -> None:
    cases = drawn(400)
    text = "\n".join(map(repr, cases))
    layers = (
        "Linear LayerNorm BatchNorm2d GroupNorm Conv1d Conv2d ConvTranspose2d GRU Embedding "
        "Bilinear Parameter"
    ).split()
    forms = [
        "_pool", "padding=", "stride=", "dilation=", "groups=", "bias=False", "reshape", "permute",
        ".chunk(", "rms_norm", "gather", "index_select", "softmax", "F.linear(F.linear(",
        "torch.cat", "torch.lerp", "return [", "return (", "return {'a'",
    ]  # fmt: skip
    assert not [name for name in layers if f"nn.{name}(" not in text]
    assert not [form for form in forms if form not in text]
    for templates in (POINTWISE, REDUCTIONS, SHAPES, OPAQUE, MATRICES, IMAGES):
        starts = [t.split("{x}")[-1].split("{axis}")[0] or t.split("{x}")[0] for t in templates]
        missing = [start for start in starts if start not in text]
        assert len(missing) <= len(templates) // 2, missing
    shared = [c for c in cases if any(" ".join(c.forward).count(f"self.l{k}(") > 1 for k in (0, 1))]
    assert len(shared) > 1, "layers are used twice"
    sizes = Counter(len(case.forward) for case in cases)
    assert sum(count for size, count in sizes.items() if size >= 5) > 60
    assert {argument.dtype for case in cases for argument in case.inputs} == set(DTYPES)


@pytest.mark.rotating
def test_extents_of_zero_are_drawn_where_they_are_wanted() -> None:
    def empty(case: ModuleCase) -> bool:
        return any(0 in argument.shape for argument in case.inputs)

    assert sum(map(empty, drawn(100, empty=True))) > 10
    assert not any(map(empty, drawn(100)))
