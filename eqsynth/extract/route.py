"""Routes: plans without their sizes, by which a program of other sizes gets the same kernels.

What a search finds for 32 rows is mostly what it would find for 48. So for 48 rows nothing is
searched: the rules that fired for 32 make the e-graph anew, which shows that the plan's equalities
hold there, too, and of its members those are taken that the plan had, as far as sizes don't count.

    Matmul([32, 512], [512, 64]) by oneDNN   ->   Matmul([48, 512], [512, 64]) by oneDNN

A route only proposes: what is taken stands in the e-graph of the new sizes, and the program is held
against the original as every other. Not here: when a route is followed (``pipeline.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from eqsynth.egraph.graph import EGraph
from eqsynth.errors import ExtractionError
from eqsynth.extract.candidates import candidates
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
"""Times what a kernel with a schedule of the plan is taken to need, where the schedule is another:
the plan's was measured to be the best."""


@dataclass(frozen=True)
class Trait:
    """What a kernel is, whatever its sizes: the same implementation of the same form of a term.

    Attributes:
        inputs: layouts, and whether they are constant, in no order: operands are ordered by what
            they read, and so by its sizes.
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
        ratios: what the plan's kernels took over their rooflines.
        schedules: texts of the schedules that they had.
        rules: those that fired in the search.
        regions: parts of the plan that run on engines.
    """

    ratios: Mapping[Trait, float]
    schedules: Mapping[Trait, frozenset[str]]
    rules: frozenset[str]
    regions: tuple[OnEngine, ...] = ()

    @classmethod
    def of(cls, own: Extraction, found: Extraction, costs: CostModel, graph: EGraph) -> Route:
        """The route of what was extracted from an e-graph.

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
    """What kernels cost that a route has; others are out."""

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
        """Views, and copies into another layout: other kernels may need them anywhere."""
        return kernel.implementation == "torch.view" or _is_copy(kernel) or kernel.opaque

    def known(self, kernel: Kernel) -> bool:
        """Whether the plan had such a kernel."""
        return Trait.of(kernel) in self.route.ratios


def follow(
    route: Route,
    graph: EGraph,
    backends: Sequence[Backend],
    engines: Sequence[Backend],
    costs: CostModel,
    limit_bytes: float,
) -> tuple[Extraction, Extraction] | None:
    """The plan of eqsynth's own kernels, and the one with regions on engines, that a route leads
    to in an e-graph of other sizes; None where it leads nowhere: an output can't be computed by its
    kernels, or the plan falls into other parts than those that ran on engines."""
    found = candidates(graph, backends, limit_bytes=limit_bytes)
    kernels = {c.kernel for options in found.values() for c in options}
    priced = _Costs(route, costs)
    costs.load([kernel for kernel in kernels if priced.known(kernel)])
    try:
        plan = Selection(graph, found).one_by_one(priced)
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
    """Equal for terms that differ in extents, in numbers that may come from extents, and in orders
    that extents may decide: of operands, and of the axes of a scope."""
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
    """Numbers may be extents; texts and flags aren't."""
    if isinstance(attr, tuple):
        return [_attr(part) for part in attr]
    return type(attr).__name__ if isinstance(attr, int | float) else attr


class _Forms(Evaluation[bytes]):
    """Forms of scalars, bottom up.

    Args:
        axes: of the traversal; the iterators after them reduce.
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
