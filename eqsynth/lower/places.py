"""Where programs run: the device that holds their tensors, its clock, and its cheapest call.

The CPU is a :class:`Place` as it comes; a GPU's is made in ``cuda/place.py``. Who builds, times or
calls a program asks its place, and knows no device. Not here: which kernels there are for a target
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
Run = Callable[..., list[torch.Tensor]]
"""The steps of a program: from tensors of fixed types and layouts to its results."""

HOST: Final = torch.device(CPU)


def _other_steps(threads: int, far: int) -> OtherSteps:
    # Here, since a program that is loaded times nothing.
    from eqsynth.lower.other_steps import OtherSteps

    return OtherSteps.of(threads, far)


def _as_it_is(run: Run) -> Run:
    return run


def _no_fault() -> None:
    """An operator of the host that fails leaves the others as they are."""


@dataclass(frozen=True)
class Place:
    """Where a program runs.

    Attributes:
        device: that holds the tensors.
        clock: seconds of a call.
        recorded: the steps of a program, called at less cost than one after the other.
        others: what runs before a call that is timed: for so many threads, and so many caches that
            weights are to be out of.
        after_failure: called when a kernel has failed; it doesn't return if no other can run now.
        alone: a program's steps can be timed where they stand, one by one. They can't where the
            whole program is one launch.
        in_full: while it lasts, float32 is computed in float32, whatever the target's numerics
            allow.
        here: this machine has the device; programs for it can be called.
        target: the device, where it isn't the host.
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
        """What holds the constants of a program."""
        return self.device if self.here else HOST

    def to(self, values: T) -> T:
        """A tree whose tensors lie here."""
        return moved(values, self.device)


def host_by_default(function: Callable[P, R]) -> Callable[P, R]:
    """A function in which a tensor that is made without naming a device is made on the host.

    Who calls it may have said ``torch.set_default_device("cuda")``, or stand in a block of
    ``torch.device``: that is for the caller's own tensors (:func:`users_default`).

    >>> with torch.device("meta"):
    ...     host_by_default(torch.ones)(2)
    tensor([1., 1.])
    """

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            users = torch.get_default_device()
        except (AssertionError, RuntimeError):  # "cuda", where there is none
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
    """In a function that is :func:`host_by_default`: a block in which the caller's default device
    holds again, since a module of the caller runs there."""
    users = _users.get()
    return nullcontext() if users is None else users


_users: Final[ContextVar[torch.device | None]] = ContextVar("users default device", default=None)


def moved(values: T, device: torch.device) -> T:
    """A tree whose tensors lie on a device; itself in each part that lies there already."""
    found: T = tree_map_only(torch.Tensor, lambda x: x.to(device), values)
    return found


def missing(kind: str) -> str:
    """What running on a kind of device lacks here; empty if nothing does.

    >>> missing("cpu")
    ''
    """
    if kind == CPU:
        return ""
    from eqsynth.lower.cuda import driver

    return driver.missing()


def elsewhere(target: Target) -> Place:
    """A device that isn't here: programs for it can be saved, and not called."""

    def refused(*_: torch.Tensor) -> list[torch.Tensor]:
        raise LoweringError(
            what="a program was called that is planned for a device that isn't here",
            got=f"no {target.device.model}",
            expected="a call on a machine that has one",
            hint="save the program, and eqsynth.load it there",
        )

    return Place(torch.device(target.name), recorded=lambda _: refused, here=False, target=target)


class Ported(torch.nn.Module):
    """A callable of tensors of a place, called with tensors of the host, and giving such.

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
    """Opaque operators that were captured on the host, for a place: their fixed tensors and the
    devices that they name are the place's. What is no call of torch runs on the host."""
    if place.device == HOST:
        return opaque
    return {name: _ported(call, place.device) for name, call in opaque.items()}


def _ported(call: Callable[..., torch.Tensor], device: torch.device) -> Callable[..., torch.Tensor]:
    if isinstance(call, TorchCall):
        return call.on(device)
    return lambda *given: call(*moved(given, HOST)).to(device)


