"""The original that a program is compared with, also run with moved floats and in float64.

``Reference(module)(values)`` gives its results, ``.moved(values, seed)`` those with all floats of
inputs and weights off by a few roundings, ``.exact(values)`` those in float64. For the last two a
module is copied, so that the user's own stays untouched. For a function that is no module only the
inputs can be moved. Not here: what these results decide (``rounding.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.program import Program
from eqsynth.ir.tensor import Op, Scope, Tensor, args_of, topological
from eqsynth.lower.operator_modes import OperatorMode, name_of
from eqsynth.lower.rounding import MOVE, ON_THE_WAY, RERUNS, SUMS
from eqsynth.lower.torch_ops import Opaque, run_term
from eqsynth.lower.torch_scalars import kept_dtype
from eqsynth.lower.traps import Guard, Trapped

Values = tuple[tuple[Any, ...], dict[str, Any]]
"""The positional and the keyword arguments of a call."""

# Noise for large tensors is drawn for this many elements and repeated. It is a prime, so that the
# rows of a matrix get different parts of it.
_POOL = 65_537
_LARGEST = 4 << 30  # a module of more bytes isn't copied
_KEPT = 256 << 20  # the most bytes of moved weights that are kept
_WEIGHTS = 10_000  # the first number of a weight as a part of a rerun (see off_by_rounding)
_STEPS = 100_000  # the first number of a value that is computed on the way


@contextmanager
def unchanged(state: Sequence[torch.Tensor]) -> Iterator[None]:
    """A context that restores the values of tensors (the buffers that a program changes) at its
    end."""
    saved = [tensor.clone() for tensor in state]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(state, saved, strict=True):
                tensor.copy_(value)


def results(
    call: Callable[..., Any], values: Values, state: Sequence[torch.Tensor] = ()
) -> list[torch.Tensor]:
    """The tensors of a call's result, then the state as the call leaves it. Inputs and state
    themselves stay unchanged."""
    args, kwargs = tree_map_only(torch.Tensor, torch.clone, values)
    if isinstance(call, torch.fx.GraphModule):
        # Its own ``__call__`` prints a traceback if the graph refuses the inputs, as an index
        # outside of a tensor. Whoever asks for the results catches the error.
        call = partial(torch.nn.Module.__call__, call)
    with torch.no_grad(), unchanged(state):
        leaves = tree_leaves(call(*args, **kwargs))
        found = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return [*found, *(tensor.clone() for tensor in state)]


class Reference:
    """The original, whose results are taken to be right.

    Attributes:
        state: the buffers that it changes. They count as results, and are restored after each run.
        runs: how often it ran, moved and in float64 included.
    """

    def __init__(self, call: Callable[..., Any], state: Sequence[torch.Tensor] = ()) -> None:
        self.call, self.state, self.runs = call, tuple(state), 0
        self._moving: _Copy | None = None
        self._wide: _Copy | None = None
        self._copies = isinstance(call, torch.nn.Module) and may_be_copied(call)
        self._widens = self._copies
        # Whether it calls an operator that may end the process; None until it has run.
        self._traps: bool | None = None

    def __call__(self, values: Values) -> list[torch.Tensor]:
        self.runs += 1
        if self._traps is None:
            guard = Guard()
            try:
                with guard:
                    found = results(self.call, values, self.state)
            except Trapped:
                self._traps = True
                raise
            except Exception:  # something in it doesn't run in such a mode, or the inputs are wrong
                self._traps = False
            else:
                self._traps = guard.needed
                return found
        with self._guard():
            return results(self.call, values, self.state)

    def _guard(self) -> AbstractContextManager[Any]:
        return Guard() if self._traps else nullcontext()

    def moved(self, values: Values, seed: int) -> list[torch.Tensor] | None:
        """The results with inputs and weights off by a few roundings; None if the original fails on
        them.

        Seeds from ``SUMS`` on also move the values that it computes on the way.
        """
        if self._copies and self._moving is None:
            try:
                self._moving = _Copy(self.call, self.state)
            except Exception:  # copying a user's module may raise anything; only inputs move then
                self._copies = False
        self.runs += 1
        leaves, tree = tree_flatten(values)
        shaken: Values = tree_unflatten(
            [
                off_by_rounding(x, seed=seed, part=n) if isinstance(x, torch.Tensor) else x
                for n, x in enumerate(leaves)
            ],
            tree,
        )
        try:
            with self._guard(), _Rounding(seed) if seed >= SUMS else nullcontext():
                if self._moving is None:
                    return results(self.call, shaken, self.state)
                self._moving.move(seed)
                return results(self._moving.module, shaken, self._moving.state)
        except Exception:
            return None

    def exact(self, values: Values) -> list[torch.Tensor] | None:
        """The results in float64; None if the original can't be run in float64."""
        if not self._widens:
            return None
        self.runs += 1
        widened: Values = tree_map_only(torch.Tensor, _double, values)
        try:
            self._wide = self._wide or _Copy(self.call, self.state, wide=True)
            doubles = nullcontext() if self._has_doubles(values) else _Doubles()
            with self._guard(), doubles:
                return results(self._wide.module, widened, self._wide.state)
        except Exception:
            self._widens = False
            return None

    def _has_doubles(self, values: Values) -> bool:
        found = [*tree_leaves(values), *_tensors(self.call).values()]  # type: ignore[arg-type]
        tensors = (x for x in found if isinstance(x, torch.Tensor))
        return any(x.dtype in (torch.float64, torch.complex128) for x in tensors)


