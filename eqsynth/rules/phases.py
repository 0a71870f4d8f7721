"""Splits an author's rule into the two phases that the engine runs, with actions that can't fail.

    (rewrite (Add a (Neg a)) (Zero (shape a)) :ruleset r :name "n")
    ->  (relation M_n (Tensor Tensor Ints))
        (rule ((= root (Add a (Neg a))) (= p1 (shape a))) ((M_n root a p1)))
        (rule ((M_n root a p1)) ((union root (Zero p1))))

Between the phases, Python reads the new rows, to apply the budgets and to write the log of
`explain`. Calls of primitives and functions in the action move into the query of the match phase.
There, a division by zero or a missing value means no match; in an action it would be an error that
leaves the step half done.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from eqsynth.rules.forms import MAX_DEPTH
from eqsynth.rules.rule import Kind
from eqsynth.rules.sorts import Declarations, SortMismatch, infer_sorts
from eqsynth.rules.tree import (
    VEC_BUILDERS,
    Tree,
    Var,
    depth,
    is_call,
    render,
    replace_vars,
    size,
    variables,
)

# The most nodes of an action with its lets expanded: lets can double the size again and again.
MAX_TREE = 4000


class Unusable(Exception):
    """A rule that can't be run; the arguments are (what, hint). The loader makes it a RuleError."""


@dataclass(frozen=True)
class RawRule:
    """A rule or one direction of a rewrite, as parsed: facts and actions as trees.

    Facts are calls, `("=", a, b)` among them; actions are `("let", Var, e)`, `("union", a, b)`,
    `("set", call, e)` and calls.
    """

    name: str
    ruleset: str
    body: tuple[Tree, ...]
    head: tuple[Tree, ...]


@dataclass(frozen=True)
class Phased:
    """The fields of a Rule that this module computes (see ``rule.py``)."""

    kind: Kind
    equality: tuple[Tree, Tree] | None
    conditions: tuple[str, ...]
    relation: str
    law: str
    columns: tuple[tuple[str, str], ...]
    match_ruleset: str
    apply_ruleset: str
    program: tuple[str, ...]
    body: tuple[Tree, ...]
    written: tuple[tuple[str, Tree], ...]
    actions: tuple[Tree, ...] = ()


@dataclass
class _Lifter:
    """Moves calls of primitives and functions out of an action: `(Zero (shape a))` becomes
    `(Zero p1)`, and the fact `(= p1 (shape a))` joins `facts`, which are added to the query."""

    known: Declarations
    taken: set[str]
    facts: list[Tree] = field(default_factory=list)
    names: dict[str, Var] = field(default_factory=dict)

    def written(self) -> tuple[tuple[str, Tree], ...]:
        """The new variables, each with the author's expression that it replaces."""
        return tuple((fact[1].name, fact[2]) for fact in self.facts)

    def lift(self, tree: Tree) -> Tree:
        """Return the tree with a variable in place of each call, and add the calls to `facts`."""
        if not is_call(tree):
            return tree
        head = tree[0]
        builds = self.known.is_constructor(head) or head in VEC_BUILDERS
        movable = not builds or head in ("vec-append", "vec-push")
        if movable and not self._constructs(tree):
            key = render(tree)
            if key not in self.names:
                self.names[key] = _fresh("p", self.taken)
                self.facts.append(("=", self.names[key], tree))
            return self.names[key]
        if not builds:
            raise Unusable(
                f"{head} of a term that is being built",
                f"Match the term in the rule's body first; the action cannot look up {head}.",
            )
        return (head, *map(self.lift, tree[1:]))

    def _constructs(self, tree: Tree) -> bool:
        return is_call(tree) and (
            self.known.is_constructor(tree[0]) or any(map(self._constructs, tree[1:]))
        )


def rewrite_to_rule(
    name: str, ruleset: str, left: Tree, right: Tree, conditions: Iterable[Tree]
) -> RawRule:
    """Return a rewrite as a rule: its query is `(= root left)` and the conditions, its action is
    `(union root right)`."""
    conditions = tuple(conditions)
    taken = set(variables(("", left, right, *conditions)))
    root = _fresh("root", taken)
    return RawRule(name, ruleset, (("=", root, left), *conditions), (("union", root, right),))


