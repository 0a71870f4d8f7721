"""How an author's rule becomes what the engine runs: two phases, and actions that cannot fail.

    (rewrite (Add a (Neg a)) (Zero (shape a)) :ruleset r :name "n")
    ->  (relation M_n (Tensor Tensor Ints))
        (rule ((= root (Add a (Neg a))) (= p1 (shape a))) ((M_n root a p1)))
        (rule ((M_n root a p1)) ((union root (Zero p1))))

Between the two, Python reads the new rows: budgets by match, and the log for explain. Primitive
and function calls of the action move into the query of the match phase: there a division by zero
or a missing value is no match, in an action it is an error that leaves the step half done.
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

# An action's lets are written out; doubling lets of a hostile file would never end.
MAX_TREE = 4000


class Unusable(Exception):
    """Raised here, made a RuleError by the loader: (what, hint)."""


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
    """The parts of a Rule that this file computes."""

    kind: Kind
    equality: tuple[Tree, Tree] | None
    conditions: tuple[str, ...]
    relation: str
    columns: tuple[tuple[str, str], ...]
    match_ruleset: str
    apply_ruleset: str
    program: tuple[str, ...]
    body: tuple[Tree, ...]
    written: tuple[tuple[str, Tree], ...]
    actions: tuple[Tree, ...] = ()


@dataclass
class _Lifter:
    """Moves primitive and function calls out of an action; `facts` go into the query."""

    known: Declarations
    taken: set[str]
    facts: list[Tree] = field(default_factory=list)
    names: dict[str, Var] = field(default_factory=dict)

    def written(self) -> tuple[tuple[str, Tree], ...]:
        """The names that were made, with what the author wrote in their places."""
        return tuple((fact[1].name, fact[2]) for fact in self.facts)

    def lift(self, tree: Tree) -> Tree:
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
    conditions = tuple(conditions)
    taken = set(variables(("", left, right, *conditions)))
    root = _fresh("root", taken)
    return RawRule(name, ruleset, (("=", root, left), *conditions), (("union", root, right),))


def two_phase(raw: RawRule, known: Declarations) -> Phased:
    """The phases of a rule.

    Raises:
        Unusable: the rule cannot be run, for the reason in the exception.
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
    answers = [fact for fact in body if fact[0].endswith("-answer")]
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
    """Analyses, requests and answers: what they say is not logged by match, so one step does."""
    actions = [_lift_action(action, lifter) for action in (*unions, *others)]
    matching = _ordered((*_take_vectors_apart(body, lifter.taken), *lifter.facts), lifter.known)
    _sorts([], (*matching, *map(_as_fact, actions)), lifter.known)
    requests = [action for action in others if action[0].endswith("-request")]
    kind: Kind = "law-apply" if unions else "law-request" if requests else "analysis"
    match_ruleset = f"{raw.ruleset}/{raw.name}/match" if kind == "law-request" else ""
    apply_ruleset = {
        "law-request": "",
        "law-apply": f"{raw.ruleset}/{raw.name}/apply",
        "analysis": f"{raw.ruleset}/all",
    }[kind]
    relation, columns = "", tuple[tuple[str, str], ...]()
    if requests or unions:
        relation = (answers if unions else requests)[0][0]
        inputs = lifter.known.signatures[relation].inputs
        columns = tuple((f"c{index}", sort) for index, sort in enumerate(inputs))
    own = match_ruleset or apply_ruleset
    declare = () if kind == "analysis" else (f"(ruleset {own})",)
    return Phased(
        kind,
        None,
        tuple(_as_written(fact, wildcards) for fact in body),
        relation,
        columns,
        match_ruleset,
        apply_ruleset,
        (*declare, _rule_text(raw.name, matching, actions, own)),
        body,
        (*wildcards, *lifter.written()),
        tuple(actions),
    )


def _fresh(stem: str, taken: set[str]) -> Var:
    name, number = stem, 1
    while name in taken:
        name, number = f"{stem}{number}", number + 1
    taken.add(name)
    return Var(name)


