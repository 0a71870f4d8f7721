"""Every rule that comes with eqsynth: it is documented, it fires, and what it says is so.

The laws of indices and of scalar functions are checked member by member in e-graphs of random
terms; the rest by the consistency of whole programs (``tests/egraph/test_programs.py``).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eqsynth.egraph.engine import Engine
from eqsynth.egraph.schedule import DEFAULT_PHASES, PROVE_PHASES
from eqsynth.egraph.scope_rules.law import laws_of
from eqsynth.egraph.snapshot import EClass
from eqsynth.egraph.tactics.table import LAWS
from eqsynth.errors import SaturationError
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.reference import Array
from eqsynth.rules import DEFAULT_FILES, Rule, RuleSet, Var, load_rules, load_text
from eqsynth.rules.claim import Claim
from eqsynth.testing.soundness import check_rule, unites
from tests.egraph.fires import FIRES
from tests.egraph.programs import PROGRAMS, RULES, saturate
from tests.terms import leaf, op, times
from tests.turns import in_turns

ALL = load_rules()
INDEX = [r for r in RULES.rules if r.ruleset == "index"]
SCALAR = [r for r in RULES.rules if r.ruleset == "scalar"]


# ---- every rule ----------------------------------------------------------------


def _lacks(rule: Rule) -> list[str]:
    """What is missing of the documentation of a rule."""
    missing = {
        "a name of its own": ALL.names.count(rule.name) != 1,
        "a ruleset": rule.ruleset not in ALL.rulesets,
        "numerics": rule.numerics.kind == "approx",
        "a status": rule.status not in ("definition", "proved", "validated"),
        "a comment": rule.kind != "analysis" and not rule.comment.strip(),
        "an equality in its comment": rule.kind == "rewrite" and "=" not in rule.comment,
    }
    place = f"{rule.file}:{rule.line}: {rule.name}"
    return [f"{place} lacks {what}" for what, lacks in missing.items() if lacks]


def test_rules_are_documented() -> None:
    assert not [text for rule in ALL.rules for text in _lacks(rule)]
    odd = replace(
        ALL.rules[0], name="x", numerics=Claim("approx"), status="", comment="", kind="rewrite"
    )
    assert len(_lacks(odd)) == 5


def test_rules_are_scheduled() -> None:
    phases = {name for phase in (*DEFAULT_PHASES, *PROVE_PHASES) for name in phase.rulesets}
    searched = [rule for rule in ALL.rules if rule.kind != "analysis"]
    assert not [rule.name for rule in searched if rule.ruleset not in phases]


def test_every_law_has_its_rules_and_every_rule_its_law() -> None:
    asked = {r.law for r in ALL.rules if r.kind == "law-request"}
    applied = {r.law for r in ALL.rules if r.kind == "law-apply"}
    stated = laws_of(ALL)
    assert asked == applied == {*LAWS, *stated}
    assert stated and not stated.keys() & LAWS.keys()


@pytest.mark.rotating(parts=64)
@pytest.mark.parametrize("rule", [r for r in ALL.rules if unites(r)], ids=lambda r: r.name)
def test_a_rule_is_sound(rule: Rule) -> None:
    """As ``eqsynth rules check rules`` finds it, on fewer samples. Each day runs a thirty-second of
    the rules."""
    checked = check_rule(ALL, rule, samples=10)
    if checked.error is not None:
        raise checked.error
    assert checked.accepted >= 10 or checked.method == "exact"


def test_a_rule_has_a_program_in_which_it_fires() -> None:
    """``tests/egraph/test_programs.py`` sees them fire."""
    named = [rule for rules in FIRES.values() for rule in rules.split()]
    searched = {rule.name for rule in RULES.rules if rule.kind in ("rewrite", "law-request")}
    assert not searched.symmetric_difference(named) and len(named) == len(searched)
    assert FIRES.keys() <= PROGRAMS.keys()


@pytest.mark.rotating
def test_the_type_of_what_a_rule_makes_is_checked_at_once() -> None:
    """shape.egg says the shape of a new term, and the error names the rule that made it."""
    wrong = """\
