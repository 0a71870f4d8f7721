"""The original program. The compiled program is timed and checked against it, and it is used if
nothing faster is found.

    module ->  the module itself
    expression a @ b + c  ->  a program that runs torch.matmul and torch.add one after another

Not here: the check (``checking.py``), the race (``race.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from eqsynth.egraph.saturation import unsaturated
from eqsynth.errors import CaptureError, LoweringError
from eqsynth.explain import NoExplanation
from eqsynth.extract.candidates import candidates
from eqsynth.extract.cost import CostModel
from eqsynth.extract.profile import Profile
from eqsynth.extract.select import Selection
from eqsynth.extract.target import Target
from eqsynth.frontend.captured import Captured
from eqsynth.frontend.examples import Flat
from eqsynth.lower.backends import random_inputs
from eqsynth.lower.functional import specs_copied
from eqsynth.lower.holders import inside
from eqsynth.lower.places import HOST, Place, moved, ported, users_default
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.torch_backend import TorchBackend
from eqsynth.lower.weights import tensor_at
from eqsynth.lowered import lowered
from eqsynth.report import WHOLE, Report

# Draws of random inputs that are tried on an expression, at most.
_TRIES = 8


@dataclass
class Original:
    """The original program and its example inputs.

    Attributes:
        module: the user's module; None for an expression.
        args, kwargs: the example arguments; for an expression, random inputs.
        own: whether a program made of an expression has copies of its constants.
        place: the device that the original and the programs made of it run on.
    """

    captured: Captured
    target: Target
    module: torch.nn.Module | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    own: bool = True
    place: Place = field(default_factory=Place)

    def __post_init__(self) -> None:
        if self.module is None:
            self.args = self.place.to(random_inputs(self.captured.program))

    def try_inputs(self) -> None:
        """Draw random inputs until the expression accepts them: an expression that divides integers
        raises if a divisor is 0.

        Raises:
            LoweringError: the expression accepts none of the draws.
        """
        if self.module is not None or not self.captured.opaque:
            return
        for least in range(_TRIES):
            self.args = self.place.to(random_inputs(self.captured.program, least))
            try:
                self.call(*self.args)
            except RuntimeError as error:  # of torch
                told = str(error)
            else:
                return
        raise LoweringError(
            what="no inputs were found that the expression takes",
            got=told,
            expected="a result",
            hint="the expression is computed operator by operator; see what it divides by",
        )

    @cached_property
    def call(self) -> Callable[..., Any]:
        """The original as a function of the user's arguments."""
        if self.module is None:
            return self._plain(Report())
        return self.module if self.place.device == HOST else _as_the_user_calls(self.module)

    def program(self, report: Report) -> CompiledProgram:
        """Return the original as a CompiledProgram; ``report.reason`` says why it is used."""
        if self.module is None:
            report.original_is_kept(sum(w.numel() for w in self.captured.weights.values()))
            return self._plain(report)
        held = {id(x): x.numel() for x in (*self.module.parameters(), *self.module.buffers())}
        report.original_is_kept(sum(held.values()))
        cut = "" if report.stop in WHOLE else f" (the search was cut short: {report.stop})"
        why = NoExplanation(f"the original program is used: {report.reason}{cut}")
        module = inside(self.module)
        plain = partial(self._plain, Report())
        given = (self.args, self.kwargs)
        return CompiledProgram.from_module(module, report, why, given, plain=plain)

    def on_its_device(self, module: torch.nn.Module | None) -> Original:
        """Return the original on the device of its place, made of an original that was captured on
        the host.

        Args:
            module: the user's module. It is copied if it is on another device.
        """
        if module is None:
            return self
        device = self.place.device
        held = (*module.parameters(), *module.buffers())
        if any(tensor.device != device for tensor in held):
            with specs_copied():
                module = copy.deepcopy(module).to(device)
        buffers = (tensor_at(module, path) for path in self.captured.buffer_paths)
        captured = replace(self.captured, buffers=tuple(b for b in buffers if b is not None))
        args, kwargs = self.place.to((self.args, dict(self.kwargs)))
        return replace(self, captured=captured, module=module, args=args, kwargs=kwargs)

    def refuse_nan(self) -> None:
        """Refuse weights that hold NaN: the result of a program with NaN may depend on the order of
        its operations, so no other program is equal to it.

        Raises:
            LoweringError: a weight holds NaN.
        """
        for name, weight in self.captured.weights.items():
            if weight.is_floating_point() and bool(weight.isnan().any()):
                raise LoweringError(
                    what="a weight holds NaN",
                    where=name,
                    got="NaN",
                    expected="numbers",
                    hint="look for the step of training that made it; the original is used",
                )

    def leaves(self) -> Sequence[Any]:
        """The example arguments as a flat list."""
        return tree_flatten((self.args, dict(self.kwargs)))[0]

    def flat(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call`` as a function of the flat list :meth:`leaves`; ``call`` itself if its
        arguments are flat already."""
        flat = Flat(call, self.args, self.kwargs)
        in_a_row = not self.kwargs and len(flat.leaves) == len(self.args)
        return call if in_a_row and all(map(_is, flat.leaves, self.args)) else flat

    def _plain(self, report: Report) -> CompiledProgram:
        """Return a program that runs each operator through torch."""
        program = self.captured.program
        graph = unsaturated(program.outputs, "original")
        backends = (TorchBackend(ported(self.captured.opaque, self.place)),)
        profile = Profile(self.target.key())
        try:
            costs = CostModel(self.target, profile, "flops")
            plan = Selection(graph, candidates(graph, backends)).plain(costs)
        finally:
            profile.close()
        return lowered(
            self.captured, graph, plan, backends, report=report, own=self.own, place=self.place
        )


def on_host(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Return copies of a module and of its arguments on the CPU, where programs are captured.

    Raises:
        CaptureError: the module can't be copied.
    """
    try:
        with specs_copied():
            here = copy.deepcopy(module).to(HOST)
    except Exception as error:  # whatever a user's module raises
        raise CaptureError(
            "the module can't be copied to the CPU, where it is captured",
            where=type(module).__name__,
            got=f"{type(error).__name__}: {error}"[:300],
            expected="a module that copy.deepcopy takes",
            hint="the original runs as it is",
        ) from error
    args, kwargs = moved((args, kwargs), HOST)
    return here, args, kwargs


def _as_the_user_calls(module: torch.nn.Module) -> Callable[..., Any]:
    """Wrap a module on a GPU so that it runs under the user's default device: after
    ``torch.set_default_device("cuda")``, ``torch.zeros(3)`` in the module has to be made on the
    GPU."""
    users = users_default()
    if isinstance(users, nullcontext):
        return module

    def call(*args: Any, **kwargs: Any) -> Any:
        with users:
            return module(*args, **kwargs)

    return call


def _is(one: Any, other: Any) -> bool:
    return one is other
