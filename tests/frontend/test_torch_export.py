"""Capture of modules: inputs, weights, buffers, results, opaque operators, refusals."""

import math
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eqsynth.errors import (
    CaptureError,
    DtypeError,
    EqsynthError,
    SeveralGraphsError,
    ShapeError,
)
from eqsynth.frontend.captured import Captured
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.tensor import Input, Op, Weight
from eqsynth.pipeline import optimize

Run = Callable[..., Any]


def module(function: Callable[..., Any], **state: Tensor) -> nn.Module:
    """A module in evaluation mode with ``function(self, …)`` as its forward."""

    class Wrapped(nn.Module):
        forward = function

    made = Wrapped()
    for name, value in state.items():
        if isinstance(value, nn.Parameter):
            made.register_parameter(name, value)
        else:
            made.register_buffer(name, value)
    return made.eval()


def operators(captured: Captured) -> list[str]:
    return [term.name for term in captured.program.terms() if isinstance(term, Op)]


X = torch.linspace(-1, 1, 12).reshape(3, 4)


# -- weights and buffers -------------------------------------------------------------------------


def test_tied_weights_are_one_weight(run: Run) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x))  # type: ignore[no-any-return]

    tied = Tied().eval()
    captured = capture(tied, (X,))
    assert [w.name for w in captured.program.weights()] == ["a.weight"]
    assert captured.weights.keys() == {"a.weight"}
    torch.testing.assert_close(run(captured, X), tied(X))


def test_parameters_that_are_equal_by_chance_stay_apart() -> None:
    model = nn.Sequential(nn.LayerNorm(4), nn.LayerNorm(4)).eval()
    assert capture(model, (X,)).weights.keys() == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_views_of_one_buffer_are_different_weights(run: Run) -> None:
    base = torch.arange(8.0)
    captured = capture(
        made := module(lambda self, x: x + self.a * self.b, a=base[:4], b=base[4:]), (X,)
    )
    assert captured.weights.keys() == {"a", "b"}
    torch.testing.assert_close(run(captured, X), made(X))


def test_lifted_constants_of_one_value_are_one_weight(run: Run) -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return x * torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.tensor([1.0, 2.0, 3.0, 4.0])

    captured = capture(made := module(forward), (X,))
    assert len(captured.weights) == 1
    torch.testing.assert_close(run(captured, X), made(X))


def test_a_lifted_constant_is_recognized_as_a_buffer_is(run: Run) -> None:
    """A band that the module's code takes from outside, as a mask of numbers and of bools."""
    places = torch.arange(len(X))
    for band in ((places[:, None] - places).abs() <= 1, torch.ones(len(X), len(X)).tril()):
        made = module(lambda self, x, m=band: (x @ x.T) * m)
        captured = capture(made, (X,))
        assert not captured.weights
        torch.testing.assert_close(run(captured, X), made(X))


def test_a_weight_named_like_an_input_gets_another_name(run: Run) -> None:
    captured = capture(made := module(lambda self, x: x + self.x, x=torch.ones(4)), (X,))
    (weight,) = captured.program.weights()
    assert (captured.program.inputs[0].name, weight.name) == ("x", "x_2")
    torch.testing.assert_close(run(captured, X), made(X))


def test_weights_are_the_modules_own_memory() -> None:
    linear = nn.Linear(4, 4).eval()
    assert capture(linear, (X,)).weights["weight"].data_ptr() == linear.weight.data_ptr()


def test_batch_norm_is_a_scale_and_a_bias_of_weights() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()
    captured = capture(model, (torch.randn(1, 1, 5, 5),))
    (root,) = captured.program.outputs
    assert isinstance(root, Op) and root.name == "Add"
    product, shift = root.args
    assert isinstance(product, Op) and product.name == "Mul"
    assert shift.constant and product.args[1].constant
    assert (shift.shape, product.args[1].shape) == ((2, 1, 1), (2, 1, 1))


def test_a_mutated_buffer_is_an_input_and_an_output(run: Run) -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        self.seen.add_(x.sum(0))
        return x + self.seen  # type: ignore[no-any-return]

    mine, theirs = (module(forward, seen=torch.zeros(4)) for _ in range(2))
    captured = capture(mine, (X,))
    assert [i.name for i in captured.program.inputs] == ["x", "seen"]
    assert captured.mutations == {1: 1}
    for step in (X, X + 1, X * 2):
        torch.testing.assert_close(run(captured, step), theirs(step))
    torch.testing.assert_close(mine.seen, theirs.seen)


