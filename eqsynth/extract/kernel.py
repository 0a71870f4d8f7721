"""A kernel: one way to run one term at given layouts. The unit that is costed, timed and built.

Extraction knows kernels and backends through this interface only; ``lower/`` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from eqsynth.extract.schedule import Schedule
from eqsynth.ir.tensor import Op, Region, Tensor
from eqsynth.ir.types import Shape

if TYPE_CHECKING:
    import torch

Layout = tuple[int, ...]
"""Axes from the outermost to the innermost in memory; the tensor is dense in that order."""


def contiguous(rank: int) -> Layout:
    return tuple(range(rank))


def channels_last(rank: int) -> Layout:
    """(n, h, w, c) in memory for a logical (n, c, h, w)."""
    return (0, *range(2, rank), 1)


def matrix_layouts(rank: int) -> tuple[Layout, ...]:
    """Contiguous, and with the last two axes exchanged."""
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
        constants: for each argument, whether it is known at compile time (it is then packed once).
        implementation: the backend's name for the way, such as ``onednn.conv`` or ``tvm``.
        inputs, output: layouts that it takes and gives.
        schedule: how its loops run, a point of the backend's space; a text where there is no
            space, such as an engine's version. ``str`` of it is its name.
    """

    term: Tensor
    constants: tuple[bool, ...]
    implementation: str
    inputs: tuple[Layout, ...]
    output: Layout
    schedule: Schedule | str = ""

    def __post_init__(self) -> None:
        # Times are looked up by kernel, thousands of them in each round of extraction.
        parts = (self.term, self.constants, self.implementation, self.inputs, self.output)
        object.__setattr__(self, "_hash", hash((*parts, self.schedule)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined, no-any-return]

    def __reduce__(self) -> tuple[object, ...]:
        # Hashes of texts differ from process to process.
        return Kernel, tuple(getattr(self, part.name) for part in fields(self))

    @property
    def backend(self) -> str:
        """The name of the backend that made it: the first part of the implementation's."""
        return backend_name(self.implementation)

    @property
    def generated(self) -> bool:
        """Whether it is made for its term: its schedule is a point of a space."""
        return isinstance(self.schedule, Schedule)

    @property
    def opaque(self) -> bool:
        """Whether it runs an operator that eqsynth has no term for."""
        return isinstance(self.term, Op) and self.term.name == "Opaque"


def backend_name(implementation: str) -> str:
    """
    >>> backend_name("onednn.linear:relu")
    'onednn'
    """
    return implementation.partition(".")[0].partition(":")[0]


Runner = Callable[..., "torch.Tensor"]
"""Takes the arguments that are not constant, in order, and returns the result (a new tensor)."""


def holding(runner: Runner, constants: Iterable[torch.Tensor]) -> Runner:
    """The runner, with a note of the constants that it holds."""
    runner.constants = tuple(constants)  # type: ignore[attr-defined]
    return runner


def held(runner: Runner) -> tuple[torch.Tensor, ...]:
    """The constants that a runner holds, packed as it takes them."""
    constants: tuple[torch.Tensor, ...] = getattr(runner, "constants", ())
    return constants


@dataclass(frozen=True)
class Writing:
    """How a runner writes its result into memory that it is given.

    Attributes:
        function: takes ``args``, and then where the result goes.
        args: a constant as the function takes it, or the number of an argument that varies.
        shape, strides, dtype: of the result.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


def writing(runner: Runner, how: Writing) -> Runner:
    """The runner, with a note of how it writes into memory that it is given."""
    runner.writing = how  # type: ignore[attr-defined]
    return runner


def written(runner: Runner) -> Writing | None:
    """How a runner writes into memory that it is given; None where it only makes its own."""
    return getattr(runner, "writing", None)


class Backend(Protocol):
    """Something that can run terms."""

    name: str

    def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterable[Kernel]:
        """Every way this backend has of running ``term``; none if it can't."""
        ...

    def build(
        self, kernels: Sequence[tuple[Kernel, Mapping[int, torch.Tensor]]]
    ) -> list[Runner | None]:
        """Runners, with constant arguments (by position) packed in; None where a build failed."""
        ...


@runtime_checkable
class Compiling(Protocol):
    """A backend that takes regions.

    Attributes:
        slow: compiling one takes about a second for each of its kernels.
    """

    slow: bool


@runtime_checkable
class Fusing(Protocol):
    """A backend that may compute a map together with the reduction that it reads."""

    def fused(self, region: Region, constants: tuple[bool, ...]) -> Iterable[Kernel]:
        """Every way of running the region as one kernel; none if there is no such."""
        ...
