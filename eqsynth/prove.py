"""Proving that two programs are equal, by the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

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
from eqsynth.settings import positive


@dataclass(frozen=True)
class Proof:
    """The answer of :func:`prove_equal`: true if the programs were proved equal.

    Attributes:
        stop: ``proved``, or why the search ended (``saturated``, ``deadline``, ``node_limit``, …).
            Without a proof the programs may still be equal.
    """

    stop: str
    seconds: float = 0.0
    enodes: int = 0
    meeting: Meeting | None = field(default=None, repr=False)

    def __bool__(self) -> bool:
        return self.stop == "proved"

    def explain(self) -> Explanation | NoExplanation:
        """The steps from the first program to the second."""
        if not self or self.meeting is None:
            return NoExplanation(f"not proved: {self.stop}")
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
) -> Proof:
    """Searches for a derivation of ``right`` from ``left``, or of both from each other.

    Inputs and weights of the same name are the same tensor in both.

    Raises:
        EqsynthError: a limit is no positive number.
        ShapeError: the programs have other numbers or types of outputs.
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
            meeting = worker.run(
                meet, *outputs, loaded, limits, timeout_s=time_limit_s + 10
            )
        except WorkerError as error:
            return Proof(f"worker {error.reason}")
        except (RuleError, SaturationError):
            raise
        except Exception as error:
            # Whatever it is, it is confined to the worker; nothing was proved.
            return Proof(f"{type(error).__name__}: {str(error)[:200]}")
    return Proof(meeting.stop, meeting.seconds, meeting.enodes, meeting)