def test_a_mutated_input_is_written_back(run: Run) -> None:
    captured = capture(module(lambda self, x: x.mul_(2).sum()), (X.clone(),))
    assert captured.mutations == {1: 0}
    mine = X.clone()
    torch.testing.assert_close(run(captured, mine), (2 * X).sum())
    torch.testing.assert_close(mine, 2 * X)


def test_nan_weights_stay_nan(run: Run) -> None:
    captured = capture(
        module(lambda self, x: x * self.w, w=torch.tensor([1.0, math.nan, 2, 3])), (X,)
    )
    assert run(captured, X).isnan().sum() == 3


# -- arguments and results -----------------------------------------------------------------------


def test_arguments_and_results_keep_their_structure(run: Run) -> None:
    def forward(
        self: nn.Module, pair: tuple[Tensor, dict[str, Tensor]], scale: int = 2, *, bias: Tensor
    ) -> dict[str, Any]:
        return {"y": pair[0] * scale + bias, "rest": [pair[1]["z"], None, 7]}

    made = module(forward)
    pair = (X, {"z": X + 1})
    captured = capture(made, (pair,), {"bias": X, "scale": 3})
    assert len(captured.program.inputs) == 3
    got = run(captured, pair, bias=X, scale=3)
    want = made(pair, 3, bias=X)
    torch.testing.assert_close(got["y"], want["y"])
    torch.testing.assert_close(got["rest"][0], want["rest"][0])
    assert got["rest"][1:] == [None, 7]
    # However the arguments are passed, they are the same arguments.
    torch.testing.assert_close(run(captured, pair, 3, bias=X)["y"], want["y"])
    torch.testing.assert_close(run(captured, bias=X, scale=3, pair=pair)["y"], want["y"])


def test_an_input_that_is_not_used_is_still_an_input(run: Run) -> None:
    captured = capture(module(lambda self, x, y: (y, y)), (X, X + 1))
    assert len(captured.program.inputs) == 2
    first, second = run(captured, X, X + 1)
    assert torch.equal(first, X + 1) and torch.equal(second, X + 1)


def test_a_result_that_depends_on_nothing(run: Run) -> None:
    captured = capture(module(lambda self, x: torch.arange(3) + 1), (X,))
    assert torch.equal(run(captured, X), torch.tensor([1, 2, 3]))


@pytest.mark.parametrize(
    ("args", "kind", "expected"),
    [((X[:2],), ShapeError, "(3, 4)"), ((X.double(),), DtypeError, "torch.float32"),
     ((3.0,), DtypeError, "a torch.Tensor, float32[3, 4]")],
)  # fmt: skip
def test_a_call_with_another_tensor_is_an_error(
    args: tuple[Any, ...], kind: type[EqsynthError], expected: str
) -> None:
    captured = capture(nn.Identity().eval(), (X,))
    with pytest.raises(kind) as caught:
        captured.bind(*args)
    assert caught.value.expected == expected
    assert caught.value.where == "input"


def test_a_call_with_another_constant_is_an_error() -> None:
    captured = capture(module(lambda self, x, n: x * n), (X, 3))
    assert len(captured.bind(X, 3)) == 1
    with pytest.raises(EqsynthError) as caught:
        captured.bind(X, 4)
    assert (caught.value.got, caught.value.expected) == ("4", "3")


@pytest.mark.parametrize("args", [(), (X, X), ((X,),)])
def test_a_call_with_another_structure_is_an_error(args: tuple[Any, ...]) -> None:
    captured = capture(nn.Identity().eval(), (X,))
    with pytest.raises(EqsynthError):
        captured.bind(*args)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_extents_of_zero(shape: tuple[int, ...], run: Run) -> None:
    made = module(lambda self, x: F.softmax(x, 1) @ x.T)
    x = torch.zeros(shape)
    torch.testing.assert_close(run(capture(made, (x,)), x), made(x))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_models_of_other_float_dtypes(dtype: str, run: Run) -> None:
    kind = getattr(torch, dtype)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8)).eval().to(kind)
    captured = capture(model, (X.to(kind),))
    assert {t.dtype for t in captured.program.terms()} == {dtype}
    torch.testing.assert_close(run(captured, X.to(kind)), model(X.to(kind)), rtol=0.05, atol=0.05)


