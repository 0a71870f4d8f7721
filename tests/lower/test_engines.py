"""Regions on engines: values, several outputs, memory of their own, what is refused. An engine that
isn't installed is skipped; Inductor needs a C++ compiler only."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch

from eqsynth.extract.kernel import Kernel, Runner
from eqsynth.ir.index import Index
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.scalar import Num, Prod, Read
from eqsynth.ir.tensor import Input, Op, Region, Scope, Tensor, topological
from eqsynth.ir.types import TensorType
from eqsynth.lower.engines import open_vino
from eqsynth.lower.engines.ahead import Apart, guarded, settled, taken_apart
from eqsynth.lower.engines.engine import Engine, RegionBackend
from eqsynth.lower.engines.open_vino import OpenVino
from eqsynth.lower.engines.table import ENGINES
from eqsynth.lower.kernel_data import kernel_from_data, kernel_to_data
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.lower.torch_ops import region_function


@pytest.fixture(params=ENGINES.values(), ids=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.param
    if found.version() is None:
        pytest.skip(f"{found.name} isn't installed")
    return found


def _in(n: int, *shape: int, dtype: str = "float32") -> Input:
    return Input(str(n), TensorType(shape, dtype))


def _region(*outputs: Tensor, args: int) -> Region:
    shapes = [(4, 8), (8, 8), (8,)]
    return Region(outputs, tuple(_in(n, *shapes[n]) for n in range(args)))


def _linear() -> Tensor:
    return Op("Add", (Op("Matmul", (_in(0, 4, 8), _in(1, 8, 8))), _in(2, 8)))


def _kernel(engine: Engine, region: Region, *constants: bool) -> Kernel:
    (kernel,) = RegionBackend(engine).kernels(region, constants)
    return kernel


def _runner(engine: Engine, region: Region, constants: dict[int, torch.Tensor]) -> Runner:
    known = [n in constants for n in range(len(region.args))]
    (runner,) = RegionBackend(engine).build([(_kernel(engine, region, *known), constants)])
    assert runner is not None
    return runner


def _storages(tensors: Sequence[torch.Tensor]) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tensors}


@pytest.mark.rotating
def test_a_region_computes_what_its_terms_say(engine: Engine) -> None:
    h = _linear()
    region = _region(Op("Relu", (h,)), Op("Tanh", (h,)), args=3)
    w, b = torch.randn(8, 8), torch.randn(8)
    runner = _runner(engine, region, {1: w, 2: b})
    results = []
    # At three addresses: what stands elsewhere is bound anew, or copied to where it is read.
    for x in [torch.randn(4, 8) for _ in range(3)]:
        first, second = runner(x)
        torch.testing.assert_close(first, torch.relu(x @ w + b))
        torch.testing.assert_close(second, torch.tanh(x @ w + b))
        wanted = evaluate(region, {"0": x.numpy(), "1": w.numpy(), "2": b.numpy()})
        torch.testing.assert_close(first.double(), torch.from_numpy(wanted), rtol=1e-5, atol=1e-5)
        results += [x, first, second]
    assert len(_storages(results)) == 9  # a call has left the results of those before it alone


@pytest.mark.rotating
@pytest.mark.parametrize("rows", [4, 4096])
def test_an_argument_is_read_again_where_it_stood_before(engine: Engine, rows: int) -> None:
    """Small results are copied by an engine, large ones computed in place."""
    region = Region((Op("Relu", (_in(0, rows, 8),)),), (_in(0, rows, 8),))
    runner, x = _runner(engine, region, {}), torch.randn(rows, 8)
    first, kept = runner(x), x.clone()
    torch.testing.assert_close(runner(x.neg_()), torch.relu(-kept))
    torch.testing.assert_close(first, torch.relu(kept))
    torch.testing.assert_close(runner(kept), torch.relu(kept))


@pytest.mark.rotating
@pytest.mark.parametrize("rows", [4, 4096])
def test_what_was_computed_before_is_not_written_over(engine: Engine, rows: int) -> None:
    """Results that are held, let go, and given back as arguments, over some calls."""
    region = Region((Op("Tanh", (_in(0, rows, 8),)),), (_in(0, rows, 8),))
    runner = _runner(engine, region, {})
    x = torch.randn(rows, 8)
    held = [(x, x.clone())]
    for n in range(6):
        result = runner(held[-1][0])
        held.append((result, torch.tanh(held[-1][1])))
        if n == 3:
            del held[1:3], result
    for value, expected in held:
        torch.testing.assert_close(value, expected)


def test_a_place_for_results_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin's tensor at an address is kept; of the results that are held, a few at most."""
    if OpenVino().version() is None:
        pytest.skip("openvino isn't installed")
    made: list[int] = []
    tensor_at = open_vino._tensor_at
    monkeypatch.setattr(open_vino, "_KEPT", 4)
    monkeypatch.setattr(
        open_vino, "_tensor_at", lambda x: (made.append(x.data_ptr()), tensor_at(x))[1]
    )
    region = Region((Op("Neg", (_in(0, 4096, 8),)),), (_in(0, 4096, 8),))
    runner, x = _runner(OpenVino(), region, {}), torch.randn(4096, 8)
    for _ in range(6):
        result = runner(x)
        torch.testing.assert_close(result, -x)
    assert len(made) == len(set(made)) == 2
    del result
    held = [runner(x + n) for n in range(10)]
    for n, result in enumerate(held):
        torch.testing.assert_close(result, -(x + n))


