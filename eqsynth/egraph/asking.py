"""Requests of laws: which are due, and what the laws say.

A request is a row that a rule has filed. It is asked once, and again when its body reads smaller
or, if it waits, when a class that it reads has got new members. What laws look at, and what they
may say, is ``laws/requests.py``'s.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eqsynth.egraph.answers import Answer, using
from eqsynth.egraph.blame import is_own
from eqsynth.egraph.laws.requests import Later, Using
from eqsynth.egraph.laws.table import ASKED_AGAIN, LAWS, MEANING
from eqsynth.egraph.view import View
from eqsynth.errors import EqsynthError, RuleError, SaturationError
from eqsynth.ir.scalar import Scalar, tensors
from eqsynth.ir.tensor import ClassRef, Tensor
from eqsynth.rules import RuleSet


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that was asked.

    Attributes:
        body: the size that its body had.
        classes: the classes that it reads, its own among them, as they were; None once the request
            is answered for good.
    """

    body: int
    classes: tuple[tuple[int, tuple[bytes, int]], ...] | None

    def is_due(self, view: View, row: tuple[Any, ...]) -> bool:
        """Whether its body reads smaller, or it waits and what it reads has got new members."""
        if self.body != view.body_size(row):
            return True
        if self.classes is None:
            return False
        return any(view.state(handle) != state for handle, state in self.classes)


def _looked_at(
    view: View, decoded: Sequence[Any]
) -> tuple[tuple[int, tuple[bytes, int]], ...]:
    """The classes that a request reads, its own among them, and their states."""
    refs = [v for v in decoded if isinstance(v, ClassRef)]
    body = decoded[-1]
    if isinstance(body, Scalar):
        refs += [tensor for tensor in tensors(body) if isinstance(tensor, ClassRef)]
    return tuple((ref.handle, view.state(ref.handle)) for ref in refs)


class Requests:
    """The requests of one session.

    Attributes:
        asked: how often each law was asked.
        vain: how often it was asked and gave no new answer.
        known: how often one of its requests was there and needn't be asked.
        spent_s: seconds of CPU in which it answered.
        faults: what went wrong in a law, by law: what was asked got no answer.
        deadline: no request is answered past it, so that one long round can't outlive the worker.

    Raises:
        RuleError: a rule requests a law that doesn't exist.
    """

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.asked: Counter[str] = Counter()
        self.vain: Counter[str] = Counter()
        self.known: Counter[str] = Counter()
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        self.faults: dict[str, str] = {}
        self.deadline = math.inf
        self._answered: set[tuple[str, Any]] = set()
        # What requests looked at when they were last asked, by law and row.
        self._rows: defaultdict[str, dict[Any, _Asked]] = defaultdict(dict)
        self._names: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        self._several: dict[str, bool] = {}
        requests = {r.law: r for r in rules.rules if r.kind == "law-request"}
        unknown = [rule for law, rule in requests.items() if law not in LAWS]
        if unknown:
            raise RuleError(
                f"nothing answers requests of the law {unknown[0].law}",
                file=unknown[0].file,
                line=unknown[0].line,
                column=1,
                got=unknown[0].law,
                expected=", ".join(sorted(LAWS)),
                hint="a rule file can request the laws of eqsynth/egraph/laws/table.py only",
            )

    def answers(
        self, view: View, relations: Mapping[str, str], budget: int, fired: Iterable[str]
    ) -> tuple[list[Answer], list[str]]:
        """Answers to the requests that are due, and the laws that were over budget.

        Args:
            relations: the laws that are asked, and where their requests are.
            budget: new answers of one law at most.
            fired: names of rules that have fired: who may be to blame for what makes no sense.
        """
        found: list[Answer] = []
        over: list[str] = []
        for law, relation in relations.items():
            count = 0
            asked = self._rows[law]
            rows = view.snapshot.rows[relation]
            waiting = [row for row in rows if row not in asked or asked[row].is_due(view, row)]
            self.known[law] += len(rows) - len(waiting)
            for row in sorted(waiting, key=repr):
                if count >= budget or time.monotonic() > self.deadline:
                    over.append(law)
                    break
                decoded = [view.value(value) for value in row]
                size = view.body_size(row)
                if decoded[0].constant and law not in MEANING:
                    asked[row] = _Asked(size, None)
                    continue
                try:
                    answers = self._ask(view, law, row, decoded, fired)
                    settled = law not in ASKED_AGAIN
                except Later:
                    answers, settled = [], False
                asked[row] = _Asked(size, None if settled else _looked_at(view, decoded))
                key = tuple(decoded)
                self.asked[law] += 1
                fresh = [answer for answer in answers if self._is_new(law, key, answer.term)]
                self.vain[law] += not fresh
                count += len(fresh)
                found += [Answer(law, row, key, a.term, a.members) for a in fresh]
        return found, over

    def _ask(
        self, view: View, law: str, row: Any, decoded: Sequence[Any], fired: Iterable[str]
    ) -> list[Using]:
        """The law's answers to one request. A fault in a law costs its answer and is told.

        Raises:
            RuleError: a rule that isn't eqsynth's own requests what makes no sense.
            SaturationError: a rule of eqsynth's own was led astray by the terms of other rules.
            MemoryError: the process has no more.
        """
        begin = time.process_time()
        try:
            return [using(answer) for answer in LAWS[law](view, decoded)]
        except (Later, SaturationError, MemoryError):
            raise
        except Exception as error:
            rule = self.rules[self._requesters(law, row)[-1]]
            what = f"the law {law} cannot answer what {rule.name} requests"
            got = (str(error) if isinstance(error, EqsynthError) else repr(error))[:300]
            known = set(fired)
            suspects = tuple(
                r.name for r in self.rules.rules if r.name in known and not is_own(r)
            )
            if not is_own(rule):
                hint = "Compare the request with those in eqsynth's own rule files."
                raise RuleError(
                    what, file=rule.file, line=rule.line, column=1, got=got, hint=hint
                ) from error
            if suspects:
                hint = "A rule among `rules` makes a term that means nothing."
                raise SaturationError(what, rules=suspects, got=got, hint=hint) from error
            self.faults.setdefault(law, got)
            return []
        finally:
            self.spent_s[law] += time.process_time() - begin

    def _is_new(self, law: str, key: Any, answer: Tensor) -> bool:
        mark = (law, (key, answer))
        if mark in self._answered:
            return False
        self._answered.add(mark)
        return True

    def rule_name(self, law: str, row: Sequence[Any]) -> str:
        """The rule that filed a request: of several for one law, the one with the row's texts."""
        requesters = self._requesters(law, row)
        return requesters[0] if self._several[law] else law

    def _requesters(self, law: str, row: Sequence[Any]) -> list[str]:
        texts = tuple(value for value in row if isinstance(value, str))
        if (law, texts) not in self._names:
            rules = [r for r in self.rules.rules if r.kind == "law-request" and r.law == law]
            own = [r for r in rules if all(f'"{t}"' in " ".join(r.program) for t in texts)]
            self._several[law] = len(rules) > 1
            self._names[law, texts] = [rule.name for rule in own or rules]
        return self._names[law, texts]