def test_origins_name_the_place_in_the_model() -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x)

    captured = capture(nn.Sequential(nn.Tanh(), Inner()).eval(), (X,))
    relu = captured.program.outputs[0]
    assert isinstance(relu, Op)
    place, _, line = relu.origin.partition(", ")
    assert (place, line.split(":")[0]) == ("1", "test_torch_export.py")
    (tanh,) = relu.args
    assert isinstance(tanh, Op) and tanh.origin == "0"


# -- composite and opaque operators --------------------------------------------------------------


@pytest.mark.rotating
@pytest.mark.parametrize(
    "layer",
    [nn.LSTM(4, 5, batch_first=True), nn.GRU(4, 5, 2), nn.RNN(4, 5), nn.MultiheadAttention(4, 2)],
    ids=lambda layer: type(layer).__name__,
)
def test_recurrent_and_attention_layers_are_decomposed(layer: nn.Module, run: Run) -> None:
    attention = isinstance(layer, nn.MultiheadAttention)
    made = module(lambda self, x: self.layer(*((x,) * 3 if attention else (x,)))[0])
    made.layer = layer.eval()
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "The tensor attributes")
        captured = capture(made, (x,))
    assert captured.opaque == {}
    torch.testing.assert_close(run(captured, x), made(x), rtol=1e-4, atol=1e-5)


def test_a_transformer_layer_of_torch(run: Run) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    captured = capture(layer, (x,))
    assert captured.opaque == {}
    torch.testing.assert_close(run(captured, x), layer(x), rtol=1e-4, atol=1e-5)


def test_padding_by_reflection_becomes_reads_at_constant_indices(run: Run) -> None:
    made = module(lambda self, x: F.pad(x[None], (1, 2), mode="reflect"))
    captured = capture(made, (X,))
    assert captured.opaque == {}
    torch.testing.assert_close(run(captured, X), made(X))


OPAQUE: dict[str, Callable[..., Any]] = {
    "cumprod": lambda self, x: torch.relu(x.cumprod(1)) + 1,
    "cumsum of integers": lambda self, x: x.int().cumsum(1),
    "two results": lambda self, x: torch.sort(x.abs(), -1),
    "one of two results": lambda self, x: x.gather(1, x.abs().topk(2)[1]),
    "index of a maximum": lambda self, x: x.max(1),
    "complex in between": lambda self, x: torch.fft.ifft(torch.fft.fft(x) * 2).real + 1,
    "complex weight": lambda self, x: (x * self.c).imag,
    "several index tensors": lambda self, x: x[torch.tensor([0, 1]), torch.tensor([2, 3])],
    "ceil_mode": lambda self, x: F.avg_pool2d(x[None], 2, ceil_mode=True),
    "uneven adaptive pooling": lambda self, x: F.adaptive_avg_pool2d(x[None], (2, 3)),
    "bits of integers": lambda self, x: (5 * x).int() & 3,
    "interpolation by a fraction": lambda self, x: F.interpolate(
        x[None, None], scale_factor=1.6, mode="bilinear"
    ),
    "a check of its own": lambda self, x: torch.linalg.inv(x @ x.mT + torch.eye(3)),
    "three axes": lambda self, x: F.interpolate(
        x.view(1, 1, 3, 2, 2), scale_factor=2.0, mode="trilinear"
    ),
    "branch": lambda self, x: torch.cond(x.sum() > 0, lambda x: (x * 2,), lambda x: (x - 1,), (x,))[
        0
    ],
}


@pytest.mark.rotating
@pytest.mark.parametrize("name", OPAQUE)
def test_an_unknown_operator_stays_opaque_and_runs_through_torch(name: str, run: Run) -> None:
    state = {"c": torch.tensor([1 + 2j, 3 - 1j, 1j, 2 + 0j])}
    made = module(OPAQUE[name], **state)
    captured = capture(made, (X,))
    assert captured.opaque and "Opaque" in operators(captured)
    torch.testing.assert_close(run(captured, X), made(X))


