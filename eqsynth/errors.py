"""Every exception that eqsynth raises on purpose.

A message has four parts: what went wrong, where, what was got against what was expected, and what
to do. They are fields, so that tests and tools read them and never have to take a sentence apart.
A budget that ran out is no error: it is data in the report.
"""

from __future__ import annotations

from typing import Any


class EqsynthError(Exception):
    """The root of all errors of eqsynth; `str()` composes its parts."""

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
        # The fields are keywords, which the default does not restore; errors cross processes.
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
    """Arguments that a law of the calculus doesn't hold for; `condition` names what fails."""

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
    """An operator that a station of the pipeline cannot treat."""


class CaptureError(EqsynthError):
    """A program that could not be captured from its framework."""


class SeveralGraphsError(CaptureError):
    """A module that torch doesn't capture as one graph, but perhaps as several: its control flow or
    its shapes depend on the values of tensors."""


class SaturationError(EqsynthError):
    """The e-graph engine failed: a worker died, the engine panicked, or a class got two values
    of an analysis, which means that a rule is unsound. `rules` names the suspects.
    """

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
    """A program that differs from itself from call to call, so nothing can be held against it."""


class WeightError(EqsynthError):
    """Weights that a program can't take, or that have changed under it; `where` names one."""


class FileError(EqsynthError, OSError):
    """A file that a user asks for and that can't be written; `where` is its path."""


class EquivalenceError(EqsynthError):
    """Two programs that should agree and do not.

    Attributes:
        step: the kernel that is wrong in itself, if one is.
        rules: the suspects, the first one first, where the choice of kernels isn't to blame.
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
    """An equality that a search has united, and that doesn't hold. `where` has the rule or law and
    the term that it was asked about, `got` what it was said to be, `expected` the value.

    Attributes:
        index: of the first element, or the values of the iterators, at which the two differ.
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
    """``optimize`` found a program that differs from the original, and gave the original back."""


class GradientWarning(UserWarning):
    """A graph that gradients are wanted of is left to torch: eqsynth optimizes inference."""


class CompileWarning(UserWarning):
    """``torch.compile(backend="eqsynth")`` failed on a graph, which runs without it. The message
    names a script that shows the failure."""


class ExplanationTooLong(EqsynthError):
    """A derivation whose chain of whole programs is longer than anybody would read."""
