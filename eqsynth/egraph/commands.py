"""Inserts terms into egglog: as rows of a table, which fixed rules turn into e-nodes.

An action of a throwaway rule costs 15 to 90 us, most of it in egglog's typechecking. A row of an
input file costs 2 us. One fixed rule for each form of row unites the row's term with the name that
the row gives to it:

    ("Read", Handle(5), [i, j], 0.0)   ->   a row: form of Read with 2 indices, 17, 5 3 4, 0.0
      ->   (union (name/Scalar 17) (Read (Tok 5) (vec-of (name/Idx 3) (name/Idx 4)) 0.0))

So each part of a term has a name, a number by which rows of other parts refer to it. A part that
has a name in the e-graph isn't inserted again. Names are e-nodes, which ``reading.py`` leaves out.
A term that doesn't fit into a row (two strings, a quotation mark, more numbers than the row has
columns) is inserted by a throwaway rule.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from eqsynth.egraph.snapshot import EClass, Handle
from eqsynth.errors import SaturationError
from eqsynth.rules.bindings import egg
from eqsynth.rules.ruleset import RuleSet
from eqsynth.rules.sorts import Declarations, Signature

SPAN = egg.RustSpan("eqsynth", 0, 0)
# The most actions of one throwaway rule: the cost of typechecking grows faster than their number.
_BATCH = 100
# The integers that a row holds, besides the numbers of its form and its name.
_COLUMNS = 12
_ROW = "name/row"
_FIELDS = " ".join(f"a{column}" for column in range(_COLUMNS))
# Strings that can be written to a tab-separated file and read back unchanged.
_PLAIN = re.compile(r"[A-Za-z0-9_.:+-]+")


def declarations(known: Declarations) -> list[str]:
    """Return the declarations of the table of rows and of the names' constructors."""
    columns = " ".join(["i64"] * (_COLUMNS + 2))
    names = [f"(constructor {_name(s)} (i64) {s} :unextractable)" for s in known.eq_sorts]
    return [f"(relation {_ROW} ({columns} f64 String))", *(n for n in names if " Tok " not in n)]


def _name(sort: str) -> str:
    """Return the constructor of a sort's names; the names of tensors are the handles."""
    return "Tok" if sort == "Tensor" else f"name/{sort}"


class Form(NamedTuple):
    """The form of the rows that one rule reads: the constructor, relation or function ``called``,
    and the lengths of its vector arguments. If ``called`` is "", the row gives a second name (a
    handle) to a term that has one."""

    called: str
    lengths: tuple[int, ...]