;; Status validated
;; relu(x) = x in a row: wrong
(rewrite (Relu x) (Reshape x (vec-of 6)) :ruleset simplify :name "flat-wrong")
"""
    program = op("Relu", leaf("x", 2, 3))
    with pytest.raises(SaturationError) as caught:
        saturate(program, load_text(wrong, after=DEFAULT_FILES))
    assert caught.value.rules == ("flat-wrong",)
    rest = [name for name in DEFAULT_FILES if name != "shape.egg"]
    constants = """
(ruleset analysis-shape)
(rule ((= e (Weight n s d))) ((constant e)) :ruleset analysis-shape :name "own")
"""
    with pytest.raises(SaturationError) as late:
        saturate(program, load_text(wrong + constants, after=rest))
    # Without it the shapes meet later, and whoever made the term is looked for in the log.
    assert late.value.rules[0] == "flat-wrong" and late.value.what != caught.value.what


# ---- engines on bare terms -------------------------------------------------------


def closed(rules: RuleSet, ruleset: str, bodies: Sequence[Any]) -> tuple[Engine, Counter[str]]:
    """An engine with the terms, saturated by one ruleset; how often each rule matched."""
    engine = Engine(rules)
    engine.insert([("Scope", [], [], "sum", body) for body in bodies])
    counts: Counter[str] = Counter()
    engine.analyse()
    for _ in range(30):
        changed = False
        for rule in rules.of(ruleset):
            counts[rule.name] += len(engine.match(rule))
        for rule in rules.of(ruleset):
            changed |= engine.apply(rule)
        engine.analyse()
        if not changed:
            return engine, counts
    raise AssertionError(f"{ruleset} doesn't end on {bodies}")


def values_of_classes(
    engine: Engine, sort: str, value: Any
) -> dict[EClass, list[tuple[Any, Array]]]:
    """The values of all members of the classes of one sort, over values of their children.

    ``value(name, args)`` has children given as values; members of a class that are themselves
    over the class wait until another member has given it a value. Tensors are all zero.
    """
    snapshot = engine.snapshot().classes
    classes = {c: nodes for c, nodes in snapshot.items() if c.sort == sort}
    known: dict[EClass, Array] = {c: np.zeros(()) for c in snapshot if c.sort == "Tensor"}
    found: dict[EClass, list[tuple[Any, Array]]] = {c: [] for c in classes}

    def given_by(arg: Any) -> Any:
        if isinstance(arg, EClass):
            return known.get(arg)
        if isinstance(arg, tuple):
            parts = [given_by(part) for part in arg]
            return None if any(part is None for part in parts) else parts
        return arg

    waiting = [(c, node) for c, nodes in classes.items() for node in nodes]
    while waiting:
        later = []
        for eclass, node in waiting:
            args = [given_by(arg) for arg in node.args]
            if any(arg is None for arg in args):
                later.append((eclass, node))
                continue
            result = value(node.function, args)
            known.setdefault(eclass, result)
            found[eclass].append((node, result))
        if len(later) == len(waiting):
            raise AssertionError(f"no values: {later[:3]}")
        waiting = later
    return found


def assert_one_value_a_class(engine: Engine, sort: str, value: Any) -> None:
    for members in values_of_classes(engine, sort, value).values():
        (first, expected), *others = members
        for node, got in others:
            np.testing.assert_array_equal(got, expected, err_msg=f"{node} against {first}")


# ---- index.egg ---------------------------------------------------------------------

# Three iterators, the whole of their ranges at once.
EXTENTS = (3, 4, 6)
GRID = np.meshgrid(*map(np.arange, EXTENTS), indexing="ij")


def index_value(name: str, args: list[Any]) -> Array:
    match name, args:
        case "It", [slot, _]:
            return GRID[slot]
        case "INum", [n]:
            return np.full(EXTENTS, n)
        case "IAdd", [x, y]:
            return np.asarray(x + y)
        case "IMul", [c, x]:
            return np.asarray(c * x)
        case "IDiv", [x, m]:
            return np.asarray(x // m)
        case "IMod", [x, m]:
            return np.asarray(x % m)
        case "IMin", [x, c]:
            return np.minimum(x, c)
    x, c = args
    return np.maximum(x, c)


@st.composite
def index_terms(draw: st.DrawFn, depth: int = 3) -> Any:
    """Raw terms, as the encoding never makes them too: negative and zero coefficients, x // 1."""
    kinds = ["it", "number", "add", "add", "mul", "div", "mod", "undo", "bound"]
    kind = draw(st.sampled_from(kinds))
    if depth == 0 or kind in ("it", "number"):
        slot = draw(st.integers(0, 2))
        return ("It", slot, EXTENTS[slot]) if kind != "number" else ("INum", draw(NUMBERS))
    x = draw(index_terms(depth - 1))
    if kind == "add":
        return ("IAdd", x, draw(index_terms(depth - 1)))
    if kind == "mul":
        return ("IMul", draw(NUMBERS), x)
    if kind == "bound":
        return (draw(st.sampled_from(["IMin", "IMax"])), x, draw(NUMBERS))
    m, c = draw(st.sampled_from([1, 2, 3, 4, 6, 12])), draw(st.sampled_from([1, 1, 2, -1]))
    if kind == "undo":
        parts = ("IMul", c * m, ("IDiv", x, m)), ("IMul", c, ("IMod", x, m))
        tail = draw(st.booleans())
        return ("IAdd", parts[0], ("IAdd", parts[1], ("INum", 5)) if tail else parts[1])
    return ("IDiv" if kind == "div" else "IMod", x, m)