def _name_wildcards(tree: Tree, taken: set[str]) -> Tree:
    # egglog's parser has made each _ a variable of its own, under a name that it reserves.
    return replace_vars(
        tree, lambda var: _fresh("any", taken) if var.name.startswith(("@", "_")) else var
    )


def _as_written(fact: Tree, wildcards: Iterable[tuple[str, Var]]) -> str:
    own = dict(wildcards)
    return render(replace_vars(fact, lambda var: own.get(var.name, var)))


def _take_vectors_apart(body: Iterable[Tree], taken: set[str]) -> list[Tree]:
    """egglog computes vec-of in a query but does not match it: a pattern `(Prod (vec-of x y))`
    becomes `(Prod v)` with `v` of length 2, `x` and `y` its elements.
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
    """The facts, each behind those that give values to what it computes with.

    egglog runs the primitives of a query in the order in which they are written, and panics where
    an argument has no value yet: `(= 1 (vec-get (shape x) a))` goes behind `(= a (vec-get v 0))`.
    """
    waiting = list(facts)
    bound = {name for fact in waiting for name in _matched(fact, known)}
    done: list[Tree] = []
    while waiting:
        ready = (fact for fact in waiting if _computed_with(fact, known) <= bound)
        # What nothing gives a value to is the loader's engine's to refuse.
        fact = next(ready, waiting[0])
        waiting.remove(fact)
        done.append(fact)
        if is_call(fact) and fact[0] == "=":
            bound |= {side.name for side in fact[1:] if isinstance(side, Var)}
    return tuple(done)


def _matched(tree: Tree, known: Declarations, table: bool = False) -> set[str]:
    """The variables to which rows of tables give values: arguments of constructors, of functions
    and of relations, and what a fact says that such a call is."""
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
    """The variables that the primitives of a fact take."""
    if not is_call(tree):
        return set()
    below = set().union(*(_computed_with(child, known) for child in tree[1:]))
    if tree[0] == "=" or tree[0] in known.signatures:
        return below
    return below | {child.name for child in tree[1:] if isinstance(child, Var)}


def write_out_lets(head: Iterable[Tree], bound: set[str]) -> list[Tree]:
    """The actions of a rule without their lets, whose values stand in the places of the names."""
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
    """Variables that a fact `(= x (Constructor ...))` defines; the first one counts."""
    definitions: dict[str, Tree] = {}
    for fact in body:
        if fact[0] != "=":
            continue
        for var, term in ((fact[1], fact[2]), (fact[2], fact[1])):
            if isinstance(var, Var) and is_call(term) and known.is_constructor(term[0]):
                definitions.setdefault(var.name, term)
    return definitions


def _expand(tree: Tree, definitions: dict[str, Tree], active: frozenset[str] = frozenset()) -> Tree:
    """Writes definitions out, so that the equality holds as it stands, without the body."""

    def definition(var: Var) -> Tree:
        if var.name not in definitions or var.name in active:
            return var
        return _expand(definitions[var.name], definitions, active | {var.name})

    expanded = replace_vars(tree, definition)
    if size(expanded) > MAX_TREE or depth(expanded) > MAX_DEPTH:
        raise Unusable("pattern is too large", "Its definitions grow out of hand; simplify it.")
    return expanded


def _lift_action(action: Tree, lifter: _Lifter) -> Tree:
    if action[0] == "set":
        _, call, value = action
        return ("set", (call[0], *map(lifter.lift, call[1:])), lifter.lift(value))
    return (action[0], *map(lifter.lift, action[1:]))


def _as_fact(action: Tree) -> Tree:
    """An action as a fact of the same sorts, for inference."""
    return ("=", *action[1:]) if action[0] in ("set", "union") else action


def _sorts(columns: Iterable[str], trees: Iterable[Tree], known: Declarations) -> list[str]:
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