@pytest.mark.rotating
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_scope_reads_what_is_repeated(engine: Engine, dtype: str) -> None:
    """Numbers of a line, repeated along other axes, as positions and masks are. Inductor computes
    another product of torch's own ``as_strided`` of such a line."""
    i, j, k = (Index.iterator(n, extent) for n, extent in enumerate((4, 2, 3)))
    x, line = _in(0, 4, 2, 3, dtype=dtype), Op("Iota", (), ((4, 2, 3), 1, dtype))
    scope = Scope((4, 2, 3), (), Prod((Read(x, (i, j, k)), Read(line, (i, j, k)))))
    given = torch.arange(1, 25, dtype=getattr(torch, dtype)).reshape(4, 2, 3)
    expected = given * torch.arange(2, dtype=given.dtype)[:, None]
    region = Region((scope,), (x,))
    assert torch.equal(region_function(region)(given)[0], expected)
    if dtype == "int64" and engine.name == "openvino":
        assert not engine.takes(region)  # it computes with int32
        return
    assert torch.equal(_runner(engine, region, {})(given), expected)


@pytest.mark.rotating
def test_results_share_no_memory(engine: Engine) -> None:
    """An output that is a view of an argument, and one that is a view of another output."""
    h = Op("Relu", (_in(0, 4, 8),))
    views = [Op("Reshape", (t,), ((32,),)) for t in (_in(0, 4, 8), h)]
    runner = _runner(engine, _region(h, *views, args=1), {})
    x = torch.randn(4, 8)
    results = runner(x)
    assert len(_storages([x, *results])) == 4
    torch.testing.assert_close(results[1], x.reshape(32))


def test_what_is_no_region_and_what_is_opaque_is_left_to_others(engine: Engine) -> None:
    opaque = Op("Opaque", (_in(0, 4, 8),), ("sort", (4, 8), "float32"))
    backend = RegionBackend(engine)
    assert not list(backend.kernels(_linear(), (False,) * 3))
    assert not list(backend.kernels(_region(opaque, args=1), (False,)))


def test_a_fault_of_an_engine_is_a_kernel_that_does_not_build(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object) -> Runner:
        raise MemoryError

    region = _region(Op("Relu", (_linear(),)), args=3)
    kernel = _kernel(engine, region, False, False, False)
    monkeypatch.setattr(type(engine), "compiled", fault)
    assert RegionBackend(engine).build([(kernel, {})]) == [None]


@pytest.mark.rotating
@pytest.mark.parametrize("position", [-1, 5])
def test_a_position_out_of_range_is_an_error(engine: Engine, position: int) -> None:
    """Not the last row, which engines take -1 for, nor zeros."""
    table, ids = _in(0, 5, 8), _in(1, 3, dtype="int64")
    region = Region((Op("Relu", (Op("Embedding", (table, ids)),)),), (table, ids))
    w = torch.randn(5, 8)
    runner = _runner(engine, region, {0: w})
    torch.testing.assert_close(runner(torch.tensor([0, 4, 2])), torch.relu(w[[0, 4, 2]]))
    with pytest.raises(IndexError):
        runner(torch.tensor([0, position, 2]))


