"""Check the dtypes of a rewrite: if the left side is well-typed, the right side has its dtype.

The dtype of an operator's result depends on the dtypes of its operands and not on their extents. So
it is enough to try each assignment of dtypes at one set of extents (those of a model of the rule's
facts), and to infer the dtypes of both sides with the operator table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from math import prod
from typing import Any, Final

import z3

from eqsynth.egraph.encode import decode_tensor
from eqsynth.errors import EqsynthError
from eqsynth.ir.operators import OPERATORS
from eqsynth.ir.tensor import Input, Op, Tensor, args_of, topological
from eqsynth.ir.types import DTYPES, TensorType, is_float
from eqsynth.rules.tree import Tree, Var, is_call
from eqsynth.rules.values import Unknown, evaluate
from eqsynth.verify.forms import Form, Unsaid
from eqsynth.verify.integers import value
from eqsynth.verify.values import Read
from eqsynth.verify.verdict import Left

# The most assignments of dtypes that are tried.
_MOST_DTYPES: Final = 1200
_KNOWN_DTYPES: Final = frozenset(DTYPES)
MIXED: Final = "mixed"
TRUTHS: Final = "truths"
TRUTHS_OF: Final = {kind: f"{TRUTHS} of {kind}" for kind in ("floats", "integers")}


def modes(form: Form, known: Mapping[str, Any], model: Any) -> frozenset[str]:
    """The kinds of dtypes with which the rule's left side is well-typed.

    ``floats``, ``integers``, ``bools``: all terms have one dtype, of this kind;
    ``mixed``: the terms have several dtypes, or a constant is infinite in a dtype without infinity;
    ``truths of floats``, ``truths of integers``: the result is a bool, and all numbers have one
        dtype;
    ``truths``: the numbers have several dtypes, and the result is a bool;
    ``views``: the rule has only views other than Cast and Concat, which compute nothing.

    Args:
        known: the values of the rule's variables at one rank.
        model: a model of Z3, which gives numbers for the extents in ``known``.

    Raises:
        Left: the right side has no dtype or a different one.
    """
    assert form.rule.equality is not None
    values = {name: _plain(x, model) for name, x in known.items()
              if form.sorts.get(name) not in ("Tensor", "Tensors")}  # fmt: skip
    texts = [n for n, x in values.items() if isinstance(x, Unsaid) and form.sorts[n] == "String"
             and n in form.kinds]  # fmt: skip
    open_texts = [n for n in texts if form.kinds[n] == "dtype"]
    if len(texts) != len(open_texts):
        raise Left("what a text says")
    plain = {n: 0.5 if isinstance(x, Unsaid) else x for n, x in values.items()
             if not (isinstance(x, Unsaid) and form.sorts[n] == "String")}  # fmt: skip
    leaves = {name: known[name] for name in form.leaves}
    lists = {name: [f"{name}.{n}" for n in range(len(x))] for name, x in known.items()
             if form.sorts.get(name) == "Tensors" and name in form.kinds}  # fmt: skip
    for name, parts in lists.items():
        leaves |= dict(zip(parts, known[name], strict=True))
    shapes = {name: _plain(x.extents, model) for name, x in leaves.items()}
    names = [*leaves, *open_texts]
    said = {fact[1][1].name: fact[2] for fact in form.facts if fact[0] == "=" and
            isinstance(fact[2], str) and is_call(fact[1]) and fact[1][0] == "dtype" and
            isinstance(fact[1][1], Var)}  # fmt: skip
    if not _KNOWN_DTYPES.issuperset(said.values()):
        raise Left("dtypes for which it matches: none were found")
    of = _alike(form, names)
    heads = [*dict.fromkeys(of.values())]
    options = [
        next(((said[name],) for name in names if name in said and of[name] == head), DTYPES)
        for head in heads
    ]
    if prod(map(len, options)) > _MOST_DTYPES:
        raise Left("more dtypes than are looked at")
    found: set[str] = set()
    for dtypes in product(*options):
        chosen = dict(zip(heads, dtypes, strict=True))
        given = {name: chosen[of[name]] for name in names}
        bound: dict[str, Any] = {**plain, **{n: given[n] for n in open_texts}}
        inputs = {n: Input(n, TensorType(shapes[n], given[n])) for n in leaves}
        bound |= {n: x for n, x in inputs.items() if n in form.leaves}
        bound |= {n: tuple(inputs[part] for part in parts) for n, parts in lists.items()}
        sides = _typed(form, bound)
        if sides is not None:
            found.add(MIXED if _has_no_value(sides) else _mode_of(sides))
    views = all(OPERATORS[h].kind == "view" and h not in ("Cast", "Concat")
                for h in form.heads if h in OPERATORS) and not form.computing  # fmt: skip
    if not found:
        raise Left("dtypes for which it matches: none were found")
    return frozenset(("views",)) if views else frozenset(found)


def _alike(form: Form, names: list[str]) -> dict[str, str]:
    """For each tensor, and each text that stands for a dtype, the first one that facts say has the
    same dtype: ``(= (dtype x) (dtype y)), (= d (dtype x))`` -> {x: x, y: x, d: x}."""
    of = {name: name for name in names}
    for fact in form.facts:
        if fact[0] != "=":
            continue
        named = [side[1] if is_call(side) and side[0] == "dtype" else side for side in fact[1:]]
        if not any(is_call(side) and side[0] == "dtype" for side in fact[1:]):
            continue
        one, two = (of.get(side.name) if isinstance(side, Var) else None for side in named)
        if one is not None and two is not None:
            of = {name: one if head == two else head for name, head in of.items()}
    return of


# Operator -> the number of its first operands that it uses as truth values.
_TRUTHS_OF_OPERATOR: Final = {"Where": 1, "LogicalNot": 1, "LogicalAnd": 2, "LogicalOr": 2}


def _computed_in(sides: tuple[Tensor, Tensor]) -> set[str]:
    """The dtypes in which the sides compute: those of all terms that aren't constant, and of the
    constants that such terms read. The ids of an embedding are only looked up, so their dtype
    doesn't count; nor does that of a bool that is used as a truth value, by ``where``, ``and``,
    ``or`` and ``not``: nothing converts it to a number. The inside of a constant isn't visited:
    there, only 0 and 1 are converted between dtypes (``operators.py``)."""
    found = {side.dtype for side in sides}
    entered, work = set[Tensor](), [side for side in sides if not side.constant]
    while work:
        term = work.pop()
        if term in entered:
            continue
        entered.add(term)
        looked_up = isinstance(term, Op) and term.name == "Embedding"
        operands = args_of(term)[:1] if looked_up else args_of(term)
        truths = _TRUTHS_OF_OPERATOR.get(term.name, 0) if isinstance(term, Op) else 0
        found |= {
            operand.dtype for n, operand in enumerate(operands)
            if n >= truths or operand.dtype != "bool"
        }  # fmt: skip
        work.extend(operand for operand in operands if not operand.constant)
    return found


def _has_no_value(sides: tuple[Tensor, Tensor]) -> bool:
    """Whether a constant is infinite although its dtype isn't a float."""
    return any(
        isinstance(t, Op)
        and t.name == "Full"
        and t.attrs[1] in (math.inf, -math.inf)
        and not is_float(t.dtype)
        for t in topological(sides)
    )


