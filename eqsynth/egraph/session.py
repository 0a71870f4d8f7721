"""An e-graph of tensor programs: terms in, rounds of rules, classes out.

The session joins the engine (which knows no tensors) to the IR: it types and names classes, lets
laws answer requests, and keeps the log of ground equalities from which ``explain`` is made. Which
rulesets run when, and for how long, is ``schedule.py``'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eqsynth.egraph.answers import Answer, grounded, left_side, with_handles
from eqsynth.egraph.asking import Requests
from eqsynth.egraph.defined import operators_of
from eqsynth.egraph.encode import encode_scalar, encode_tensor
from eqsynth.egraph.engine import Engine
from eqsynth.egraph.graph import EGraph, Equality, Log
from eqsynth.egraph.snapshot import EClass, Handle, Snapshot
from eqsynth.egraph.tactics import caches
from eqsynth.egraph.tactics.table import MAKES_OPERATORS
from eqsynth.egraph.view import Decoded, View
from eqsynth.errors import SaturationError
from eqsynth.ir.scalar import digest_of
from eqsynth.ir.tensor import ClassRef, Op, Scope, Tensor, args_of, topological
from eqsynth.ir.types import TensorType
from eqsynth.rules import Rule, RuleSet


@dataclass
class Session:
    """See the module. ``matches`` counts the instances of each rule that were united."""

    rules: RuleSet
    log_matches: bool = True
    matches: Counter[str] = field(default_factory=Counter)
    log: list[Equality] = field(default_factory=list)
    definitions: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.defined = operators_of(self.rules.definitions)
        self.requests = Requests(self.rules)
        self.engine = Engine(self.rules)
        # Called when the e-graph can be read, before laws are asked.
        self.on_view: Callable[[], None] = lambda: None
        self._handles: dict[Tensor, int] = {}
        self._digests: dict[int, bytes] = {}
        self._constant: dict[int, bool] = {}
        self._view: View | None = None
        # The engine's count of changes that the view has seen.
        self._view_changes = 0
        self._decoded = Decoded()
        self._refs: dict[tuple[Any, ...], ClassRef] = {}
        # The engine's count of changes after a round of a ruleset that found nothing to do.
        self._idle: dict[str, int] = {}
        self._rounds = 0
        self._pending: Counter[str] = Counter()
        self._times_out: Counter[str] = Counter()
        self._out_until: Counter[str] = Counter()

    def close(self) -> None:
        """Leaves the engine's e-graph to the next session, and nothing else."""
        self.engine.close()
        caches.forget()

    # ---- terms in ----------------------------------------------------------

    def add(self, roots: Sequence[Tensor]) -> list[int]:
        """Adds terms with all their subterms; the handles of the roots."""
        self._insert(roots)
        return [self._handles[root] for root in roots]

    def handle(self, term: Tensor) -> int:
        """The handle of a term that was added."""
        return self._handles[term]

    def _insert(self, roots: Sequence[Tensor]) -> None:
        """Inserts what is new among the subterms, with types and what is constant."""
        parts: dict[Tensor, Any] = {}
        new: list[Tensor] = []
        for term in topological(roots):
            if isinstance(term, ClassRef):
                parts[term] = Handle(term.handle)
                self._handles.setdefault(term, term.handle)
            elif term in self._handles:
                parts[term] = Handle(self._handles[term])
            else:
                parts[term] = encode_tensor(term, parts)
                new.append(term)
        first = self.engine.next_handle
        made = {term: Handle(first + place) for place, term in enumerate(new)}
        self.engine.insert(
            [parts[term] for term in new],
            facts=[("constant", h) for t, h in made.items() if t.constant],
            values=[
                value
                for t, h in made.items()
                for value in ((("shape", h), list(t.shape)), (("dtype", h), t.dtype))
            ],
        )
        by_object = {id(parts[t]): h for t, h in made.items()}
        for term, handle in made.items():
            self._handles[term] = handle.n
            self._digests[handle.n] = term.digest
            self._constant[handle.n] = term.constant
            self.definitions[handle.n] = with_handles(parts[term], by_object)
        self._view = None

    # ---- the view ------------------------------------------------------------

    def view(self) -> View:
        """The e-graph as it is, every Tensor class named and typed."""
        if self._view is None:
            snapshot = self.engine.snapshot()
            tensors = [c for c in snapshot.classes if c.sort == "Tensor"]
            unnamed = [c for c in tensors if c not in snapshot.named]
            if unnamed:
                terms = snapshot.terms
                new = self.engine.name(unnamed, snapshot)
                for eclass, handle in new.items():
                    self.definitions[handle.n] = terms[eclass]
                # Naming adds rows of `Tok` and changes no class.
                handles = {**snapshot.handles, **{h: c for c, h in new.items()}}
                snapshot = Snapshot(snapshot.classes, snapshot.rows, handles)
            refs = self._references(snapshot)
            self._view = View(snapshot, refs, self._decoded, self.defined, self.rules.meanings)
            self._view_changes = self.engine.changes
        return self._view

    def _references(self, snapshot: Snapshot) -> dict[EClass, ClassRef]:
        shapes = {row[0]: row[1] for row in snapshot.rows["shape"]}
        dtypes = {row[0]: row[1] for row in snapshot.rows["dtype"]}
        handles: dict[EClass, list[int]] = {}
        for handle, eclass in snapshot.handles.items():
            handles.setdefault(eclass, []).append(handle.n)
        refs: dict[EClass, ClassRef] = {}
        untyped: list[EClass] = []
        for eclass, numbers in handles.items():
            # What a rewrite made may have its type from the rules, but whether it is constant, and
            # its place in the order, only from a member.
            known = any(number in self._constant for number in numbers)
            if known and eclass in shapes and eclass in dtypes:
                refs[eclass] = self._reference(numbers, TensorType(shapes[eclass], dtypes[eclass]))
            else:
                untyped.append(eclass)
        self._type(snapshot, untyped, handles, refs)
        return refs

    def _reference(self, numbers: list[int], type_: TensorType) -> ClassRef:
        # The oldest term's: when classes merge, readers of the younger one alone change order.
        digest = next((self._digests[n] for n in sorted(numbers) if n in self._digests), b"")
        constant = any(self._constant.get(n, False) for n in numbers)
        # The handle is part of the digest: results that are cached over terms (canonical forms,
        # merged scopes) name classes by handle, and handles mean nothing in another session.
        # Whether the class is constant isn't: it may become so, and ties of readers would change.
        oldest = min(numbers)
        key = (oldest, type_, constant, digest)
        if key not in self._refs:
            own = digest_of("class", oldest, digest)
            self._refs[key] = ClassRef(oldest, type_, constant, own, digest)
        return self._refs[key]

    def _type(
        self,
        snapshot: Snapshot,
        untyped: list[EClass],
        handles: dict[EClass, list[int]],
        refs: dict[EClass, ClassRef],
    ) -> None:
        """Types of what rewrites made, from the operator table, arguments first."""
        values: list[tuple[tuple[Any, ...], Any]] = []
        facts: list[tuple[Any, ...]] = []
        view = View(snapshot, refs, Decoded(), self.defined)
        while untyped:
            waiting = []
            for eclass in untyped:
                term = self._first_typed(view, snapshot, eclass)
                if term is None:
                    waiting.append(eclass)
                    continue
                number = min(handles[eclass])
                self._digests[number] = term.digest
                self._constant[number] = term.constant
                refs[eclass] = self._reference(handles[eclass], term.type)
                handle = Handle(number)
                values.append((("shape", handle), list(term.shape)))
                values.append((("dtype", handle), term.dtype))
                if term.constant:
                    facts.append(("constant", handle))
            if len(waiting) == len(untyped):
                raise SaturationError(
                    "a class has no type",
                    got=str([snapshot.classes[c] for c in waiting][:3]),
                    expected="a member whose arguments are typed",
                    hint="a rule makes a term that contains itself only",
                )
            untyped = waiting
        if values:
            self.engine.insert(facts=facts, values=values)

    @staticmethod
    def _first_typed(view: View, snapshot: Snapshot, eclass: EClass) -> Tensor | None:
        for node in snapshot.classes[eclass]:
            try:
                return view.term(node)
            except KeyError:
                continue
        return None

    def graph(
        self, terms: Sequence[Tensor], stop: str, seconds: float, over_budget: Mapping[str, int]
    ) -> EGraph:
        """The e-graph as plain data; its roots are ``terms``, which were added."""
        view = self.view()
        classes, original = view.classes({t: self.handle(t) for t in topological(terms)})
        return EGraph(
            classes=classes,
            roots=tuple(view.refs[view.by_handle(self.handle(term))] for term in terms),
            enodes=self.engine.enodes(),
            eclasses=len(view.snapshot.classes),
            matches=dict(self.matches),
            stop=stop,
            seconds=seconds,
            log=self.logged() if self.log_matches else None,
            over_budget=dict(over_budget),
            faults=dict(self.requests.faults),
            original=original,
        )

    def logged(self) -> Log:
        """The log as it is now."""
        return Log(tuple(self.log), dict(self.definitions), self.defined)

    # ---- a round ---------------------------------------------------------------

    def round(self, ruleset: str, budget: int) -> tuple[bool, list[str]]:
        """Every rule of a ruleset once, on the e-graph as it is now.

        Args:
            budget: matches of one rule that are united at most.

        Returns:
            Whether anything was united, and the rules that were over budget (their other matches
            wait).
        """
        self._rounds += 1
        if self._idle.get(ruleset) == self.engine.changes:
            return False, []
        rules = self.rules.of(ruleset)
        asked = False
        for rule in rules:
            if rule.kind == "law-request":
                self.engine.request(rule)
                asked = True
        changed, over = self._rewrite(rules, budget)
        if asked:
            answers, exhausted = self._answers(ruleset, budget)
            over += exhausted
            changed |= self._unite(ruleset, answers)
        if changed:
            self._view = None
            self.engine.analyse()
        elif not over and not any(self._pending[rule.name] for rule in rules):
            self._idle[ruleset] = self.engine.changes
        return changed, over

    def _rewrite(self, rules: Sequence[Rule], budget: int) -> tuple[bool, list[str]]:
        """The rewrites of a ruleset: match all, then unite those within their budget.

        A rule over its budget sits out, each time for twice as many rounds and then with twice
        the budget; its matches stay pending in the engine. They are logged when they are found,
        since only then do the numbers of their classes mean anything.
        """
        changed, over = False, []
        due = [r for r in rules if r.kind == "rewrite" and self._out_until[r.name] < self._rounds]
        found = [(rule, self.engine.match(rule)) for rule in due]
        if any(rows for _, rows in found):
            view = self.view()
            for rule, rows in found:
                self._log_rewrites(view, rule, rows)
        for rule, rows in found:
            self._pending[rule.name] += len(rows)
            if self._pending[rule.name] > budget << self._times_out[rule.name]:
                self._times_out[rule.name] += 1
                self._out_until[rule.name] = self._rounds + (1 << self._times_out[rule.name])
                over.append(rule.name)
            elif self._pending[rule.name]:
                self._pending[rule.name] = 0
                changed |= self.engine.apply(rule)
        return changed, over

    def fresh_view(self) -> View:
        """The view of the e-graph after steps that went past the session."""
        if self._view is None or self._view_changes != self.engine.changes:
            self._view = None
            return self.view()
        # Requests were filed at most: the classes are those of the view.
        self._view.renew(self.engine.snapshot_rows())
        return self._view

    def _log_rewrites(self, view: View, rule: Rule, rows: list[tuple[Any, ...]]) -> None:
        if rows:
            self.matches[rule.name] += len(rows)
        if not self.log_matches or not rows:
            return
        terms = view.snapshot.terms
        for row in rows:
            left, right = rule.instance(row)
            self.log.append(Equality(grounded(left, terms), grounded(right, terms), rule.name))

    def _answers(self, ruleset: str, budget: int) -> tuple[list[Answer], list[str]]:
        """Answers to the requests that are due, and the laws that were over budget."""
        view = self.fresh_view()
        self.on_view()
        laws = {r.law: r.relation for r in self.rules.of(ruleset) if r.kind == "law-request"}
        return self.requests.answers(view, laws, budget, self.matches)

    def _unite(self, ruleset: str, answers: list[Answer]) -> bool:
        if not answers:
            return False
        view = self.view()
        first = self.engine.next_handle
        self._insert([answer.term for answer in answers])
        facts: list[tuple[Any, ...]] = []
        for answer in answers:
            law, e = answer.law, Handle(view.refs[answer.row[0]].handle)
            result = Handle(self._handles[answer.term])
            facts.append((f"{law}-answer", e, *self._answer(law, answer.term, result)))
            name = self.requests.rule_name(law, answer.row)
            self.matches[name] += 1
            if law.startswith(MAKES_OPERATORS):
                facts += self._interiors(answer.term, first)
            if self.log_matches:
                self.log.append(Equality(left_side(answer, e), result, name))
        self.engine.insert(facts=facts)
        changed, laws = False, {answer.law for answer in answers}
        for rule in self.rules.rules:
            # A user's ruleset may request laws that are applied in one of ours.
            if rule.kind == "law-apply" and (rule.ruleset == ruleset or rule.law in laws):
                changed |= self.engine.apply(rule)
        return changed

    def _answer(self, law: str, answer: Tensor, result: Handle) -> tuple[Any, ...]:
        """The columns of an answer: its class, or its parts where the rule marks them."""
        if len(self.rules.known.signatures[f"{law}-answer"].inputs) == 2:
            return (result,)
        assert isinstance(answer, Scope)
        parts = {arg: Handle(self._handles[arg]) for arg in args_of(answer)}
        body = encode_scalar(answer.body, parts)
        return (list(answer.traversal), list(answer.reduction), answer.reducer, body)

    def _interiors(self, answer: Tensor, before: int) -> list[tuple[Any, ...]]:
        """Marks for the operators that a match has made inside of its answer."""
        return [
            ("instantiated", Handle(self._handles[term]))
            for term in topological([answer])
            if isinstance(term, Op) and term != answer and self._handles[term] >= before
        ]
