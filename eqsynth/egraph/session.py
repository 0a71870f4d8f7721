"""An e-graph of tensor programs: it takes IR terms, runs rounds of rules, and returns e-classes.

The session connects the engine, which knows nothing of tensors, to the IR. It types and names
e-classes, lets laws answer requests, and logs the ground equalities that ``explain`` needs. Not
here: which rulesets run when, and for how long (``schedule.py``).
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
from eqsynth.egraph.tactics.table import LAWS
from eqsynth.egraph.view import Decoded, View
from eqsynth.errors import SaturationError
from eqsynth.ir.scalar import digest_of
from eqsynth.ir.tensor import ClassRef, Op, Scope, Tensor, args_of, topological
from eqsynth.ir.types import TensorType
from eqsynth.rules import Rule, RuleSet


@dataclass
class Session:
    """One e-graph; see the module.

    Attributes:
        log_matches: whether the equalities are logged.
        constants: whether all laws are asked about constant scopes. A program computes a constant
            once, however it is written, so only a proof needs them.
        matches: counts the united instances of each rule.
    """

    rules: RuleSet
    log_matches: bool = True
    constants: bool = False
    matches: Counter[str] = field(default_factory=Counter)
    log: list[Equality] = field(default_factory=list)
    definitions: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.defined = operators_of(self.rules.definitions)
        self.requests = Requests(self.rules, self.constants)
        self.engine = Engine(self.rules)
        # Ruleset -> its rules, and the rules that apply answers of laws.
        self._rules = {name: self.rules.of(name) for name in self.rules.rulesets}
        self._applying = [rule for rule in self.rules.rules if rule.kind == "law-apply"]
        # Called before laws are asked, when the e-graph is consistent and can be read.
        self.on_view: Callable[[], None] = lambda: None
        self._handles: dict[Tensor, int] = {}
        self._digests: dict[int, bytes] = {}
        self._constant: dict[int, bool] = {}
        self._view: View | None = None
        # The engine's count of changes when the view was made.
        self._view_changes = 0
        self._decoded = Decoded()
        self._refs: dict[tuple[Any, ...], ClassRef] = {}
        # The numbers of a typed e-class's handles -> its reference.
        self._typed: dict[tuple[int, ...], ClassRef] = {}
        # Ruleset -> the engine's count of changes after its last round, if that round did nothing.
        self._idle: dict[str, int] = {}
        self._rounds = 0
        self._pending: Counter[str] = Counter()
        self._times_out: Counter[str] = Counter()
        self._out_until: Counter[str] = Counter()

    def close(self) -> None:
        """Leave the engine's e-graph to the next session, and clear all other caches."""
        self.engine.close()
        caches.forget()

    # ---- terms in ----------------------------------------------------------

    def add(self, roots: Sequence[Tensor]) -> list[int]:
        """Add terms with all their subterms; return the handles of the roots."""
        self._insert(roots)
        return [self._handles[root] for root in roots]

    def handle(self, term: Tensor) -> int:
        """Return the handle of a term that was added."""
        return self._handles[term]

    def _insert(self, roots: Sequence[Tensor]) -> None:
        """Insert the new subterms, with their types and whether they are constant."""
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
        """Return a view of the current e-graph, in which every Tensor e-class has a handle and a
        type."""
        if self._view is None:
            snapshot = self.engine.snapshot()
            tensors = [c for c in snapshot.classes if c.sort == "Tensor"]
            unnamed = [c for c in tensors if c not in snapshot.named]
            if unnamed:
                terms = snapshot.terms
                new = self.engine.name(unnamed, snapshot)
                for eclass, handle in new.items():
                    self.definitions[handle.n] = terms[eclass]
                # New handles add e-nodes `Tok` and change nothing else in the snapshot.
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
            ref = self._typed.get(key := tuple(numbers))
            # An e-class that a rewrite made may have a type from the rules. Whether it is constant,
            # and its sort key, must come from a member.
            known = ref is None and any(number in self._constant for number in numbers)
            if known and eclass in shapes and eclass in dtypes:
                type_ = TensorType(shapes[eclass], dtypes[eclass])
                ref = self._typed[key] = self._reference(numbers, type_)
            if ref is None:
                untyped.append(eclass)
            else:
                refs[eclass] = ref
        self._type(snapshot, untyped, handles, refs)
        return refs

    def _reference(self, numbers: list[int], type_: TensorType) -> ClassRef:
        # The digest of the oldest term: when e-classes merge, only the readers of the younger one
        # get another order of operands.
        digest = next((self._digests[n] for n in sorted(numbers) if n in self._digests), b"")
        constant = any(self._constant.get(n, False) for n in numbers)
        # The digest contains the session's own handle: caches of results over terms (canonical
        # forms, merged scopes) refer to e-classes by handle, which has another meaning in another
        # session. It doesn't contain whether the e-class is constant: this may change, and would
        # then change the order of operands.
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
        """Infer the types of e-classes that rewrites made, from the operator table, arguments
        first."""
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
        """Return the e-graph as plain data; its roots are ``terms``, which have been added."""
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
        """Return the log so far."""
        return Log(tuple(self.log), dict(self.definitions), self.defined)

    # ---- a round ---------------------------------------------------------------

    def round(self, ruleset: str, budget: int) -> tuple[bool, list[str]]:
        """Run every rule of a ruleset once on the current e-graph.

        Args:
            budget: the most matches of one rule to unite.

        Returns:
            Whether anything was united, and the rules over budget, whose matches stay pending.
        """
        self._rounds += 1
        if self._idle.get(ruleset) == self.engine.changes:
            return False, []
        rules = self._rules[ruleset]
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
        """Run the rewrites of a ruleset: match all rules, then unite the matches of each rule that
        is within its budget.

        A rule over its budget sits out, each time for twice as many rounds and afterwards with
        twice the budget; its matches stay pending in the engine. Matches are logged when they are
        found, since the numbers of e-classes in them are valid only then.
        """
        changed, over = False, []
        due = [r for r in rules if r.kind == "rewrite" and self._out_until[r.name] < self._rounds]
        found = [*zip(due, self.engine.matches(due), strict=True)]
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
        """Return a view of the e-graph after steps that were run in the engine directly."""
        if self._view is None or self._view_changes != self.engine.changes:
            self._view = None
            return self.view()
        # At most requests have been added since the view was made; the e-classes are the same.
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
        """Return the answers to the requests that are due, and the laws over budget."""
        view = self.fresh_view()
        self.on_view()
        laws = {r.law: r.relation for r in self._rules[ruleset] if r.kind == "law-request"}
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
            columns = self._answer(law, answer.term, result)
            facts.append((self.rules.known.laws[law].answer, e, *columns))
            name = self.requests.rule_name(law, answer.row)
            self.matches[name] += 1
            if law in LAWS and LAWS[law].operators:
                facts += self._interiors(answer.term, first)
            if self.log_matches:
                self.log.append(Equality(left_side(answer, e), result, name))
        self.engine.insert(facts=facts)
        changed, laws = False, {answer.law for answer in answers}
        for rule in self._applying:
            # A user's ruleset may request a law whose answers a built-in ruleset applies.
            if rule.ruleset == ruleset or rule.law in laws:
                changed |= self.engine.apply(rule)
        return changed

    def _answer(self, law: str, answer: Tensor, result: Handle) -> tuple[Any, ...]:
        """Return the columns of an answer's row: its e-class, or the parts of the scope if the
        relation has columns for them."""
        known = self.rules.known
        if len(known.signatures[known.laws[law].answer].inputs) == 2:
            return (result,)
        assert isinstance(answer, Scope)
        parts = {arg: Handle(self._handles[arg]) for arg in args_of(answer)}
        body = encode_scalar(answer.body, parts)
        return (list(answer.traversal), list(answer.reduction), answer.reducer, body)

    def _interiors(self, answer: Tensor, before: int) -> list[tuple[Any, ...]]:
        """Return facts that mark the new operators inside of an answer."""
        return [
            ("instantiated", Handle(self._handles[term]))
            for term in topological([answer])
            if isinstance(term, Op) and term != answer and self._handles[term] >= before
        ]
