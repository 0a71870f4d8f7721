"""A kernel: one way to run one term with given layouts. Kernels are costed, timed and built.

    Kernel(Matmul(Input 0, Input 1), constants=(False, True), "onednn.linear", layouts…)

Extraction knows kernels and backends only through this interface; ``lower/`` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from eqsynth.extract.schedule import Schedule
from eqsynth.ir.index import Index
from eqsynth.ir.scalar import Read
from eqsynth.ir.tensor import Input, Op, Region, Scope, Tensor
from eqsynth.ir.types import Shape, TensorType

if TYPE_CHECKING:
    import torch

Layout = tuple[int, ...]
"""Axes from the outermost to the innermost in memory; the tensor is dense in that order."""


def contiguous(rank: int) -> Layout:
    """The layout of a contiguous tensor: ``contiguous(3) == (0, 1, 2)``."""
    return tuple(range(rank))


def channels_last(rank: int) -> Layout:
    """(n, h, w, c) in memory for a logical (n, c, h, w)."""
    return (0, *range(2, rank), 1)


def matrix_layouts(rank: int) -> tuple[Layout, ...]:
    """The contiguous layout, and the one with the last two axes exchanged."""
    if rank < 2:
        return (contiguous(rank),)
    return contiguous(rank), (*range(rank - 2), rank - 1, rank - 2)


def strides(shape: Shape, layout: Layout) -> tuple[int, ...]:
    """Strides in elements of a dense tensor of ``shape`` in ``layout``.

    >>> strides((1, 3, 2, 2), (0, 2, 3, 1))
    (12, 1, 6, 3)
    """
    result, step = [0] * len(shape), 1
    for axis in reversed(layout):
        result[axis] = step
        step *= max(shape[axis], 1)
    return tuple(result)


@dataclass(frozen=True)
class Kernel:
    """One implementation of one term.

    Attributes:
        term: an Op, a Scope or a Region whose arguments are ``Input("0", …)``, ``Input("1", …)``,
            … in the order of ``args_of``; so equal computations are equal kernels.
        constants: for each argument, whether it is known when the program is built, so that it is
            packed once.
        implementation: the backend's name for the kernel, such as ``onednn.conv`` or ``tvm``.
        inputs, output: the layouts of the arguments and of the result.
        schedule: how the kernel runs its loops, a point of the backend's space of schedules. A
            string if there is no such space, such as an engine's version. ``str`` of it is its
            name.
    """

    term: Tensor
    constants: tuple[bool, ...]
    implementation: str
    inputs: tuple[Layout, ...]
    output: Layout
    schedule: Schedule | str = ""

    def __post_init__(self) -> None:
        # The hash is kept, since each round of extraction looks up thousands of kernels.
        parts = (self.term, self.constants, self.implementation, self.inputs, self.output)
        object.__setattr__(self, "_hash", hash((*parts, self.schedule)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined, no-any-return]

    def __reduce__(self) -> tuple[object, ...]:
        # Not pickled with its hash, since hashes of strings differ from process to process.
        return Kernel, tuple(getattr(self, part.name) for part in fields(self))

    @property
    def label(self) -> str:
        """The implementation and its schedule, for people: ``tvm rows``."""
        return f"{self.implementation} {self.schedule}".strip()

    @property
    def backend(self) -> str:
        """The name of the backend that made the kernel: the first part of the implementation's
        name."""
        return backend_name(self.implementation)

    @property
    def generated(self) -> bool:
        """Whether the kernel's code is generated for its term, so that its schedule is a point of a
        space."""
        return isinstance(self.schedule, Schedule)

    @property
    def opaque(self) -> bool:
        """Whether the kernel runs an operator that eqsynth doesn't know."""
        return isinstance(self.term, Op) and self.term.name == "Opaque"


def backend_name(implementation: str) -> str:
    """The name of the backend of an implementation.

    >>> backend_name("onednn.linear:relu")
    'onednn'
    """
    return implementation.partition(".")[0].partition(":")[0]


Runner = Callable[..., "torch.Tensor"]
"""A function that takes the arguments that aren't constant, in order, and returns the result as a
new tensor."""


def holding(runner: Runner, constants: Iterable[torch.Tensor]) -> Runner:
    """Return the runner, with the constants that it has packed as an attribute."""
    runner.constants = tuple(constants)  # type: ignore[attr-defined]
    return runner


def held(runner: Runner) -> tuple[torch.Tensor, ...]:
    """The constants that a runner holds, in the form in which it has packed them."""
    constants: tuple[torch.Tensor, ...] = getattr(runner, "constants", ())
    return constants


@dataclass(frozen=True)
class Writing:
    """How a runner writes its result into memory that the caller gives.

    Attributes:
        function: takes ``args``, and then the memory for the result.
        args: each is a constant in the form that the function takes, or the number of an argument.
        shape, strides, dtype: of the result.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


def writing(runner: Runner, how: Writing) -> Runner:
    """Return the runner, with a description of how it writes into given memory as an attribute."""
    runner.writing = how  # type: ignore[attr-defined]
    return runner


def written(runner: Runner) -> Writing | None:
    """How a runner writes into given memory; None if it can only return new tensors."""
    return getattr(runner, "writing", None)


class Backend(Protocol):
    """A library or generator that can run terms."""

    name: str

    def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterable[Kernel]:
        """Every kernel that this backend has for ``term``; none if it can't run the term."""
        ...

    def build(
        self, kernels: Sequence[tuple[Kernel, Mapping[int, torch.Tensor]]]
    ) -> list[Runner | None]:
        """Build the kernels with their constant arguments (by position); None for a kernel that
        doesn't build."""
        ...


@runtime_checkable
class Compiling(Protocol):
    """A backend that compiles regions.

    Attributes:
        slow: whether compiling a region takes about a second for each of its kernels.
    """

    slow: bool


@runtime_checkable
class Fusing(Protocol):
    """A backend that can compute a map and the reduction that it reads by one kernel."""

    def fused(self, region: Region, constants: tuple[bool, ...]) -> Iterable[Kernel]:
        """Every kernel for the region; none if this backend can't run it as one kernel."""
        ...


@runtime_checkable
class Copying(Protocol):
    """A backend that can copy a value into another layout."""

    def copies(self, type_: TensorType, source: Layout, target: Layout) -> Iterable[Kernel]:
        """The kernels that copy a value from one layout into another; their term is
        ``copied(type_)``, or a reshape to the same shape."""
        ...


def copied(type_: TensorType) -> Scope:
    """The scope that is its argument: ``L_ij x[i, j]``."""
    index = tuple(Index.iterator(axis, extent) for axis, extent in enumerate(type_.shape))
    return Scope(type_.shape, (), Read(Input("0", type_), index))