class Names:
    """The names of terms in one e-graph, and the commands that insert more terms.

    Attributes:
        ruled: the forms whose rules the e-graph has, in the order in which they were added.
    """

    def __init__(self, rules: RuleSet, ruled: Sequence[Form] = ()) -> None:
        """
        Args:
            ruled: the forms whose rules the e-graph has already.
        """
        self.known = rules.known
        # Form -> its number.
        self.forms = {form: number for number, form in enumerate(ruled)}
        self.ruled = dict.fromkeys(ruled)
        # (constructor, names of its arguments) -> the term's name.
        self.numbers: dict[tuple[Any, ...], int] = {}
        self._steps = 0
        self._file = tempfile.TemporaryFile("w", encoding="ascii")  # noqa: SIM115

    def close(self) -> None:
        self._file.close()

    def commands(self, actions: Actions) -> Iterator[list[Any]]:
        """Yield lists of commands that carry out the actions; each list ends with a run."""
        self.numbers.update(actions.fresh)
        if actions.rows:
            self._file.seek(0)
            self._file.truncate()
            self._file.write("\n".join(actions.rows))
            self._file.flush()
            self._file.seek(0)
            path = f"/dev/fd/{self._file.fileno()}"
            rules = [c for form in actions.forms for c in self._rule(form)]
            runs = [_once(f"name/{self.forms[form]}") for form in actions.forms]
            all_of_them = egg.RunSchedule(egg.Sequence(SPAN, runs))
            yield [*rules, egg.Input(SPAN, _ROW, path), all_of_them]
        for start in range(0, len(actions.others), _BATCH):
            self._steps += 1
            yield throwaway_rule(f"insert/{self._steps}", actions.others[start : start + _BATCH])

    def founding(self, forms: Sequence[Form]) -> list[Any]:
        """Return the commands that add the rules of further forms. No term was inserted yet."""
        self.forms |= {form: number for number, form in enumerate(forms, len(self.forms))}
        return [command for form in forms for command in self._rule(form)]

    def _rule(self, form: Form) -> list[Any]:
        """Return the commands that add the rule of a form, unless the e-graph has the rule. The
        rule carries out the row's action and deletes the row."""
        if form in self.ruled:
            return []
        self.ruled[form] = None
        number = self.forms[form]
        fields = [egg.Var(SPAN, f) for f in ("n", *_FIELDS.split(), "f", "s")]
        row: list[Any] = [egg.Lit(SPAN, egg.Int(number)), *fields]
        columns, lengths = iter(fields[1 : _COLUMNS + 1]), iter(form.lengths)

        def read(sort: str) -> Any:
            if sort in self.known.vecs:
                element = self.known.vecs[sort]
                parts = [read(element) for _ in range(next(lengths))]
                return egg.Call(SPAN, "vec-of", parts)
            if sort in ("f64", "String"):
                return fields[-2 if sort == "f64" else -1]
            column = next(columns)
            return column if sort == "i64" else egg.Call(SPAN, _name(sort), [column])

        if form.called == "":
            action = egg.Union(SPAN, egg.Call(SPAN, "Tok", [fields[0]]), read("Tensor"))
        else:
            signature = self.known.signatures[form.called]
            args = [read(sort) for sort in signature.inputs]
            output = read(signature.output) if signature.kind == "function" else None
            action = _action(form.called, signature, fields[0], args, output)
        gone = egg.Change(SPAN, egg.Delete(), _ROW, row)
        query: list[Any] = [egg.Fact(egg.Call(SPAN, _ROW, row))]
        name = f"name/{number}"
        rule = egg.Rule(SPAN, [action, gone], query, name, name)
        return [egg.AddRuleset(SPAN, name), egg.RuleCommand(rule)]


def _action(called: str, signature: Signature, name: Any, args: list[Any], value: Any) -> Any:
    """Return the action: unite a term with its name, add a fact, or set a function's value."""
    if signature.kind == "function":
        return egg.Set(SPAN, called, args, value)
    call = egg.Call(SPAN, called, args)
    if signature.kind == "relation":
        return egg.Expr_(SPAN, call)
    return egg.Union(SPAN, egg.Call(SPAN, _name(signature.output), [name]), call)