def two_phase(raw: RawRule, known: Declarations) -> Phased:
    """Return the phases of a rule.

    Raises:
        Unusable: the rule can't be run, with the reason.
    """
    taken = {name for tree in (*raw.body, *raw.head) for name in variables(tree)}
    body = tuple(_name_wildcards(fact, taken) for fact in raw.body)
    bound = {name for fact in body for name in variables(fact)}
    own = {name for fact in raw.body for name in variables(fact)}
    wildcards = [(name, Var("_")) for name in sorted(bound - own)]
    head = write_out_lets(raw.head, bound)
    unions = [action for action in head if action[0] == "union"]
    others = [action for action in head if action[0] != "union"]
    if len(unions) > 1:
        raise Unusable("rule unites twice", "Write one rule for each equality.")
    lifter = _Lifter(known, taken)
    answers = [fact for fact in body if known.law_answered_by(fact[0]) is not None]
    if not unions or answers:
        return _one_phase(raw, body, unions, others, answers, lifter, wildcards)
    definitions = _definitions(body, known)
    _, first, second = unions[0]
    if not isinstance(first, Var) and isinstance(second, Var):
        first, second = second, first
    left = lifter.lift(_expand(first, definitions))
    right = lifter.lift(_expand(second, definitions))
    extra = [_lift_action(action, lifter) for action in others]
    root = [first] if isinstance(first, Var) else []
    columns = list(dict.fromkeys(variables(("", *root, left, right, *extra))))
    matching = _ordered((*_take_vectors_apart(body, taken), *lifter.facts), known)
    union = ("union", root[0] if root else left, right)
    sorts = _sorts(columns, (*matching, ("=", left, right), *map(_as_fact, extra)), known)
    relation = f"M_{raw.name}"
    row = (relation, *map(Var, columns))
    match_ruleset = f"{raw.ruleset}/{raw.name}/match"
    apply_ruleset = f"{raw.ruleset}/{raw.name}/apply"
    program = (
        f"(ruleset {match_ruleset})",
        f"(ruleset {apply_ruleset})",
        f"(relation {relation} ({' '.join(sorts)}))",
        _rule_text(f"{raw.name}/match", matching, (row,), match_ruleset),
        _rule_text(f"{raw.name}/apply", (row,), (union, *extra), apply_ruleset),
    )
    used = {render(definition) for definition in definitions.values()}
    conditions = tuple(
        _as_written(fact, wildcards)
        for fact in body
        if not (fact[0] == "=" and any(render(side) in used for side in fact[1:]))
    )
    columns_with_sorts = tuple(zip(columns, sorts, strict=True))
    return Phased(
        "rewrite",
        (left, right),
        conditions,
        relation,
        "",
        columns_with_sorts,
        match_ruleset,
        apply_ruleset,
        program,
        body,
        (*wildcards, *lifter.written()),
    )


def _one_phase(
    raw: RawRule,
    body: tuple[Tree, ...],
    unions: list[Tree],
    others: list[Tree],
    answers: list[Tree],
    lifter: _Lifter,
    wildcards: list[tuple[str, Var]],
) -> Phased:
    """Return the single phase of an analysis, request or answer, whose matches aren't logged."""
    actions = [_lift_action(action, lifter) for action in (*unions, *others)]
    matching = _ordered((*_take_vectors_apart(body, lifter.taken), *lifter.facts), lifter.known)
    _sorts([], (*matching, *map(_as_fact, actions)), lifter.known)
    known = lifter.known
    requests = [action for action in others if known.law_requested_by(action[0]) is not None]
    kind: Kind = "law-apply" if unions else "law-request" if requests else "analysis"
    match_ruleset = f"{raw.ruleset}/{raw.name}/match" if kind == "law-request" else ""
    apply_ruleset = {
        "law-request": "",
        "law-apply": f"{raw.ruleset}/{raw.name}/apply",
        "analysis": f"{raw.ruleset}/all",
    }[kind]
    relation, law, columns = "", "", tuple[tuple[str, str], ...]()
    if requests or unions:
        relation = (answers if unions else requests)[0][0]
        law = (known.law_answered_by if unions else known.law_requested_by)(relation) or ""
        inputs = known.signatures[relation].inputs
        columns = tuple((f"c{index}", sort) for index, sort in enumerate(inputs))
    own = match_ruleset or apply_ruleset
    declare = () if kind == "analysis" else (f"(ruleset {own})",)
    return Phased(
        kind,
        None,
        tuple(_as_written(fact, wildcards) for fact in body),
        relation,
        law,
        columns,
        match_ruleset,
        apply_ruleset,
        (*declare, _rule_text(raw.name, matching, actions, own)),
        body,
        (*wildcards, *lifter.written()),
        tuple(actions),
    )


