"""The e-graph engine: egglog behind a few methods that check their arguments first.

Terms go in as nested tuples, ``("Relu", Handle(3))``; plain data comes out. The engine doesn't know
what constructors mean, except `Tok`, the name of an e-class. Not here: when which rule runs
(`schedule.py`). An engine belongs to the thread that made it, and can't be used after a step has
raised a `SaturationError`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from eqsynth.egraph.commands import SPAN, Actions, Form, Names, declarations, run
from eqsynth.egraph.reading import Classes, Functions, Reader, Rows, number
from eqsynth.egraph.snapshot import EClass, Handle, Snapshot, smallest_terms
from eqsynth.errors import SaturationError
from eqsynth.rules import rewind
from eqsynth.rules.bindings import egg
from eqsynth.rules.rule import Rule
from eqsynth.rules.ruleset import RuleSet

# egglog logs every rule that it declares at level INFO, thousands of lines a session. A user who
# calls `logging.basicConfig(level=logging.INFO)` to see eqsynth's messages would get them all. To
# see them, set the level of this logger.
if logging.getLogger("egglog").level == logging.NOTSET:
    logging.getLogger("egglog").setLevel(logging.WARNING)

# The class of a Rust panic. It isn't a subclass of Exception, and egglog doesn't export it.
_PANIC = "PanicException"

MOST_FORMS = 400
"""The most forms of terms whose rules an e-graph keeps. A form costs 0.18 ms to add, and the
segments of a program mostly have the same ones: 12 segments of VGG-16 have 63 forms each."""


@dataclass(frozen=True)
class Step:
    """The result of a bounded run; `saturated` if the last round changed nothing."""

    saturated: bool
    rounds: int
    tuples: int


class _Kept(NamedTuple):
    """An e-graph for the next engine with the same rules.

    Attributes:
        ruled: the forms of inserted terms whose rules the e-graph has (``commands.py``).
        wanted: further forms that the last engine met. The next engine adds their rules once for
            all engines after it; an engine that is the last one wouldn't get anything for them.
    """

    egraph: egg.EGraph
    ruled: tuple[Form, ...] = ()
    wanted: tuple[Form, ...] = ()


class Engine:
    """An e-graph with the rules of a `RuleSet`, run one step at a time."""

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.dead = False
        self._key = ("engine", *rules.declarations, *(t for r in rules.rules for t in r.program))
        kept: _Kept = rewind.take(self._key) or _Kept(self._founded())
        self._egraph, self._names = kept.egraph, Names(rules, kept.ruled)
        if kept.wanted:
            self._egraph.run_program(*self._names.founding(kept.wanted))
        # The forms whose rules stay in the e-graph when it is reset.
        self._lasting = tuple(self._names.ruled)
        rewind.mark(self._egraph)
        # Rule -> seconds, and how often it ran.
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        self.steps: Counter[str] = Counter()
        self._handles = 0
        # Rules applied since the analyses last ran without a conflict: the suspects at the next
        # conflict.
        self._suspects: list[str] = []
        self._frozen: Functions | None = None
        # The cached results of reading the e-graph, and the count of changes.
        self._changes = 0
        self._read: tuple[int, Classes] | None = None
        self._counted: tuple[int, int] | None = None
        self._reader = Reader(self._egraph, rules.known)
        self._analyses = tuple(
            dict.fromkeys(rule.apply_ruleset for rule in rules.rules if rule.kind == "analysis")
        )

    def close(self) -> None:
        """Leave the e-graph to the next engine with the same rules; this one is then unusable."""
        if not self.dead:
            self.dead, self._frozen = True, None
            self._names.close()
            rewind.rewind(self._egraph)
            # Forms are only added, so those of this engine alone come after the lasting ones.
            new = tuple(self._names.ruled)[len(self._lasting) : MOST_FORMS]
            rewind.keep(self._key, _Kept(self._egraph, self._lasting, new))

    def _founded(self) -> egg.EGraph:
        """Return a new e-graph with the declarations and rules."""
        egraph = egg.EGraph()
        for text in (*self.rules.declarations, *declarations(self.rules.known)):
            self._define(egraph, text, "")
        for rule in self.rules.rules:
            for text in rule.program:
                self._define(egraph, text, rule.name)
        return egraph

    @staticmethod
    def _define(egraph: egg.EGraph, text: str, name: str) -> None:
        """Add a declaration or rule, which the loader's e-graph has accepted before."""
        try:
            egraph.run_program(*egraph.parse_program(text))
        except BaseException as error:
            if not isinstance(error, egg.EggSmolError) and type(error).__name__ != _PANIC:
                raise
            raise SaturationError(
                "the engine refused a rule",
                where=name,
                got=str(error)[:300],
                rules=(name,) if name else (),
                hint="Simplify it.",
            ) from None

    # ---- putting in ------------------------------------------------------

    def insert(
        self,
        terms: Sequence[Any] = (),
        *,
        facts: Iterable[tuple[Any, ...]] = (),
        values: Iterable[tuple[tuple[Any, ...], Any]] = (),
    ) -> list[Handle]:
        """Add Tensor terms, facts `("relation", args...)` and values `(("function", args...),
        value)`; return a handle for every term.

        A term is `("Constructor", args...)`; an argument is a term, a handle, an int, a float, a
        string or a list. Parts that are one Python object are inserted once.

        Raises:
            SaturationError: a term that does not fit the schema (nothing was done), or a value
                that contradicts another.
        """
        actions = Actions(self._names)
        handles = [Handle(self._handles + index) for index in range(len(terms))]
        for handle, term in zip(handles, terms, strict=True):
            actions.add_union(handle, term)
        for fact in facts:
            actions.add_fact(fact)
        for call, value in values:
            actions.add_value(call, value)
        self._handles += len(handles)
        for commands in self._names.commands(actions):
            self._step("insert", *commands)
        self._changed()
        return handles

    def name(self, eclasses: Iterable[EClass], snapshot: Snapshot) -> dict[EClass, Handle]:
        """Return handles for Tensor e-classes of a snapshot that is still current."""
        wanted = list(dict.fromkeys(eclasses))
        missing = [eclass for eclass in wanted if eclass not in snapshot.named]
        handles: dict[EClass, Handle] = {}
        if missing:
            terms = smallest_terms(snapshot)
            new = self.insert([terms[eclass] for eclass in missing])
            handles = dict(zip(missing, new, strict=True))
        return {
            eclass: handles[eclass] if eclass in handles else snapshot.named[eclass]
            for eclass in wanted
        }

    @property
    def next_handle(self) -> int:
        """Return the number of the next handle; handles that exist have smaller numbers."""
        return self._handles

    # ---- running ---------------------------------------------------------

    def analyse(self, *, rounds: int = 100, tuple_limit: int = 1_000_000) -> Step:
        """Run the analysis rulesets until they add nothing, or up to a bound."""
        done = 0
        while done < rounds:
            updated = [self._step("analyse", run(ruleset)).updated for ruleset in self._analyses]
            done += 1
            tuples = self.tuples()
            if any(updated):
                self._changed()
            if not any(updated) or tuples > tuple_limit:
                if not any(updated):
                    self._suspects.clear()
                return Step(not any(updated), done, tuples)
        return Step(False, done, self.tuples())

    def match(self, rule: Rule) -> list[tuple[Any, ...]]:
        """Run a rule's match phase; return the new rows of its relation, in `rule.columns`' order.

        The matches stay pending until `apply`; a schedule backs off by not calling `apply`."""
        (rows,) = self.matches([rule])
        return rows

    def matches(self, rules: Sequence[Rule]) -> list[list[tuple[Any, ...]]]:
        """Run the match phases of several rules; return what ``match`` returns for each."""
        before = self._freeze()
        updated: list[bool] = []
        for rule in rules:
            if not rule.match_ruleset:
                raise ValueError(f"{rule.name} has no match phase")
            updated.append(bool(self._step(rule.name, run(rule.match_ruleset)).updated))
        if any(updated):
            self._frozen = None
        # A rule's matches go into its own relation, so one reading after all rules shows them all.
        return [
            self._new_rows(rule, before) if has_new else []
            for rule, has_new in zip(rules, updated, strict=True)
        ]

    def _new_rows(self, rule: Rule, before: Functions) -> list[tuple[Any, ...]]:
        """Return the rows of a rule's relation that weren't there before."""
        new = _raw_rows(self._freeze(), rule.relation) - _raw_rows(before, rule.relation)
        decoders = [self._reader.decoder(sort) for _, sort in rule.columns]
        # Sorted by number, since the order of a hash table would make runs differ.
        return [
            tuple(decode(value) for decode, value in zip(decoders, row, strict=True))
            for row in sorted(new, key=lambda row: [number(value) for value in row])
        ]

    def request(self, rule: Rule) -> bool:
        """Run a rule that requests a law by adding rows to the law's relation; return whether rows
        were added. The snapshot has the rows."""
        updated = bool(self._step(rule.name, run(rule.match_ruleset)).updated)
        if updated:
            self._frozen = None
        return updated

    def apply(self, rule: Rule) -> bool:
        """Run a rule's apply phase on all its pending matches; return whether anything changed."""
        if not rule.apply_ruleset:
            raise ValueError(f"{rule.name} has no apply phase")
        self._suspects.append(rule.name)
        updated = bool(self._step(rule.name, run(rule.apply_ruleset)).updated)
        if updated:
            self._changed()
        else:
            self._suspects.pop()
        return updated

    # ---- taking out ------------------------------------------------------

    @property
    def changes(self) -> int:
        """A count that grows whenever an e-class, a function or a relation may have changed; new
        matches and requests don't count."""
        return self._changes

    def tuples(self) -> int:
        """The number of rows of all tables, which memory and time grow with; takes microseconds."""
        return sum(self._sizes().values())

    def enodes(self) -> int:
        """The number of e-nodes, without handles."""
        known = self.rules.known
        if self._counted is None or self._counted[0] != self._changes:
            self._counted = (
                self._changes,
                sum(
                    count
                    for name, count in self._sizes().items()
                    if name != "Tok" and known.is_constructor(name)
                ),
            )
        return self._counted[1]

    def eclasses(self) -> int:
        """The number of e-classes of all sorts."""
        functions, known = self._freeze(), self.rules.known
        return len(
            {
                (function.output_sort, row.output)
                for name, function in functions.items()
                if known.is_constructor(name)
                for row in function.rows
            }
        )

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """Return the rows of one relation, or of one function with its values."""
        return self._reader.rows(name, self._freeze())

    def snapshot(self) -> Snapshot:
        """Return the whole e-graph as plain data, without the relations of matches."""
        if self._read is None or self._read[0] != self._changes:
            self._read = self._changes, self._reader.classes(self._freeze())
        classes, handles = self._read[1]
        return Snapshot(classes, self.snapshot_rows(), handles)

    def snapshot_rows(self) -> Mapping[str, list[tuple[Any, ...]]]:
        """Return the ``rows`` of a snapshot, the only part that changes when requests are added."""
        return Rows(self._reader, self._freeze())

    # ---- within ----------------------------------------------------------

    def _step(self, doing: str, *commands: Any) -> Any:
        """Run commands, of which the last is a run; return the run's report."""
        self._alive(doing)
        begin = time.perf_counter()
        self.steps[doing] += 1
        try:
            output: Any = self._egraph.run_program(*commands)[-1]
            return output.report
        except egg.EggSmolError as error:
            self.dead = True
            raise self._failure(doing, str(error)) from None
        except BaseException as error:
            # A Rust panic isn't an Exception; an interrupt by the user is raised again.
            self.dead = True
            if type(error).__name__ != _PANIC:
                raise
            raise self._failure(doing, f"panic: {error}") from None
        finally:
            self.spent_s[doing] += time.perf_counter() - begin

    def _alive(self, doing: str) -> None:
        if self.dead:
            raise SaturationError(
                "the engine is dead", where=doing, hint="An earlier step failed; make a new one."
            )

    def _failure(self, doing: str, message: str) -> SaturationError:
        applying = [doing] if doing in self.rules.names else []
        suspects = tuple(dict.fromkeys(applying + self._suspects))
        if "Illegal merge" in message:
            analysis = message.rsplit(" ", 1)[-1]
            return SaturationError(
                f"a class got two values of {analysis}: some rule is unsound",
                where=doing,
                got=message,
                rules=suspects,
                hint="Check the rules named by `rules`, or the inserted values if there are none.",
            )
        return SaturationError(
            "the engine failed",
            where=doing,
            got=message,
            rules=suspects,
            hint="The rule named by `where` computes a value that does not exist.",
        )

    def _changed(self) -> None:
        self._frozen = None
        self._changes += 1
        self._reader.changed()

    def _freeze(self) -> Functions:
        """Return all tables as they are now, by name."""
        self._alive("read")
        if self._frozen is None:
            self._frozen = self._egraph.freeze().functions
        return self._frozen

    def _sizes(self) -> Mapping[str, int]:
        self._alive("read")
        (output,) = self._egraph.run_program(egg.PrintSize(SPAN, None))
        return dict(output.sizes)  # type: ignore[union-attr]


def _raw_rows(functions: Functions, relation: str) -> set[tuple[Any, ...]]:
    return {tuple(row.inputs) for row in functions[relation].rows}
