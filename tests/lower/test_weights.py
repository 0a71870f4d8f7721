"""Constants that belong to the program, weights that are shared, and new weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import eqsynth
from eqsynth.errors import WeightError
from eqsynth.extract.kernel import held
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.weights import Watch, digest, storages

X = torch.linspace(-1, 1, 24).reshape(4, 6)
QUICK: dict[str, Any] = {"objective": "flops", "time_limit_s": 600.0, "progress": False}


class Model(nn.Module):
    """Folded, packed and plain weights, tied ones, and every kind of thing that isn't a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 70)
        self.norm = nn.BatchNorm1d(6)
        self.b.weight = self.a.weight
        self.scale, self.offset, self.several = 2.0, torch.arange(6.0), [torch.ones(6)]
        self.register_buffer("mask", torch.tensor([0.0, 0, 0, -torch.inf, 0, 0]))
        self.register_buffer("phase", torch.tensor([1j, 1, 2, 3, 1, 1]))

    def forward(self, x: Tensor) -> Tensor:
        shift = self.a.bias.cumprod(0) + (1j * self.phase).imag + torch.tensor([1.0, 2, 3, 4, 5, 6])
        y = self.norm(self.b(self.a(x))) * self.scale + (self.offset + self.several[0] + shift)
        return self.c(torch.softmax(y + self.mask, -1))  # type: ignore[no-any-return]


