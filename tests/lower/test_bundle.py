"""Saving and loading: round trips in a fresh process, damage, other versions."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from lower_cases import arguments, examples, op, scopes
from programs import Row, convolutions, program_of, step
from torch.utils._pytree import tree_flatten

from eqsynth.errors import EqsynthError, FileError, LoweringError
from eqsynth.extract.kernel import Kernel, contiguous
from eqsynth.extract.layout import view_kernel
from eqsynth.extract.schedule import Block, schedule_to_data
from eqsynth.ir.index import Index
from eqsynth.ir.operators import OPERATORS
from eqsynth.ir.scalar import Call, Prod, Read, Sum
from eqsynth.ir.tensor import Input, Op, Scope, args_of
from eqsynth.ir.types import TensorType
from eqsynth.lower import carrying
from eqsynth.lower.bundle import load, save
from eqsynth.lower.calling import Fixed, SavedCalling, bound
from eqsynth.lower.kernel_data import kernel_from_data, kernel_to_data
from eqsynth.lower.manifest import check_kernel
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.lower.torch_scalars import as_bytes
from eqsynth.lower.tvm_backend import TvmBackend
from eqsynth.lower.weights import digest

ROW = SavedCalling((0,), (0,))
ROOT = Path(__file__).parents[2]


def in_a_fresh_process(path: Path, x: torch.Tensor, result: Path) -> set[str]:
    """Loads the program there and runs it on ``x``; which modules were imported."""
    torch.save(x, result)
    code = f"""
import sys, torch
from eqsynth.lower.bundle import load
program = load({str(path)!r})
torch.save(program(torch.load({str(result)!r})), {str(result)!r})
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.rotating
def test_a_program_of_torch_and_onednn(tmp_path: Path) -> None:
    program, reference = convolutions(row=ROW, report="a report", explanation=lambda: "steps")
    save(program, tmp_path / "program.eqs")
    x = torch.randn(2, 3, 8, 8)
    modules = in_a_fresh_process(tmp_path / "program.eqs", x, tmp_path / "result.pt")
    assert torch.equal(torch.load(tmp_path / "result.pt"), program(x))
    heavy = {"egglog", "ortools", "tvm", "eqsynth.egraph", "eqsynth.frontend", "eqsynth.rules"}
    assert not modules & heavy
    extraction = {m for m in modules if m.startswith("eqsynth.extract.")}
    names = ("disturbance", "kernel", "layout", "schedule", "target", "timing", "tuned")
    assert extraction == {f"eqsynth.extract.{name}" for name in names}
    loaded = load(tmp_path / "program.eqs")
    assert repr(loaded) == repr(program)
    assert loaded.report == "a report" and loaded.explain() == "steps"
    # What was loaded can be saved again.
    save(loaded, tmp_path / "again.eqs")
    assert torch.equal(load(tmp_path / "again.eqs")(x), program(x))


def test_a_constant_of_one_element_may_have_any_strides(tmp_path: Path) -> None:
    """Contiguous whatever its strides are, since there is one place only."""
    odd = torch.tensor([3.0]).as_strided((1, 1), (0, 0))
    assert as_bytes(odd).tolist() == as_bytes(torch.tensor([3.0])).tolist()
    assert digest(odd) == digest(odd.clone(memory_format=torch.contiguous_format))


@pytest.mark.rotating
def test_a_program_with_generated_kernels(tmp_path: Path) -> None:
    kind = Input("0", TensorType((4, 6), "float32"))
    other = Input("1", TensorType((6,), "float32"))
    i, j = Index.iterator(0, 4), Index.iterator(1, 6)
    read = Read(kind, (i, j - 1), 2.0)
    scope = Scope((4, 6), (), Call("relu", (Sum((Prod((read, Read(other, (j,)))), read)),)))
    backend = TvmBackend()
    constant = torch.randn(6)
    steps = [step("y", scope, "x", "c", constants={"c": constant}, backend=backend)]
    steps.append(step("z", op("Exp", (4, 6)), "y"))
    steps.append(step("out", scope, "z", "c", constants={"c": constant * 1}, backend=backend))
    program = program_of({"x": (4, 6)}, steps, ["out"], {"c": constant}, row=ROW)
    save(program, tmp_path / "program.eqs")
    x = torch.randn(4, 6)
    modules = in_a_fresh_process(tmp_path / "program.eqs", x, tmp_path / "result.pt")
    torch.testing.assert_close(torch.load(tmp_path / "result.pt"), program(x))
    assert "tvm" not in modules


