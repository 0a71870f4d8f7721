"""Compare choosing substitutions and layouts jointly with choosing them separately [TASO §7.5].

    python -m benchmarks.joint                      bert128, about five minutes
    python -m benchmarks.joint --model bert64 --limit 60 --json FILE
    python -m benchmarks.joint --reduced            at a small size, as in tests

The experiment is that of [TASO Fig. 12]. Four plans are extracted from one e-graph, by one cost
model:

    substitutions   every member of the e-graph, by kernels that take and give tensors in C order
    layouts         the operators as they are, by every kernel
    in sequence     the members that the first plan has, by every kernel
    joint           every member, by every kernel

They are compared with the original operators in C order, and with torch eager. Printed for each are
the sum of its kernels' times, by which the plan was chosen, and the time of its program, measured
in turns. A transformation of weights inside a kernel (oneDNN packs them) isn't a layout here.

For the product of a 64 x 1024 and a 1024 x 4096 matrix (Fig. 5, where ``(Bᵀ Aᵀ)ᵀ`` is faster than
``A B``), the libraries' times are printed for all layouts of operands and result that a kernel has.
In the IR both forms are the same scope; ``(Bᵀ Aᵀ)ᵀ`` is a kernel whose result is in column order.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.about import about
from benchmarks.searches import Planner, agrees, grown, milliseconds, planner
from benchmarks.workloads import WORKLOADS
from eqsynth.egraph.graph import EGraph
from eqsynth.extract.kernel import Backend, Fusing, Kernel, Layout, Runner, contiguous
from eqsynth.extract.layout import normalized
from eqsynth.extract.plan import Plan, PlanStep
from eqsynth.extract.timing import time_interleaved
from eqsynth.ir.tensor import ClassRef, Input, Op, Region, Tensor, args_of
from eqsynth.ir.types import TensorType
from eqsynth.numerics import rules_of

LIMIT_S: Final = 45.0
PRODUCT: Final = (64, 1024, 4096)


@dataclass
class Narrowed:
    """A backend that offers only some kernels of another one.

    Attributes:
        in_order: whether only kernels with all tensors in C order are offered.
        terms: the terms whose kernels are offered; None for all.
    """

    backend: Backend
    in_order: bool = False
    terms: frozenset[Tensor] | None = None

    def __post_init__(self) -> None:
        self.name = self.backend.name

    def kernels(self, term: Tensor, constants: tuple[bool, ...]) -> Iterator[Kernel]:
        return self._of(term, self.backend.kernels(term, constants))

    def fused(self, region: Region, constants: tuple[bool, ...]) -> Iterator[Kernel]:
        if isinstance(self.backend, Fusing):
            yield from self._of(region, self.backend.fused(region, constants))

    def _of(self, term: Tensor, offered: Iterable[Kernel]) -> Iterator[Kernel]:
        if self.terms is None or term in self.terms:
            yield from (k for k in offered if not self.in_order or is_in_order(k))

    def build(
        self, kernels: Sequence[tuple[Kernel, Mapping[int, torch.Tensor]]]
    ) -> list[Runner | None]:
        return self.backend.build(kernels)


def is_in_order(kernel: Kernel) -> bool:
    """Whether a kernel's arguments and results are all in C order."""
    tensors = [*args_of(kernel.term), kernel.term]
    return all(
        normalized(layout, tensor.shape) == contiguous(len(layout))
        for tensor, layout in zip(tensors, (*kernel.inputs, kernel.output), strict=True)
    )


def as_it_is(graph: EGraph) -> EGraph:
    """The e-graph of the original operators alone."""
    return _only(graph, graph.original)


def of_plan(graph: EGraph, plan: Plan) -> EGraph:
    """The e-graph of the members that a plan has chosen, with those of its regions' classes."""
    chosen: dict[ClassRef, list[Tensor]] = {}
    for step in plan.steps:
        ref = step.result[0]
        if isinstance(step.member, Region):
            chosen[ref] = [*graph.classes[ref]]
        elif step.member in graph.classes[ref]:
            chosen.setdefault(ref, []).append(step.member)
    return _only(graph, {**graph.classes, **chosen})


def _only(graph: EGraph, members: Mapping[ClassRef, Sequence[Tensor]]) -> EGraph:
    """The e-graph with these members only. Members of constant classes stay, since they cost
    nothing."""
    classes = {
        ref: own if ref.constant else tuple(m for m in own if m in members.get(ref, ()))
        for ref, own in graph.classes.items()
    }
    return replace(graph, classes=classes, original=classes)


