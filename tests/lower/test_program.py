"""Compiled programs: checks of inputs, memory, aliases, threads, mutations, the original."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from lower_cases import op, tensor
from programs import Row, convolutions, program_of, step

from eqsynth.errors import DtypeError, LoweringError, ShapeError
from eqsynth.extract.kernel import channels_last, held, strides
from eqsynth.extract.layout import view_kernel
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Scope
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.step_times import step_times
from eqsynth.lower.steps import build_kernels
from eqsynth.lower.torch_backend import VIEW, TorchBackend
from eqsynth.lower.vendor import OneDnnBackend


def chain(*names: str, shape: tuple[int, ...] = (2, 3)) -> CompiledProgram:
    """Elementwise operators, one after the other."""
    steps, value = [], "x"
    for position, name in enumerate(names):
        steps.append(step(f"v{position}", op(name, shape), value))
        value = f"v{position}"
    return program_of({"x": shape}, steps, [value])


def test_a_program_computes_what_its_steps_say() -> None:
    program, reference = convolutions()
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(program(x), reference(x), rtol=1e-4, atol=1e-4)
    # Any strides are taken.
    for given in (x.to(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().mT):
        torch.testing.assert_close(program(given), reference(x), rtol=1e-4, atol=1e-4)
    wide = torch.randn(2, 3, 8, 16)[..., ::2]
    torch.testing.assert_close(program(wide), reference(wide), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (torch.zeros(2, 4), ShapeError),
        (torch.zeros(6), ShapeError),
        (torch.zeros(2, 3, dtype=torch.float64), DtypeError),
        (torch.zeros(2, 3, dtype=torch.int32), DtypeError),
        (torch.zeros(2, 3, device="meta"), DtypeError),
    ],
)
def test_an_input_that_does_not_fit(value: torch.Tensor, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        chain("Relu")(value)
    assert "'x'" in caught.value.where  # type: ignore[attr-defined]


def test_views_of_views_are_one_view_of_what_was_computed() -> None:
    """Each call of torch takes a microsecond. The input begins in the middle of its storage."""
    steps = [
        step("s", op("Slice", (4, 2, 6), attrs=(0, 1, 3, 1)), "x"),
        step("r", op("Reshape", (2, 2, 6), attrs=((4, 6),)), "s"),
        step("p", op("Permute", (4, 6), attrs=((1, 0),)), "r"),
        step("t", op("Permute", (6, 4), attrs=((1, 0),)), "p"),
        step("u", op("Slice", (4, 6), attrs=(0, 2, 4, 1)), "t"),
        step("y", op("Neg", (2, 6)), "u"),
        step("z", op("Neg", (4, 6)), "r"),
    ]
    assert {s.kernel.implementation for s in steps[:5]} == {VIEW}
    program = program_of({"x": (4, 2, 6)}, steps, ["y", "z", "u", "p"])
    assert program.source.count("as_strided(") == 3  # r, u, and p, which is a result
    assert program.source.count(" = k") == 2
    x = torch.randn(5, 2, 6)[1:]
    rows = x[1:3].reshape(4, 6)
    for got, expected in zip(program(x), (-rows[2:], -rows, rows[2:], rows.mT), strict=True):
        assert torch.equal(got, expected)
    times = step_times(program, (x,), {})
    assert times[:5] == (0.0,) * 5 and min(times[5:]) > 0


def test_a_scope_that_moves_nothing_is_a_step_among_views() -> None:
    """It was taken for an operator of torch, which ended in an assertion. Then it was computed as
    any scope, which took 50 to 160 us a call."""
    turned = Scope((6, 4), (), Read(tensor(0, 4, 6), (Index.iterator(1, 4), Index.iterator(0, 6))))
    kernel = view_kernel(turned, (0, 1))
    assert kernel is not None and kernel.implementation == VIEW
    back = op("Permute", (6, 4), attrs=((1, 0),))
    steps = [
        step("n", op("Neg", (4, 6)), "x"),
        step("t", turned, "n", kernel=kernel),
        step("p", back, "t", kernel=view_kernel(back, kernel.output)),
        step("y", op("Exp", (4, 6)), "p"),
    ]
    x, program = torch.randn(4, 6), program_of({"x": (4, 6)}, steps, ["t", "y"])
    for got, expected in zip(program(x), (-x.mT, torch.exp(-x)), strict=True):
        torch.testing.assert_close(got, expected)
    # No Python code looks at the scope in a call.
    assert program.source.count("as_strided(") == 2 and program.source.count(" = k") == 2


def test_a_wrong_number_of_inputs() -> None:
    for values in ((), (torch.zeros(2, 3), torch.zeros(2, 3))):
        with pytest.raises(ShapeError) as caught:
            chain("Relu")(*values)
        assert caught.value.got == str(len(values))


def test_equal_steps_share_their_runner_and_what_it_packs() -> None:
    """A step of a loop that packs a weight for itself would find no weight in the cache."""
    vendor, torchs = OneDnnBackend(), TorchBackend()
    term = op("FusedMatmul", (2, 8), (8, 5), (5,), attrs=("none",))
    w, other, bias = torch.randn(8, 5), torch.randn(8, 5), torch.randn(5)
    linear = next(iter(vendor.kernels(term, (False, True, True))))
    plain = next(iter(torchs.kernels(op("Matmul", (2, 8), (8, 5)), (False, True))))
    turned = replace(plain, inputs=(plain.inputs[0], (1, 0)))
    jobs = [
        (linear, {1: w, 2: bias}),
        (linear, {1: w, 2: bias}),
        (linear, {1: other, 2: bias}),
        (turned, {1: w}),
        (replace(turned, schedule="another"), {1: w}),
    ]
    runners = build_kernels(jobs, (vendor, torchs))
    assert runners[0] is runners[1] and len({id(r) for r in runners}) == 4
    x = torch.randn(2, 8)
    results = (x @ w + bias, x @ w + bias, x @ other + bias, x @ w, x @ w)
    for runner, expected in zip(runners, results, strict=True):
        torch.testing.assert_close(runner(x), expected, rtol=1e-4, atol=1e-4)
    (one,), (two,) = (list(held(runner)) for runner in runners[3:])
    assert one.stride() == (1, 8) and one.data_ptr() == two.data_ptr() != w.data_ptr()


def test_steps_must_be_in_order() -> None:
    late = [step("b", op("Relu", (2, 3)), "a"), step("a", op("Neg", (2, 3)), "x")]
    with pytest.raises(LoweringError) as caught:
        program_of({"x": (2, 3)}, late, ["b"])
    assert caught.value.got == "a"
    with pytest.raises(LoweringError):
        program_of({"x": (2, 3)}, late[1:], ["nothing"])


@pytest.mark.parametrize("layout", [(0, 1), (1, 0)])
def test_kernels_get_inputs_in_the_layout_they_ask_for(layout: tuple[int, ...]) -> None:
    seen: list[torch.Tensor] = []

    def watched(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x + 1

    term = op("Opaque", (2, 3), attrs=("watched", (2, 3), "float32"))
    steps = [step("y", term, "x", opaque={"watched": watched})]
    program = program_of({"x": (2, 3)}, steps, ["y"], layouts={"x": layout})
    for x in (torch.randn(2, 3), torch.randn(3, 2).T, torch.randn(2, 6)[:, ::2]):
        assert torch.equal(program(x), x + 1)
        assert seen[-1].stride() == strides((2, 3), layout)
        # Only what lies elsewhere is copied.
        assert (seen[-1].data_ptr() == x.data_ptr()) == (x.stride() == strides((2, 3), layout))


def test_values_die_at_their_last_use() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def watched(x: torch.Tensor) -> torch.Tensor:
        nonlocal most
        result = x + 1
        alive.append(weakref.ref(result))
        most = max(most, sum(ref() is not None for ref in alive))
        return result

    target = ("watched", (2, 3), "float32")
    steps, value = [], "x"
    for position in range(8):
        term = op("Opaque", (2, 3), attrs=target)
        steps.append(step(f"v{position}", term, value, opaque={"watched": watched}))
        value = f"v{position}"
    # One that nobody reads, too.
    steps.insert(
        4, step("unread", op("Opaque", (2, 3), attrs=target), "x", opaque={"watched": watched})
    )
    program = program_of({"x": (2, 3)}, steps, [value])
    gc.disable()
    try:
        program(torch.zeros(2, 3))
    finally:
        gc.enable()
    assert len(alive) == 9
    assert most == 2


def storages(values: Sequence[torch.Tensor]) -> list[int]:
    return [value.untyped_storage().data_ptr() for value in values]


def test_outputs_share_no_memory_with_inputs_constants_or_each_other() -> None:
    constant = torch.randn(2, 3)
    steps = [
        step("flat", op("Reshape", (2, 3), attrs=((6,),)), "x"),
        step("back", op("Reshape", (6,), attrs=((3, 2),)), "flat"),
        step("fixed", op("Permute", (2, 3), attrs=((1, 0),)), "c"),
        step("r", op("Relu", (2, 3)), "x"),
        step("rv", op("Reshape", (2, 3), attrs=((6,),)), "r"),
    ]
    outputs = ["x", "back", "c", "fixed", "r", "rv", "r", "x"]
    program = program_of({"x": (2, 3)}, steps, outputs, {"c": constant})
    x = torch.randn(2, 3)
    before = x.clone()
    results = program(x)
    expected = [
        x,
        x.reshape(3, 2),
        constant,
        constant.T,
        x.relu(),
        x.relu().reshape(6),
        x.relu(),
        x,
    ]
    for result, value in zip(results, expected, strict=True):
        assert torch.equal(result, value)
    found = storages(results)
    assert len({*found, *storages([x, constant])}) == len(found) + 2
    for result in results:
        result.zero_()
    assert torch.equal(x, before)
    assert torch.equal(program(x)[2], constant)


def test_no_gradients_and_no_modes() -> None:
    program = chain("Relu", "Exp")
    x = torch.randn(2, 3, requires_grad=True)
    with torch.no_grad():
        result = program(x)
    assert not result.requires_grad
    assert not program(x.detach()).requires_grad
    assert torch.equal(program.train()(x), result)
    assert not program.training
    assert list(program.parameters()) == []
    # A result may take part in the user's own gradients.
    weight = torch.ones(3, requires_grad=True)
    (result * weight).sum().backward()
    assert weight.grad is not None


def test_constants_are_buffers_without_a_place_in_the_state() -> None:
    program, _ = convolutions()
    assert list(program.buffers())
    assert program.state_dict() == {}


def test_it_stays_what_and_where_it_was_compiled_for() -> None:
    program = chain("Relu")
    assert program.to("cpu") is program
    assert program.float() is program
    with pytest.raises(LoweringError):
        program.double()
    with pytest.raises(LoweringError):
        torch.nn.Sequential(program).half()
    with pytest.raises(LoweringError):
        program.to("meta")


def test_calls_in_several_threads() -> None:
    program, reference = convolutions()
    inputs = [torch.randn(2, 3, 8, 8) for _ in range(4)]
    expected = [reference(x) for x in inputs]
    errors: list[Exception] = []

    def work(position: int) -> None:
        try:
            for _ in range(10):
                torch.testing.assert_close(
                    program(inputs[position]), expected[position], rtol=1e-4, atol=1e-4
                )
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_buffers_get_their_new_values_after_a_run() -> None:
    count = torch.tensor([1.0, 2.0])
    steps = [
        step("more", op("Add", (2,), (2,)), "count", "x"),
        step("y", op("Mul", (2,), (2,)), "count", "x"),
    ]
    row = Row(buffers=(count,))
    program = program_of(
        {"x": (2,), "count": (2,)}, steps, ["y", "more"], mutations={1: count}, row=row
    )
    x = torch.tensor([3.0, 4.0])
    assert program(x)[0].tolist() == [3.0, 8.0]
    assert count.tolist() == [4.0, 6.0]
    assert program(x)[0].tolist() == [12.0, 24.0]
    # When such a buffer is read would matter, if it were an argument too.
    for shared in (count, count.view(2), count.detach()):
        with pytest.raises(LoweringError) as caught:
            program(shared)
        assert caught.value.where == "input 'x'" and "clone" in caught.value.hint
    assert count.tolist() == [7.0, 10.0]


def test_the_listing_names_operators_ways_and_layouts() -> None:
    program, _ = convolutions()
    text = repr(program)
    for part in ("FusedConv2d", "onednn.conv", "channels last", "float32[2, 8, 8, 8]", "return y"):
        assert part in text
    assert len(text.splitlines()) == len(program.steps) + 1 + 3


def test_explain_and_report_are_what_was_given() -> None:
    steps = [step("y", op("Relu", (2,)), "x")]
    report = object()
    program = program_of({"x": (2,)}, steps, ["y"], report=report, explanation=lambda: "because")
    assert program.report is report
    assert program.explain() == "because"
    assert program_of({"x": (2,)}, steps, ["y"], explanation="as text").explain() == "as text"


class Original(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor, *, names: bool = False) -> Any:
        result = {"double": x * self.scale, "same": x, "scale": self.scale, "part": [x[0], 3]}
        result["again"] = result["double"]
        return tuple(result) if names else result


def test_the_original_as_a_program() -> None:
    module = Original().eval()
    program = CompiledProgram.from_module(module, report="kept")
    x = torch.randn(2, 3)
    result = program(x)
    assert torch.equal(result["double"], x * 2) and torch.equal(result["part"][0], x[0])
    assert result["part"][1] == 3
    assert program(x, names=True) == ("double", "same", "scale", "part", "again")
    tensors = [result["double"], result["scale"], result["part"][0]]
    assert not any(value.requires_grad for value in tensors)
    assert not {*storages(tensors)} & {*storages([x, module.scale])}
    assert result["same"] is x and result["again"] is result["double"]
    assert list(program.parameters()) == [] and program.report == "kept"
    assert "Original" in repr(program)


def test_layouts_of_inputs_are_those_of_the_first_kernels() -> None:
    program, _ = convolutions()
    assert program.inputs[0].layout == channels_last(4)
    assert tensor(0, 2).shape == (2,)
