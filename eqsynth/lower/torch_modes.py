"""Traces, transforms, casts and gradients around a call of a compiled program.

torch can't see into a program's kernels: a trace would record their results as constants, and
gradients would get lost. So tracing, transforms and ``backward`` are refused, each with an error
that says what to do instead; autocast is ignored.

Not here: shapes and dtypes of inputs (``steps.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_flatten, tree_unflatten

from eqsynth.errors import LoweringError

_tracing: Final = torch._C._get_tracing_state
_transforms: Final = torch._C._functorch.peek_interpreter_stack
_modes: Final = torch._C._len_torch_dispatch_stack
_proxy: Final = torch._C._TorchDispatchModeKey.PROXY

AUTOCAST: Final = torch._C._is_any_autocast_enabled
"""Whether autocast is active, so that torch would cast inside of operators."""


def refuse_transforms() -> None:
    """Refuse tracers and transforms around a call. The test takes a tenth of a microsecond.

    Raises:
        LoweringError: ``torch.jit.trace``, ``make_fx``, or a transform of ``torch.func``, is
            active.
    """
    if _modes() and torch._C._get_dispatch_mode(_proxy) is not None:
        # A kernel's result would be recorded as a constant of the trace.
        raise _refusal("make_fx", "trace the original module")
    if _tracing() is not None:
        raise _refusal("torch.jit.trace", "trace the original module, or save the program")
    if _transforms() is not None:
        kind = _transforms().key().name.lower()
        names = {"vmap": "torch.func.vmap", "grad": "torch.func.grad", "jvp": "torch.func.jvp"}
        hint = "transform the original module"
        if kind == "vmap":
            hint += ", or optimize it for inputs with the further axis"
        raise _refusal(names.get(kind, f"torch.func ({kind})"), hint)


def plain(value: torch.Tensor) -> torch.Tensor:
    """A tensor of a subclass as a plain tensor.

    Raises:
        LoweringError: the subclass has no memory that kernels could read, as when ``torch.export``
            traces a program.
    """
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    refuse_tracing(value)
    if not isinstance(value, torch.Tensor) or is_traceable_wrapper_subclass(value):
        raise _refusal(type(value).__name__, "give plain tensors")
    return value.as_subclass(torch.Tensor).resolve_neg()


def refuse_tracing(value: torch.Tensor) -> None:
    """Refuse the tensors that ``torch.export`` traces with.

    Raises:
        LoweringError: the tensor is one of these.
    """
    if type(value) is not torch.Tensor:
        from torch._subclasses.fake_tensor import FakeTensor
        from torch._subclasses.functional_tensor import FunctionalTensor

        if isinstance(value, FakeTensor | FunctionalTensor):
            raise _refusal("torch.export", "export the original module, or save the program")


def _refusal(what: str, hint: str) -> LoweringError:
    return LoweringError(
        f"a compiled program can't be used under {what}",
        got=what,
        expected="a call on plain tensors: its kernels are nothing that torch sees through",
        hint=hint,
    )


class _WithoutGradients(torch.autograd.Function):
    """Marks results that are computed without gradients, so that ``backward`` through them
    raises."""

    @staticmethod
    def forward(ctx: Any, results: list[torch.Tensor], *inputs: torch.Tensor) -> Any:
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise LoweringError(
            "a compiled program has no gradients",
            got="backward() through its result, to an input that requires gradients",
            expected="inference",
            hint="differentiate the original module; or detach the input, or call the program "
            "under torch.no_grad(), if its result counts as a constant",
        )


def without_gradients(results: list[torch.Tensor], inputs: Sequence[Any]) -> list[torch.Tensor]:
    """The results of a call, marked so that ``backward`` through them to an input that requires
    gradients raises; silently wrong gradients would be worse. If no input requires any, the results
    themselves."""
    if forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(x).tangent is not None for x in inputs
    ):
        raise _refusal("forward_ad.dual_level", "differentiate the original module")
    wanted = [x for x in inputs if x.requires_grad] if torch.is_grad_enabled() else []
    if not wanted:
        return results
    floats = [n for n, x in enumerate(results) if x.is_floating_point() or x.is_complex()]
    apply: Any = _WithoutGradients.apply
    marked = apply([results[n] for n in floats], *wanted)
    results = list(results)
    for n, x in zip(floats, marked, strict=True):
        results[n] = x
    return results


def tensors(tree: Any) -> tuple[list[torch.Tensor], Any]:
    """The distinct tensors of a tree, and a function that rebuilds the tree with other tensors in
    their places."""
    # The common cases are treated first: torch walks trees in Python, which takes tens of
    # microseconds even for a tuple of tensors.
    if isinstance(tree, torch.Tensor):
        return [tree], lambda values: values[0]
    if type(tree) in (tuple, list) and all(isinstance(x, torch.Tensor) for x in tree):
        if len(set(map(id, tree))) == len(tree):
            return list(tree), type(tree)
    leaves, spec = tree_flatten(tree)
    distinct = list({id(x): x for x in leaves if isinstance(x, torch.Tensor)}.values())
    places = {id(x): n for n, x in enumerate(distinct)}

    def rebuilt(values: Sequence[torch.Tensor]) -> Any:
        return tree_unflatten(
            [values[places[id(x)]] if id(x) in places else x for x in leaves], spec
        )

    return distinct, rebuilt


def zeros_like(tree: Any) -> Callable[[], Any] | None:
    """A function that makes the same tree with zeros in place of its tensors, and keeps none of the
    tensors. None if a tensor isn't dense, for which zeros would be no example."""
    leaves, spec = tree_flatten(tree)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if any(x.layout != torch.strided or x.is_nested or x.is_quantized for x in tensors):
        return None

    # Only the leaves are kept as meta tensors: a tree of them can't always be built, since a
    # PackedSequence refuses tensors that aren't on the CPU.
    sketched = [
        torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        if isinstance(x, torch.Tensor)
        else x
        for x in leaves
    ]

    def zeros() -> Any:
        made = (
            torch.zeros(x.shape, dtype=x.dtype) if isinstance(x, torch.Tensor) else x
            for x in sketched
        )
        return tree_unflatten(made, spec)

    return zeros
