"""The check as a stage of ``optimize``: the compiled program against the original, whom a
difference is blamed on, and how the user is told.

Not here: what is compared on what (``lower/check.py``).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves

from eqsynth.errors import EqsynthError, EquivalenceError, EquivalenceWarning, ExplanationTooLong
from eqsynth.explain import Explanation
from eqsynth.frontend.captured import Captured
from eqsynth.ir.program import Program, positions
from eqsynth.ir.tensor import Input
from eqsynth.lower.check import Mismatch, check_equivalence
from eqsynth.lower.places import HOST, Place, Ported, moved, ported
from eqsynth.lower.program import CompiledProgram
from eqsynth.lower.reruns import Plain, evaluate
from eqsynth.lower.rounding import MOVE, distance
from eqsynth.lower.stepping import faulty_step, noisy_results, summed
from eqsynth.original import Original
from eqsynth.report import Report
from eqsynth.rules import RuleSet

_ATTACH: Final = (
    "this is a fault in eqsynth: please report it, and attach this text, the module, its example "
    "inputs, and what print(program.report) says"
)
_NAMED = 8  # rules that an error names where none is known to be wrong


@dataclass(frozen=True)
class Stage:
    """What the check needs of an optimization.

    Attributes:
        own: the rule files that the user gave.
        numerics: as the user set it: whether digits may be lost.
    """

    captured: Captured
    rules: RuleSet
    own: tuple[str | Path, ...]
    numerics: str
    report: Report

    def hold(self, program: CompiledProgram, original: Original) -> None:
        """Compares the two, in full precision even if the target's numerics allow less; the report
        gets the figures.

        Raises:
            Mismatch: they differ by more than rounding explains.
        """
        with program.place.in_full():
            self._hold(program, original)

    def _hold(self, program: CompiledProgram, original: Original) -> None:
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
            if not self._captured_otherwise(error, program, reference):
                self._blame(error, program)
            raise
        self.report.error_rel, self.report.digits_lost = found.error_rel, found.lost

    def _captured_otherwise(
        self, error: Mismatch, program: CompiledProgram, reference: torch.nn.Module
    ) -> bool:
        """Whether the graph that torch has captured differs from the module as much, by torch's own
        operators; then no kernel and no rule is at fault, which the error says."""
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
        except Exception:  # a result that one of them doesn't give: as it was found
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
        """Says which kernel is wrong by itself; else the plan is, and that is some rule's fault."""
        found = None
        try:
            place = program.place
            opaque = ported(self.captured.opaque, place)
            found = faulty_step(program, place.to(error.inputs), opaque)
        except Exception as wrong:  # the program failed altogether: so does the step
            error.got += f" ({type(wrong).__name__} in a step)"
        if found is not None:
            step, wrong_element = found
            kernel = step.kernel
            how = f"{kernel.implementation} {kernel.schedule}".strip()
            error.step = f"{step.name} = {kernel.term} by {how}"
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
        """Rules that may be unsound: the one that changes the value if that can be told, then those
        of the user by file and line, then all others that fired."""
        files, fired = set(map(str, self.own)), self.report.rules_fired
        mine = [r for r in self.rules.rules if r.file in files]
        # Only rewrites are counted when they fire.
        yours = [r.name for r in mine if r.name in fired or r.kind != "rewrite"]
        used = self._used(error, program)
        names = dict.fromkeys((*used, *yours, *fired))
        places = {r.name: f"{r.name} ({r.file}:{r.line})" for r in mine}
        return tuple(places.get(name, name) for name in names)

    def _is_own(self, suspect: str) -> bool:
        return any(f" ({file}:" in suspect for file in map(str, self.own))

    def _used(self, error: Mismatch, program: CompiledProgram) -> tuple[str, ...]:
        """The rule whose application changes the value on the inputs that the programs differ on,
        found in the chain of whole programs from the original to this one. Where the chain is too
        long to be walked, all rules of the derivation."""
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
    """What runs elsewhere, with tensors of the host: the check draws, moves and compares these."""
    return call if place.device == HOST else Ported(call, place)


def _changing(
    programs: Sequence[tuple[str, Program]], leaves: dict[str, torch.Tensor], captured: Captured
) -> tuple[str, ...]:
    """The first rule of a chain whose program isn't the first one's value in float64 any more."""

    def values(number: int) -> list[torch.Tensor]:
        with torch.no_grad():
            return evaluate(programs[number][1].outputs, leaves, captured.opaque, exact=True)

    right = values(0)

    def off(number: int) -> float:
        pairs = zip(values(number), right, strict=True)
        return max((_relative(value, expected) for value, expected in pairs), default=0.0)

    low, high = 0, len(programs) - 1
    whole = min(off(high), 1.0)  # infinite, where one of the two is NaN
    if whole < 1e-9:
        return ()  # equal over the reals: digits are lost, by nobody in particular
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if off(middle) > whole / 100 else (middle, high)
    return (programs[high][0],)


def _relative(value: torch.Tensor, expected: torch.Tensor) -> float:
    if not value.numel():
        return 0.0
    scale = float(expected.double().abs().nan_to_num(0.0, 0.0, 0.0).max())
    return float(distance(value, expected).max()) / (scale or 1.0)


def _noise(rules: RuleSet, report: Report) -> float:
    """By how many roundings (of float32) the values of a program are off: a few, or what the
    approximations among the rules that fired claim to be off by at most."""
    claimed = [
        float(rule.numerics.partition("(")[2].rstrip(" )") or 0)
        for rule in rules.rules
        if rule.numerics.startswith("approx") and rule.name in report.rules_fired
    ]
    return max([MOVE, *(bound / 8 / torch.finfo(torch.float32).eps for bound in claimed)])


def _guesses(program: Program, leaves: Sequence[Any]) -> dict[int, int]:
    """For integer arguments, how many rows the table has that they are positions in: of the input
    of the same type; the check tries whether that is so."""
    bounds = positions(program.terms())
    known = {
        (term.shape, f"torch.{term.dtype}"): count
        for term, count in bounds.items()
        if isinstance(term, Input)
    }
    return {
        n: known[key]
        for n, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor)
        and (key := (tuple(leaf.shape), str(leaf.dtype))) in known
    }


def warn(error: EquivalenceError) -> None:
    """Tells the caller of ``optimize`` that the original came back, and why."""
    text = f"the original program is used: {error}"
    warnings.warn(text, EquivalenceWarning, stacklevel=3)
