"""The definitions of operators that a rule file declares, read from its rules as data.

    (define (Blend a b (t f64)) (Add a (Mul (Sub b a) (Full (vec-empty) t (dtype a)))))

``define.py`` turns such a form into a rule with status `definition`, which this module reads. The
rule's left side is the operator with variables as arguments. Its right side is a term of operators
that were defined before, or a request of the law `definition` with a comprehension. Not here: the
operator's type and value, which ``eqsynth/egraph/defined.py`` computes from the definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from eqsynth.ir.operators import OPERATORS
from eqsynth.rules.law import law_of
from eqsynth.rules.phases import RawRule, Unusable, write_out_lets
from eqsynth.rules.rule import Kind
from eqsynth.rules.sorts import Signature
from eqsynth.rules.tree import Tree, Var, is_call, render, variables
from eqsynth.rules.values import COMPUTED

ATTRIBUTE_SORTS = ("i64", "f64", "String", "Ints")
_REQUEST = law_of("definition").request
# Constructors of tensors that aren't operators: a scope, leaves, a handle.
_NO_OPERATORS = frozenset({"Scope", "Input", "Weight", "Tok"})


@dataclass(frozen=True)
class Comprehension:
    """A right side of a definition that is a comprehension over tensors and integers
    (``ir/notation.py``)."""

    tensors: Tree
    numbers: Tree
    text: str


@dataclass(frozen=True)
class Case:
    """One case of an operator's definition, or of its shape.

    Attributes:
        rule: the name of the rule that states the case.
        arguments: for each argument a variable, or the literal that it must equal.
        facts: the conditions of the case, and equations that bind other variables.
        value: the right side: a term, a comprehension, or a shape.
        root: the variable for the operator itself; empty if no fact may use it.
    """

    rule: str
    arguments: tuple[Tree, ...]
    facts: tuple[Tree, ...]
    value: Tree | Comprehension
    root: str = ""


@dataclass(frozen=True)
class Definition:
    """An operator of a rule file. The first case whose facts hold defines it.

    Attributes:
        sorts: the sorts of the arguments.
        shapes: cases of the operator's shape, from the file's analyses.
    """

    name: str
    sorts: tuple[str, ...]
    file: str
    line: int
    cases: tuple[Case, ...] = ()
    shapes: tuple[Case, ...] = ()

    @property
    def arity(self) -> int | None:
        """The number of tensor arguments; None for a vector of tensors."""
        if self.sorts[:1] == ("Tensors",):
            return None
        return sum(sort == "Tensor" for sort in self.sorts)

    @property
    def attributes(self) -> tuple[tuple[str, str], ...]:
        """The name (taken from the first case) and the sort of each attribute."""
        first = 1 if self.arity is None else self.arity
        names = [part.name if isinstance(part, Var) else "" for part in self._arguments]
        return tuple(zip(names[first:], self.sorts[first:], strict=True))

    @property
    def _arguments(self) -> tuple[Tree, ...]:
        return self.cases[0].arguments if self.cases else ("",) * len(self.sorts)

    @property
    def heads(self) -> frozenset[str]:
        """The heads of all calls in the cases, among them the operators that define this one."""
        parts = [
            part for case in self.cases
            for part in ((case.value.tensors, case.value.numbers)
                         if isinstance(case.value, Comprehension) else (case.value,))
        ]  # fmt: skip
        return frozenset(head for part in parts for head in _heads(part))


def undefined(trees: Iterable[Tree], operators: Mapping[str, Definition]) -> Definition | None:
    """Return an operator of a rule file that the trees use and that has no definition; or None."""
    for tree in trees:
        for head in _heads(tree):
            if head in operators and not operators[head].cases:
                return operators[head]
    return None


def how_to_define(operator: Definition) -> str:
    """Return a hint: how to write a definition of the operator."""
    names = "abcdfghi"[: len(operator.sorts)] if len(operator.sorts) <= 8 else ""
    left = f"({' '.join([operator.name, *names])})" if names else f"({operator.name} ...)"
    return (
        f'Say in {operator.file} what it is: (define {left} "<comprehension>"), or a term in the '
        "place of the text: rules/README.md, Operators of your own."
    )


def declared(name: str, signature: Signature, file: str, line: int) -> Definition | None:
    """Return the operator that a constructor declares, without a definition so far; None if the
    constructor isn't an operator, or is one of eqsynth's own."""
    if signature.output != "Tensor" or name in OPERATORS or name in _NO_OPERATORS:
        return None
    return Definition(name, signature.inputs, file, line)


def defines(
    raw: RawRule, kind: Kind, status: str, file: str, operators: Mapping[str, Definition]
) -> Definition | None:
    """Return the operator that a rule is about, with the rule added as a case of its definition or
    shape.

    Args:
        operators: the operators that files have declared so far.

    Returns:
        None if the rule doesn't define an operator of a rule file.

    Raises:
        Unusable: the right side can't be computed from the arguments.
    """
    if kind != "analysis" and status != "definition":
        return None
    found = _left(raw.body, operators)
    if found is None:
        return None
    root, pattern, facts = found
    operator = operators[pattern[0]]
    bound = {name for fact in raw.body for name in variables(fact)}
    value = _value(root, write_out_lets(raw.head, bound), kind)
    if value is None:
        return None
    case = Case(raw.name, tuple(pattern[1:]), facts, value)
    _usable(case, operator, file, operators, is_shape=kind == "analysis")
    if kind == "analysis":
        return replace(operator, shapes=(*operator.shapes, case))
    return replace(operator, cases=(*operator.cases, case))


def comprehends(
    raw: RawRule, kind: Kind, status: str, before: Mapping[str, tuple[Case, ...]]
) -> dict[str, tuple[Case, ...]]:
    """Return a built-in operator's name and the comprehensions that define it, the rule's added.

    Args:
        before: operator -> the comprehensions of earlier rules.

    Returns:
        An empty dict for other rules, also for a rule about an operator of particular operators.
    """
    found = _left(raw.body, OPERATORS) if kind == "law-request" else None
    if found is None or status != "definition":
        return {}
    root, pattern, facts = found
    bound = {name for fact in raw.body for name in variables(fact)}
    value = _value(root, write_out_lets(raw.head, bound), kind)
    if not isinstance(value, Comprehension) or any(map(is_call, pattern[1:])):
        return {}
    case = Case(raw.name, tuple(pattern[1:]), facts, value, root.name)
    return {pattern[0]: (*before.get(pattern[0], ()), case)}


def _left(
    body: Iterable[Tree], operators: Mapping[str, object]
) -> tuple[Var, Tree, tuple[Tree, ...]] | None:
    """Find the fact `(= root (Operator …))`; return root, the pattern, and the other facts."""
    facts = tuple(body)
    for fact in facts:
        if fact[0] != "=":
            continue
        for root, pattern in (fact[1:], fact[:0:-1]):
            if isinstance(root, Var) and is_call(pattern) and pattern[0] in operators:
                return root, pattern, tuple(other for other in facts if other is not fact)
    return None


def _value(root: Var, head: Iterable[Tree], kind: Kind) -> Tree | Comprehension | None:
    """Return the term or comprehension that the actions unite with the operator, or its shape."""
    for action in head:
        if kind == "rewrite" and action[0] == "union" and root in action[1:]:
            return action[2] if action[1] == root else action[1]
        if kind == "law-request" and action[0] == _REQUEST and action[1] == root:
            return Comprehension(*action[2:])
        if kind == "analysis" and action[:2] == ("set", ("shape", root)):
            return action[2]
    return None


def _usable(
    case: Case, operator: Definition, file: str, operators: Mapping[str, Definition],
    is_shape: bool,
) -> None:  # fmt: skip
    """Check that a case can be computed from the operator's arguments.

    Raises:
        Unusable: the case can't be computed.
    """
    name = operator.name
    if file != operator.file:
        raise Unusable(
            f"{name} is declared in {operator.file}, and defined here",
            "Define an operator in the file that declares it.",
        )
    tensors = 1 if operator.arity is None else operator.arity
    ours = (*("Tensors" if operator.arity is None else "Tensor",) * tensors,)
    if operator.sorts[:tensors] != ours or not {*operator.sorts[tensors:]} <= {*ATTRIBUTE_SORTS}:
        raise Unusable(
            f"{name} of ({' '.join(operator.sorts)}) can't be an operator",
            f"Its arguments are tensors, or one Tensors, then {', '.join(ATTRIBUTE_SORTS)}.",
        )
    own = [part.name for part in case.arguments if isinstance(part, Var)]
    if any(map(is_call, case.arguments)) or len(set(own)) < len(own):
        raise Unusable(
            f"a definition of {name} for some arguments only",
            "Write each argument as a variable; a fact in :when may say what it must be.",
        )
    comprehension = isinstance(case.value, Comprehension)
    parts = (case.value.tensors, case.value.numbers) if comprehension else (case.value,)
    if comprehension and not isinstance(case.value.text, str):
        raise Unusable("a definition without its text", "Write the comprehension as a literal.")
    terms = (
        set()
        if is_shape
        else {head for head in OPERATORS}
        | {other.name for other in operators.values() if other.cases and other is not operator}
    )
    unbound = {n for part in (*parts, *case.facts) for n in variables(part)} - _bound(own, case)
    if unbound:
        raise Unusable(
            f"{', '.join(sorted(unbound))} of the definition of {name} can't be computed",
            "It follows from the arguments alone: shape, dtype, numbers.",
        )
    for part, allowed in (*((fact, set()) for fact in case.facts), *((p, terms) for p in parts)):
        wrong = sorted(h for h in _heads(part) if h not in COMPUTED and h not in allowed)
        if name in wrong:
            raise Unusable(
                f"{name} is defined by itself",
                "Define it by operators that are known before; what else is true of it is a rule.",
            )
        if wrong:
            raise Unusable(
                f"the definition of {name} can't be computed: {render(part)[:80]}",
                f"{wrong[0]} is neither arithmetic nor an operator that is known here. A scope is "
                "written as a comprehension: rules/README.md, Definitions.",
            )


def _bound(own: Iterable[str], case: Case) -> set[str]:
    """Return the variables that have values after the facts are evaluated."""
    bound = set(own)
    for _ in case.facts:
        for fact in case.facts:
            if fact[0] == "=":
                for side, other in (fact[1:], fact[:0:-1]):
                    if isinstance(side, Var) and set(variables(other)) <= bound:
                        bound.add(side.name)
    return bound


def _heads(tree: Tree) -> Iterable[str]:
    if is_call(tree):
        yield tree[0]
        for part in tree[1:]:
            yield from _heads(part)
