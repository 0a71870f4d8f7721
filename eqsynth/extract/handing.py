"""Hand a span of a plan to an engine as one step, in one of two forms: the terms that were chosen,
or the terms of the original program.

    steps of conv, relu    ->    chosen:   Region of tiles, products, tiles, relu
                                 original: Region of conv, relu

Not here: which spans are handed to engines, and which of them are used (``regions.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.segments import inlined
from eqsynth.extract.candidates import unplaced
from eqsynth.extract.kernel import Backend, Kernel, contiguous
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.extract.spans import Span
from eqsynth.ir.tensor import ClassRef, Input, Op, Region, Scope, Tensor, args_of, over

CHOSEN, ORIGINAL = SIDES = (0, 1)
"""The two forms of a span: the terms that were chosen, and the terms of the original program."""

Try = tuple[Backend, int]
"""An engine, and the form of a span (``CHOSEN`` or ``ORIGINAL``) that it gets."""


def handed(graph: EGraph, plan: Plan, span: Span, tried: Try) -> Iterator[PlanStep]:
    """Yield the span as one step on an engine, for each kernel that the engine has for it; nothing
    if the engine can't run the span, or the span has no such form."""
    chosen: dict[ClassRef, Tensor] = {}
    for step in plan.steps[span.first : span.last]:
        if not isinstance(step.member, ClassRef):
            chosen.setdefault(step.result[0], step.member)
    given = {ref for ref, _ in plan.inputs.values()}
    given |= {ref for step in plan.steps[: span.first] for ref, _ in (step.result, *step.also)}
    roots = tuple(dict.fromkeys(ref for ref, _ in span.results))
    engine, side = tried
    first = {ref: members[0] for ref, members in graph.original.items() if members}
    region = _region(roots, (chosen, first)[side], given, graph)
    if region is None:
        return
    known = tuple(arg.constant for arg in region.args)
    for kernel in engine.kernels(unplaced(region), known):
        yield _step(region, kernel, roots)


def _region(
    roots: Sequence[ClassRef],
    members: Mapping[ClassRef, Tensor],
    given: set[ClassRef],
    graph: EGraph,
) -> Region | None:
    """The terms of the roots, down to given values and constants; None if a class on the way has no
    member in ``members``. A constant number is written into the terms, so that the engine knows its
    value: OpenVINO then compares x with 0 and not with an argument."""
    args: dict[ClassRef, Tensor] = {}
    terms: dict[Tensor, Tensor] = {}
    stack: list[tuple[ClassRef, bool]] = [(root, False) for root in reversed(roots)]
    open_: set[ClassRef] = set()
    while stack:
        ref, ready = stack.pop()
        if ref in terms:
            continue
        if ref.constant and (number := _number(graph, ref)) is not None:
            terms[ref] = number
            continue
        if ref.constant or ref in given:
            args[ref] = terms[ref] = Input(str(len(args)), ref.type)
            continue
        member = members.get(ref)
        if not isinstance(member, Op | Scope | Region) or (ref in open_ and not ready):
            return None
        if ready:
            if isinstance(member, Region):
                (terms[ref],) = inlined(member, [terms[arg] for arg in member.args])
            else:
                terms[ref] = over(member, terms)
            continue
        open_.add(ref)
        stack.append((ref, True))
        stack.extend(
            (arg, False)
            for arg in reversed(args_of(member))
            if isinstance(arg, ClassRef) and arg not in terms
        )
    outputs = tuple(terms[root] for root in roots)
    known = all(root in args or _number(graph, root) is not None for root in roots)
    return None if known else Region(outputs, tuple(args))


def _number(graph: EGraph, ref: ClassRef) -> Tensor | None:
    for member in graph.classes.get(ref, ()):
        if isinstance(member, Op) and member.name == "Full" and member.type.size == 1:
            return member
    return None


def _step(region: Region, kernel: Kernel, roots: Sequence[ClassRef]) -> PlanStep:
    """Return the step that runs a region by a kernel. All arguments and results are contiguous."""
    args = tuple(arg for arg in region.args if isinstance(arg, ClassRef))
    results = [(root, contiguous(len(root.shape))) for root in roots]
    return PlanStep(
        kernel,
        region,
        tuple((arg, contiguous(len(arg.shape))) for arg in args if not arg.constant),
        {n: arg for n, arg in enumerate(args) if arg.constant},
        results[0],
        0.0,
        tuple(results[1:]),
    )