def test_equal_opaque_operators_are_one_term_and_others_are_not() -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return x.cumprod(0) + x.cumprod(0) * x.cumprod(1) + (x + 1).cumprod(0)

    captured = capture(module(forward), (X,))
    assert operators(captured).count("Opaque") == 3
    assert len(captured.opaque) == 2


def test_unknown_operators_of_weights_alone_are_constants(run: Run) -> None:
    # Of weights, of other constants, and through values that the IR can't hold.
    made = module(
        lambda self, x: x + (1 + self.w.cumprod(0)).cumprod(0) + (self.c * 2).imag,
        w=torch.ones(4), c=torch.tensor([1j, 1 + 2j, 0j, 3j]),
    )  # fmt: skip
    captured = capture(made, (X,))
    opaque = [t for t in captured.program.terms() if isinstance(t, Op) and t.name == "Opaque"]
    assert len(opaque) == 3 and all(term.constant for term in opaque)
    torch.testing.assert_close(run(captured, X), made(X))
    assert captured.paths == {"w": ("w",)} and captured.fixed.keys() == {"c"}


def test_an_input_that_is_the_modules_own_buffer_stays_apart(run: Run) -> None:
    made = module(lambda self, x: x * 2 + self.w, w=torch.ones(4))
    captured = capture(made, (made.w,))
    x = torch.linspace(-1, 1, 4)
    torch.testing.assert_close(run(captured, x), made(x))


def test_a_tensor_that_is_returned_twice_is_one_result(run: Run) -> None:
    def forward(self: Any, x: Tensor) -> Any:
        y = x + 1
        return y, {"again": y, "equal": x + 1}, x, self.w, self.w

    captured = capture(module(forward, w=torch.ones(4)), (X,))
    y, more, x, *weights = run(captured, X)
    assert len(captured.program.outputs) == 3
    assert y is more["again"] and more["equal"] is not y and x is X and weights[0] is weights[1]


def test_what_a_module_computes_with_is_known_by_name() -> None:
    made = module(lambda self, x: x * self.scale + self.t + self.several[0] + self.a + self.b)
    made.scale, made.t, made.unused = 2.0, torch.ones(4), torch.zeros(3)
    made.several, made.config = [torch.arange(4.0), "name"], object()
    made.a = made.b = nn.Parameter(torch.ones(4))
    made.rnn = nn.LSTM(2, 2).eval()
    captured = capture(made, (X,))
    # A list of weights, as recurrent layers have it, is no value.
    assert captured.settings["rnn._flat_weights"].count("a weight") == 4
    assert {"scale", "several", "unused", "rnn.num_layers", "forward"} <= captured.settings.keys()
    assert not {"t", "config", "training"} & captured.settings.keys()
    found = sorted(captured.paths.values())
    assert found == [(), ("a", "b"), ("t",)]


def test_a_parametrized_weight(run: Run) -> None:
    model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)).eval()
    captured = capture(model, (X,))
    (root,) = captured.program.outputs
    assert captured.opaque == {}
    assert isinstance(root, Op) and isinstance(root.args[0], Op) and root.args[0].args[1].constant
    torch.testing.assert_close(run(captured, X), model(X))


def test_a_custom_operator_is_opaque(run: Run) -> None:
    @torch.library.custom_op("eqsynth_tests::twice", mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    @twice.register_fake
    def _(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    captured = capture(module(lambda self, x: torch.relu(twice(x))), (X,))
    assert list(captured.opaque) == ["eqsynth_tests.twice.default($0)"]
    torch.testing.assert_close(run(captured, X), torch.relu(2 * X))


# -- refusals ------------------------------------------------------------------------------------


ROWS = torch.arange(32.0).reshape(8, 4)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(-1)[4:].as_strided((4,), (1,)),
        lambda x: x.view(-1)[4:].as_strided((4,), (1,), 6),
        lambda x: x.t().as_strided((3, 2, 4), (4, 8, 1)),
        lambda x: x.view(4, 2, 4).transpose(0, 1).as_strided((2, 3, 2, 4), (4, 4, 8, 1)),
        lambda x: x.view(8, 1, 4).transpose(1, 2).as_strided((3, 4), (2, 3), 1),
    ],
)
def test_a_view_by_strides_reads_the_tensor_as_it_lies_in_memory(
    view: Callable[[Tensor], Tensor], run: Run
) -> None:
    captured = capture(made := module(lambda self, x: view(x + 1)), (ROWS,))
    assert captured.opaque == {}
    torch.testing.assert_close(run(captured, ROWS), made(ROWS))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(-1)[4:].as_strided((4,), (1,), 0),
        lambda x: x[:2].as_strided((3, 4), (4, 1)),
        lambda x: x[:, ::2].as_strided((4, 2), (4, 1)),
        lambda x: x[:1].expand(3, 4).as_strided((2,), (1,)),
    ],
)
def test_a_view_by_strides_of_memory_around_a_tensor_is_refused(
    view: Callable[[Tensor], Tensor],
) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(module(lambda self, x: view(x + 1)), (ROWS,))
    assert caught.value.got == "aten.as_strided.default"