def _fresh(stem: str, taken: set[str]) -> Var:
    """Return a variable with a new name, `stem` or `stem1`, `stem2`, …, and add it to `taken`."""
    name, number = stem, 1
    while name in taken:
        name, number = f"{stem}{number}", number + 1
    taken.add(name)
    return Var(name)


def _name_wildcards(tree: Tree, taken: set[str]) -> Tree:
    # egglog's parser has replaced each _ by a separate variable with a reserved name.
    return replace_vars(
        tree, lambda var: _fresh("any", taken) if var.name.startswith(("@", "_")) else var
    )


def _as_written(fact: Tree, wildcards: Iterable[tuple[str, Var]]) -> str:
    """Render a fact as the author wrote it, with `_` for each wildcard."""
    own = dict(wildcards)
    return render(replace_vars(fact, lambda var: own.get(var.name, var)))


def _take_vectors_apart(body: Iterable[Tree], taken: set[str]) -> list[Tree]:
    """Replace patterns with vec-of, which egglog can compute but not match: `(Prod (vec-of x y))`
    becomes `(Prod v)` with facts that `v` has length 2 and elements `x` and `y`.
    """
    facts: list[Tree] = []

    def visit(tree: Tree) -> Tree:
        if not is_call(tree):
            return tree
        if tree[0] != "vec-of" or not any(variables(tree)):
            return (tree[0], *map(visit, tree[1:]))
        vec = _fresh("v", taken)
        facts.append(("=", len(tree) - 1, ("vec-length", vec)))
        for index, element in enumerate(tree[1:]):
            facts.append(("=", visit(element), ("vec-get", vec, index)))
        return vec

    return [*map(visit, body), *facts]


def _ordered(facts: Iterable[Tree], known: Declarations) -> tuple[Tree, ...]:
    """Sort the facts, so that a variable has a value before a fact computes with it.

    egglog runs the primitives of a query in their textual order, and panics if an argument has no
    value yet: `(= 1 (vec-get (shape x) a))` must come after `(= a (vec-get v 0))`.
    """
    waiting = list(facts)
    bound = {name for fact in waiting for name in _matched(fact, known)}
    done: list[Tree] = []
    while waiting:
        ready = (fact for fact in waiting if _computed_with(fact, known) <= bound)
        # If no fact gives a value to a variable, the loader's e-graph will refuse the rule.
        fact = next(ready, waiting[0])
        waiting.remove(fact)
        done.append(fact)
        if is_call(fact) and fact[0] == "=":
            bound |= {side.name for side in fact[1:] if isinstance(side, Var)}
    return tuple(done)


def _matched(tree: Tree, known: Declarations, table: bool = False) -> set[str]:
    """Return the variables that get values from rows of tables: arguments of constructors,
    functions and relations, and the other side of a fact `(= v call)`."""
    if isinstance(tree, Var):
        return {tree.name} if table else set()
    if not is_call(tree):
        return set()
    if tree[0] == "=":
        calls = [is_call(side) and side[0] in known.signatures for side in tree[1:]]
        sides = zip(tree[1:], calls, reversed(calls), strict=True)
        return set().union(*(_matched(side, known, other) for side, _, other in sides))
    is_table = tree[0] in known.signatures
    return set().union(*(_matched(child, known, is_table) for child in tree[1:]))