@pytest.mark.parametrize("name", sorted(set(OPERATORS)))
def test_kernels_of_operators_survive_as_data(name: str) -> None:
    for term in examples(name) if name != "Opaque" else ():
        kernel = Kernel(term, (False,), "torch", ((0, 1),), (1, 0), "split=4")
        assert kernel_from_data(json.loads(json.dumps(kernel_to_data(kernel)))) == kernel


@given(scopes())
def test_kernels_of_scopes_survive_as_data(scope: Scope) -> None:
    inputs = tuple(contiguous(len(arg.shape)) for arg in args_of(scope))
    kernel = Kernel(scope, (True, False), "torch", inputs, contiguous(len(scope.shape)))
    assert kernel_from_data(json.loads(json.dumps(kernel_to_data(kernel)))) == kernel
    assert len(arguments(scope)) == len(inputs)


def test_a_view_of_any_layout_is_a_kernel() -> None:
    """Extraction takes views of whatever layout is there, not of those alone that torch offers."""
    x = Input("0", TensorType((3, 2, 3), "float32"))
    turned = Op("Permute", (x,), ((1, 2, 0),))
    for layout in permutations(range(3)):
        kernel = view_kernel(turned, layout)
        assert kernel is not None
        check_kernel(kernel, TorchBackend().kernels)
        others = (layout for layout in permutations(range(3)) if layout != kernel.output)
        with pytest.raises(ValueError, match="no kernel"):
            check_kernel(replace(kernel, output=next(others)), TorchBackend().kernels)


def test_every_dtype_of_constants(tmp_path: Path) -> None:
    constants = {
        str(dtype): (torch.randn(2, 3) * 4).to(dtype)
        for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64)
    }
    constants |= {"bool": torch.tensor([True, False]), "none": torch.empty(0, 3)}
    constants |= {"scalar": torch.tensor(1.5), "strided": torch.randn(3, 4).T}
    out_spec = tree_flatten([0] * len(constants))[1]
    row = SavedCalling((), tuple(range(len(constants))), out_spec=out_spec)
    program = program_of({}, [], list(constants), constants, row=row)
    save(program, tmp_path / "program.eqs")
    for loaded, value in zip(load(tmp_path / "program.eqs")(), constants.values(), strict=True):
        assert loaded.dtype == value.dtype and torch.equal(loaded, value)


def test_buffers_keep_counting(tmp_path: Path) -> None:
    count = torch.tensor([1.0, 2.0])
    steps = [step("more", op("Add", (2,), (2,)), "count", "x")]
    row = SavedCalling((0,), (0,), buffers=(count,))
    inputs = {"x": (2,), "count": (2,)}
    program = program_of(inputs, steps, ["more"], mutations={0: count}, row=row)
    program(torch.ones(2))
    save(program, tmp_path / "program.eqs")
    loaded = load(tmp_path / "program.eqs")
    assert loaded(torch.ones(2)).tolist() == [3.0, 4.0]
    assert loaded(torch.ones(2)).tolist() == [4.0, 5.0]
    assert count.tolist() == [2.0, 3.0]


def signature(x: Any, scale: float = 2.0, *, names: tuple[str, int] = ("a", 1)) -> None: ...


