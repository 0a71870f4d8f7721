"""Prove that two programs are equal, by the rules.

    prove_equal((a @ b) @ c, a @ (b @ c))    ->    proved; explain() has the derivation

Not here: the search (``egraph/proving.py``), data that disproves an equality (``differing.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from eqsynth import notebook
from eqsynth.certificates import Certified
from eqsynth.certificates import certify as check_log
from eqsynth.differing import Counterexample, compare
from eqsynth.egraph.explanation import Derivation
from eqsynth.egraph.proving import Meeting, meet
from eqsynth.egraph.schedule import Limits
from eqsynth.errors import RuleError, SaturationError, ShapeError
from eqsynth.executor import borrowed
from eqsynth.explain import Explanation, NoExplanation
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.expression import program_of
from eqsynth.numerics import Files, rules_of
from eqsynth.serving import WorkerError
from eqsynth.settings import positive, whole

# Seconds that the search for data on which two programs differ may take.
_COMPARED_S: Final = 15.0


@dataclass(frozen=True)
class Proof:
    """The answer of :func:`prove_equal`. It is true if the programs were proved equal.

    Attributes:
        stop: ``proved``, or why the search ended (``saturated``, ``deadline``, ``node_limit``, …).
            Without a proof the programs may still be equal.
        counterexample: data on which the programs differ. It is looked for if there is no proof;
            None if none was found.
        samples: the number of samples on which the programs are equal, if there is neither a proof
            nor a counterexample.
        certified: the result of checking the certificates of the search, if ``certify`` was set. If
            a certificate fails, nothing is proved.

    >>> import eqsynth
    >>> x = eqsynth.input("x", (2,))
    >>> print(prove_equal(x * x, x + x))
    different (saturated)
    x = [0., 1.]
    output 0[1]: 1 and 2
    """

    stop: str
    seconds: float = 0.0
    enodes: int = 0
    meeting: Meeting | None = field(default=None, repr=False)
    counterexample: Counterexample | None = field(default=None, repr=False)
    samples: int = 0
    certified: Certified | None = None

    def __bool__(self) -> bool:
        return self.stop == "proved"

    def __str__(self) -> str:
        if self:
            told = f"; certificates: {self.certified}" if self.certified else ""
            return f"proved ({self.seconds:.1f} s, {self.enodes} e-nodes{told})"
        if self.counterexample is not None:
            return f"different ({self.stop})\n{self.counterexample}"
        equal = f", equal on {self.samples} samples" if self.samples else ""
        return f"not proved: {self.stop}{equal}"

    def _repr_html_(self) -> str:
        proved = notebook.folded("why", str(self.explain())) if self else ""
        return notebook.code(str(self)) + proved

    def explain(self) -> Explanation | NoExplanation:
        """The steps of the derivation from the first program to the second."""
        if not self or self.meeting is None:
            return NoExplanation(str(self))
        derivation = Derivation()
        derivation.add_log(self.meeting.log, {})
        before = derivation.outputs(self.meeting.left)
        return Explanation(derivation, before, derivation.outputs(self.meeting.right))


def prove_equal(
    left: Expr | Sequence[Expr],
    right: Expr | Sequence[Expr],
    *,
    rules: Files = (),
    numerics: str = "real",
    time_limit_s: float = 60.0,
    node_limit: int = 20_000,
    memory_limit: int = 4 << 30,
    certify: bool = False,
) -> Proof:
    """Search for a derivation of ``right`` from ``left``: both programs are rewritten until they
    meet.

    Inputs and weights of the same name are the same tensor in both programs. Equal means: over the
    real numbers, wherever both sides are defined. So ``sqrt(x) * sqrt(x)`` equals x, since the left
    side is undefined below 0.

    Args:
        certify: check each equality that the search has used, on data and without the code that has
            found it (``eqsynth.certificates``). This takes time beyond the limit.

    Raises:
        EqsynthError: a limit is no positive number.
        ShapeError: the programs differ in the number or the types of their outputs.
        RuleError: a rule file can't be used.
        SaturationError: a rule was caught being unsound, or the engine failed on it.

    >>> import eqsynth
    >>> a, b, c = (eqsynth.input(n, (4, 4)) for n in "abc")
    >>> bool(prove_equal((a @ b) @ c, a @ (b @ c)))
    True
    """
    for name, limit in (
        ("time_limit_s", time_limit_s),
        ("node_limit", node_limit),
        ("memory_limit", memory_limit),
    ):
        positive(limit, name, where="prove_equal")
    whole(node_limit, "node_limit", where="prove_equal")
    loaded = rules_of(rules, numerics, where="prove_equal", proving=True)
    outputs = [program_of(side)[0].outputs for side in (left, right)]
    types = [[str(term.type) for term in side] for side in outputs]
    if types[0] != types[1]:
        raise ShapeError(
            what="prove_equal: the programs' outputs have different types",
            got=", ".join(types[1]),
            expected=", ".join(types[0]),
            hint="compare programs of the same outputs",
        )
    limits = Limits(node_limit, time_limit_s)
    with borrowed(memory_limit=memory_limit) as worker:
        try:
            meeting = worker.run(meet, *outputs, loaded, limits, timeout_s=time_limit_s + 10)
        except WorkerError as error:
            return Proof(f"worker {error.reason}")
        except (RuleError, SaturationError):
            raise
        except Exception as error:
            # The error stays in the worker, and nothing was proved.
            return Proof(f"{type(error).__name__}: {str(error)[:200]}")
        found: Counterexample | int = 0
        if not meeting.proved:
            # An evaluation that fails or takes too long says nothing about equality.
            with suppress(Exception):
                found = worker.run(compare, *outputs, timeout_s=_COMPARED_S)
    known = found if isinstance(found, Counterexample) else None
    samples = 0 if isinstance(found, Counterexample) else found
    checked, stop = check_log(meeting.log, loaded) if certify else None, meeting.stop
    if checked is not None and checked.failures:
        stop = f"a certificate fails: {checked.failures[0]}"
    return Proof(stop, meeting.seconds, meeting.enodes, meeting, known, samples, checked)
