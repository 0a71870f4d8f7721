"""Reads the text of `.egg` rule files as data, and finds their mistakes.

A file may contain a fixed list of forms, over declared names and a fixed list of primitives: no
schedule, no check, no file access, no Python. Mistakes are found here, with their places, before
egglog sees the text, since some mistakes crash egglog. Not here: which files are read (`load.py`),
the phases in which a rule runs (`phases.py`), running it (`eqsynth.egraph`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from eqsynth.errors import RuleError
from eqsynth.rules import law
from eqsynth.rules.bindings import egg
from eqsynth.rules.claim import CLASSES, Claim
from eqsynth.rules.definitions import (
    Case,
    Definition,
    comprehends,
    declared,
    defines,
    how_to_define,
)
from eqsynth.rules.expanding import HEADS, TABLES, Expanded, expanded
from eqsynth.rules.forms import Form, header_fields, nearest, own_fields, split_forms
from eqsynth.rules.options import said_once
from eqsynth.rules.phases import RawRule, Unusable, rewrite_to_rule, two_phase
from eqsynth.rules.rule import Rule
from eqsynth.rules.ruleset import RuleSet
from eqsynth.rules.sorts import PRIMITIVES, Declarations, Signature
from eqsynth.rules.tree import Tree, Var

STATUSES = ("definition", "proved", "validated", "unproved")
_ALLOWED = (
    "sort", "constructor", "function", "relation", "rewrite", "birewrite", "rule", "ruleset",
    law.HEAD, *HEADS, *TABLES,
)  # fmt: skip
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*\Z")
# Declared names are ASCII, so that a look-alike letter of another alphabet can't imitate a name.
_DECLARED = re.compile(r"[A-Za-z][A-Za-z0-9_-]*\Z")
# Reserved names: the relations and variables of a rule's two phases, and primitives of Python.
_GENERATED = re.compile(r"M_|py-|(root|p|v|any)\d*\Z")
_KEYWORDS = (
    ":name", ":ruleset", ":when", ":merge", ":no-merge", ":unextractable", ":cost", ":subsume",
)  # fmt: skip
# The constructor of handles, by which Python names e-classes; in a rule it could name any e-class.
_HANDLE = "Tok"
_OPTION = re.compile(r"(?<!\S):[a-z-]+")
MAX_ARITY = 64
_SOURCE = re.compile(r"\[([^\[\]]+)\]\s*\Z", re.MULTILINE)


def _misspelt(word: str, words: Iterable[str]) -> str:
    """Return the hint of `nearest` if a similar word exists."""
    hint = nearest(word, words)
    return hint if hint.startswith("Did") else ""


def _unknown(form: Form, word: str, allowed: Sequence[str]) -> RuleError:
    return form.error(
        f"unknown class {word}", expected=", ".join(allowed),
        hint=_misspelt(word, allowed) or "Write one of these.",
    )  # fmt: skip


def _claim(form: Form, text: str) -> Claim:
    """Return what the text of a file claims about rounding.

    Raises:
        RuleError: the text names no class of numerics, or its bound is no number.
    """
    try:
        return Claim.of(text)
    except ValueError as error:
        (word,) = error.args
        if text.strip().startswith(word):
            raise _unknown(form, word, CLASSES) from None
        what = f"the bound of an approximation is no number above 0: {word}"
        raise form.error(what, expected="approx (1e-3)", hint="Write a number.") from None


def _start(expr: Any) -> int:
    offset: int = expr.span.i
    return offset


@dataclass
class Loader:
    """Loads files one after the other. Its own e-graph checks that egglog accepts the generated
    text."""

    known: Declarations = field(default_factory=Declarations)
    declarations: list[str] = field(default_factory=list)
    rulesets: dict[str, Form] = field(default_factory=dict)
    rules: dict[str, Rule] = field(default_factory=dict)
    places: dict[str, Form] = field(default_factory=dict)
    variables: dict[str, Form] = field(default_factory=dict)
    definitions: dict[str, Definition] = field(default_factory=dict)
    meanings: dict[str, tuple[Case, ...]] = field(default_factory=dict)
    engine: egg.EGraph = field(default_factory=egg.EGraph)
    header: Mapping[str, str] = field(default_factory=dict)
    panicked: bool = False
    readers: dict[str, Form] = field(default_factory=dict)
    filled: set[str] = field(default_factory=set)

    def copy(self) -> Loader:
        """Return a loader with the same declarations and rules; both share the e-graph."""
        known = self.known
        return replace(
            self,
            known=Declarations([*known.eq_sorts], {**known.vecs}, {**known.signatures},
                               {**known.laws}),  # fmt: skip
            declarations=[*self.declarations],
            rulesets={**self.rulesets},
            rules={**self.rules},
            places={**self.places},
            variables={**self.variables},
            definitions={**self.definitions},
            meanings={**self.meanings},
            readers={**self.readers},
            filled={*self.filled},
        )

    def load(self, text: str, file: str) -> None:
        self.header = header_fields(text)
        for form in split_forms(text, file):
            if form.head not in _ALLOWED:
                raise form.error(
                    f"a rule file cannot contain ({form.head} ...)",
                    expected=", ".join(_ALLOWED),
                    hint=_misspelt(form.head, _ALLOWED)
                    or "Schedules, checks, facts and files belong to the program, not to rules.",
                )
            self._form(form)

    def finish(self) -> RuleSet:
        """Return what was loaded.

        Raises:
            RuleError: a rule reads a relation that nothing fills, such as a law's answers where no
                form declares the law; the rule would never apply.
        """
        for relation, form in self.readers.items():
            if relation in self.filled or self.known.law_answered_by(relation) is not None:
                continue
            raise form.error(
                f"nothing fills the relation {relation}, so the rule never applies",
                form.find(relation),
                expected="a rule that adds to it, or a law whose answers it holds",
                hint="The forms (ask <law> ...) and (law <law> (<sort> ...) (<sort> ...)) declare "
                "the relations <law>-request and <law>-answer of a law.",
            )
        return RuleSet(
            tuple(self.declarations),
            self.known,
            tuple(self.rulesets),
            tuple(self.rules.values()),
            *({**self.definitions}, {**self.meanings}),
        )

    def _form(self, form: Form) -> None:
        if form.head in HEADS:
            self._in_place(form)
            return
        if form.head == law.HEAD:
            name, declared_law, relations = law.expand_law(form)
            for own in relations:
                self._form(own)
            self.known.laws[name] = declared_law
            return
        if form.head in TABLES:
            for own in TABLES[form.head](form):
                self._form(own)
            return
        command = self._parse(form)
        if isinstance(command, egg.AddRuleset):
            self._new(command.name, form, self.rulesets, "ruleset")
            self.rulesets[command.name] = form
            self._declare(f"(ruleset {command.name}/all)", form)
        elif isinstance(command, egg.RuleCommand | egg.RewriteCommand | egg.BiRewriteCommand):
            said_once(form)
            for raw in self._raw_rules(command, form):
                self._rule(raw, form)
        elif isinstance(command, egg.Sort | egg.Relation | egg.Constructor | egg.FunctionCommand):
            self._declaration(command, form)
            self._declare(form.text, form)
        else:
            raise form.error(
                "this is no declaration and no rule",
                expected=", ".join(_ALLOWED),
                hint="Put a space behind the first word.",
            )

    def _in_place(self, form: Form) -> None:
        """Load the forms that a form expands to."""
        said = expanded(form, self.known)
        request = said.named
        named = re.search(r':name "([^"]*)"', request.text)
        ruleset = re.search(r":ruleset ([^\s()\"]+)", request.text)
        name = self._rule_name(named[1] if named else "", ruleset[1] if ruleset else "", request)
        self._new(name, form, self.rules, "rule")
        for own in said.forms:
            command = self._parse(own)
            if isinstance(command, egg.RuleCommand):
                for raw in self._raw_rules(command, own):
                    self._rule(raw, own, said)
            else:
                self._form(own)

    def _parse(self, form: Form) -> Any:
        try:
            commands = self.engine.parse_program(form.text, "rule")
        except egg.EggSmolError as error:
            raise self._from_egglog(form, error) from None
        except BaseException as error:
            raise self._from_panic(form, error) from None
        if len(commands) != 1:
            raise form.error("form is not one command", hint="Write it out.")
        return commands[0]

    def _from_egglog(self, form: Form, error: Exception) -> RuleError:
        """Return an error with egglog's message, and its place in the file if egglog reports it."""
        text = str(error)
        place = re.search(r"In (\d+):(\d+)-[^\n]*\n(.*)", text, re.DOTALL)
        if not place:
            return form.error(text[:300], hint="Compare with the declarations.")
        line, column = int(place.group(1)), int(place.group(2))
        before = form.text.split("\n")[: line - 1]
        offset = sum(len(part.encode()) + 1 for part in before) + column - 1
        what = place.group(3).strip().split("\n")[-1]
        wrong = [word for word in _OPTION.findall(form.text) if word not in _KEYWORDS]
        hint = _misspelt(wrong[0], _KEYWORDS) if wrong else ""
        return form.error(what[:300], offset, hint=hint or "Compare with the declarations.")

    def _declare(self, text: str, form: Form) -> None:
        self._run(text, form)
        self.declarations.append(text)

    def _run(self, text: str, form: Form) -> None:
        try:
            self.engine.run_program(*self.engine.parse_program(text, "rule"))
        except egg.EggSmolError as error:
            raise self._from_egglog(form, error) from None
        except BaseException as error:
            raise self._from_panic(form, error) from None

    def _from_panic(self, form: Form, error: BaseException) -> RuleError:
        """Return an error for a Rust panic, which isn't an Exception; raise an interrupt again."""
        self.panicked = True
        if type(error).__name__ != "PanicException":
            raise error
        return form.error(f"egglog refused the form: {str(error)[:300]}", hint="Simplify it.")

    def _new(self, name: str, form: Form, taken: Iterable[str], what: str) -> None:
        if name in taken:
            first = self.places.get(f"{what} {name}")
            other = f"that of {first.file}:{first.line}" if first else "a sort of the engine's"
            raise form.error(
                f"{what} {name} exists already",
                expected=f"a name other than {other}",
                hint="Rename one of them.",
            )
        if what == "rule":
            pass
        elif name in PRIMITIVES or _GENERATED.match(name):
            raise form.error(f"the name {name} is reserved", hint="Choose another name.")
        elif not (_NAME if what == "ruleset" else _DECLARED).match(name):
            raise form.error(
                f"{name} is not a name for a {what}",
                expected="ASCII letters, digits and hyphens",
                hint="Rename it.",
            )
        elif name in self.variables and what != "rule":
            first = self.variables[name]
            raise form.error(
                f"{name} is a variable of a rule",
                expected=f"another name: {first.file}:{first.line} says {name}",
                hint="The engine has one name space for both. Choose a longer name.",
            )
        self.places[f"{what} {name}"] = form

    def _declaration(self, command: Any, form: Form) -> None:
        name = command.name
        known = self.known
        self._new(name, form, (*known.sorts, *known.signatures), "declaration")
        if isinstance(command, egg.Sort):
            if command.presort_and_args is None:
                known.eq_sorts.append(name)
                return
            presort, args = command.presort_and_args
            element = args[0].name if len(args) == 1 and isinstance(args[0], egg.Var) else ""
            if presort != "Vec" or not element or element in known.vecs:
                raise form.error(
                    "unknown kind of sort", expected="(Vec <sort>)", hint="Only vectors are read."
                )
            self._sort_exists(element, form)
            known.vecs[name] = element
            return
        if isinstance(command, egg.Relation):
            signature = Signature("relation", tuple(command.inputs), "Unit")
        elif isinstance(command, egg.Constructor):
            signature = Signature("constructor", tuple(command.schema.input), command.schema.output)
        else:
            signature = Signature("function", tuple(command.schema.input), command.schema.output)
            if command.merge is not None:
                self._names(command.merge, form)
        if len(signature.inputs) > MAX_ARITY:
            raise form.error(
                f"{name} has {len(signature.inputs)} arguments",
                expected=f"at most {MAX_ARITY}",
                hint="Put them in a vector.",
            )
        for sort in (*signature.inputs, signature.output):
            if sort != "Unit":
                self._sort_exists(sort, form)
        known.signatures[name] = signature
        operator = declared(name, signature, form.file, form.line)
        if operator is not None and signature.kind == "constructor":
            self.definitions[name] = operator

    def _sort_exists(self, sort: str, form: Form) -> None:
        if sort not in self.known.sorts:
            raise form.error(
                f"unknown sort {sort}", form.find(sort), hint=nearest(sort, self.known.sorts)
            )

    def _raw_rules(self, command: Any, form: Form) -> Iterator[RawRule]:
        if isinstance(command, egg.RuleCommand):
            rule = command.rule
            name = self._rule_name(rule.name, rule.ruleset, form)
            body = tuple(self._fact(fact, form) for fact in rule.body)
            head = tuple(self._action(action, form) for action in rule.head)
            yield RawRule(name, rule.ruleset, body, head)
            return
        rewrite = command.rewrite
        name = self._rule_name(rewrite.name, command.name, form)
        if isinstance(command, egg.RewriteCommand) and command.subsume:
            raise form.error(
                "a rule cannot subsume", hint="Leave :subsume out; extraction chooses by cost."
            )
        left, right = self._tree(rewrite.lhs, form), self._tree(rewrite.rhs, form)
        conditions = [self._fact(fact, form) for fact in rewrite.conditions]
        both = isinstance(command, egg.BiRewriteCommand)
        for side, other, suffix in ((left, right, ""), (right, left, "-reverse"))[: 1 + both]:
            if not isinstance(side, tuple) or not self.known.is_constructor(side[0]):
                raise form.error(
                    "left-hand side is not a term", hint="Begin it with a constructor."
                )
            yield rewrite_to_rule(name + suffix, command.name, side, other, conditions)

    def _rule_name(self, name: str, ruleset: str, form: Form) -> str:
        if not name or not re.search(r":name\s+\"", form.text):
            raise form.error(
                "rule has no name", expected=':name "<operator>-<law>"', hint="Add :name."
            )
        if not _NAME.match(name):
            raise form.error(
                f"{name} is not a name for a rule",
                expected="lower-case words joined by hyphens",
                hint="Rename it.",
            )
        if not ruleset:
            raise form.error("rule has no ruleset", expected=":ruleset", hint="Add :ruleset.")
        if ruleset not in self.rulesets:
            raise form.error(
                f"unknown ruleset {ruleset}",
                form.find(ruleset),
                hint=nearest(ruleset, self.rulesets),
            )
        return name

    def _rule(self, raw: RawRule, form: Form, said: Expanded | None = None) -> None:
        self._new(raw.name, form, self.rules, "rule")
        try:
            phased = two_phase(raw, self.known)
        except Unusable as unusable:
            what, hint = unusable.args
            raise form.error(what, hint=hint) from None
        except RecursionError:
            raise form.error("rule is nested too deeply", hint="Simplify it.") from None
        for text in phased.program:
            self._run(text, form)
        for fact in raw.body:
            if self._is_relation(fact[0]):
                self.readers.setdefault(fact[0], form)
        self.filled.update(action[0] for action in raw.head if self._is_relation(action[0]))
        fields = {**self.header, **own_fields(form)}
        status = (said and said.status) or fields.get("status", "unproved").strip()
        if status not in STATUSES:
            raise _unknown(form, status, STATUSES)
        numerics = _claim(form, (said and said.numerics) or fields.get("numerics", "real"))
        try:
            own = defines(raw, phased.kind, status, form.file, self.definitions)
        except Unusable as unusable:
            what, hint = unusable.args
            raise form.error(what, hint=hint) from None
        if own is not None:
            if phased.kind != "analysis" and said is None:
                raise form.error(f"{own.name} is defined by a rule", expected="(define ...)",
                                 hint=how_to_define(own))  # fmt: skip
            self.definitions[own.name] = own
        self.meanings |= comprehends(raw, phased.kind, status, self.meanings)
        source = _SOURCE.search(form.comment)
        self.rules[raw.name] = Rule(
            name=raw.name,
            ruleset=raw.ruleset,
            file=form.file,
            line=form.line,
            comment=form.comment,
            source=source.group(1) if source else "",
            numerics=numerics,
            status=status,
            scopes=said.scopes if said else None,
            **vars(phased),
        )

    def _is_relation(self, name: str) -> bool:
        signature = self.known.signatures.get(name)
        return signature is not None and signature.kind == "relation"

    def _fact(self, fact: Any, form: Form) -> Tree:
        if isinstance(fact, egg.Eq):
            return ("=", self._tree(fact.left, form), self._tree(fact.right, form))
        tree = self._tree(fact.expr, form)
        if not isinstance(tree, tuple):
            raise form.error("fact is not a call", hint="Write a relation or a comparison.")
        return tree

    def _action(self, action: Any, form: Form) -> Tree:
        if isinstance(action, egg.Let):
            return ("let", Var(action.lhs), self._tree(action.rhs, form))
        if isinstance(action, egg.Union):
            return ("union", self._tree(action.lhs, form), self._tree(action.rhs, form))
        if isinstance(action, egg.Set):
            self._name(action.lhs, action.span, form)
            arguments = (self._tree(argument, form) for argument in action.args)
            return ("set", (action.lhs, *arguments), self._tree(action.rhs, form))
        if isinstance(action, egg.Expr_):
            tree = self._tree(action.expr, form)
            if isinstance(tree, tuple) and tree[0] in self.known.signatures:
                return tree
        raise form.error(
            "a rule cannot do this",
            expected="let, union, set or a relation",
            hint="Nothing is ever taken back: write a condition instead.",
        )

    def _tree(self, expr: Any, form: Form) -> Tree:
        if isinstance(expr, egg.Var):
            if "/" in expr.name or expr.name in self.rulesets:
                raise form.error(
                    f"variable {expr.name} has the name of a ruleset",
                    _start(expr),
                    hint="Rename the variable.",
                )
            if expr.name in self.known.signatures:
                raise form.error(
                    f"variable {expr.name} has the name of a declaration",
                    _start(expr),
                    hint="Rename the variable, or write it as a call, in parentheses.",
                )
            self.variables.setdefault(expr.name, form)
            return Var(expr.name)
        if isinstance(expr, egg.Lit):
            literal = expr.value
            if isinstance(literal, egg.Unit):
                raise form.error("() is no value", _start(expr), hint="Leave it out.")
            return literal.value
        self._name(expr.name, expr.span, form)
        return (expr.name, *(self._tree(argument, form) for argument in expr.args))

    def _names(self, expr: Any, form: Form) -> None:
        if isinstance(expr, egg.Call):
            self._name(expr.name, expr.span, form)
            for argument in expr.args:
                self._names(argument, form)

    def _name(self, name: str, span: Any, form: Form) -> None:
        if name == _HANDLE:
            raise form.error(
                f"a rule cannot use {name}", span.i, hint="Match the term, not its name."
            )
        if name not in self.known.signatures and name not in PRIMITIVES:
            names: Sequence[str] = (*self.known.signatures, *sorted(PRIMITIVES))
            raise form.error(f"unknown operator {name}", span.i, hint=nearest(name, names))