NUMBERS = st.sampled_from([0, 1, -1, 2, 3, -3, 4, 6, -6, 8, 12, -12])
INDEX_ONLY = load_rules(["schema.egg", "index.egg"])


@in_turns
@settings(max_examples=times(0.4))
@given(st.lists(index_terms(), min_size=1, max_size=4))
def test_all_members_of_an_index_class_agree(terms: list[Any]) -> None:
    engine, _ = closed(INDEX_ONLY, "index", [("Value", term) for term in terms])
    with closing(engine):
        assert_one_value_a_class(engine, "Idx", index_value)
        low, high = (dict(engine.rows(bound)) for bound in ("low", "high"))
        for eclass, members in values_of_classes(engine, "Idx", index_value).items():
            node, value = members[0]
            assert low[eclass] <= value.min() and value.max() <= high[eclass], node


@pytest.mark.rotating
@pytest.mark.parametrize("rule", INDEX, ids=lambda r: r.name)
def test_an_index_rule_fires_and_holds(rule: Rule) -> None:
    """Over small constants of every sign, with the rule's left side as the only term."""
    assert rule.equality is not None
    numbers = [(2, 3), (-2, 4), (3, 3), (6, 2), (2, 6), (-4, 2), (1, 1), (2, 12)]
    left = rule.equality[0]
    terms = [_ground(left, c, m, swap) for c, m in numbers for swap in (False, True)]
    engine, counts = closed(INDEX_ONLY, "index", [("Value", term) for term in terms])
    with closing(engine):
        assert_one_value_a_class(engine, "Idx", index_value)
    assert counts[rule.name]


def _ground(tree: Any, c: int, m: int, swap: bool) -> Any:
    """A rule's left side over terms: indices for x y z, numbers for c d m n."""
    if isinstance(tree, Var):
        # Any index, where it is a number by its range.
        return ("IMod", ("IAdd", ("It", 1, 4), ("INum", c)), 1)
    first, second = ("It", 1, 4), ("It", 2, 6)
    x = ("IMul", 12, first) if swap else first
    given = {
        "x": x, "y": second, "z": ("It", 0, 3), "c": c, "m": abs(m), "n": abs(c), "d": c * abs(m)
    }  # fmt: skip

    def fill(part: Any) -> Any:
        if isinstance(part, Var):
            return given[part.name]
        return tuple(map(fill, part)) if isinstance(part, tuple) else part

    return fill(tree)