def _plain(x: Any, model: Any) -> Any:
    """The value of a variable in a model of Z3; a ``Read`` is an integer that fills a tensor."""
    if isinstance(x, tuple):
        return tuple(_plain(part, model) for part in x)
    if isinstance(x, Read):
        return float(value(model, x.index[0]))
    return value(model, x) if z3.is_expr(x) else x


def _mode_of(sides: tuple[Tensor, Tensor]) -> str:
    dtypes = _computed_in(sides)
    mode = _mode(dtypes)
    if mode == MIXED and sides[0].dtype == "bool":
        numbers = _mode(dtypes - {"bool"})
        return TRUTHS if numbers == MIXED else TRUTHS_OF[numbers]
    return mode


def _mode(dtypes: set[str]) -> str:
    if len(dtypes) > 1:
        return MIXED
    (dtype,) = dtypes
    return "floats" if is_float(dtype) else "bools" if dtype == "bool" else "integers"


def _typed(form: Form, bound: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Both sides at one assignment of dtypes; None if the rule doesn't match there.

    Raises:
        Left: the right side isn't well-typed, or has another dtype than the left side.
    """

    def build(head: str, args: list[Any]) -> Any:
        return decode_tensor(head, args, form.rows)

    assert form.rule.equality is not None
    bound = dict(bound)
    waiting = list(form.facts)
    try:
        for _ in range(len(waiting) + 1):
            rest = []
            for fact in waiting:
                try:
                    if not _true(fact, bound, build):
                        return None
                except Unknown:
                    rest.append(fact)
            waiting = rest
        left = evaluate(form.rule.equality[0], bound, build)
    except (EqsynthError, Unknown):
        return None
    try:
        right = evaluate(form.rule.equality[1], bound, build)
    except (EqsynthError, Unknown) as error:
        raise Left(f"the right side is typed where the left side is {left.type}: {error}") from None
    if left.dtype != right.dtype:
        raise Left(f"the sides have one dtype: {left.dtype} and {right.dtype}")
    return left, right


def _true(fact: Tree, bound: dict[str, Any], build: Any) -> bool:
    """Whether a fact about dtypes holds. A fact ``(= x tree)`` binds a variable ``x`` that is still
    unknown: ``bound`` gets an entry for it."""
    head, *args = fact
    if head == "=":
        for one, two in (args, args[::-1]):
            if isinstance(one, Var) and one.name not in bound:
                bound[one.name] = evaluate(two, bound, build)
                return True
        a, b = (evaluate(arg, bound, build) for arg in args)
        # Only dtypes are compared. Extents come from a model that satisfies the facts already. An
        # equality of two terms isn't checked, so more assignments of dtypes are tried than match.
        return a == b if isinstance(a, str) and isinstance(b, str) else True
    if head == "!=":
        a, b = (evaluate(arg, bound, build) for arg in args)
        return a != b if isinstance(a, str) else True
    return True