def test_arguments_as_the_user_gives_them(tmp_path: Path) -> None:
    steps = [step("y", op("Relu", (2,)), "a"), step("z", op("Neg", (2,)), "b")]
    call = ((({"left": 0, "right": [0]}), 2.0), {"names": ("a", 1)})
    _, spec = tree_flatten(bound(inspect.signature(signature), *call))
    _, out_spec = tree_flatten({"y": 0, "kept": 0, "list": [0]})
    row = SavedCalling(
        (0, 1, Fixed("a"), Fixed(1)),
        (0, Fixed(None), 1),
        inspect.signature(signature),
        spec,
        out_spec,
    )
    program = program_of({"a": (2,), "b": (2,)}, steps, ["y", "z"], row=row)
    save(program, tmp_path / "program.eqs")
    a, b = torch.tensor([1.0, -1.0]), torch.tensor([2.0, 3.0])
    x = {"left": a, "right": [b]}
    for made in (program, load(tmp_path / "program.eqs")):
        for result in (
            made(x, 2.0, names=("a", 1)),
            made(scale=2.0, x=x, names=("a", 1)),
        ):
            assert result["y"].tolist() == [1.0, 0.0] and result["kept"] is None
            assert result["list"][0].tolist() == [-2.0, -3.0]
        for given_args, keywords in (
            ((x, 3.0), {"names": ("a", 1)}),
            ((x,), {}),
            ((x, 2.0), {"names": ("a", 1), "more": 1}),
            (({"left": a}, 2.0), {"names": ("a", 1)}),
            (({"left": a, "right": ["b"]}, 2.0), {"names": ("a", 1)}),
        ):
            with pytest.raises(EqsynthError):
                made(*given_args, **keywords)


def test_what_is_a_python_function_cannot_be_saved(tmp_path: Path) -> None:
    path = tmp_path / "program.eqs"
    term = op("Opaque", (2,), attrs=("flip", (2,), "float32"))
    opaque = step("y", term, "x", opaque={"flip": lambda x: x.flip(0)})
    with pytest.raises(LoweringError) as caught:
        save(program_of({"x": (2,)}, [opaque], ["y"], row=ROW), path)
    assert caught.value.where == "model.y"
    with pytest.raises(LoweringError):  # of which no example inputs are known
        save(CompiledProgram.from_module(torch.nn.ReLU()), path)
    odd = SavedCalling((0, Fixed(object())), (0,))
    with pytest.raises(LoweringError):
        save(program_of({"x": (2,)}, [step("y", op("Relu", (2,)), "x")], ["y"], row=odd), path)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    program, _ = convolutions(row=ROW)
    save(program, tmp_path / "program.eqs")
    return tmp_path / "program.eqs"


def program(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest["program"]["kernels"]  # type: ignore[no-any-return]


def edited(path: Path, change: Any) -> Path:
    """The bundle with its manifest changed."""
    with zipfile.ZipFile(path) as bundle:
        members = {name: bundle.read(name) for name in bundle.namelist()}
    manifest = json.loads(members["manifest.json"])
    change(manifest)
    members["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(path, "w") as bundle:
        for name, data in members.items():
            bundle.writestr(name, data)
    return path


def test_an_unchanged_edit_loads(saved: Path) -> None:
    assert load(edited(saved, lambda manifest: None)).steps


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(version=99),
        lambda m: m.update(format="another"),
        lambda m: m.update(more=1),
        lambda m: m["tensors"][0][0].append(2),
        lambda m: m["tensors"][0].__setitem__(1, "complex64"),
        lambda m: program(m).update(library="0" * 128),
        lambda m: program(m).pop("steps"),
        lambda m: program(m)["kernels"][0].update(implementation="magic.conv"),
        lambda m: program(m)["kernels"][0]["term"].__setitem__(1, "Magic"),
        lambda m: program(m)["kernels"][0].update(output=[0, 1, 2, 3]),
        lambda m: program(m)["steps"][0][2].__setitem__(0, "nothing"),
        lambda m: program(m)["steps"][0][2].__setitem__(1, "nothing"),
        lambda m: program(m)["steps"][1].__setitem__(0, "t1"),
        lambda m: program(m)["steps"].reverse(),
        lambda m: program(m)["calling"].update(spec="[]"),
        lambda m: program(m)["calling"].update(arguments=[1]),
        lambda m: program(m).update(mutations=[[0, 0]]),
        lambda m: program(m)["inputs"][0].__setitem__(3, [0, 1, 1, 3]),
        lambda m: program(m)["inputs"][0].__setitem__(3, [0, 1, 2, 3]),
    ],
)
def test_a_manifest_that_is_wrong(saved: Path, change: Any) -> None:
    with pytest.raises(LoweringError):
        load(edited(saved, change))