def scattered(x: Tensor, *places: Any) -> Tensor:
    return torch.as_strided_scatter(x, torch.full(places[0], -1.0), *places)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.clone().fill_diagonal_(9.0),
        lambda x: x.clone().fill_diagonal_(9.0, wrap=True),
        lambda x: x.t().clone().fill_diagonal_(9.0),
        lambda x: scattered((x + 1).t(), (3, 2), (8, 1), 5),
        lambda x: scattered(x.view(8, 2, 2).transpose(0, 1), (2, 3), (4, 1), 20),
    ],
)
def test_a_write_by_strides_is_a_write_to_positions(
    write: Callable[[Tensor], Tensor], run: Run
) -> None:
    captured = capture(made := module(lambda self, x: write(x)), (ROWS,))
    assert not any("as_strided" in name for name in captured.opaque)
    torch.testing.assert_close(run(captured, ROWS + 7), made(ROWS + 7))


def test_a_write_by_strides_between_a_tensors_elements_is_refused() -> None:
    view = module(lambda self, x: scattered((x + 1)[:, ::2], (4,), (4,)))
    with pytest.raises(CaptureError) as caught:
        capture(view, (ROWS,))
    assert caught.value.got == "aten.as_strided_scatter.default"


def test_a_module_in_training_mode_is_refused_before_export() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    model[1].train()
    with pytest.raises(CaptureError) as caught:
        capture(model, (X,))
    assert caught.value.where == "1"
    assert ".eval()" in caught.value.hint


@pytest.mark.parametrize("args", [(), (X, X), (X, X, X)])
def test_a_wrong_number_of_example_inputs_is_an_error(args: tuple[Tensor, ...]) -> None:
    with pytest.raises(EqsynthError) as caught:
        capture(nn.Linear(4, 4).eval(), args)
    assert not isinstance(caught.value, CaptureError)  # the caller's mistake: no falling back
    assert str(len(args)) in caught.value.got
    assert "input" in caught.value.expected


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "control flow on values": (lambda self, x: x if x.sum() > 0 else -x, "torch.export refuses"),
    "random": (lambda self, x: x + torch.rand_like(x), "random"),
    "a shape that depends on values": (lambda self, x: x.nonzero(), "shape depends"),
    "equal shapes that depend on values": (
        lambda self, x: torch.where(x > 0)[0] + torch.where(x > 0)[1], "shape depends",
    ),
    "a complex result": (lambda self, x: torch.fft.fft(x), "a result has a dtype"),
    "an assertion": (
        lambda self, x: (torch._assert_async((x > -9).all()), x + 1)[1], "raises an error",
    ),
    "an assertion with a message": (
        lambda self, x: (torch._assert_async((x > -9).all(), "large"), x + 1)[1], "raises an error",
    ),
    "an effect": (lambda self, x: (torch._higher_order_ops.print("{}", x), x + 1)[1], "beside"),
    "an exception": (lambda self, x: x @ x, "torch.export refuses"),
}


@pytest.mark.rotating
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_captured_is_a_capture_error(name: str) -> None:
    function, what = REFUSED[name]
    with pytest.raises(CaptureError) as caught:
        capture(module(function), (X,))
    assert what in caught.value.what
    assert caught.value.got and caught.value.expected and caught.value.hint