class _Doubles(OperatorMode):
    """A mode in which a program of float32 computes in float64, whatever it makes on the way.

        torch.ones(n, n) @ x.double()       a float32 constant of ``forward``: refused by torch
        (q @ k.T).float().softmax(-1)       rounded to float32 on the way

    A constant keeps its float32 value. A conversion to a dtype below float32 rounds as it does in
    the program. What changes a tensor in place is left alone."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if not name_of(func) or func._schema.is_mutable:
            return func(*args, **kwargs)
        args, kwargs = tree_map_only(torch.Tensor, _double, (args, kwargs))
        if kwargs.get("dtype") is torch.float32 and any(
            isinstance(arg, torch.Tensor) and arg.is_floating_point() for arg in args
        ):
            kwargs["dtype"] = torch.float64
        return tree_map_only(torch.Tensor, _double, func(*args, **kwargs))


# Operators that round: sums, whose order is the library's choice, and arithmetic that a compiler
# may fuse, reorder, or compute as x * (1 / y) instead of x / y. Operators that move, choose or
# clamp elements are exact in every implementation, and aren't listed.
_ROUNDS: Final = frozenset({
    *(f.aten for f in FUNCTIONS.values() if f.result == "float" and f.torch),
    "add", "sub", "rsub", "mul", "div", "addcmul", "addcdiv", "lerp", "pow", "tan",
    "softplus", "elu", "mish", "hardswish", "hardsigmoid",
    "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear",
    "convolution", "_convolution", "mkldnn_convolution", "cudnn_convolution",
    "sum", "nansum", "mean", "cumsum", "prod",
    "logsumexp", "norm", "linalg_vector_norm", "native_layer_norm", "native_group_norm",
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
    "_softmax", "_log_softmax", "avg_pool2d", "_adaptive_avg_pool2d", "var", "std", "var_mean",
    "_scaled_dot_product_flash_attention_for_cpu", "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd", "mkldnn_rnn_layer", "lstm_cell", "gru_cell",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_fused_attention_overrideable",
    "cudnn_batch_norm", "_cudnn_rnn", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell",
})  # fmt: skip


class _Rounding(OperatorMode):
    """A mode in which the results of torch's rounding operators are off by `ON_THE_WAY` roundings,
    each element differently.

    Moving the inputs doesn't find every effect of rounding. If the rows of x are equal, all
    elements of `x @ x.T` are the same sum, equal in torch's kernel and perhaps not in another; a
    normalization turns a rounding between them into a visible difference. Moved rows stay equal.
    And `x / (1 + x)` around 1e4 hardly moves if x is off by some roundings.

    ``prod`` is computed backward, or in float64: a product of 1e-30, 1e-30 and 1e30 is 0 or 1e-30,
    and each library multiplies in an order of its own.

    ``gelu`` is `x / 2 * (1 + erf(x / sqrt(2)))`, and its sum is moved, too: at x = -6 the sum is
    2e-9, which in float32 is 0.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed, self._count = seed, _STEPS

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = name_of(func)
        if name == "prod" and result.is_floating_point():
            result = self._reordered(func, args, kwargs or {}).to(result.dtype)
        if name not in _ROUNDS:
            return result
        self._count += 1

        def off(x: torch.Tensor) -> torch.Tensor:
            return off_by_rounding(x, seed=self._seed, part=self._count, roundings=ON_THE_WAY)

        if name == "gelu":
            return off(result) + (off(args[0]) - args[0]) / 2
        return tree_map_only(torch.Tensor, off, result)

    def _reordered(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        x, *others = args
        if self._seed % 2 or not x.is_floating_point():
            wide: torch.Tensor = func(x.double(), *others, **kwargs)
            return wide
        backward: torch.Tensor = func(x.flip(others[:1] or [*range(x.ndim)]), *others, **kwargs)
        return backward


def may_be_copied(module: torch.nn.Module) -> bool:
    """Whether a module is small enough to copy; of a larger module only the inputs are moved."""
    size = sum(x.numel() * x.element_size() for x in _tensors(module).values())
    return size <= _LARGEST


class _Copy:
    """A copy of a module: its buffers that change, and its floats paired with those of the
    original."""

    def __init__(self, module: Any, state: Sequence[torch.Tensor], wide: bool = False) -> None:
        self.module: torch.nn.Module = copy.deepcopy(module)
        if wide:
            self.module.double()
            self.module._apply(_double)  # complex weights, which ``double()`` leaves as they are
        mine, theirs = _tensors(self.module), _tensors(module)
        names = {id(tensor): name for name, tensor in theirs.items()}
        self.state = tuple(mine[names[id(tensor)]] for tensor in state)
        changing = set(map(id, self.state))
        self._floats = [
            (_real(mine[name]), _real(tensor)) for name, tensor in theirs.items()
            if not wide and (tensor.is_floating_point() or tensor.is_complex())
            and id(mine[name]) not in changing and not _whole(_real(tensor))
        ]  # fmt: skip
        self._bytes = sum(theirs.nbytes for _, theirs in self._floats)
        self._room, self._moved = _KEPT, dict[int, list[torch.Tensor]]()

    def move(self, seed: int) -> None:
        """Set the copy's weights to the original's, off by a few roundings. The weights of the
        first seeds are kept up to a size, since every kind of inputs asks for them again (BERT of 4
        layers: 28 moves, which took half of the check's time)."""
        known = self._moved.get(seed)
        fresh = known is None and seed < SUMS and self._room >= self._bytes
        if fresh:
            known = self._moved[seed] = []
            self._room -= self._bytes
        with torch.no_grad():
            for number, (mine, theirs) in enumerate(self._floats):
                if known is not None and not fresh:
                    mine.copy_(known[number])
                    continue
                moved = _off(theirs, _factor(theirs, seed, _WEIGHTS + number, MOVE))
                mine.copy_(moved)
                if known is not None:
                    known.append(moved)


def _off(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """``x`` times a factor that is repeated over its elements."""
    flat, size = x.contiguous().view(-1), len(factor)
    whole = len(flat) // size * size
    to = torch.empty_like(flat)
    torch.mul(flat[:whole].view(-1, size), factor, out=to[:whole].view(-1, size))
    torch.mul(flat[whole:], factor[: len(flat) - whole], out=to[whole:])
    return to.view(x.shape)


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _double(x: torch.Tensor) -> torch.Tensor:
    if x.is_complex():
        return x.to(torch.complex128)
    return x.double() if x.is_floating_point() else x


def _real(x: torch.Tensor) -> torch.Tensor:
    """The floats of a tensor: of a complex one its real and imaginary parts, in the same memory."""
    return torch.view_as_real(x.detach().resolve_conj()) if x.is_complex() else x.detach()


def off_by_rounding(
    x: torch.Tensor, *, seed: int, part: int = 0, roundings: float = MOVE
) -> torch.Tensor:
    """Floats moved by about ``roundings`` roundings each. Some zeros change their sign, which no
    program preserves.

    A tensor of whole numbers (a mask, a position in a float) is taken as exact and isn't moved,
    except for seeds from ``RERUNS`` to ``SUMS``, which move it away from zero.

    Args:
        part: the number of this tensor within a rerun; each tensor is moved differently.
    """
    if x.is_complex():
        moved = off_by_rounding(_real(x), seed=seed, part=part, roundings=roundings)
        return torch.view_as_complex(moved)
    if not x.is_floating_point() or not x.numel():
        return x
    factor = _factor(x, seed, part, roundings)
    factor = factor.repeat(-(-x.numel() // len(factor)))[: x.numel()].reshape(x.shape)
    other = (x == 0) & (factor < 1)
    if not _whole(x):
        moved = x * factor
    elif RERUNS <= seed < SUMS:
        moved = x * (1 + (factor - 1).abs())
    else:
        moved = x
    return torch.where(other, -x, moved)


def _whole(x: torch.Tensor) -> bool:
    """Whether all elements are whole numbers, of a size at which the dtype also has numbers that
    aren't whole. Scores around 6e9 are multiples of 512 in float32, and rounded like others."""
    exact = x.abs() * torch.finfo(x.dtype).eps <= 2
    return bool((exact & (x == x.trunc())).all())


def _factor(x: torch.Tensor, seed: int, part: int, roundings: float) -> torch.Tensor:
    """The factors for the first ``_POOL`` elements of ``x``; they are repeated for the others."""
    generator = torch.Generator().manual_seed(seed + 1000 * part)
    noise = torch.randn(min(x.numel(), _POOL), generator=generator, dtype=torch.float64)
    return (1 + roundings * torch.finfo(x.dtype).eps * noise).to(x)


class Plain(torch.nn.Module):
    """A program as it was captured, computed term by term by torch: the original of an expression.

    After ``double()`` it computes in float64 throughout.
    """

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, torch.Tensor],
        unflatten: Callable[..., Any],
        opaque: Opaque | None = None,
    ) -> None:
        super().__init__()
        self.program, self.unflatten, self.wide = program, unflatten, False
        self.opaque = opaque
        self.names = tuple(weights)
        for position, value in enumerate(weights.values()):
            self.register_buffer(f"weight_{position}", value.detach())
        self.eval()

    def forward(self, *inputs: torch.Tensor) -> Any:
        values = dict(zip((i.name for i in self.program.inputs), inputs, strict=True))
        values |= {name: self.get_buffer(f"weight_{n}") for n, name in enumerate(self.names)}
        results = evaluate(self.program.outputs, values, self.opaque, self.wide)
        return self.unflatten(results, inputs)

    def double(self) -> Plain:
        self.wide = True
        return super().double()


def evaluate(
    outputs: Sequence[Tensor],
    leaves: Mapping[str, torch.Tensor],
    opaque: Opaque | None = None,
    exact: bool = False,
) -> list[torch.Tensor]:
    """The values of terms, computed by torch; shared subterms are computed once.

    Args:
        leaves: the values of inputs and weights, by name.
        exact: whether to compute in float64.
    """
    order = list(topological(outputs))
    left = dict.fromkeys(order, 0)
    for term in order:
        for arg in args_of(term):
            left[arg] += 1
    for term in outputs:
        left[term] += 1
    values: dict[Tensor, torch.Tensor] = {}
    for term in order:
        args = term.args if isinstance(term, Op) else args_of(term)
        # An operator or a scope without arguments, such as ``L[i<4] value(i)``, is no leaf.
        if args or isinstance(term, Op | Scope):
            values[term] = run_term(term, [values[arg] for arg in args], opaque, exact)
        else:
            values[term] = leaves[term.label].to(kept_dtype(term.dtype, exact))
        for arg in args_of(term):
            left[arg] -= 1
            if not left[arg]:
                del values[arg]
    return [values[term] for term in outputs]
