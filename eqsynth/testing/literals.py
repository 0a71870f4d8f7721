"""The numbers and dtypes in a rule's own text. A fault may show at these only.

Random samples would seldom contain them. A rule with a ``5`` in its text is sampled with 4, 5, 6
and 10 as extents, steps, axes, amounts and data; a rule with ``3.7`` and ``3.8`` with these, with
3.75 between them, and with 4.7.
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
# Numbers that are always among the samples, and so aren't literals of a rule.
_COMMON = frozenset((-2, -1, 0, 1, 2, 3))
_NONE: Mapping[str, Definition] = {}
_LARGEST_EXTENT = 200  # half of the elements that a tensor of a sample may have (``world.py``)
_LARGEST_NUMBER = 10**6
_LARGEST_REAL = (2 - 2.0**-23) * 2.0**127  # of float32


@dataclass(frozen=True)
class Literals:
    """The literals in the text of a rule, and numbers near them.

    Attributes:
        integers: for steps, axes and amounts: each integer n, n + 1, n - 1 and 2 * n.
        reals: for constants and data: each number, neighbours as for integers, the middle of two
            neighbouring numbers, and the negatives of all of these; float32's largest number for
            what is larger.
        dtypes: names of dtypes.
        infinities: ``inf`` and ``-inf``, if a rewrite names them; they are used as data.
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
    """The values of arithmetic over literals alone: `(* 37.0 41.0)` -> 1517."""
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
    """The literals of a rule, from its pattern, conditions, both sides, and comprehensions.

    Args:
        definitions: operators that rule files define. For those that occur in the rule, the
            literals of their definitions are included.
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
    reals = [max(-_LARGEST_REAL, min(r, _LARGEST_REAL)) for r in (*reals, *(-r for r in reals))]
    dtypes = tuple(dict.fromkeys(word for word in _WORD.findall(text) if word in DTYPES))
    # Only rewrites get infinities: laws are sampled on products, of finite data.
    of_rule = _INFINITY.findall(text) if rule.kind == "rewrite" else ()
    infinities = tuple(dict.fromkeys(map(float, of_rule)))
    return Literals(tuple(integers), tuple(dict.fromkeys(reals)), dtypes, infinities)
