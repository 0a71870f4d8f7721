"""Places where programs run: a device that holds the tensors, its clock, and how steps are called.

``Place()`` is the CPU; a GPU's place is made in ``cuda/place.py``. Code that builds, times or calls
a program asks its place, and names no device itself. Not here: which kernels a target has
(``backends.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import torch
from torch.utils._pytree import tree_map_only

from eqsynth.errors import LoweringError
from eqsynth.extract.target import CPU, Target
from eqsynth.extract.timing import Clock, wall_s
from eqsynth.lower.torch_calls import TorchCall

if TYPE_CHECKING:
    from eqsynth.lower.other_steps import OtherSteps

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
Opaque = Mapping[str, Callable[..., torch.Tensor]]
"""Functions that run opaque operators, by the operators' names."""
Run = Callable[..., list[torch.Tensor]]
"""The steps of a program as one function: from tensors of fixed types and layouts to its
results."""

HOST: Final = torch.device(CPU)
"""The CPU, as a device of torch."""


def _other_steps(threads: int, far: int) -> OtherSteps:
    # Imported here: a program that is loaded from a file times nothing.
    from eqsynth.lower.other_steps import OtherSteps

    return OtherSteps.of(threads, far).paced()


def _as_it_is(run: Run) -> Run:
    return run


def _no_fault() -> None:
    """Do nothing: a failed operator of the CPU doesn't affect others."""


@dataclass(frozen=True)
class Place:
    """Where a program runs.

    Attributes:
        device: the device that holds the tensors.
        clock: measures the seconds of a call.
        recorded: turns the steps of a program into a function that calls them at less cost, such as
            one launch of a recorded graph.
        others: makes the work that runs before each call that is timed, for a number of threads and
            of cache levels that weights are to be out of.
        after_failure: called when a kernel has failed; it doesn't return if no other kernel can run
            in this process now.
        alone: whether the steps of a program can be timed one by one in their places. They can't if
            the whole program is one launch.
        in_full: a context in which float32 is computed in float32, whatever the target's numerics
            allow.
        here: whether this machine has the device, so that programs for it can be called.
        target: the target, if it isn't the CPU.
    """

    device: torch.device = HOST
    clock: Clock = wall_s
    recorded: Callable[[Run], Run] = _as_it_is
    others: Callable[[int, int], OtherSteps] = _other_steps
    after_failure: Callable[[], None] = _no_fault
    in_full: Callable[[], AbstractContextManager[None]] = nullcontext
    alone: bool = True
    here: bool = True
    target: Target | None = None

    @property
    def home(self) -> torch.device:
        """The device that holds a program's constants."""
        return self.device if self.here else HOST

    def to(self, values: T) -> T:
        """A tree with its tensors on this device."""
        return moved(values, self.device)


def host_by_default(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that tensors which it makes without naming a device are made on the
    CPU.

    Its caller may have called ``torch.set_default_device("cuda")``, or be in a block of
    ``torch.device``; that is meant for the caller's own tensors (:func:`users_default`).

    >>> with torch.device("meta"):
    ...     host_by_default(torch.ones)(2)
    tensor([1., 1.])
    """

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            users = torch.get_default_device()
        except (AssertionError, RuntimeError):  # the default is "cuda", and there is no GPU
            users = None
        if users == HOST:
            return function(*args, **kwargs)
        token = _users.set(users)
        try:
            with HOST:
                return function(*args, **kwargs)
        finally:
            _users.reset(token)

    return called


def users_default() -> AbstractContextManager[object]:
    """Within a function that is :func:`host_by_default`: a block in which the caller's default
    device holds again, since a module of the caller runs in it."""
    users = _users.get()
    return nullcontext() if users is None else users


_users: Final[ContextVar[torch.device | None]] = ContextVar("users default device", default=None)


def moved(values: T, device: torch.device) -> T:
    """A tree with its tensors on a device; tensors that lie there already aren't copied."""
    found: T = tree_map_only(torch.Tensor, lambda x: x.to(device), values)
    return found


def missing(kind: str) -> str:
    """What this machine lacks to run programs on a kind of device; empty if it lacks nothing.

    >>> missing("cpu")
    ''
    """
    if kind == CPU:
        return ""
    from eqsynth.lower.cuda import driver

    return driver.missing()


def elsewhere(target: Target) -> Place:
    """The place of a device that this machine doesn't have: programs for it can be saved, but not
    called."""

    def refused(*_: torch.Tensor) -> list[torch.Tensor]:
        raise LoweringError(
            what="a program was called that is planned for a device that isn't here",
            got=f"no {target.device.model}",
            expected="a call on a machine that has one",
            hint="save the program, and eqsynth.load it there",
        )

    return Place(torch.device(target.name), recorded=lambda _: refused, here=False, target=target)


class Ported(torch.nn.Module):
    """A callable on a place's tensors, as a module that takes and gives tensors of the CPU.

    >>> Ported(torch.nn.ReLU(), Place())(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """

    def __init__(self, call: Callable[..., Any], place: Place) -> None:
        super().__init__()
        self.call, self.place = call, place
        self.train(getattr(call, "training", False))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self.place.to((args, kwargs))
        return moved(self.call(*args, **kwargs), HOST)


def ported(opaque: Opaque, place: Place) -> Opaque:
    """Opaque operators for a place. They were captured on the CPU; their fixed tensors are moved to
    the place's device, and devices that they name are replaced by it. A function that is no call of
    torch runs on the CPU."""
    if place.device == HOST:
        return opaque
    return {name: _ported(call, place.device) for name, call in opaque.items()}


def _ported(call: Callable[..., torch.Tensor], device: torch.device) -> Callable[..., torch.Tensor]:
    if isinstance(call, TorchCall):
        return call.on(device)
    return lambda *given: call(*moved(given, HOST)).to(device)