def test_a_region_is_plain_data(engine: Engine) -> None:
    h = _linear()
    region = _region(Op("Relu", (h,)), Op("Tanh", (h,)), args=3)
    kernel = _kernel(engine, region, False, True, True)
    assert kernel_from_data(kernel_to_data(kernel)) == kernel


@pytest.mark.rotating
@pytest.mark.parametrize("position", [-2, 4])
def test_a_position_that_is_computed_is_looked_at_too(engine: Engine, position: int) -> None:
    """``w[ids + 1] * w[ids + 1]``, where ``ids + 1`` is computed before the engine runs."""
    table, ids, one = _in(0, 5, 8), _in(1, 3, dtype="int64"), _in(2, dtype="int64")
    moved = Op("Add", (ids, one))
    rows = Op("Embedding", (table, moved))
    region = Region((Op("Mul", (rows, rows)),), (table, ids, one))
    w, at = torch.randn(5, 8), torch.tensor([0, 3, -1])
    runner = _runner(engine, region, {0: w, 2: torch.tensor(1)})
    torch.testing.assert_close(runner(at), w[at + 1] ** 2)
    with pytest.raises(IndexError):
        runner(torch.tensor([0, position, 2]))


def test_no_position_is_out_of_range_where_there_is_none() -> None:
    table, ids = _in(0, 5, 8), _in(1, 0, dtype="int64")
    apart = taken_apart(Region((Op("Embedding", (table, ids)),), (table, ids)))
    runner = guarded(lambda w, at: w[at], apart, {})
    assert runner(torch.randn(5, 8), torch.empty(0, dtype=torch.int64)).shape == (0, 8)


def test_positions_are_arguments_of_what_an_engine_gets() -> None:
    table, ids = _in(0, 5, 8), _in(1, 2, 3, dtype="int64")
    moved = Op("Reshape", (Op("Cast", (ids,), ("int32",)),), ((6,),))
    region = Region((Op("Embedding", (table, moved)),), (table, ids))
    assert taken_apart(region) == Apart(region, None, {1: 5})
    for computed in (Op("Add", (ids, ids)), Op("Slice", (ids,), (1, 0, 2, 1))):
        region = Region((Op("Embedding", (table, computed)),), (table, ids))
        place = _in(2, *computed.shape, dtype="int64")
        given = Region((Op("Embedding", (table, place)),), (table, ids, place))
        assert taken_apart(region) == Apart(given, Region((computed,), (table, ids)), {2: 5})


def test_positions_that_a_scope_reads_are_arguments_too() -> None:
    table, ids = _in(0, 5, 8), _in(1, 3, dtype="int64")
    computed = Op("Add", (ids, ids))

    def doubled(at: Tensor) -> Tensor:
        rows = Op("Embedding", (table, at))
        places = (Index.iterator(0, 3), Index.iterator(1, 8))
        return Scope((3, 8), (), Prod((Num(2.0), Read(rows, places))))

    apart = taken_apart(Region((doubled(computed),), (table, ids)))
    assert apart.region.outputs == (doubled(_in(2, 3, dtype="int64")),)
    assert apart.limits == {2: 5}


# ---- what an engine refuses, where it is little ----------------------------------------------


def _masked() -> Region:
    """relu(x @ w where the mask lets through, else 0), the mask of int64 as tokenizers give it."""
    x, w, mask = _in(0, 64, 48), _in(1, 48, 48), _in(2, 48, dtype="int64")
    seen = Op("Where", (Op("Cast", (mask,), ("bool",)), *_numbers(1.0, 0.0)))
    asked = Op("Equal", (Op("ReduceMax", (seen,), ((0,), 1)), _numbers(0.0)[0]))
    product = Op("Matmul", (Op("Mul", (x, seen)), w))
    return Region((Op("Where", (asked, _numbers(-1.0)[0], Op("Relu", (product,)))),), (x, w, mask))


