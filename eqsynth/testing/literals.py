"""The numbers and dtypes that a rule's own text names: where it may go wrong, and no sample is.

A rule that says ``5`` somewhere is sampled with 4, 5, 6 and 10 as extents, steps, axes, amounts and
data; one that says ``3.7`` and ``3.8`` with these, with 3.75 between them and with 4.7.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from eqsynth.ir.types import DTYPES
from eqsynth.rules import Rule
from eqsynth.rules.definitions import Definition
from eqsynth.rules.tree import Tree, is_call
from eqsynth.rules.values import Unknown, evaluate

_NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")
_INFINITY = re.compile(r"(?<![\w.-])-?inf(?![\w.-])")
_WORD = re.compile(r'"(\w+)"')
# What is drawn anyway: no rule is about these alone.
_COMMON = frozenset((-2, -1, 0, 1, 2, 3))
_NONE: Mapping[str, Definition] = {}
_LARGEST_EXTENT = 40
_LARGEST_NUMBER = 10**6


@dataclass(frozen=True)
class Literals:
    """What the text of a rule names, and what lies next to it.

    Attributes:
        integers: for steps, axes, amounts: each one, one more and one less, twice as much.
        reals: for constants and data: these, their negatives, and the middle between two.
        dtypes: by name.
        infinities: among the data of a rewrite that treats them.
    """

    integers: tuple[int, ...] = ()
    reals: tuple[float, ...] = ()
    dtypes: tuple[str, ...] = ()
    infinities: tuple[float, ...] = ()

    @property
    def extents(self) -> tuple[int, ...]:
        """The integers that an axis of a sample may have."""
        return tuple(n for n in self.integers if 1 < n <= _LARGEST_EXTENT)


def _computed(tree: Tree) -> Iterator[float]:
    """What arithmetic over literals alone gives: 1517 of `(* 37.0 41.0)`."""
    if not is_call(tree):
        return
    try:
        value = evaluate(tree, {})
    except (Unknown, ArithmeticError, IndexError):
        for part in tree[1:]:
            yield from _computed(part)
        return
    if isinstance(value, int | float) and math.isfinite(value):
        yield float(value)


def literals_of(rule: Rule, definitions: Mapping[str, Definition] = _NONE) -> Literals:
    """The literals of a rule: of its pattern, its conditions, both sides, and comprehensions.

    Args:
        definitions: operators of rule files; of those that the rule is about, the literals count.
    """
    text = "\n".join((*rule.program, rule.scopes.text if rule.scopes else ""))
    text += "\n".join(
        repr((operator.cases, operator.shapes)).replace("'", '"')
        for name, operator in definitions.items() if re.search(rf"\({name}[ )]", text)
    )  # fmt: skip
    numbers = {float(number) for number in _NUMBER.findall(text)}
    numbers |= {value for tree in (*rule.body, *(rule.equality or ())) for value in _computed(tree)}
    named = sorted(numbers - _COMMON)
    whole = [int(v) for v in named if v.is_integer() and abs(v) <= _LARGEST_NUMBER]
    integers = dict.fromkeys(n + d for n in whole for d in (0, 1, -1, n))
    reals = [v + d for v in named for d in (0.0, 1.0, -1.0, v)]
    reals += [(a + b) / 2 for a, b in zip(named, named[1:], strict=False)]
    reals = [r for r in dict.fromkeys((*reals, *(-r for r in reals))) if abs(r) < 1e38]
    dtypes = tuple(dict.fromkeys(word for word in _WORD.findall(text) if word in DTYPES))
    # Laws are asked about products, of what is finite.
    of_rule = _INFINITY.findall(text) if rule.kind == "rewrite" else ()
    infinities = tuple(dict.fromkeys(map(float, of_rule)))
    return Literals(tuple(integers), tuple(reals), dtypes, infinities)
