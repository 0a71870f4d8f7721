"""The e-graph engine: egglog behind a few steps that cannot crash it.

Terms go in as nested tuples, plain data comes out. What the constructors mean is unknown here,
but for `Tok`, the name of a class; when to run which rule is `schedule.py`'s. An engine belongs
to the thread that made it, and after a `SaturationError` from a step it is dead.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eqsynth.egraph.commands import SPAN, Actions, Names, declarations, run
from eqsynth.egraph.reading import Classes, Reader, Rows, number
from eqsynth.egraph.snapshot import EClass, Handle, Snapshot, smallest_terms
from eqsynth.errors import SaturationError
from eqsynth.rules import rewind
from eqsynth.rules.bindings import egg
from eqsynth.rules.rule import Rule
from eqsynth.rules.ruleset import RuleSet

# egglog tells of every rule that it declares at the level at which a user asks eqsynth what it does
# (`logging.basicConfig(level=logging.INFO)`): thousands of lines a session. Who wants them sets the
# level of this logger.
if logging.getLogger("egglog").level == logging.NOTSET:
    logging.getLogger("egglog").setLevel(logging.WARNING)

# A Rust panic, which is no Exception and whose class egglog doesn't export.
_PANIC = "PanicException"


@dataclass(frozen=True)
class Step:
    """What a bounded run did: `saturated` if nothing was left to do."""

    saturated: bool
    rounds: int
    tuples: int


class Engine:
    """An e-graph with the rules of a `RuleSet`; single steps, no schedule."""

    def __init__(self, rules: RuleSet) -> None:
        self.rules = rules
        self.dead = False
        self._key = ("engine", *rules.declarations, *(t for r in rules.rules for t in r.program))
        self._egraph = rewind.take(self._key) or self._founded()
        rewind.mark(self._egraph)
        # Seconds of CPU that each rule took, and how often it ran.
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        self.steps: Counter[str] = Counter()
        self._handles = 0
        self._names = Names(rules)
        # Rules applied since the analyses last agreed: the suspects if they stop agreeing.
        self._suspects: list[str] = []
        self._frozen: egg.FrozenEGraph | None = None
        # What was read out of the e-graph, and how often what it says has changed since.
        self._changes = 0
        self._read: tuple[int, Classes] | None = None
        self._counted: tuple[int, int] | None = None
        self._reader = Reader(self._egraph, rules.known)
        self._analyses = tuple(
            dict.fromkeys(rule.apply_ruleset for rule in rules.rules if rule.kind == "analysis")
        )

    def close(self) -> None:
        """Leaves the e-graph to the next engine of the same rules; this one can't be used again."""
        if not self.dead:
            self.dead, self._frozen = True, None
            self._names.close()
            rewind.rewind(self._egraph)
            rewind.keep(self._key, self._egraph)

    def _founded(self) -> egg.EGraph:
        """A new e-graph with the declarations and rules."""
        egraph = egg.EGraph()
        for text in (*self.rules.declarations, *declarations(self.rules.known)):
            self._define(egraph, text, "")
        for rule in self.rules.rules:
            for text in rule.program:
                self._define(egraph, text, rule.name)
        return egraph

    @staticmethod
    def _define(egraph: egg.EGraph, text: str, name: str) -> None:
        """A declaration or a rule, which the loader's e-graph has accepted before."""
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
        """Adds Tensor terms, facts `("relation", args...)` and values `(("function", args...),
        value)`; returns a handle for every term.

        A term is `("Constructor", args...)`, its arguments terms, handles, ints, floats, strings
        and lists. Parts that are one Python object are built once.

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
        """Handles for Tensor classes of a snapshot that is still current."""
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
        """The number of the next handle: those from here on will be new."""
        return self._handles

    # ---- running ---------------------------------------------------------

    def analyse(self, *, rounds: int = 100, tuple_limit: int = 1_000_000) -> Step:
        """Runs the analysis rulesets until they have nothing to add, or to a bound."""
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
        """Runs a rule's match phase; the rows that are new in its relation, in `rule.columns`'
        order. They stay pending until `apply`, so leaving `apply` out is back-off.
        """
        if not rule.match_ruleset:
            raise ValueError(f"{rule.name} has no match phase")
        before = self._freeze()
        report = self._step(rule.name, run(rule.match_ruleset))
        if not report.updated:
            return []
        self._frozen = None
        new = _raw_rows(self._freeze(), rule.relation) - _raw_rows(before, rule.relation)
        decoders = [self._reader.decoder(sort) for _, sort in rule.columns]
        # By number: the order of a hash table would make runs differ.
        return [
            tuple(decode(value) for decode, value in zip(decoders, row, strict=True))
            for row in sorted(new, key=lambda row: [number(value) for value in row])
        ]

    def request(self, rule: Rule) -> bool:
        """Runs a rule that files requests of a law: rows of its relation, in the snapshot; whether
        there are new ones."""
        updated = bool(self._step(rule.name, run(rule.match_ruleset)).updated)
        if updated:
            self._frozen = None
        return updated

    def apply(self, rule: Rule) -> bool:
        """Runs a rule's apply phase on all that is pending; whether anything changed."""
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
        """A count that grows whenever a class, a function or a relation may have changed; matches
        and requests that are filed don't count."""
        return self._changes

    def tuples(self) -> int:
        """Rows of all tables: what memory and time go with. Costs microseconds."""
        return sum(self._sizes().values())

    def enodes(self) -> int:
        """E-nodes, handles left out."""
        known = self.rules.known
        if self._counted is None or self._counted[0] != self._changes:
            self._counted = self._changes, sum(
                count
                for name, count in self._sizes().items()
                if name != "Tok" and known.is_constructor(name)
            )
        return self._counted[1]

    def eclasses(self) -> int:
        """E-classes, of all sorts."""
        functions, known = self._freeze().functions, self.rules.known
        return len(
            {
                (function.output_sort, row.output)
                for name, function in functions.items()
                if known.is_constructor(name)
                for row in function.rows
            }
        )

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """Rows of one relation, or of one function with its value."""
        return self._reader.rows(name, self._freeze().functions)

    def snapshot(self) -> Snapshot:
        """The whole e-graph as plain data; match relations are left out."""
        if self._read is None or self._read[0] != self._changes:
            self._read = self._changes, self._reader.classes(self._freeze().functions)
        classes, handles = self._read[1]
        return Snapshot(classes, self.snapshot_rows(), handles)

    def snapshot_rows(self) -> Mapping[str, list[tuple[Any, ...]]]:
        """The ``rows`` of a snapshot: all that changes when requests are filed."""
        functions = self._freeze().functions
        return Rows(self._reader, functions)

    # ---- within ----------------------------------------------------------

    def _step(self, doing: str, *commands: Any) -> Any:
        """Runs commands, the last of them a run; its report."""
        self._alive(doing)
        begin = time.process_time()
        self.steps[doing] += 1
        try:
            output: Any = self._egraph.run_program(*commands)[-1]
            return output.report
        except egg.EggSmolError as error:
            self.dead = True
            raise self._failure(doing, str(error)) from None
        except BaseException as error:
            # A Rust panic is no Exception; an interrupt is not ours to keep.
            self.dead = True
            if type(error).__name__ != _PANIC:
                raise
            raise self._failure(doing, f"panic: {error}") from None
        finally:
            self.spent_s[doing] += time.process_time() - begin

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

    def _freeze(self) -> egg.FrozenEGraph:
        self._alive("read")
        if self._frozen is None:
            self._frozen = self._egraph.freeze()
        return self._frozen

    def _sizes(self) -> Mapping[str, int]:
        self._alive("read")
        (output,) = self._egraph.run_program(egg.PrintSize(SPAN, None))
        return dict(output.sizes)  # type: ignore[union-attr]


def _raw_rows(frozen: egg.FrozenEGraph, relation: str) -> set[tuple[Any, ...]]:
    return {tuple(row.inputs) for row in frozen.functions[relation].rows}
