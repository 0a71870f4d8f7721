"""Routes: plans without their sizes, by which the program gets the same kernels for other sizes.

    Matmul([32, 512], [512, 64]) by oneDNN   ->   Matmul([48, 512], [512, 64]) by oneDNN

A search for 48 rows would mostly find the plan that was found for 32 rows. So nothing is searched
for 48 rows. The rules that fired for 32 make the e-graph for 48, which shows that the equalities
hold for these sizes, too; and from its members the kernels are selected that the plan for 32 had,
as far as sizes don't matter.

A route can't make a program wrong: all kernels compute members of the e-graph of the new sizes, and
the program is checked against the original as always. Not here: when a route is followed
(``searching.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from eqsynth.egraph.graph import EGraph
from eqsynth.errors import ExtractionError
from eqsynth.extract.candidates import candidates, copies_by
from eqsynth.extract.cost import CostModel
from eqsynth.extract.kernel import Backend, Kernel, Layout
from eqsynth.extract.plan import Plan
from eqsynth.extract.regions import on_engines
from eqsynth.extract.search import Extraction, OnEngine
from eqsynth.extract.select import Selection
from eqsynth.ir.index import Atom, Index, It
from eqsynth.ir.operators import Attr
from eqsynth.ir.scalar import Call, Cast, Evaluation, Prod, Read, Scalar, Sum, Value, digest_of
from eqsynth.ir.tensor import Op, Region, Scope, Tensor, args_of, topological

_OTHER = 1.5
"""A kernel of the plan with another schedule is estimated to take this many times as long as with
the plan's schedule, which was measured to be the best."""


@dataclass(frozen=True)
class Trait:
    """The properties of a kernel that don't depend on sizes: the implementation, and the form of
    its term.

    Attributes:
        inputs: the layouts of the arguments, and whether each is constant, sorted: the order of
            operands depends on their digests, and so on sizes.
    """

    form: bytes
    implementation: str
    inputs: tuple[tuple[Layout, bool], ...]
    output: Layout

    @classmethod
    @lru_cache(maxsize=1 << 14)
    def of(cls, kernel: Kernel) -> Trait:
        inputs = tuple(sorted(zip(kernel.inputs, kernel.constants, strict=True)))
        return cls(form_of(kernel.term), kernel.implementation, inputs, kernel.output)


@dataclass(frozen=True)
class Route:
    """A plan without its sizes.

    Attributes:
        ratios: the times of the plan's kernels over their rooflines.
        schedules: the schedules of these kernels, as text.
        rules: the names of the rules that fired in the search.
        regions: the parts of the plan that run on engines.
    """

    ratios: Mapping[Trait, float]
    schedules: Mapping[Trait, frozenset[str]]
    rules: frozenset[str]
    regions: tuple[OnEngine, ...] = ()

    @classmethod
    def of(cls, own: Extraction, found: Extraction, costs: CostModel, graph: EGraph) -> Route:
        """Return the route of the plans that were extracted from an e-graph.

        Args:
            own: the plan of eqsynth's own kernels.
            found: the plan with regions on engines.
        """
        ratios: dict[Trait, float] = {}
        schedules: dict[Trait, frozenset[str]] = {}
        for kernel in own.plan.kernels():
            trait = Trait.of(kernel)
            ratio = costs.time_s(kernel) / max(costs.roofline_s(kernel), 1e-9)
            ratios[trait] = min(ratio, ratios.get(trait, ratio))
            schedules[trait] = schedules.get(trait, frozenset()) | {str(kernel.schedule)}
        fired = frozenset(name for name, count in graph.matches.items() if count)
        return cls(ratios, schedules, fired, found.regions)


@dataclass(frozen=True)
class _Costs:
    """The costs of the kernels that a route has; other kernels cost infinitely much."""

    route: Route
    costs: CostModel

    def __call__(self, kernel: Kernel) -> float:
        if self._free(kernel) or (self.known(kernel) and self.costs.measured(kernel)):
            return self.costs(kernel)
        if not self.known(kernel):
            return float("inf")
        if self.costs.objective == "flops":
            return self.costs(kernel)
        trait = Trait.of(kernel)
        least_s = self.route.ratios[trait] * self.costs.roofline_s(kernel)
        same = str(kernel.schedule) in self.route.schedules[trait]
        return least_s if same else _OTHER * least_s

    def _free(self, kernel: Kernel) -> bool:
        """Whether a kernel is allowed though the route lacks it: views, copies into another layout,
        which may be needed in other places, and opaque operators."""
        return kernel.implementation == "torch.view" or _is_copy(kernel) or kernel.opaque

    def known(self, kernel: Kernel) -> bool:
        """Whether the route has a kernel with the same properties."""
        return Trait.of(kernel) in self.route.ratios


