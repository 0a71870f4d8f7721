"""Which inputs of a module have to lie in memory as its example inputs do.

    def forward(self, x):                    x of shape (4, 6), stride (6, 1)
        return x.as_strided((2, 3), (1, 4))  ->  x must have stride (6, 1) in each call

An export fixes what the module reads from the memory of a tensor: of ``x.as_strided(...)`` which
elements these are, of ``x.stride(0)`` the number, of ``if x.is_contiguous()`` the branch. For an
input of other strides the module may give another result, and the program that was made of the
export would give the old one. So such an input's strides are looked at in each call. Any other
input may have any strides.

While the module is exported, ``memory_reads`` sees each call of torch that the module makes, and
follows the inputs: the strides of ``x.t() + y`` depend on those of x and y, the strides of
``linear(x)`` on nothing. Not here: the checks (``steps.py``, ``torch_graph.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.fx import Interpreter
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from eqsynth.errors import ShapeError
from eqsynth.ir.tensor import Input
from eqsynth.lower.functional import tracing


@dataclass(frozen=True)
class Memory:
    """How an input has to lie in memory.

    Attributes:
        strides: for each axis its stride; None for an axis of extent 1 whose stride isn't read.
        offset: the position of the first element in the tensor's storage; None if it isn't read.
    """

    strides: tuple[int | None, ...]
    offset: int | None = None

    def holds(self, value: torch.Tensor) -> bool:
        """Whether the tensor lies so. Its rank must be right."""
        pairs = zip(self.strides, value.stride(), strict=True)
        at_offset = self.offset is None or self.offset == value.storage_offset()
        return at_offset and all(wanted is None or wanted == step for wanted, step in pairs)

    def __str__(self) -> str:
        steps = ", ".join("any" if step is None else str(step) for step in self.strides)
        told = f"strides ({steps})"
        return told if self.offset is None else f"{told}, offset {self.offset} in its storage"


def misplaced(value: torch.Tensor, where: str, memory: Memory) -> ShapeError:
    """The error for an input that lies otherwise in memory."""
    offset = None if memory.offset is None else int(value.storage_offset())
    own = Memory(value.stride(), offset)
    return ShapeError(
        what="an input lies otherwise in memory than the program was compiled for, and the module "
        "reads its memory (as_strided, stride, is_contiguous, storage_offset)",
        where=where,
        got=str(own),
        expected=str(memory),
        hint="copy it into a tensor of these strides, or optimize once more for this one",
    )


def required(
    memories: Mapping[int, Memory], arguments: Sequence[Any], inputs: Sequence[Input]
) -> dict[str, Memory]:
    """The same by the names of inputs.

    Args:
        memories: by the positions of a call's leaves.
        arguments: for each leaf of a call the position of an input, or something else.
    """
    return {
        inputs[arguments[leaf]].name: memory
        for leaf, memory in memories.items()
        if isinstance(arguments[leaf], int)
    }


class MemoryReads:
    """What a module has read of its inputs' memory, by the positions of the leaves of its
    arguments."""

    def __init__(self) -> None:
        self.strides: set[int] = set()
        self.single: set[int] = set()  # read as numbers, so that axes of extent 1 matter, too
        self.offsets: set[int] = set()

    def memories(self, given: object) -> dict[int, Memory]:
        """For each leaf whose memory is read, how it lies in ``given``, the example arguments."""
        leaves, found = tree_leaves(given), dict[int, Memory]()
        for leaf in sorted(self.strides | self.offsets):
            value = leaves[leaf]
            steps = tuple(
                None if leaf not in self.strides or (n == 1 and leaf not in self.single) else step
                for n, step in zip(value.shape, value.stride(), strict=True)
            )
            offset = value.storage_offset() if leaf in self.offsets else None
            found[leaf] = Memory(steps, offset)
        return found

    def scattered(self, given: object) -> torch.Tensor | None:
        """An input of the example arguments whose memory is read and isn't dense: it has gaps, or
        elements that overlap, or its offset is read and isn't 0. None if there is no such input.

        Other inputs of this kind, as the check draws them, would not lie in memory as it does.
        """
        leaves = tree_leaves(given)
        for leaf in sorted(self.strides | self.offsets):
            value = leaves[leaf]
            dense = torch.empty_like(value).stride() == value.stride()
            if (leaf in self.strides and not dense) or (
                leaf in self.offsets and value.storage_offset()
            ):
                return value  # type: ignore[no-any-return]
        return None


@contextmanager
def memory_reads(module: torch.nn.Module, views: bool = True) -> Iterator[MemoryReads]:
    """Note what the module reads of its inputs' memory when it is called in the block.

    Args:
        views: whether ``as_strided`` counts. It doesn't where the call itself is kept and runs on
            the tensors that are given.
    """
    reads = MemoryReads()
    with tracing():  # ``_as_graph`` replaces functions of torch
        if isinstance(module, torch.jit.ScriptModule):
            yield reads  # it takes no hooks, and torch.export refuses it
        elif isinstance(module, torch.fx.GraphModule):
            with _as_graph(module, _Watching(reads, views)):
                yield reads
        else:
            with _by_hooks(module, _Watching(reads, views)):
                yield reads


@contextmanager
def _by_hooks(module: torch.nn.Module, watching: _Watching) -> Iterator[None]:
    """Watch from the beginning to the end of the module's call. The user may call the module in
    another thread meanwhile."""
    depth = 0  # a module may call itself
    thread = threading.get_ident()

    def enter(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        nonlocal depth
        if threading.get_ident() != thread:
            return
        depth += 1
        if depth == 1:
            watching.begin()
            for leaf in tree_leaves((args, kwargs)):
                watching.give(leaf)

    def leave(*_: Any) -> None:
        nonlocal depth
        if threading.get_ident() != thread:
            return
        depth -= 1
        if depth == 0:
            watching.end()

    hooks = [
        module.register_forward_pre_hook(enter, with_kwargs=True),
        module.register_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _as_graph(module: torch.fx.GraphModule, watching: _Watching) -> Iterator[None]:
    """Watch from the first input of the module's graph to its output. ``torch.export`` doesn't call
    a graph, which is what Dynamo gives, but interprets it node by node."""
    patched: Any = Interpreter
    placeholder, output = Interpreter.placeholder, Interpreter.output
    thread = threading.get_ident()

    def is_exported(interpreter: Interpreter) -> bool:
        return interpreter.module is module and threading.get_ident() == thread

    def begin(self: Interpreter, *rest: Any) -> Any:
        value = placeholder(self, *rest)
        if is_exported(self):
            watching.begin()
            watching.give(value)
        return value

    def end(self: Interpreter, *rest: Any) -> Any:
        if is_exported(self):
            watching.end()
        return output(self, *rest)

    patched.placeholder, patched.output = begin, end
    try:
        yield
    finally:
        patched.placeholder, patched.output = placeholder, output
        watching.end()


_Inputs = frozenset[int]

_NUMBERS: Final = frozenset({"stride", "dim_order"})
_READS: Final = _NUMBERS | {"is_contiguous", "is_non_overlapping_and_dense"}
_VIEWS: Final = frozenset({"as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter"})
_OFFSETS: Final = frozenset({"storage_offset"})

# Functions whose result is contiguous, whatever the strides of the arguments are. (``contiguous``
# may return its argument, and with it the argument's offset.)
_CONTIGUOUS: Final = frozenset(
    {
        torch.Tensor.contiguous, torch.nn.functional.linear, torch.nn.functional.embedding,
        torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.Tensor.mm, torch.Tensor.bmm,
        torch.Tensor.new_zeros, torch.Tensor.new_ones, torch.Tensor.new_full,
        torch.Tensor.new_empty,
    }
)  # fmt: skip


class _Watching(TorchFunctionMode):
    """Sees the calls of torch that the module makes.

    A tensor that isn't known is no input: a parameter, a buffer, or made of these alone.
    """

    def __init__(self, reads: MemoryReads, views: bool) -> None:
        super().__init__()
        self._reads, self._views = reads, views
        self._strides, self._offsets = WeakIdKeyDictionary(), WeakIdKeyDictionary()
        self._count, self._watches, self._active = 0, False, ExitStack()

    def begin(self) -> None:
        """Watch all calls from now on, if that hasn't begun."""
        if not self._watches:
            self._watches = True
            self._active.enter_context(self)

    def end(self) -> None:
        self._watches = False
        self._active.close()

    def give(self, leaf: Any) -> None:
        """The next leaf of the module's arguments."""
        if isinstance(leaf, torch.Tensor):
            self._strides[leaf] = self._offsets[leaf] = frozenset([self._count])
        self._count += 1

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_dynamo_compiling():  # the branches of torch.cond
            return function(*args, **kwargs)
        name = getattr(function, "__name__", "").partition(".")[0]
        self._look(name, args, kwargs)
        result = function(*args, **kwargs)
        if result is None or isinstance(result, int | float | str | torch.Size):
            return result
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        made = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        ordered = function in _CONTIGUOUS and "memory_format" not in kwargs
        for known, fixed in ((self._strides, ordered), (self._offsets, False)):
            inputs = frozenset().union(*(self._of(known, x) for x in given))
            for x in made:
                if inputs and not fixed and not any(x is other for other in given):
                    known[x] = inputs
        return result

    def _of(self, known: WeakIdKeyDictionary, x: torch.Tensor) -> _Inputs:
        """The inputs that a tensor depends on."""
        found: _Inputs = known.get(x, frozenset())
        return found

    def _look(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note the inputs whose memory the call reads."""
        view = name in _VIEWS and self._views
        if not args or not isinstance(args[0], torch.Tensor):
            return
        if view or name in _READS:
            self._reads.strides |= self._of(self._strides, args[0])
        if name in _NUMBERS:
            self._reads.single |= self._of(self._strides, args[0])
        begin = 4 if name == "as_strided_scatter" else 3
        offset = args[begin] if len(args) > begin else kwargs.get("storage_offset")
        if name in _OFFSETS or (view and offset is not None):
            self._reads.offsets |= self._of(self._offsets, args[0])