# ---- scalar.egg --------------------------------------------------------------------

# Numbers of both signs, zeros, infinities and NaN: the laws are bitwise.
SAMPLES = np.array([-np.inf, -2.5, -1.0, -0.0, 0.0, 0.5, 3.0, np.inf, np.nan])
PAIRS = [np.array(axis) for axis in zip(*itertools.product(SAMPLES, SAMPLES), strict=True)]


def scalar_value(name: str, args: list[Any]) -> Array:
    match name, args:
        case "Num", [value]:
            return np.full(len(PAIRS[0]), value)
        case "Value", [_]:
            raise AssertionError("no indices here")
        case "Read", [_, _, fill]:
            # Two tensors that differ in their fill stand for the two operands.
            return PAIRS[int(fill)]
        case "Call", [fn, parts]:
            return np.asarray(FUNCTIONS[fn].value(*parts))
        case "Prod", [parts]:
            return np.asarray(np.prod(parts, axis=0))
    (parts,) = args
    return np.asarray(np.sum(parts, axis=0))


X = ("Input", "x", [], "float32")


@st.composite
def scalar_terms(draw: st.DrawFn, depth: int = 3) -> Any:
    kinds = ["read", "number", "relu", "abs", "max", "min", "same", "neg", "root"]
    kind = draw(st.sampled_from(kinds))
    if depth == 0 or kind in ("read", "number"):
        if kind == "number":
            return ("Num", draw(st.sampled_from([0.0, 0.0, -1.0, 2.0])))
        return ("Read", X, [], float(draw(st.integers(0, 1))))
    one = draw(scalar_terms(depth - 1))
    if kind in ("relu", "abs"):
        return ("Call", kind, [one])
    if kind == "root":
        return ("Call", "reciprocal", [("Call", "sqrt", [one])])
    if kind == "neg":
        return ("Prod", [("Num", -1.0), one])
    two = one if kind == "same" else draw(scalar_terms(depth - 1))
    return ("Call", "min" if kind == "min" else "max", [one, two])


SCALAR_ONLY = load_rules(["schema.egg", "shape.egg", "scalar.egg"])


@pytest.mark.rotating
def test_all_members_of_a_scalar_class_agree() -> None:
    total: Counter[str] = Counter()

    @settings(max_examples=times(3))
    @given(st.lists(scalar_terms(), min_size=1, max_size=4))
    def check(terms: list[Any]) -> None:
        engine, counts = closed(SCALAR_ONLY, "scalar", terms)
        total.update(counts)
        with np.errstate(all="ignore"), closing(engine):
            assert_one_value_a_class(engine, "Scalar", scalar_value)

    check()
    # Positions that are compared are not drawn; whole programs judge this one (one-hot rows).
    reading = {"convert-of-converted-equality"}
    assert all(total[rule.name] for rule in SCALAR if rule.name not in reading), total


def test_the_checker_of_classes_sees_a_wrong_law() -> None:
    """The planted fault: egglog's own division truncates, so this is wrong below zero."""
    wrong = """\
;; Status validated
;; (x - 3) // m = x // m, wrong
(rewrite (IDiv (IAdd x (INum -3)) m) (IDiv x m) :ruleset index :name "div-wrong")
"""
    rules = load_text(wrong, after=["schema.egg", "index.egg"])
    term = ("IDiv", ("IAdd", ("It", 1, 4), ("INum", -3)), 2)
    engine, counts = closed(rules, "index", [("Value", term)])
    assert counts["div-wrong"] == 1
    with pytest.raises(AssertionError):
        assert_one_value_a_class(engine, "Idx", index_value)