def model(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model().eval()


Made = dict[bool, tuple[CompiledProgram, Model]]


@pytest.fixture(scope="module")
def made() -> Made:
    """Programs of ``model()`` that own their constants, or share them; copied before use."""
    modules = {own: model() for own in (True, False)}
    return {
        own: (eqsynth.optimize(module, (X,), own_constants=own, **QUICK), module)
        for own, module in modules.items()
    }


@pytest.fixture
def program(made: Made) -> CompiledProgram:
    return copy.deepcopy(made[True][0])


def close(program: Callable[..., Any], module: nn.Module, x: Tensor = X) -> None:
    with torch.no_grad():
        torch.testing.assert_close(program(x), module(x), rtol=1e-5, atol=1e-5)


def memory(program: CompiledProgram) -> frozenset[int]:
    """Where everything that a program holds lies (what oneDNN packs is its own)."""
    packed = (x for step in program.steps for x in held(step.runner))
    return storages([*program.constants.values(), *program.recipe.kept.values(), *packed])  # type: ignore[union-attr]


def live(module: nn.Module) -> frozenset[int]:
    plain = (x for x in vars(module).values() if isinstance(x, Tensor))
    return storages(
        [*module.parameters(), *module.buffers(), *plain, *getattr(module, "several", [])]
    )


# ---- who owns what ---------------------------------------------------------------------------


@pytest.mark.rotating
def test_a_program_owns_its_constants(made: Made) -> None:
    program, module = made[True]
    assert memory(program) and not memory(program) & live(module)
    before = program(X)
    changed = copy.deepcopy(module)
    with torch.no_grad():
        for value in (*module.parameters(), *module.buffers(), module.offset, module.several[0]):
            value.fill_(7)
    assert torch.equal(program(X), before)
    close(program, changed)
    assert program.report.constant_bytes == program.constant_bytes() >= 4 * 6 * 70
    assert program.report.peak_memory_bytes > program.report.constant_bytes
    assert ("constants", f"{program.constant_bytes():,} bytes") in program.report.rows()


def test_expressions_own_their_values_too() -> None:
    value = torch.randn(6, 6)
    expression = eqsynth.input("x", (4, 6)) @ eqsynth.weight("w", (6, 6), value=value)
    program = eqsynth.optimize(expression, **QUICK)
    expected = X @ value
    value.zero_()
    torch.testing.assert_close(program(X), expected)
    program.refresh({"w": torch.eye(6)})
    torch.testing.assert_close(program(X), X)


@pytest.mark.rotating
def test_shared_weights_are_the_modules_memory(made: Made) -> None:
    program, module = made[False]
    assert memory(program) & live(module)
    assert program.constant_bytes() < made[True][0].constant_bytes()
    close(program, module)


CHANGES: dict[str, Callable[[Model], Any]] = {
    "in place": lambda m: m.a.weight.mul_(2),
    "through data": lambda m: m.a.weight.data.mul_(2),
    "through numpy": lambda m: m.c.bias.detach().numpy().fill(0),
    "of a folded one": lambda m: m.norm.running_mean.add_(1),  # type: ignore[union-attr]
    "of a plain attribute": lambda m: m.offset.add_(1),
    "by data": lambda m: setattr(m.c.bias, "data", torch.zeros(70)),
    "by assignment": lambda m: setattr(m.c, "bias", nn.Parameter(torch.zeros(70))),
    "by loading": lambda m: m.load_state_dict(model(1).state_dict()),
    "by assigning a state": lambda m: m.load_state_dict(model(1).state_dict(), assign=True),
    "in inference mode": torch.inference_mode()(lambda m: m.a.weight.mul_(2)),
}


@pytest.mark.rotating
@pytest.mark.parametrize("change", CHANGES)
def test_a_call_after_a_shared_weight_has_changed_raises(change: str, made: Made) -> None:
    program, module = copy.deepcopy(made[False][0]), model()
    program.refresh(module)
    close(program, module)
    with torch.no_grad():
        CHANGES[change](module)
    with pytest.raises(WeightError) as caught:
        program(X)
    assert caught.value.where.split(".")[0] in ("a", "b", "c", "norm", "offset")
    assert "refresh" in caught.value.hint
    program.refresh(module)
    close(program, module)


def test_a_tensor_of_inference_mode_is_never_shared() -> None:
    with torch.inference_mode():
        module = nn.Linear(6, 70).eval()
    program = eqsynth.optimize(module, (X,), own_constants=False, **QUICK)
    assert program.original is not None or not memory(program) & live(module)


def test_the_original_sees_that_its_weights_change() -> None:
    module = model()
    program = CompiledProgram.from_module(module)
    close(program, module)
    with torch.no_grad():
        module.a.weight.add_(1)
    with pytest.raises(WeightError) as caught:
        program(X)
    assert caught.value.where == "a.weight"
    program.refresh(module)
    close(program, module)
    other = model(1)
    program.refresh(other)
    close(program, other)
    for state in (nn.Linear(2, 2), module.state_dict()):
        with pytest.raises(WeightError):
            program.refresh(state)
    other.train()
    with pytest.raises(eqsynth.LoweringError):
        program(X)


# ---- new weights -----------------------------------------------------------------------------


def test_new_weights_are_folded_again(program: CompiledProgram) -> None:
    kernels = [step.kernel for step in program.steps]
    for seed in (1, 2):
        module = model(seed)
        program.refresh(module)
        close(program, module)
        assert [step.kernel for step in program.steps] == kernels
        assert not memory(program) & live(module)
    state = model(3).state_dict()
    program.refresh({**state, "offset": model().offset})
    close(program, model(3))


def test_a_refresh_builds_no_kernel_again(program: CompiledProgram) -> None:
    (tvm,) = (b for b in program._backends if b.name == "tvm")
    before = dict(tvm._functions)  # type: ignore[attr-defined]
    program.refresh(model(1))
    assert before and all(tvm._functions[k] is f for k, f in before.items())  # type: ignore[attr-defined]
    assert len(tvm._functions) == len(before)  # type: ignore[attr-defined]


def test_one_value_under_all_names_is_as_good_as_tied(program: CompiledProgram) -> None:
    module = model(1)
    module.b.weight = nn.Parameter(module.a.weight.detach().clone())
    program.refresh(module)
    close(program, module)


def test_copies_have_weights_of_their_own(program: CompiledProgram) -> None:
    for copied in (copy.copy(program), copy.deepcopy(program)):
        copied.refresh(model(1))
        close(copied, model(1))
        close(program, model())


REFUSED: dict[str, tuple[str, Callable[[Model], Any]]] = {
    "untied": ("a.weight, b.weight", lambda m: setattr(m, "b", nn.Linear(6, 6))),
    "missing": ("c.bias", lambda m: setattr(m.c, "bias", None)),
    "another shape": ("c.bias", lambda m: setattr(m.c, "bias", nn.Parameter(torch.ones(71)))),
    "another dtype": ("c.weight", lambda m: m.c.double()),
    "NaN": ("c.weight", lambda m: m.c.weight[0, 0].fill_(torch.nan)),
    "infinity": ("norm.running_mean", lambda m: m.norm.running_mean.fill_(torch.inf)),
    "infinity elsewhere": ("mask", lambda m: m.mask.copy_(m.mask.flip(0))),
    "no infinity": ("mask", lambda m: m.mask.zero_()),
    "a number": ("scale", lambda m: setattr(m, "scale", 3.0)),
    "eps": ("norm.eps", lambda m: setattr(m.norm, "eps", 0.5)),
    "a tensor in a list": ("several", lambda m: m.several[0].add_(1)),
    "a complex buffer": ("phase", lambda m: m.phase.mul_(2)),
    "another part": ("norm", lambda m: setattr(m, "norm", nn.Identity())),
    "a further attribute": ("more", lambda m: setattr(m, "more", 1)),
}  # fmt: skip


@pytest.mark.parametrize("change", REFUSED)
def test_what_the_plan_relies_on_must_not_change(change: str, program: CompiledProgram) -> None:
    where, act = REFUSED[change]
    module = model(1)
    with torch.no_grad():
        act(module)
    before = program(X)
    with pytest.raises(WeightError) as caught:
        program.refresh(module)
    assert caught.value.where == where
    assert caught.value.got and caught.value.expected and caught.value.hint
    assert torch.equal(program(X), before)  # nothing was taken over


def test_a_state_that_lacks_a_weight_is_refused(program: CompiledProgram) -> None:
    state = model(1).state_dict()  # without the plain attribute
    with pytest.raises(WeightError) as caught:
        program.refresh(state)
    assert caught.value.where == "offset"


def test_lifted_constants_of_one_value_have_to_stay_so() -> None:
    class Two(nn.Module):
        def __init__(self, b: float) -> None:
            super().__init__()
            self.a, self.b = torch.ones(6), torch.full((6,), b)

        def forward(self, x: Tensor) -> Tensor:
            return torch.exp(x * self.a) + self.b

    program = eqsynth.optimize(Two(1.0).eval(), (X,), **QUICK)
    with pytest.raises(WeightError) as caught:
        program.refresh(Two(2.0).eval())
    assert caught.value.where == "a, b"


def test_buffers_that_the_program_changes_are_the_new_modules() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(1)
            return self.linear(x) + self.count  # type: ignore[no-any-return]

    mine, other = Counting().eval(), Counting().eval()
    program = eqsynth.optimize(mine, (X,), **QUICK)
    assert program.original is None and mine.count == 0
    program(X)
    program.refresh(other)
    for expected in (1, 2):
        torch.testing.assert_close(program(X), other.linear(X).detach() + expected)
    assert (mine.count, other.count) == (1, 2)
    copied = copy.deepcopy(program)
    copied(X)
    assert other.count == 2
    with pytest.raises(WeightError) as caught:
        program.refresh(nn.Module())
    assert caught.value.where


@pytest.mark.rotating
def test_recurrent_layers_take_new_weights() -> None:
    layer, x = nn.RNN(3, 4).eval(), torch.randn(2, 1, 3)
    program = eqsynth.optimize(layer, (x,), **QUICK)
    other = nn.RNN(3, 4).eval()
    program.refresh(other)
    with torch.no_grad():
        torch.testing.assert_close(program(x), other(x), rtol=1e-5, atol=1e-5)


def test_digests_tell_types_and_bits_apart() -> None:
    values = [torch.zeros(4), torch.zeros(2, 2), torch.zeros(4).double(), -torch.zeros(4)]
    values += [torch.zeros(4, dtype=torch.complex64), torch.zeros(0), torch.eye(4).to_sparse()]
    assert len(set(map(digest, values))) == len(values)
    assert digest(torch.arange(6.0).reshape(2, 3).T) == digest(
        torch.arange(6.0).reshape(2, 3).T.contiguous()
    )


def test_a_watch_looks_at_parameters_of_all_parts() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    watch = Watch.of_parameters(module)
    watch.check()
    module[2].weight = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(WeightError) as caught:
        watch.check()
    assert caught.value.where == "2.weight"