def _numbers(*values: float) -> tuple[Op, ...]:
    return tuple(Op("Full", (), ((), value, "float32")) for value in values)


def _is_asked(term: Tensor) -> bool:
    return isinstance(term, Op) and term.name == "Equal"


def test_what_is_refused_is_computed_before_with_what_it_needs() -> None:
    region = _masked()
    assert taken_apart(region) == Apart(region, None, {})
    apart = taken_apart(region, _is_asked)
    assert apart.computed is not None
    kinds = [part.label for part in topological(apart.region.outputs)]
    assert not any(name in str(kinds) for name in ("Equal", "Cast", "ReduceMax"))
    assert [arg.type for arg in apart.region.args[3:]] == [o.type for o in apart.computed.outputs]
    x, w = torch.randn(64, 48), torch.randn(48, 48)
    run = guarded(region_function(apart.region), apart, {})
    for mask in (torch.arange(48) % 3, torch.zeros(48, dtype=torch.int64)):
        (got,) = run(x, w, mask)
        keep = (mask != 0).float()
        wanted = torch.relu((x * keep) @ w) if keep.any() else torch.full((64, 48), -1.0)
        torch.testing.assert_close(got, wanted)


def test_much_that_is_refused_and_a_result_are_not_computed_before() -> None:
    region = _masked()
    assert taken_apart(region, lambda term: term.label.startswith("Relu")).computed is None
    asked = next(term for term in topological(region.outputs) if _is_asked(term))
    both = Region((*region.outputs, asked), region.args)
    assert taken_apart(both, _is_asked) == Apart(both, None, {})


@pytest.mark.rotating
@pytest.mark.parametrize("value", [1, -1, 1 << 32, -(1 << 63)])
def test_a_mask_of_integers_is_what_torch_makes_of_it(engine: Engine, value: int) -> None:
    """OpenVINO takes 2 ** 32 for 0."""
    x, w, mask = torch.randn(64, 48), torch.randn(48, 48), torch.zeros(48, dtype=torch.int64)
    runner = _runner(engine, _masked(), {1: w})
    torch.testing.assert_close(runner(x, mask), torch.full((64, 48), -1.0))
    mask[5:] = value
    torch.testing.assert_close(runner(x, mask), torch.relu((x * (mask != 0)) @ w))


@pytest.mark.rotating
def test_what_is_computed_before_from_constants_alone_is_a_constant(engine: Engine) -> None:
    """Types of tokens that a table has for all positions: ``types[ids_of_types[:n]]``."""
    types, kinds, x = _in(0, 3, 8), _in(1, 9, dtype="int64"), _in(2, 4, 8)
    first = Op("Slice", (kinds,), (0, 0, 4, 1))
    region = Region((Op("Add", (Op("Embedding", (types, first)), x)),), (types, kinds, x))
    constants = {0: torch.randn(3, 8), 1: torch.arange(9) % 3}
    apart = taken_apart(region, engine.refuses)
    found = settled(apart, constants)
    assert found.keys() == {0, 1, 3} and torch.equal(found[3], torch.arange(4) % 3)
    run = guarded(lambda given: given, apart, found)
    given = torch.randn(4, 8)
    assert run(given) is given, "nothing is left to compute before"
    wanted = constants[0][torch.arange(4) % 3] + given
    torch.testing.assert_close(_runner(engine, region, constants)(given), wanted)


@pytest.mark.rotating
def test_equality_with_a_finite_number_is_what_torch_makes_of_it(engine: Engine) -> None:
    """Also of NaN and infinities; OpenVINO takes equality with other values otherwise, so that it
    isn't asked: NaN for equal to NaN, the maximum of a row of -inf for a finite number."""
    x = _in(0, 2, 7)
    two, three, half = _numbers(2.0, 3.0, 0.5)
    asked = (Op(name, args) for name in ("Equal", "NotEqual") for args in ((x, half), (half, x)))
    region = Region(tuple(Op("Where", (one, two, three)) for one in asked), (x,))
    values = torch.tensor([0.0, 0.5, -0.5, 1e-40, float("inf"), float("-inf"), float("nan")])
    given = values.repeat(2, 1)
    results = _runner(engine, region, {})(given)
    for got, wanted in zip(results, region_function(region)(given), strict=True):
        assert torch.equal(got, wanted)
    other = _numbers(float("-inf"), 3.4028234663852886e38, float("nan"))
    for right in (*other, x, _in(1, 7)):
        term = Op("Where", (Op("Equal", (x, right)), two, three))
        args = tuple(part for part in topological([term]) if isinstance(part, Input))
        assert not OpenVino().takes(Region((term,), args))


