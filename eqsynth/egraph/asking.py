"""Requests of laws: which requests are due, and the laws' answers.

A request is a row that a rule has added to the law's relation, most often an e-class and the parts
of a scope in it. The law is asked once. It is asked again if the size of the scope's body has
changed, or, for a law that may find more later, if an e-class that the request reads has changed.
Not here: what a law may look at and answer (``tactics/requests.py``), the check of an answer
(``answers.py``).
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from eqsynth.calculus.checking import require
from eqsynth.egraph.answers import Answer, applied
from eqsynth.egraph.blame import is_own
from eqsynth.egraph.scope_rules.law import laws_of
from eqsynth.egraph.snapshot import EClass
from eqsynth.egraph.tactics.requests import Later, Said, Using, is_gate
from eqsynth.egraph.tactics.table import LAWS
from eqsynth.egraph.tactics.variants import GATE_VARIANTS, Variants
from eqsynth.egraph.view import State, View
from eqsynth.errors import EqsynthError, LawError, RuleError, SaturationError
from eqsynth.ir.scalar import Scalar, tensors
from eqsynth.ir.tensor import ClassRef, Scope, Tensor
from eqsynth.rules import RuleSet
from eqsynth.rules.tree import literals

# A request's sort key, and its row.
_Waiting = tuple[tuple[Any, ...], tuple[Any, ...]]


@dataclass(slots=True)
class _Asked:
    """A request that was asked, and the state of its e-classes at that time.

    Attributes:
        row: the row. The engine returns the same object as long as the row exists.
        place: the sort key of the request.
        body: the size of the request's body.
        classes: the handles and states of the e-classes that the request reads, and of its own
            e-class; None if new members can't change the answer.
    """

    row: tuple[Any, ...]
    place: tuple[Any, ...]
    body: int
    classes: tuple[tuple[int, State], ...] | None

    def is_due(self, view: View) -> bool:
        """Whether the body's size has changed, or an e-class in ``classes`` has."""
        if self.body != view.body_size(self.row):
            return True
        if self.classes is None:
            return False
        return any(view.state(handle) != state for handle, state in self.classes)


