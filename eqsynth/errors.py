"""Every exception that eqsynth raises on purpose.

    ShapeError("matmul: inner extents differ", got="(2, 3) @ (4, 5)", expected="(m, k) @ (k, n)")

A message has four parts: what went wrong, where, what was got against what was expected, and what
to do. The parts are fields, so that tests and tools needn't parse sentences. A budget that ran out
(time, e-nodes) is no error: the report says so.
"""

from __future__ import annotations

from typing import Any


class EqsynthError(Exception):
    """The root of all errors of eqsynth; `str()` joins its fields into a message."""

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        got: str = "",
        expected: str = "",
        hint: str = "",
    ) -> None:
        self.what = what
        self.where = where
        self.got = got
        self.expected = expected
        self.hint = hint
        super().__init__(what)

    def __str__(self) -> str:
        parts = (("at", self.where), ("got", self.got), ("expected", self.expected))
        lines = [self.what, *(f"  {label}: {text}" for label, text in parts if text)]
        if self.hint:
            lines.append(f"  {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors are sent between processes. The default of pickle doesn't restore keyword
        # arguments.
        return (_restore, (type(self), dict(self.__dict__)))


def _restore(kind: type[EqsynthError], fields: dict[str, Any]) -> EqsynthError:
    error = kind.__new__(kind)
    Exception.__init__(error, fields["what"])
    error.__dict__.update(fields)
    return error


class RuleError(EqsynthError):
    """A rule file that cannot be used: syntax, names, sorts, or an unsound rule."""

    def __init__(
        self,
        what: str,
        *,
        file: str = "",
        line: int = 0,
        column: int = 0,
        got: str = "",
        expected: str = "",
        hint: str = "",
    ) -> None:
        self.file = file
        self.line = line
        self.column = column
        where = f"{file}:{line}:{column}" if line else file
        super().__init__(what, where=where, got=got, expected=expected, hint=hint)


class LawError(EqsynthError):
    """Arguments for which a law of the calculus doesn't hold; `condition` names the condition that
    fails."""

    def __init__(
        self,
        what: str,
        *,
        law: str,
        condition: str,
        got: str = "",
        expected: str = "",
        hint: str = "",
    ) -> None:
        self.law = law
        self.condition = condition
        super().__init__(what, where=law, got=got, expected=expected, hint=hint)


class ShapeError(EqsynthError, ValueError):
    """Shapes that do not fit together."""


class DtypeError(EqsynthError, TypeError):
    """Element types that do not fit together."""


class UnsupportedOperatorError(EqsynthError):
    """An operator that a stage of the pipeline can't treat."""


class CaptureError(EqsynthError):
    """A program that could not be captured from its framework."""


class SeveralGraphsError(CaptureError):
    """A module that torch can't capture as one graph, since its control flow or its shapes depend
    on the values of tensors. It may be captured as several graphs."""


class SaturationError(EqsynthError):
    """The e-graph engine failed: a worker died, the engine raised an error, or a class got two
    values of an analysis (two shapes), which means that a rule is unsound. `rules` names the rules
    that may be unsound."""

    def __init__(
        self,
        what: str,
        *,
        rules: tuple[str, ...] = (),
        where: str = "",
        got: str = "",
        expected: str = "",
        hint: str = "",
    ) -> None:
        self.rules = rules
        super().__init__(what, where=where, got=got, expected=expected, hint=hint)


class ExtractionError(EqsynthError):
    """No program could be chosen from the e-graph."""


class LoweringError(EqsynthError):
    """A chosen program that could not be turned into code."""


class UnsteadyError(CaptureError):
    """A program that gives different results for the same inputs from call to call, so that no
    other program can be checked against it."""


class WritingError(CaptureError):
    """A module whose calls write into its weights; `where` names one of them."""


class WeightError(EqsynthError):
    """Weights that a program can't take, or that have changed since the program was made; `where`
    names one of them."""


class FileError(EqsynthError, OSError):
    """A file that the user has named and that can't be written, or is a directory; `where` is its
    path."""


class EquivalenceError(EqsynthError):
    """Two programs that should be equal and differ.

    Attributes:
        step: the kernel that computes a wrong result from right arguments, if there is one.
        rules: the rules that may be unsound, the most likely first, if no kernel is wrong.
    """

    def __init__(
        self,
        what: str,
        *,
        step: str = "",
        rules: tuple[str, ...] = (),
        where: str = "",
        got: str = "",
        expected: str = "",
        hint: str = "",
    ) -> None:
        self.step = step
        self.rules = rules
        super().__init__(what, where=where, got=got, expected=expected, hint=hint)


class CertificateError(EquivalenceError):
    """An equality that a search has used and that doesn't hold. `where` has the rule or the law,
    and the term that it was applied to; `got` has the term or value that was claimed to be equal,
    and `expected` the value.

    Attributes:
        index: index of the first element, or values of the iterators, for which the two differ.
    """

    def __init__(
        self, rule: str, *, index: tuple[int, ...], where: str, got: str, expected: str
    ) -> None:
        self.index = index
        super().__init__(
            "an equality that the search rests on doesn't hold",
            rules=(rule,),
            where=f"{rule}: {where}",
            got=got,
            expected=expected,
            hint="This is a fault in the rule, or in the law that it asks.",
        )


class EquivalenceWarning(UserWarning):
    """``optimize`` found a program that differs from the original, and returned the original; or
    the program with a part of it as it was in the original."""


class FaultWarning(UserWarning):
    """``optimize`` met an error in eqsynth itself, and returned the original."""


class GradientWarning(UserWarning):
    """A graph that gradients are wanted of isn't optimized: eqsynth optimizes inference only."""


class CompileWarning(UserWarning):
    """``torch.compile(backend="eqsynth")`` failed on a graph, which Inductor runs instead. The
    message names a script that reproduces the failure."""


class ExplanationTooLong(EqsynthError):
    """A derivation whose chain of whole programs is too long to be written out."""
