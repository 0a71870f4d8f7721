"""Signatures of everything a rule may mention, and the sorts of a rule's variables.

egglog infers the same sorts but does not tell them; the match relations of the two-phase rules
need them spelt out. Primitives are a closed list: what is not in it, a rule cannot call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from eqsynth.rules.tree import Tree, Var, render

BASE_SORTS = ("i64", "f64", "String", "bool")

# Input sorts and output sort. V is any Vec sort and E its element sort, T any sort at all; a
# star repeats. Left out on purpose: what runs Python (py-*), what depends on the numbering of
# e-classes (ordering-max, ordering-min), and sorts that rules have no use for.
_PRIMITIVES: dict[str, tuple[str, ...]] = {
    "+": ("i64 i64 -> i64", "f64 f64 -> f64", "String* -> String"),
    "-": ("i64 i64 -> i64", "f64 f64 -> f64"),
    "*": ("i64 i64 -> i64", "f64 f64 -> f64"),
    "/": ("i64 i64 -> i64", "f64 f64 -> f64"),
    "%": ("i64 i64 -> i64", "f64 f64 -> f64"),
    "^": ("i64 i64 -> i64", "f64 f64 -> f64"),
    "&": ("i64 i64 -> i64",),
    "|": ("i64 i64 -> i64",),
    "<<": ("i64 i64 -> i64",),
    ">>": ("i64 i64 -> i64",),
    "not-i64": ("i64 -> i64",),
    "log2": ("i64 -> i64",),
    "abs": ("i64 -> i64", "f64 -> f64"),
    "neg": ("f64 -> f64",),
    "min": ("i64 i64 -> i64", "f64 f64 -> f64"),
    "max": ("i64 i64 -> i64", "f64 f64 -> f64"),
    "<": ("i64 i64 -> Unit", "f64 f64 -> Unit"),
    ">": ("i64 i64 -> Unit", "f64 f64 -> Unit"),
    "<=": ("i64 i64 -> Unit", "f64 f64 -> Unit"),
    ">=": ("i64 i64 -> Unit", "f64 f64 -> Unit"),
    "=": ("T T -> Unit",),
    "!=": ("T T -> Unit",),
    "bool-=": ("i64 i64 -> bool",),
    "bool-<": ("i64 i64 -> bool",),
    "bool-<=": ("i64 i64 -> bool",),
    "bool->": ("i64 i64 -> bool",),
    "bool->=": ("i64 i64 -> bool",),
    "and": ("bool bool -> bool",),
    "or": ("bool* -> bool",),
    "not": ("bool -> bool",),
    "xor": ("bool bool -> bool",),
    "=>": ("bool bool -> bool",),
    "guard": ("bool -> Unit",),
    "to-string": ("i64 -> String", "f64 -> String"),
    "to-f64": ("i64 -> f64",),
    "to-i64": ("f64 -> i64",),
    "replace": ("String String String -> String",),
    "count-matches": ("String String -> i64",),
    "vec-of": ("E* -> V",),
    "vec-empty": ("-> V",),
    "vec-append": ("V* -> V",),
    "vec-push": ("V E -> V",),
    "vec-pop": ("V -> V",),
    "vec-get": ("V i64 -> E",),
    "vec-set": ("V i64 E -> V",),
    "vec-remove": ("V i64 -> V",),
    "vec-length": ("V -> i64",),
    "vec-contains": ("V E -> Unit",),
    "vec-not-contains": ("V E -> Unit",),
}
PRIMITIVES = frozenset(_PRIMITIVES)


class SortMismatch(Exception):
    """Raised by `infer_sorts`; the loader knows the place and makes it a RuleError."""


@dataclass(frozen=True)
class Signature:
    """A declared constructor, function or relation; the output of a relation is Unit."""

    kind: str
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class Law:
    """The relations of a law: rules file requests in one, and Python answers in the other."""

    request: str
    answer: str


@dataclass
class Declarations:
    """The declarations of the files loaded so far.

    A relation is a law's request or answer because a form ``law`` declared it, whatever its name.
    """

    eq_sorts: list[str] = field(default_factory=list)
    vecs: dict[str, str] = field(default_factory=dict)
    signatures: dict[str, Signature] = field(default_factory=dict)
    laws: dict[str, Law] = field(default_factory=dict)

    @property
    def sorts(self) -> tuple[str, ...]:
        return (*BASE_SORTS, *self.eq_sorts, *self.vecs)

    def law_requested_by(self, relation: str) -> str | None:
        """The law whose requests the relation holds; None for any other relation."""
        return next((name for name, law in self.laws.items() if law.request == relation), None)

    def law_answered_by(self, relation: str) -> str | None:
        """The law whose answers the relation holds; None for any other relation."""
        return next((name for name, law in self.laws.items() if law.answer == relation), None)

    def is_constructor(self, name: str) -> bool:
        return name in self.signatures and self.signatures[name].kind == "constructor"


_Overload = tuple[str, ...]


def _overloads(name: str, arity: int, known: Declarations) -> Iterator[_Overload]:
    """Yield the signatures that a call can have, each as input sorts and then the output sort."""
    signature = known.signatures.get(name)
    if signature is not None:
        if len(signature.inputs) == arity:
            yield (*signature.inputs, signature.output)
        return
    for text in _PRIMITIVES[name]:
        left, output = text.split("->")
        inputs = left.split()
        if inputs and inputs[0].endswith("*"):
            inputs = [inputs[0][:-1]] * arity
        if len(inputs) != arity:
            continue
        shape = [*inputs, output.strip()]
        if "T" in shape:
            assignments = [{"T": sort} for sort in known.sorts]
        elif "V" in shape or "E" in shape:
            assignments = [{"V": vec, "E": element} for vec, element in known.vecs.items()]
        else:
            assignments = [{}]
        for assignment in assignments:
            yield tuple(assignment.get(sort, sort) for sort in shape)


def infer_sorts(trees: Iterable[Tree], known: Declarations) -> Mapping[str, frozenset[str]]:
    """Return the possible sorts of each variable; in a well-sorted rule each variable has one.

    Each call restricts the sorts of its arguments and its result, until nothing changes.

    Raises:
        SortMismatch: a call fits no signature.
    """
    domains: dict[str, set[str]] = {}
    calls: list[tuple[tuple[str, ...], list[_Overload], Tree]] = []
    everything = {*known.sorts, "Unit"}

    def visit(tree: Tree) -> str:
        if isinstance(tree, Var):
            domains.setdefault(tree.name, set(everything))
            return tree.name
        if isinstance(tree, tuple):
            places = tuple(visit(child) for child in tree[1:])
            key = f"{len(domains)} {tree[0]}"  # a blank: never the name of a variable
            domains[key] = set(everything)
            overloads = list(_overloads(tree[0], len(places), known))
            calls.append(((*places, key), overloads, tree))
        else:
            key = f"{len(domains)} {tree}"
            domains[key] = {_literal_sort(tree)}
        return key

    for tree in trees:
        visit(tree)
    users: dict[str, list[int]] = {}
    for number, (places, _, _) in enumerate(calls):
        for place in places:
            users.setdefault(place, []).append(number)
    # A call is visited again only if the sorts of an argument or its result have been restricted:
    # a stranger's rule may chain hundreds of calls with as many overloads as there are sorts.
    work = dict.fromkeys(range(len(calls)))
    while work:
        number = next(iter(work))
        del work[number]
        places, overloads, tree = calls[number]
        fitting = [
            overload
            for overload in overloads
            if all(sort in domains[place] for sort, place in zip(overload, places, strict=True))
        ]
        if not fitting:
            raise SortMismatch(_explain(tree, places, overloads, domains, known))
        calls[number] = (places, fitting, tree)
        for position, place in enumerate(places):
            narrowed = domains[place] & {overload[position] for overload in fitting}
            if narrowed != domains[place]:
                domains[place] = narrowed
                work.update(dict.fromkeys(users[place]))
    return {name: frozenset(domain) for name, domain in domains.items() if " " not in name}


def _literal_sort(literal: object) -> str:
    names = {bool: "bool", int: "i64", float: "f64", str: "String"}
    return names[type(literal)]


def _explain(
    tree: Tree,
    places: tuple[str, ...],
    overloads: list[_Overload],
    domains: Mapping[str, set[str]],
    known: Declarations,
) -> str:
    signature = known.signatures.get(tree[0])
    if not overloads:
        wanted = str(len(signature.inputs)) if signature else "another number of"
        return f"{render(tree)}: {len(tree) - 1} arguments, {tree[0]} takes {wanted}"

    def sort_of(place: str) -> str:
        return "|".join(sorted(domains[place])) if len(domains[place]) < 4 else "?"

    got = " ".join(map(sort_of, places[:-1]))
    takes = " or ".join(f"({' '.join(o[:-1])}) -> {o[-1]}" for o in overloads[:4])
    return f"{render(tree)}: ({got}) -> {sort_of(places[-1])}, but {tree[0]} is {takes}"
