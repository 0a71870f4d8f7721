"""The table of an enumeration's terms: each is an operator applied to earlier terms, by number.

A term with the value of an earlier term is never an argument; the earlier term is used instead. So
an equality of ``x`` isn't found again for ``transpose(transpose(x))``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from eqsynth.generate.primitives import Primitive, World
from eqsynth.ir.tensor import Input, Op, Region, Scope, Tensor, topological
from eqsynth.ir.types import TensorType

_POLYNOMIALS: Final = frozenset({
    "Add", "AvgPool2d", "Concat", "Conv2d", "Full", "Matmul", "Mul", "Pad", "Permute", "Slice",
})  # fmt: skip


@dataclass(frozen=True)
class Template:
    """One result of a primitive for arguments of given types: a term over the inputs "0", "1", …

    Attributes:
        index: the number of the primitive in its world.
        output: the number of the result among the primitive's results.
    """

    index: int
    output: int
    term: Tensor

    @cached_property
    def compares(self) -> bool:
        """Whether the term contains an operator that isn't known to be a polynomial."""
        made = (part for part in topological([self.term]) if isinstance(part, Op))
        return any(op.name not in _POLYNOMIALS for op in made)

    def on(self, args: Sequence[Tensor]) -> Tensor:
        """Return the term for these arguments."""
        return _on(self.term, {str(n): arg for n, arg in enumerate(args)}, {})


def _on(term: Tensor, args: Mapping[str, Tensor], made: dict[Tensor, Tensor]) -> Tensor:
    if isinstance(term, Input):
        return args[term.name]
    assert not isinstance(term, Scope | Region)
    if term not in made:
        made[term] = term
        if isinstance(term, Op) and term.args:
            inner = tuple(_on(arg, args, made) for arg in term.args)
            made[term] = Op(term.name, inner, term.attrs, "", term.defined)
    return made[term]


Row = tuple[int, tuple[int, ...]]
"""A template and the numbers of its arguments."""


@dataclass
class Table:
    """The terms of a world by number, leaves first.

    Attributes:
        rows: the template and arguments of each term; the name of a leaf.
        closure: the operator applications that each term needs, including its own. The two halves
            of a split are one application.
        levels: for each number of operators, the numbers of the terms that need so many.
    """

    world: World
    templates: list[Template] = field(default_factory=list)
    rows: list[Row | str] = field(default_factory=list)
    types: list[TensorType] = field(default_factory=list)
    closure: list[frozenset[int]] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    levels: list[list[int]] = field(default_factory=lambda: [[]])
    commutative: set[int] = field(default_factory=set)
    _fitting: dict[tuple[TensorType, ...], tuple[tuple[int, ...], ...]] = field(
        default_factory=dict
    )
    _applications: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict)

    # Fingerprints on the first assignments, and, for some terms, on the further assignments.
    plain: list[int] = field(default_factory=list)
    further: dict[int, int] = field(default_factory=dict)
    compares: list[bool] = field(default_factory=list)

    @cached_property
    def leaves(self) -> tuple[Tensor, ...]:
        return tuple(self.world.leaves.values())

    def add_leaf(self, name: str, fingerprint: int) -> int:
        self.levels[0].append(len(self.rows))
        self.rows.append(name)
        self.types.append(self.world.leaves[name].type)
        self.closure.append(frozenset())
        self.hashes.append(fingerprint)
        self.plain.append(fingerprint)
        self.compares.append(False)
        return len(self.rows) - 1

    def compares_in(self, row: Row) -> bool:
        """Whether a term's value may depend on a comparison of two numbers."""
        return self.templates[row[0]].compares or any(self.compares[arg] for arg in row[1])

    def add(self, row: Row, fingerprint: int, plain: int) -> int:
        """Add a new term and return its number.

        Args:
            fingerprint: the term's fingerprint, which no other term of the table has.
            plain: the term's fingerprint on the first assignments.
        """
        needed = self.needed(row)
        while len(self.levels) <= len(needed):
            self.levels.append([])
        self.levels[len(needed)].append(len(self.rows))
        self.rows.append(row)
        self.types.append(self.templates[row[0]].term.type)
        self.closure.append(needed)
        self.hashes.append(fingerprint)
        self.plain.append(plain)
        self.compares.append(self.compares_in(row))
        return len(self.rows) - 1

    def needed(self, row: Row) -> frozenset[int]:
        """Return the operator applications that a term needs."""
        template, args = row
        own = self._applications.setdefault(
            (self.templates[template].index, args), len(self._applications)
        )
        return frozenset((own,)).union(*(self.closure[arg] for arg in args))

    def fitting(self, types: tuple[TensorType, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the templates for arguments of these types, one group for each primitive."""
        found = self._fitting.get(types)
        if found is None:
            made = []
            inputs = tuple(Input(str(n), kind) for n, kind in enumerate(types))
            for index, primitive in enumerate(self.world.primitives):
                if primitive.arity != len(types):
                    continue
                own = []
                for output, term in enumerate(primitive.results(inputs)):
                    own.append(len(self.templates))
                    self.templates.append(Template(index, output, term))
                made.append(tuple(own))
            found = self._fitting[types] = tuple(filter(None, made))
        return found

    def primitive(self, template: int) -> Primitive:
        return self.world.primitives[self.templates[template].index]

    def term(self, number: int | Row, made: dict[int, Tensor] | None = None) -> Tensor:
        """Return a term of the IR. ``made`` maps numbers to terms to use for them, and the terms
        built here are added to it."""
        made = {} if made is None else made
        if isinstance(number, int) and number in made:
            return made[number]
        row = self.rows[number] if isinstance(number, int) else number
        if isinstance(row, str):
            found = self.world.leaves[row]
        else:
            found = self.templates[row[0]].on([self.term(arg, made) for arg in row[1]])
        if isinstance(number, int):
            made[number] = found
        return found

    def text(self, number: int | Row, names: Mapping[int, str] | None = None) -> str:
        """Return a term as text, with TASO's names: ``matmul(x0, transpose(x1))``."""
        row = self.rows[number] if isinstance(number, int) else number
        if isinstance(number, int) and names and number in names:
            return names[number]
        if isinstance(row, str):
            return row
        template = self.templates[row[0]]
        name = self.primitive(row[0]).name
        if name.startswith("split"):
            name = f"split{template.output}[{name.removeprefix('split')}]"
        return f"{name}({', '.join(self.text(arg, names) for arg in row[1])})"