@pytest.mark.rotating
def test_a_mask_is_moved_as_bools(engine: Engine) -> None:
    """As padding comes to the keys: ``seen[:, None, None, places]``."""
    seen, x = _in(0, 2, 5, dtype="bool"), _in(1, 2, 3, 4)
    moved = Scope((2, 1, 4), (), Read(seen, (Index.iterator(0, 2), Index.iterator(2, 4) + 1)))
    region = Region((Op("Where", (moved, x, *_numbers(0.0))),), (seen, x))
    assert taken_apart(region, engine.refuses).computed is None
    mask, given = torch.rand(2, 5) > 0.5, torch.randn(2, 3, 4)
    wanted = torch.where(mask[:, None, 1:], given, 0)
    assert torch.equal(_runner(engine, region, {})(mask, given), wanted)


# ---- what engines that take ONNX refuse -------------------------------------------------------


def test_dtypes_that_openvino_changes_are_refused() -> None:
    engine = OpenVino()

    def taken(term: Tensor) -> bool:
        return engine.takes(Region((term,), tuple(term.args)))  # type: ignore[attr-defined]

    x, y = (_in(n, 3, 4) for n in range(2))
    masks = [_in(n, 3, 4, dtype="bool") for n in range(2)]
    assert taken(Op("Add", (x, y)))
    assert taken(Op("Where", (masks[0], *(_in(n, 3, 4) for n in (1, 2)))))
    assert taken(Op("LogicalAnd", tuple(masks)))
    for dtype in ("float64", "float16", "bfloat16", "int64", "int32", "int8"):
        assert not taken(Op("Add", tuple(_in(n, 3, 4, dtype=dtype) for n in range(2)))), dtype
    assert not taken(Op("Cast", (x,), ("int32",)))
    assert not taken(Op("ReduceSum", (masks[0],), ((0,), 0)))


@pytest.mark.rotating
def test_an_engine_that_is_not_installed_offers_nothing_and_loads_nothing() -> None:
    """In a process in which no such package is found, whatever is installed here."""
    code = """
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: (
    None if name in ("onnxruntime", "openvino", "onnx") else real(name, *rest))
from eqsynth.ir.tensor import Input, Op, Region
from eqsynth.ir.types import TensorType
from eqsynth.lower.backends import cpu_backends, engines
x = Input("0", TensorType((2, 2), "float32"))
region = Region((Op("Relu", (x,)),), (x,))
backends = [b for b in cpu_backends() if b.name in ("onnxruntime", "openvino")]
print([len(list(b.kernels(region, (False,)))) for b in backends])
print([e.name for e in engines(["onnxruntime", "openvino"])])
print([m for m in ("onnxruntime", "openvino", "onnx") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:3] == ["[0, 0]", "[]", "[]"]


# ---- plain torch --------------------------------------------------------------------------------


def test_plain_torch_runs_a_region_too() -> None:
    h = _linear()
    for outputs in ((Op("Relu", (h,)),), (Op("Relu", (h,)), Op("Tanh", (h,)))):
        (kernel,) = TorchBackend().kernels(_region(*outputs, args=3), (False,) * 3)
        (runner,) = TorchBackend().build([(kernel, {})])
        x, w, b = torch.randn(4, 8), torch.randn(8, 8), torch.randn(8)
        assert runner is not None
        results = runner(x, w, b)
        wanted = [torch.relu(x @ w + b), torch.tanh(x @ w + b)][: len(outputs)]
        for one, other in zip(results if len(outputs) > 1 else [results], wanted, strict=True):
            torch.testing.assert_close(one, other)