def follow(
    route: Route,
    graph: EGraph,
    backends: Sequence[Backend],
    engines: Sequence[Backend],
    costs: CostModel,
    limit_bytes: float,
) -> tuple[Extraction, Extraction] | None:
    """Return the plan of eqsynth's own kernels, and the plan with regions on engines, that a route
    leads to in an e-graph of other sizes. Return None if the route's kernels can't compute an
    output, or if the plan is split into other parts than those that ran on engines."""
    found = candidates(graph, backends, limit_bytes=limit_bytes)
    kernels = {c.kernel for options in found.values() for c in options}
    priced = _Costs(route, costs)
    costs.load([kernel for kernel in kernels if priced.known(kernel)])
    try:
        plan = Selection(graph, found, copies=copies_by(backends)).one_by_one(priced)
    except ExtractionError:
        return None
    if not plan.cost_s < float("inf"):
        return None
    own = Extraction(plan, 1, 0, _estimated(plan, costs), len(kernels))
    joined = on_engines(graph, own, route.regions, engines)
    return None if joined is None else (own, joined)


def _estimated(plan: Plan, costs: CostModel) -> int:
    return sum(not costs.measured(kernel) for kernel in plan.kernels())


def _is_copy(kernel: Kernel) -> bool:
    term = kernel.term
    return isinstance(term, Op) and term.name == "Reshape" and term.shape == term.args[0].shape


# ---- forms ------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 14)
def form_of(term: Tensor) -> bytes:
    """A digest that is equal for terms that differ only in extents, in numbers (which may come from
    extents), or in orders that depend on extents: of operands, and of a scope's axes."""
    args = sorted((len(arg.shape), arg.dtype) for arg in args_of(term))
    if isinstance(term, Op):
        return digest_of("Op", term.name, [_attr(attr) for attr in term.attrs], args, term.dtype)
    if isinstance(term, Region):
        parts = sorted(form_of(part) for part in topological(term.outputs))
        return digest_of("Region", parts, args)
    if not isinstance(term, Scope):
        return digest_of(type(term).__name__, term.dtype, len(term.shape))
    axes = len(term.traversal)
    body = _Forms(term.body, axes).value(term.body)
    return digest_of("Scope", axes, len(term.reduction), term.reducer, args, body)


def _attr(attr: Attr) -> object:
    """An attribute without its numbers, which may be extents; strings and flags are kept."""
    if isinstance(attr, tuple):
        return [_attr(part) for part in attr]
    return type(attr).__name__ if isinstance(attr, int | float) else attr


class _Forms(Evaluation[bytes]):
    """The forms of scalars, computed bottom up.

    Args:
        axes: the number of traversal iterators; the iterators after them reduce.
    """

    def __init__(self, body: Scalar, axes: int) -> None:
        super().__init__(body)
        self.axes = axes

    def computed(self, scalar: Scalar) -> bytes:
        match scalar:
            case Read(tensor=tensor, index=index):
                places = sorted((self._index(part) for part in index), key=repr)
                return digest_of("Read", tensor.dtype, places)
            case Prod(factors=parts) | Sum(terms=parts):
                kinds = sorted(self.value(part) for part in parts)
                return digest_of(type(scalar).__name__, *kinds)
            case Call(fn=name, args=args):
                return digest_of("Call", name, *(self.value(arg) for arg in args))
            case Cast(dtype=dtype, arg=arg):
                return digest_of("Cast", dtype, self.value(arg))
            case Value(index=index):
                return digest_of("Value", self._index(index))
            case _:
                return digest_of("Num")

    def _index(self, index: Index) -> list[object]:
        return sorted((self._atom(atom) for atom, _ in index.terms), key=repr)

    def _atom(self, atom: Atom) -> object:
        if isinstance(atom, It):
            return atom.slot < self.axes
        return type(atom).__name__, self._index(atom.value)