def test_a_complex_input_is_a_capture_error() -> None:
    with pytest.raises(CaptureError) as caught:
        capture(module(lambda self, x: x.real), (X.to(torch.complex64),))
    assert (caught.value.where, caught.value.got) == ("x", "complex64")


def test_modules_are_captured_by_several_threads_at_once(run: Run) -> None:
    getattr_of_modules, found = nn.Module.__getattr__, dict[int, Tensor | Exception]()
    layers = [nn.Sequential(nn.Linear(4, 4), nn.LSTMCell(4, n + 1)).eval() for n in range(4)]

    def work(n: int) -> None:
        try:
            captured = capture(layers[n], (X,))
        except Exception as error:
            found[n] = error
        else:
            found[n] = run(captured, X)[0]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert nn.Module.__getattr__ is getattr_of_modules
    for n, layer in enumerate(layers):
        torch.testing.assert_close(found[n], layer(X)[0])


def test_inputs_and_weights_of_a_program_are_its_terms() -> None:
    captured = capture(nn.Linear(4, 2).eval(), (X,))
    leaves = [t for t in captured.program.terms() if isinstance(t, Input | Weight)]
    assert {t.label for t in leaves} == {"input", "weight", "bias"}


# -- what torch takes apart ------------------------------------------------------------------------


def test_an_operator_whose_decomposition_fails_stays_whole(run: Run) -> None:
    """One attention is refused and taken apart, and with it the other, whose mask torch's own
    decomposition refuses and the operator takes."""
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 4, 5, 8)
    mask = torch.rand(5, 5) > 0.3

    def both(self: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        attend = F.scaled_dot_product_attention
        shared = attend(q, k, v, enable_gqa=True)
        return shared, attend(q, v, v, self.mask, is_causal=True)

    made = module(both, mask=mask)
    captured = capture(made, (q, k, v))
    torch.testing.assert_close(run(captured, q, k, v), made(q, k, v))


@pytest.mark.parametrize("name", ["index_add", "index_copy"])
def test_a_position_that_torch_refuses_is_refused(name: str, run: Run) -> None:
    def written(self: Any, x: Tensor, at: Tensor) -> Tensor:
        return getattr(x, name)(0, at, self.rows)  # type: ignore[no-any-return]

    made = module(written, rows=torch.ones(2, 4))
    captured = capture(made, (X, torch.tensor([0, 2])))
    good, bad = torch.tensor([0, 2]), torch.tensor([0, -1])
    torch.testing.assert_close(run(captured, X, good), made(X, good))
    for program in (made, lambda *args: run(captured, *args)):
        with pytest.raises((IndexError, RuntimeError)):
            program(X, bad)


def test_inputs_that_are_not_dense_leave_the_original() -> None:
    """torch.export takes some of them for dense tensors."""
    dense = module(lambda self, x: x.to_dense() * 2)
    for x in (torch.eye(3).to_sparse(), torch.eye(3).to_mkldnn(), torch.eye(3).to_sparse_csr()):
        with pytest.raises(CaptureError) as caught:
            capture(dense, (x,))
        assert caught.value.got == str(x.layout)
        program = optimize(dense, (x,), time_limit_s=1.0)
        assert program.report.stop == "capture"
        torch.testing.assert_close(program(x), 2 * torch.eye(3))


def test_a_file_that_torch_lacks_is_no_fault_of_the_module() -> None:
    """torch.export writes temporary files: the reason of a full disk spoke of control flow, and the
    module was compiled graph by graph."""

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            raise FileNotFoundError("No usable temporary directory found")
        return x + 1

    with pytest.raises(CaptureError) as caught:
        capture(module(forward), (X,))
    assert not isinstance(caught.value, SeveralGraphsError)
    assert "temporary directory" in caught.value.expected and "No usable" in caught.value.got


def test_a_number_in_the_place_of_a_tensor_is_a_tensor_of_no_axes(run: Run) -> None:
    """``vmap`` of ``vmap`` exports ``r * 2`` as ``r * _to_copy(2)``; the entry looked for the
    number's dtype, which was an error in eqsynth."""
    nested = torch.vmap(torch.vmap(lambda r: r * 2 - 0.5))
    captured = capture(made := module(lambda self, x: nested(x)), (X,))
    assert captured.opaque == {}
    torch.testing.assert_close(run(captured, X), made(X))