def test_a_library_for_another_machine(tmp_path: Path) -> None:
    scope = Scope((4,), (), Read(Input("0", TensorType((4,), "float32")), (Index.iterator(0, 4),)))
    steps = [step("y", scope, "x", backend=TvmBackend())]
    path = tmp_path / "program.eqs"
    save(program_of({"x": (4,)}, steps, ["y"], row=ROW), path)
    moved = edited(path, lambda m: m.update(machine=["Plan9", "vax", "NONE"]))
    with pytest.raises(LoweringError) as caught:
        load(moved)
    assert caught.value.got == "Plan9 vax NONE" and "recompile=True" in str(caught.value)


def test_kernels_are_built_again_for_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From what the file says of them: its machine code isn't loaded."""
    at = (Index.iterator(0, 4),)
    scope = Scope((4,), (), Call("exp", (Read(Input("0", TensorType((4,), "float32")), at),)))
    steps = [step("y", scope, "x", backend=TvmBackend())]
    path, x = tmp_path / "program.eqs", torch.randn(4)
    save(program_of({"x": (4,)}, steps, ["y"], row=ROW), path)
    expected = load(path)(x)
    moved = edited(path, lambda m: m.update(machine=["Plan9", "vax", "NONE"]))

    def foreign(_code: object) -> TvmBackend:
        raise AssertionError("code of another machine")

    monkeypatch.setattr(carrying, "_of_library", foreign)
    assert torch.equal(load(moved, recompile=True)(x), expected)
    monkeypatch.setattr(carrying, "find_spec", lambda _name: None)
    with pytest.raises(LoweringError, match="TVM isn't installed"):
        load(moved, recompile=True)


def test_a_schedule_of_other_loops_is_refused(tmp_path: Path) -> None:
    """It would be compiled into a kernel that reads and writes elsewhere."""
    scope = Scope((4,), (), Read(Input("0", TensorType((4,), "float32")), (Index.iterator(0, 4),)))
    steps = [step("y", scope, "x", backend=TvmBackend())]
    path = tmp_path / "program.eqs"
    save(program_of({"x": (4,)}, steps, ["y"], row=ROW), path)
    other = schedule_to_data(Block(8, 32))
    changed = edited(path, lambda m: program(m)["kernels"][0].update(schedule=other))
    with pytest.raises(LoweringError, match="block8x32"):
        load(changed, recompile=True)


def test_damaged_files(saved: Path) -> None:
    whole = saved.read_bytes()
    position = whole.index(b"tensors/0") + len("tensors/0") + 40
    flipped = bytearray(whole)
    flipped[position] ^= 0xFF
    for data in (b"", b"no zip file", whole[: len(whole) // 2], bytes(flipped)):
        saved.write_bytes(data)
        with pytest.raises(LoweringError):
            load(saved)
    torch.save(torch.ones(2), saved)  # a zip file, as a model in .pt2 is
    with pytest.raises(LoweringError) as caught:
        load(saved)
    assert "no manifest.json" in caught.value.got and "eqsynth optimize" in caught.value.hint
    with pytest.raises(OSError):
        load(saved.with_name("missing"))


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileError) as caught:
        load(tmp_path)
    assert caught.value.where == str(tmp_path) and caught.value.got == "a directory"
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing")


def test_a_failed_save_leaves_the_old_file(saved: Path) -> None:
    before = saved.read_bytes()
    with pytest.raises(LoweringError):
        save(CompiledProgram.from_module(torch.nn.ReLU()), saved)
    # This one fails in the middle of writing.
    nowhere = program_of({}, [], ["c"], {"c": torch.empty(2, device="meta")}, row=ROW)
    with pytest.raises((TypeError, RuntimeError)):
        save(nowhere, saved)
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]
    assert Row().bind() == []
