"""The check as a stage of ``optimize``: compare the compiled program with the original, find the
kernel or the rules that a difference comes from, and tell the user.

Not here: which inputs are drawn and how results are compared (``lower/check.py``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves

from eqsynth import telling
from eqsynth.errors import (
    EqsynthError,
    EquivalenceError,
    EquivalenceWarning,
    ExplanationTooLong,
    FaultWarning,
)
from eqsynth.explain import Explanation
from eqsynth.extract.losing import NOTHING, Without
from eqsynth.frontend.captured import Captured
from eqsynth.ir.program import Program, positions
from eqsynth.ir.tensor import Input
from eqsynth.lower.check import Mismatch, check_equivalence
from eqsynth.lower.places import HOST, Place, Ported, moved, ported
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.reruns import Plain, evaluate
from eqsynth.lower.rounding import MOVE, distance
from eqsynth.lower.stepping import faulty_step, losing_step, noisy_results, summed
from eqsynth.original import Original
from eqsynth.report import Report
from eqsynth.rules import RuleSet

_ATTACH: Final = (
    "this is a fault in eqsynth: please report it, and attach this text, the module, its example "
    "inputs, and what print(program.report) says"
)
_NAMED = 8  # an error lists this many suspected rules at most


@dataclass(frozen=True)
class Stage:
    """The parts of an optimization that the check needs.

    Attributes:
        own: the rule files that the user gave.
        numerics: the user's setting. ``cancels`` and ``approx`` allow digits to be lost.
    """

    captured: Captured
    rules: RuleSet
    own: tuple[str | Path, ...]
    numerics: str
    report: Report

    def hold(
        self,
        program: CompiledProgram,
        original: Original,
        members: Callable[[int], Without] | None = None,
    ) -> None:
        """Compare the program with the original, and write the error figures into the report. Both
        compute in full precision, even if the target's numerics allow less (TF32).

        Args:
            members: what the next plan does without if the step of this number loses digits;
                None if a program that loses digits is an error like any other.

        Raises:
            Mismatch: they differ by more than rounding explains.
        """
        with program.place.in_full():
            self._hold(program, original, members)

    def _hold(
        self,
        program: CompiledProgram,
        original: Original,
        members: Callable[[int], Without] | None,
    ) -> None:
        captured = self.captured
        reference: torch.nn.Module
        if original.module is None:
            parts = captured.program, captured.weights, captured.unflatten
            reference = Plain(*parts, captured.opaque)
        else:
            reference = _called_from_here(original.module, program.place)
        noise = _noise(self.rules, self.report) if self.numerics in ("cancels", "approx") else 0.0
        try:
            found = check_equivalence(
                _called_from_here(program, program.place),
                reference,
                *moved((original.args, original.kwargs), HOST),
                state=captured.buffers,
                guesses=_guesses(captured.program, original.leaves()),
                noisy=None
                if not noise
                else lambda values, seed: moved(
                    noisy_results(program, program.place.to(values), seed, noise), HOST
                ),
                summed=summed(program),
            )
        except Mismatch as error:
            if members is not None:
                error.losing = self._losing(error, program, members)
            if error.losing:
                raise
            if not self._captured_otherwise(error, program, reference):
                self._blame(error, program)
            raise
        self.report.error_rel, self.report.digits_lost = found.error_rel, found.lost

    def _losing(
        self,
        error: Mismatch,
        program: CompiledProgram,
        members: Callable[[int], Without],
    ) -> Without:
        """What the next plan does without: the step by whose rounding the program differs from the
        original, whose place is added to the error; nothing if rounding isn't the cause."""
        if error.wrong is None:
            return NOTHING
        place = program.place
        try:
            opaque = ported(self.captured.opaque, place)
            number = losing_step(program, place.to(error.inputs), error.wrong, opaque)
        except Exception as why:  # a step raises an error, or an opaque operator in float64
            telling.refused("looking for the step that loses digits", why)
            return NOTHING
        found = NOTHING if number is None else members(number)
        if number is not None and found:
            step = program.steps[number]
            error.where += f"; by the rounding of {step.name} = {step.kernel.term}"
            error.where += f", {step.label}" if step.label else ""
            error.hint = (
                "a longer time_limit_s leaves time for a plan without this step; the original runs "
                "as it is"
            )
        return found

    def _captured_otherwise(
        self, error: Mismatch, program: CompiledProgram, reference: torch.nn.Module
    ) -> bool:
        """Whether the difference comes from the capture: the captured graph, run by torch's own
        operators, differs from the module at least half as much as the compiled program does. Then
        no kernel and no rule is at fault, and the error is changed to say so."""
        captured = self.captured
        plain = Plain(captured.program, captured.weights, captured.unflatten, captured.opaque)
        args, kwargs = error.inputs

        def off(results: Any) -> float:
            found, right = (
                [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
                for tree in (results, reference(*args, **kwargs))
            )
            return max(map(_relative, found, right), default=0.0)

        try:
            with torch.no_grad():
                whole = off(_called_from_here(program, program.place)(*args, **kwargs))
                if not whole > 0 or off(plain(*captured.bind(*args, **kwargs))) < whole / 2:
                    return False
        except Exception:  # one of the programs fails: keep the error as it is
            return False
        error.what = "what torch.export captures of the module differs from the module"
        error.where += "; torch's own operators give this of the captured graph, too"
        error.hint = "the original runs as it is"
        if any(isinstance(part, torch.nn.MultiheadAttention) for part in reference.modules()):
            error.hint += (
                "; torch.backends.mha.set_fastpath_enabled(False) makes torch's attention layers "
                "compute without gradients what they compute with them, and what is captured"
            )
        return True

    def _blame(self, error: Mismatch, program: CompiledProgram) -> None:
        """Add to the error which kernel is wrong by itself. If every kernel is right, the chosen
        terms aren't equal to the original, so some rule is unsound: add the suspected rules."""
        found = None
        try:
            place = program.place
            opaque = ported(self.captured.opaque, place)
            found = faulty_step(program, place.to(error.inputs), opaque)
        except Exception as wrong:  # the program raises an error, and so does one of its steps
            error.got += f" ({type(wrong).__name__} in a step)"
        if found is not None:
            step, wrong_element = found
            kernel = step.kernel
            error.step = f"{step.name} = {kernel.term} by {kernel.label}"
            error.step += f", {step.label}" if step.label else ""
            error.where += f"; the first step that is wrong by itself: {error.step}"
            error.got += f" (the step gives {wrong_element.got:.9g}"
            error.got += f" for {wrong_element.expected:.9g})"
            error.hint = _ATTACH
            return
        error.rules = self._suspects(error, program)
        error.where += "; every kernel is right by itself, so the rules are to blame"
        yours = [name for name in error.rules if self._is_own(name)]
        named = ", ".join(error.rules[:_NAMED])
        if yours:
            error.hint = f"one of your rules is unsound: {', '.join(yours[:_NAMED])}"
        else:
            error.hint = f"{_ATTACH}; rules: {named}"

    def _suspects(self, error: Mismatch, program: CompiledProgram) -> tuple[str, ...]:
        """The rules that may be unsound: first the rule that changes the value, if it can be found;
        then the user's rules, with file and line; then all other rules that fired."""
        files, fired = set(map(str, self.own)), self.report.rules_fired
        mine = [r for r in self.rules.rules if r.file in files]
        # Of the user's rules only rewrites have counts of how often they fired; rules of other
        # kinds are always suspects.
        yours = [r.name for r in mine if r.name in fired or r.kind != "rewrite"]
        used = self._used(error, program)
        names = dict.fromkeys((*used, *yours, *fired))
        places = {r.name: f"{r.name} ({r.file}:{r.line})" for r in mine}
        return tuple(places.get(name, name) for name in names)

    def _is_own(self, suspect: str) -> bool:
        return any(f" ({file}:" in suspect for file in map(str, self.own))

    def _used(self, error: Mismatch, program: CompiledProgram) -> tuple[str, ...]:
        """The rule whose application changes the value on the inputs for which the programs differ.
        It is found in the chain of whole programs that leads from the original to the chosen
        program. If this chain is too long, all rules of the derivation are returned."""
        explanation = program.explain()
        if not isinstance(explanation, Explanation):
            return ()
        given = self.captured.bind(*error.inputs[0], **error.inputs[1])
        inputs = self.captured.program.inputs
        leaves = dict(zip((i.name for i in inputs), given, strict=True)) | dict(
            self.captured.weights
        )
        try:
            programs = list(explanation.programs(explanation.longest_text))
            return _changing(programs, leaves, self.captured)
        except ExplanationTooLong:
            return explanation.rules
        except (EqsynthError, RuntimeError):
            return ()


def _called_from_here(call: torch.nn.Module, place: Place) -> torch.nn.Module:
    """Wrap a module that runs on another device, so that it takes and returns tensors of the host.
    The check draws, moves and compares tensors of the host."""
    return call if place.device == HOST else Ported(call, place)


def _changing(
    programs: Sequence[tuple[str, Program]], leaves: dict[str, torch.Tensor], captured: Captured
) -> tuple[str, ...]:
    """The first rule of a chain of programs after which the value, computed in float64, differs
    from that of the first program; empty if all programs have the same value. Found by bisection.
    """

    def values(number: int) -> list[torch.Tensor]:
        with torch.no_grad():
            return evaluate(programs[number][1].outputs, leaves, captured.opaque, exact=True)

    right = values(0)

    def off(number: int) -> float:
        pairs = zip(values(number), right, strict=True)
        return max((_relative(value, expected) for value, expected in pairs), default=0.0)

    low, high = 0, len(programs) - 1
    whole = min(off(high), 1.0)  # infinite if only one of the values is NaN
    if whole < 1e-9:
        return ()  # the programs are equal over the reals: the difference is rounding
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if off(middle) > whole / 100 else (middle, high)
    return (programs[high][0],)


def _relative(value: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference over the largest expected value."""
    if not value.numel():
        return 0.0
    scale = float(expected.double().abs().nan_to_num(0.0, 0.0, 0.0).max())
    return float(distance(value, expected).max()) / (scale or 1.0)


def _noise(rules: RuleSet, report: Report) -> float:
    """The rounding error to expect in the values of a program, in units of the rounding of float32:
    a few roundings, or the largest error that an approximation rule which fired claims for itself.
    """
    claimed = [
        rule.numerics.bound
        for rule in rules.rules
        if rule.numerics.kind == "approx" and rule.name in report.rules_fired
    ]
    return max([MOVE, *(bound / 8 / torch.finfo(torch.float32).eps for bound in claimed)])


def _guesses(program: Program, leaves: Sequence[Any]) -> dict[int, int]:
    """For integer arguments, the number of rows of the table that they are positions in: ``{0:
    100}`` if argument 0 indexes a table of 100 rows. It is taken from the input of the program that
    has the same shape and dtype, so it is a guess; the check tries whether such positions are
    valid."""
    bounds = positions(program.terms(), views=True)
    known = {
        (term.shape, f"torch.{term.dtype}"): count
        for term, count in bounds.items()
        if isinstance(term, Input)
    }
    return {
        n: known[key]
        for n, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and (key := (tuple(leaf.shape), str(leaf.dtype))) in known
    }


def warn(error: EquivalenceError) -> None:
    """Warn the caller of ``optimize`` that the original program is returned, and why."""
    text = f"the original program is used: {error}"
    warnings.warn(text, EquivalenceWarning, stacklevel=3)


def warn_of_mended(report: Report) -> None:
    """Warn the caller of ``optimize`` that parts of the program stay as they were, and why."""
    text = (
        "a part of the program stays as it was in the original, because another way of computing "
        f"it lost digits: {report.mended[0]}"
    )
    if len(report.mended) > 1:
        text += f"; {len(report.mended) - 1} more in report.mended"
    warnings.warn(text, EquivalenceWarning, stacklevel=3)


def warn_of_fault(error: Exception, used: str = "the original program") -> None:
    """Warn the caller of ``optimize`` that, because of an error in eqsynth, less was done: ``used``
    is the program that is returned."""
    text = (
        f"{used} is used, because of an error in eqsynth: "
        f"{type(error).__name__}: {error}\n  optimize(…, strict=True) raises it; please report it"
    )
    warnings.warn(text, FaultWarning, stacklevel=3)