def _place(view: View, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the sort key of a request: its e-classes by handle, oldest first, its body by content.
    The engine's numbers of e-classes aren't used, as they depend on the order of insertion."""

    def part(value: Any) -> Any:
        if isinstance(value, EClass):
            if value.sort == "Tensor":
                return view.refs[value].handle
            return view.scalar(value).digest if value.sort == "Scalar" else repr(view.index(value))
        return _place(view, value) if isinstance(value, tuple) else value

    return tuple([part(value) for value in row])


def _looked_at(view: View, decoded: Sequence[Any]) -> tuple[tuple[int, State], ...]:
    """Return the handles and states of the e-classes that a request reads, and of its own."""
    refs = [v for v in decoded if isinstance(v, ClassRef)]
    body = decoded[-1]
    if isinstance(body, Scalar):
        refs += [tensor for tensor in tensors(body) if isinstance(tensor, ClassRef)]
    return tuple([(ref.handle, view.state(ref.handle)) for ref in refs])


class _Index:
    """Finds the asked requests that may be due, because an e-class or body that they read changed.

    Each watched e-class and body is compared once a view; requests that read no changed one aren't
    visited.
    """

    def __init__(self) -> None:
        self._view: View | None = None
        # Handle -> last seen state; body -> last seen size; handle or body -> the requests that
        # read it, by the `id` of their rows.
        self._states: dict[int, State] = {}
        self._sizes: dict[EClass, int] = {}
        self._readers: defaultdict[int | EClass, set[int]] = defaultdict(set)
        self._touched: set[int] = set()

    def add(self, asked: _Asked) -> None:
        """Watch the e-classes and the body that a request has read in the current view."""
        key = id(asked.row)
        self._touched.discard(key)
        for handle, state in asked.classes or ():
            self._readers[handle].add(key)
            self._states[handle] = state
        body = asked.row[-1]
        if isinstance(body, EClass) and body.sort != "Tensor":
            self._readers[body].add(key)
            self._sizes[body] = asked.body

    def touched(self, view: View) -> set[int]:
        """Return the requests of which an e-class or the body has changed since they were asked."""
        if view is not self._view:
            self._view = view
            changed: list[int | EClass] = [
                *(h for h, state in self._states.items() if view.state(h) != state),
                *(b for b, size in self._sizes.items() if view.size_of(b) != size),
            ]
            for place in changed:
                self._touched |= self._readers.pop(place)
                if isinstance(place, EClass):
                    del self._sizes[place]
                else:
                    del self._states[place]
        return self._touched


class _Room:
    """The room for answers of one law in each e-class: at most ``limit.most`` scopes an e-class.

    An e-class can fill up within a round, because each of its members may be asked and may answer.
    """

    def __init__(self, view: View, limit: Variants) -> None:
        self._view, self._most = view, limit.most
        self._counts = limit.counts
        # E-class -> its counted scopes: those of the view, and answers since.
        self._scopes: dict[ClassRef, set[Tensor]] = {}
        # E-classes with a counted scope that is a gate; their limit is lower.
        self._gates: set[ClassRef] = set()

    @property
    def counts_all(self) -> bool:
        """Whether every answer counts; then a full e-class needn't be asked about."""
        return self._counts is None

    def is_full(self, ref: ClassRef) -> bool:
        if ref not in self._scopes:
            self._scopes[ref] = set()
            for scope in filter(self._counts or bool, self._view.scopes(ref)):
                self._count(ref, scope)
        most = min(self._most, GATE_VARIANTS) if ref in self._gates else self._most
        return len(self._scopes[ref]) > most

    def _count(self, ref: ClassRef, scope: Tensor) -> None:
        self._scopes[ref].add(scope)
        if ref not in self._gates and isinstance(scope, Scope) and is_gate(scope):
            self._gates.add(ref)

    def takes(self, ref: ClassRef, answer: Tensor) -> bool:
        """Whether to use an answer: it doesn't count, or it is new and the e-class has room for
        it. A counted answer takes up room."""
        if self._counts and not self._counts(answer):
            return True
        if self.is_full(ref) or answer in self._scopes[ref]:
            return False
        self._count(ref, answer)
        return True


class Requests:
    """The requests of one session.

    Attributes:
        asked: law -> how often it was asked.
        vain: law -> how often it was asked and gave no new answer.
        known: law -> how many of its requests weren't due, summed over the rounds.
        spent_s: law -> seconds to find its due requests and answer them.
        faults: law -> its first error; the request that met the error got no answer.
        deadline: the time (``time.monotonic``) after which no request is answered, so that one long
            round can't outlast the worker.

    Raises:
        RuleError: a rule requests a law that doesn't exist.
    """

    def __init__(self, rules: RuleSet, constants: bool = False) -> None:
        self.rules, self._constants = rules, constants
        self.asked: Counter[str] = Counter()
        self.vain: Counter[str] = Counter()
        self.known: Counter[str] = Counter()
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        self.faults: dict[str, str] = {}
        self.deadline = math.inf
        self._answered: set[tuple[str, Any]] = set()
        # `id` of a request's row -> the request as it was last asked.
        self._asked: dict[int, _Asked] = {}
        self._index = _Index()
        self._names: dict[tuple[str, tuple[str, ...]], list[str]] = {}
        self._several: dict[str, bool] = {}
        self._laws = {**LAWS, **laws_of(rules)}
        requests = {r.law: r for r in rules.rules if r.kind == "law-request"}
        unknown = [rule for law, rule in requests.items() if law not in self._laws]
        if unknown:
            raise RuleError(
                f"nothing answers requests of the law {unknown[0].law}",
                file=unknown[0].file,
                line=unknown[0].line,
                column=1,
                got=unknown[0].law,
                expected=", ".join(sorted(LAWS)),
                hint="a rule file can request the laws of eqsynth/egraph/tactics/table.py only",
            )

    def answers(
        self, view: View, relations: Mapping[str, str], budget: int, fired: Iterable[str]
    ) -> tuple[list[Answer], list[str]]:
        """Ask the requests that are due; return the new answers, and the laws over budget.

        Args:
            relations: law -> the relation of its requests.
            budget: the most new answers of one law.
            fired: names of the rules that have fired; if a request makes no sense, one of them may
                be the cause.
        """
        found: list[Answer] = []
        over: list[str] = []
        for law, relation in relations.items():
            begin = time.perf_counter()
            rows = view.snapshot.rows[relation]
            waiting = self.due(view, rows)
            self.known[law] += len(rows) - len(waiting)
            count = 0
            limit = self._laws[law].variants
            room = _Room(view, limit) if limit else None
            for place, row in self._in_order(view, waiting, limited=limit is not None):
                if count >= budget or time.monotonic() > self.deadline:
                    over.append(law)
                    break
                fresh = self._fresh(view, law, row, place, room, fired)
                count += len(fresh)
                found += fresh
            self.spent_s[law] += time.perf_counter() - begin
        return found, over

    @staticmethod
    def _in_order(view: View, waiting: list[_Waiting], limited: bool) -> list[_Waiting]:
        """Sort requests by their keys. If the law's answers an e-class are limited, requests about
        one e-class are sorted by the size of the body first."""
        if not limited:
            return sorted(waiting, key=itemgetter(0))
        return sorted(waiting, key=lambda w: (w[0][0], view.body_size(w[1]), w[0]))

    def due(self, view: View, rows: Sequence[tuple[Any, ...]]) -> list[_Waiting]:
        """Return the requests among the rows that were never asked or are due again."""
        asked, touched = self._asked, self._index.touched(view)
        waiting = [(_place(view, row), row) for row in rows if id(row) not in asked]
        for row in rows if touched else ():
            if id(row) in touched and asked[id(row)].is_due(view):
                waiting.append((asked[id(row)].place, row))
        return waiting

    def _fresh(
        self, view: View, law: str, row: tuple[Any, ...], place: tuple[Any, ...],
        room: _Room | None, fired: Iterable[str],
    ) -> list[Answer]:  # fmt: skip
        """Ask one request; return its new answers for which there is room."""
        decoded = [view.value(value) for value in row]
        size = view.body_size(row)
        if decoded[0].constant and not (self._constants or self._laws[law].means):
            self._remember(_Asked(row, place, size, None))
            return []
        try:
            answers = self._ask(view, law, row, decoded, room, fired)
            if answers is None:
                self._remember(_Asked(row, place, size, _looked_at(view, decoded)))
                return []
            settled = not self._laws[law].again
        except Later:
            answers, settled = [], False
        self._remember(_Asked(row, place, size, None if settled else _looked_at(view, decoded)))
        key = tuple(decoded)
        self.asked[law] += 1
        fresh = [answer for answer in answers if self._is_new(law, key, answer.term)]
        self.vain[law] += not fresh
        return [Answer(law, row, key, a.term, a.members) for a in fresh]

    def _remember(self, asked: _Asked) -> None:
        self._asked[id(asked.row)] = asked
        self._index.add(asked)

    def _ask(
        self, view: View, law: str, row: Any, decoded: Sequence[Any], room: _Room | None,
        fired: Iterable[str],
    ) -> list[Using] | None:  # fmt: skip
        """Return the law's answers to a request for which there is room; None if there is no room.

        An error in a law's tactic is recorded in ``faults``, and there is no answer.

        Raises:
            RuleError: a rule of the user requests what the law can't answer.
            SaturationError: a rule of eqsynth requests what the law can't answer, and rules of the
                user have fired, which may have made wrong terms.
            MemoryError: the process is out of memory.
        """
        try:
            if room is not None and room.counts_all and room.is_full(decoded[0]):
                return None
            answers = self._applied(view, law, decoded, self._laws[law].tactic(view, decoded))
            return [a for a in answers if room is None or room.takes(decoded[0], a.term)]
        except (Later, SaturationError, MemoryError):
            raise
        except Exception as error:
            rule = self.rules[self._requesters(law, row)[-1]]
            what = f"the law {law} cannot answer what {rule.name} requests"
            got = (str(error) if isinstance(error, EqsynthError) else repr(error))[:300]
            known = set(fired)
            suspects = tuple(r.name for r in self.rules.rules if r.name in known and not is_own(r))
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

    def _applied(
        self, view: View, law: str, decoded: Sequence[Any], said: Iterable[Said]
    ) -> list[Using]:
        """Apply what a law's tactic proposes. A refused proposal is left out, and the error is
        recorded in ``faults``."""
        # If the answer's relation has columns for the parts of a scope, the answer must be one.
        parts = len(self.rules.known.signatures[self.rules.known.laws[law].answer].inputs) > 2
        found: list[Using] = []
        for answer in said:
            try:
                for one in applied(view, law, decoded, answer, self._laws[law]):
                    require(isinstance(one.term, Scope) or not parts, law, "scope", "no scope")
                    found.append(one)
            except LawError as error:
                self.faults.setdefault(law, str(error)[:300])
        return found

    def _is_new(self, law: str, key: Any, answer: Tensor) -> bool:
        mark = (law, (key, answer))
        if mark in self._answered:
            return False
        self._answered.add(mark)
        return True

    def rule_name(self, law: str, row: Sequence[Any]) -> str:
        """Return the name of the rule that added a request. If several rules request the law, it is
        the rule whose facts and request hold the texts of the row as literals."""
        requesters = self._requesters(law, row)
        return requesters[0] if self._several[law] else law

    def _requesters(self, law: str, row: Sequence[Any]) -> list[str]:
        texts = tuple(value for value in row if isinstance(value, str))
        if (law, texts) not in self._names:
            rules = [r for r in self.rules.rules if r.kind == "law-request" and r.law == law]
            own = [r for r in rules if {*texts} <= {*literals(("", *r.body, *r.actions))}]
            self._several[law] = len(rules) > 1
            self._names[law, texts] = [rule.name for rule in own or rules]
        return self._names[law, texts]