class Actions:
    """Collects terms, facts and values to insert; ``Names.commands`` then inserts them.

    Attributes:
        rows, forms: the rows to insert, and their forms.
        others: actions that don't fit into rows, for throwaway rules.
        fresh: the new names.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._signatures = names.known.signatures
        self.rows: list[str] = []
        self.forms: dict[Form, None] = {}
        self.others: list[Any] = []
        self.fresh: dict[tuple[Any, ...], int] = {}
        # `id` of a term -> its name; the terms live as long as the actions are collected.
        self._seen: dict[int, int] = {}

    def add_union(self, handle: Handle, term: Any) -> None:
        number = self._number(term, "Tensor", handle.n)
        if number != handle.n:
            self._add("", handle.n, (number,), ("Tensor",))

    def add_fact(self, fact: tuple[Any, ...]) -> None:
        """`("relation", args...)`."""
        signature = self._signature(fact, "relation")
        self._add(fact[0], 0, self._args(fact[1:], signature.inputs), signature.inputs)

    def add_value(self, call: tuple[Any, ...], value: Any) -> None:
        """`(set ("function", args...) value)`."""
        signature = self._signature(call, "function")
        sorts = (*signature.inputs, signature.output)
        self._add(call[0], 0, self._args((*call[1:], value), sorts), sorts)

    def _signature(self, term: Any, kind: str, output: str = "") -> Signature:
        name = term[0] if isinstance(term, tuple) and term and not isinstance(term, EClass) else ""
        signature = self._signatures.get(name) if isinstance(name, str) else None
        if signature is None or signature.kind != kind or output not in ("", signature.output):
            what = f"a term of sort {output} or a handle" if output else f"a {kind} of the schema"
            raise _misfit(term, what)
        if len(signature.inputs) != len(term) - 1:
            raise _misfit(term, f"{name} of {len(signature.inputs)} arguments")
        return signature

    def _number(self, term: Any, sort: str, handle: int | None = None) -> int:
        """Return the name of a term, after naming its parts. It isn't recursive, since terms may be
        deep, and visits shared parts once.

        Args:
            handle: the name to give to the term if it has none.
        """
        stack, seen = [(term, sort)], self._seen
        while stack:
            top, wanted = stack[-1]
            if isinstance(top, Handle):
                stack.pop()
                if wanted != "Tensor":
                    raise _misfit(top, f"a term of sort {wanted}")
                continue
            signature = self._signature(top, "constructor", wanted)
            if id(top) in seen:
                stack.pop()
                continue
            below = [
                part
                for value, sort_of in zip(top[1:], signature.inputs, strict=True)
                for part in self._terms_in(value, sort_of)
            ]
            if below:
                if len(stack) > 2_000_000:
                    raise _misfit(top[0], "a term that does not contain itself")
                stack.extend(below)
                continue
            stack.pop()
            own = handle if not stack else None
            seen[id(top)] = self._named(top, signature, own)
        return term.n if isinstance(term, Handle) else seen[id(term)]

    def _terms_in(self, value: Any, sort: str) -> list[tuple[Any, str]]:
        """Return the terms in a value that have no name yet."""
        if sort in self._names.known.eq_sorts:
            return [] if isinstance(value, Handle) or id(value) in self._seen else [(value, sort)]
        element = self._names.known.vecs.get(sort)
        if element is None or not isinstance(value, list | tuple):
            return []
        return [found for child in value for found in self._terms_in(child, element)]

    def _named(self, term: Any, signature: Signature, handle: int | None) -> int:
        """Return the name of a term whose parts have names; add the term if it is new."""
        args = self._args(term[1:], signature.inputs)
        key = (term[0], *map(repr, args)) if "f64" in signature.inputs else (term[0], *args)
        number = self._names.numbers.get(key)
        if number is None:
            number = self.fresh.get(key)
        if number is None:
            number = handle
            if number is None:
                # Handles count up from 0; the names of other terms count down from -1.
                number = -1 - len(self._names.numbers) - len(self.fresh)
            self.fresh[key] = number
            self._add(term[0], number, args, signature.inputs)
        return number

    def _args(self, values: tuple[Any, ...], sorts: tuple[str, ...]) -> tuple[Any, ...]:
        return tuple([self._arg(value, sort) for value, sort in zip(values, sorts, strict=True)])

    def _arg(self, value: Any, sort: str) -> Any:
        """Return a literal as it is, a term as its name, a vector as a tuple of these."""
        if sort in self._names.known.eq_sorts:
            return self._number(value, sort)
        element = self._names.known.vecs.get(sort)
        if element is None:
            return _literal(value, sort)
        if not isinstance(value, list | tuple):
            raise _misfit(value, f"a vector of sort {sort}")
        return tuple([self._arg(child, element) for child in value])

    def _add(self, called: str, number: int, args: tuple[Any, ...], sorts: tuple[str, ...]) -> None:
        """Add a row with the arguments, or an action if they don't fit into a row."""
        columns: list[int] = []
        lengths: list[int] = []
        floats: list[float] = []
        strings: list[str] = []
        fits = self._flatten(args, sorts, columns, lengths, floats, strings)
        if not fits or len(columns) > _COLUMNS or len(floats) > 1 or len(strings) > 1:
            self.others.append(self._action(called, number, args, sorts))
            return
        form = Form(called, tuple(lengths))
        self.forms[form] = None
        known = self._names.forms.setdefault(form, len(self._names.forms))
        columns += [0] * (_COLUMNS - len(columns))
        whole = "\t".join(map(str, (known, number, *columns)))
        self.rows.append(f"{whole}\t{floats[0] if floats else 0.0!r}\t{(*strings, '-')[0]}")

    def _flatten(
        self, args: tuple[Any, ...], sorts: tuple[str, ...], columns: list[int],
        lengths: list[int], floats: list[float], strings: list[str],
    ) -> bool:  # fmt: skip
        """Sort the arguments into the columns of a row; return whether a row can hold them."""
        for value, sort in zip(args, sorts, strict=True):
            if sort in self._names.known.vecs:
                element = self._names.known.vecs[sort]
                if element != "i64" and element not in self._names.known.eq_sorts:
                    return False
                lengths.append(len(value))
                columns += value
            elif sort == "f64":
                floats.append(value)
            elif sort == "String":
                if not _PLAIN.fullmatch(value):
                    return False
                strings.append(value)
            elif sort == "bool":
                return False
            else:
                columns.append(value)
        return True

    def _action(
        self, called: str, number: int, args: tuple[Any, ...], sorts: tuple[str, ...]
    ) -> Any:
        made = [self._expression(value, sort) for value, sort in zip(args, sorts, strict=True)]
        signature = self._signatures[called]
        value = made.pop() if signature.kind == "function" else None
        return _action(called, signature, egg.Lit(SPAN, egg.Int(number)), made, value)

    def _expression(self, value: Any, sort: str) -> Any:
        if sort in self._names.known.vecs:
            element = self._names.known.vecs[sort]
            parts = [self._expression(child, element) for child in value]
            return egg.Call(SPAN, "vec-of", parts)
        if sort in self._names.known.eq_sorts:
            return egg.Call(SPAN, _name(sort), [egg.Lit(SPAN, egg.Int(value))])
        made = {"i64": egg.Int, "f64": egg.Float, "String": egg.String, "bool": egg.Bool}[sort]
        return egg.Lit(SPAN, made(value))


def throwaway_rule(name: str, actions: list[Any]) -> list[Any]:
    """Return commands that carry out the actions once."""
    rule = egg.Rule(SPAN, actions, [], name, name)
    return [egg.AddRuleset(SPAN, name), egg.RuleCommand(rule), run(name)]


@lru_cache(maxsize=1 << 10)
def run(ruleset: str) -> Any:
    """Return the command that runs a ruleset once."""
    return egg.RunSchedule(_once(ruleset))


def _once(ruleset: str) -> Any:
    return egg.Run(SPAN, egg.RunConfig(ruleset))


def _literal(value: Any, sort: str) -> Any:
    if sort == "i64" and type(value) is int and -(2**63) <= value < 2**63:
        return value
    if sort == "f64" and type(value) in (int, float):
        return float(value)
    if sort == "String" and type(value) is str:
        return value
    if sort == "bool" and type(value) is bool:
        return value
    raise _misfit(value, f"a value of sort {sort}")


def _misfit(value: Any, expected: str) -> SaturationError:
    shown = f"{value[0]} of {len(value) - 1}" if _is_term(value) else repr(value)[:80]
    return SaturationError(
        "term does not fit the schema", got=shown, expected=expected, hint="See docs/rules.md."
    )


def _is_term(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], str)