def _computed_with(tree: Tree, known: Declarations) -> set[str]:
    """Return the variables that are arguments of a fact's primitives."""
    if not is_call(tree):
        return set()
    below = set().union(*(_computed_with(child, known) for child in tree[1:]))
    if tree[0] == "=" or tree[0] in known.signatures:
        return below
    return below | {child.name for child in tree[1:] if isinstance(child, Var)}


def write_out_lets(head: Iterable[Tree], bound: set[str]) -> list[Tree]:
    """Return the actions of a rule with their lets expanded: each name is replaced by its value."""
    lets: dict[str, Tree] = {}
    sizes: dict[str, int] = {}

    def resolve(var: Var) -> Tree:
        if var.name not in lets and var.name not in bound:
            raise Unusable(
                f"variable {var.name} is not bound",
                "Bind it on the left-hand side, in a condition or with let.",
            )
        return lets.get(var.name, var)

    actions: list[Tree] = []
    for action in head:
        grown = size(action) + sum(sizes.get(name, 0) for name in variables(action))
        if grown > MAX_TREE:
            raise Unusable("action is too large", "Its lets grow out of hand; simplify it.")
        if action[0] == "let":
            _, var, value = action
            if var.name in bound or var.name in lets:
                raise Unusable(f"let {var.name} hides another variable", "Use another name.")
            lets[var.name] = replace_vars(value, resolve)
            if depth(lets[var.name]) > MAX_DEPTH:
                raise Unusable("action is too deep", "Its lets grow out of hand; simplify it.")
            sizes[var.name] = size(lets[var.name])
        else:
            actions.append(replace_vars(action, resolve))
    return actions


def _definitions(body: Iterable[Tree], known: Declarations) -> dict[str, Tree]:
    """Return variable -> term for facts `(= x (Constructor ...))`; of several the first counts."""
    definitions: dict[str, Tree] = {}
    for fact in body:
        if fact[0] != "=":
            continue
        for var, term in ((fact[1], fact[2]), (fact[2], fact[1])):
            if isinstance(var, Var) and is_call(term) and known.is_constructor(term[0]):
                definitions.setdefault(var.name, term)
    return definitions


def _expand(tree: Tree, definitions: dict[str, Tree], active: frozenset[str] = frozenset()) -> Tree:
    """Replace variables by their definitions, so that a rule's equality holds without its facts."""

    def definition(var: Var) -> Tree:
        if var.name not in definitions or var.name in active:
            return var
        return _expand(definitions[var.name], definitions, active | {var.name})

    expanded = replace_vars(tree, definition)
    if size(expanded) > MAX_TREE or depth(expanded) > MAX_DEPTH:
        raise Unusable("pattern is too large", "Its definitions grow out of hand; simplify it.")
    return expanded


def _lift_action(action: Tree, lifter: _Lifter) -> Tree:
    """Return an action in which variables replace the calls that move into the query."""
    if action[0] == "set":
        _, call, value = action
        return ("set", (call[0], *map(lifter.lift, call[1:])), lifter.lift(value))
    return (action[0], *map(lifter.lift, action[1:]))


def _as_fact(action: Tree) -> Tree:
    """Return a fact with the same sorts as an action, for the inference of sorts."""
    return ("=", *action[1:]) if action[0] in ("set", "union") else action


def _sorts(columns: Iterable[str], trees: Iterable[Tree], known: Declarations) -> list[str]:
    """Return the sort of each variable of ``columns``, inferred from the trees.

    Raises:
        Unusable: the sorts contradict each other, or more than one sort is possible.
    """
    try:
        domains = infer_sorts(trees, known)
    except SortMismatch as mismatch:
        raise Unusable(f"sorts do not fit: {mismatch}", "Compare with the declarations.") from None
    sorts: list[str] = []
    for name in columns:
        if len(domains[name]) != 1:
            choices = " or ".join(sorted(domains[name])[:6])
            raise Unusable(
                f"sort of variable {name} is open: {choices}", "Use it where its sort is known."
            )
        sorts.extend(domains[name])
    return sorts


def _rule_text(name: str, facts: Iterable[Tree], actions: Iterable[Tree], ruleset: str) -> str:
    body = " ".join(map(render, facts))
    head = " ".join(map(render, actions))
    return f'(rule ({body}) ({head}) :ruleset {ruleset} :name "{name}")'