def plans(search: Planner, limit_s: float) -> dict[str, Plan]:
    """Strategy -> its plan, each extracted within the time limit."""
    graph, every = search.of.graph, search.backends
    ordered: list[Backend] = [Narrowed(backend, in_order=True) for backend in every]
    first = search.plan(limit_s, graph, ordered).plan
    terms = frozenset(step.kernel.term for step in first.steps)
    same: list[Backend] = [Narrowed(backend, terms=terms) for backend in every]
    return {
        "as written": search.plan(limit_s, as_it_is(graph), ordered).plan,
        "substitutions": first,
        "layouts": search.plan(limit_s, as_it_is(graph)).plan,
        "in sequence": search.plan(limit_s, of_plan(graph, first), same).plan,
        "joint": search.plan(limit_s, graph).plan,
    }


def compared(name: str, reduced: bool, limit_s: float) -> dict[str, Any]:
    """Compare the plans and programs of all strategies for a model.

    Raises:
        AssertionError: a program's result isn't the model's.
    """
    workload = WORKLOADS[name]
    module, inputs = workload.reduced() if reduced else workload.build()
    own = grown(module, inputs, rules_of((), "real", where="benchmarks.joint"), limit_s)
    with planner(own) as search:
        found = plans(search, limit_s)
        programs = {way: search.program(plan) for way, plan in found.items()}
        products = [*layouts_of_product(search, PRODUCT, limit_s)] if not reduced else []
    for way, program in programs.items():
        assert agrees(program, module, inputs), f"{name}, {way}: another result"
    calls = {"eager": module, **programs}
    with torch.no_grad():
        times = time_interleaved(
            {way: lambda call=call: call(*inputs) for way, call in calls.items()},  # type: ignore[misc]
            limit_s=limit_s,
        )
    rows = [{
        "strategy": way,
        "kernels_ms": milliseconds(found[way].cost_s) if way in found else None,
        "program_ms": milliseconds(timing.median_s),
        "iqr_ms": milliseconds(timing.q3_s - timing.q1_s),
        "steps": len(found[way].steps) if way in found else None,
        "copies": sum(map(is_copy, found[way].steps)) if way in found else None,
    } for way, timing in times.items()]  # fmt: skip
    return {"model": name, "stop": own.stop, "saturate_s": round(own.seconds, 2), "rows": rows,
            "products": products}  # fmt: skip


def is_copy(step: PlanStep) -> bool:
    """Whether a step only copies a tensor into another layout."""
    return [ref for ref, _ in step.args] == [step.result[0]]


def layouts_of_product(
    search: Planner, sizes: tuple[int, int, int], limit_s: float
) -> Iterator[dict[str, Any]]:
    """The times of a matrix product in all layouts that libraries support, by the fastest kernel of
    each."""
    m, k, n = sizes
    types = (TensorType((m, k), "float32"), TensorType((k, n), "float32"))
    term = Op("Matmul", tuple(Input(str(at), type_) for at, type_ in enumerate(types)))
    offered = [k for b in search.backends for k in b.kernels(term, (False, False))]
    library = [kernel for kernel in offered if not kernel.generated]
    times = search.measurer(library, time.monotonic() + limit_s)
    best: dict[tuple[Layout, ...], tuple[float, str]] = {}
    for kernel, timing in times.items():
        at, took_s = (*kernel.inputs, kernel.output), timing.median_s if timing else math.inf
        best[at] = min(best.get(at, (math.inf, "")), (took_s, kernel.implementation))
    for at, (took_s, implementation) in sorted(best.items(), key=lambda row: row[1]):
        yield {"layouts": [*map(_order, at)], "ms": milliseconds(took_s), "by": implementation}


def _order(layout: Layout) -> str:
    return "rows" if layout == contiguous(len(layout)) else "columns"


def table(result: dict[str, Any]) -> str:
    """The results of a model's strategies, and of the product's layouts, as text."""
    lines = [f"{result['model']}: {result['saturate_s']} s to saturate ({result['stop']})"]
    for row in result["rows"]:
        plan = "" if row["kernels_ms"] is None else (
            f", {row['kernels_ms']} ms by its kernels; {row['steps']} steps, "
            f"{row['copies']} of them copies")  # fmt: skip
        lines.append(f"  {row['strategy']}: {row['program_ms']} ms (iqr {row['iqr_ms']}){plan}")
    for row in result["products"]:
        a, b, c = row["layouts"]
        lines.append(f"  product of {a} and {b} into {c}: {row['ms']} ms by {row['by']}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=tuple(WORKLOADS), default="bert128")
    parser.add_argument("--reduced", action="store_true", help="at a size of tests")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of each search")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(argv)
    result = compared(asked.model, asked.reduced, asked.limit)
    print(table(result))
    if asked.json:
        text = json.dumps({**about(), "threads": torch.get_num_threads(), **result}, indent=2)
        asked.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
