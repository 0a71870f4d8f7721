"""The log of ``optimize``, under the name ``eqsynth.optimize``.

    logging.basicConfig(level=logging.INFO)

At ``INFO``, one line each: what was captured, the size of the e-graph, the plan, the times of the
races, and what was refused. At ``DEBUG`` also the steps of the plan, the rules that fired, and the
explanation, so that graphs of ``torch.compile`` are explained, too. Nothing is printed unless the
user sets up a handler. Not here: the report, which has all figures (``report.py``); the log of
``torch.compile`` (``compile_backend.py``).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from eqsynth.egraph.graph import EGraph
from eqsynth.errors import EqsynthError
from eqsynth.extract.search import Extraction
from eqsynth.frontend.captured import Captured
from eqsynth.ir.tensor import Op, Scope
from eqsynth.race import Race

if TYPE_CHECKING:
    from eqsynth.lower.program import CompiledProgram
    from eqsynth.report import Report

log = logging.getLogger("eqsynth.optimize")


def captured(found: Captured, report: Report) -> None:
    """Log the captured program: its operators, inputs, weights and FLOPs."""
    if not log.isEnabledFor(logging.INFO):
        return
    program = found.program
    count = sum(isinstance(term, Op | Scope) for term in program.terms())
    log.info(
        "captured %d operators over %d inputs and %d weights in %.1f s: %s FLOPs",
        count, len(program.inputs), len(found.weights), report.stages_s.get("capture", 0.0),
        f"{report.flops_before:,}",
    )  # fmt: skip
    if found.opaque:
        log.info("operators that eqsynth doesn't know: %s", ", ".join(sorted(found.opaque)))
    log.debug("%s", program)


def found(graph: EGraph, report: Report) -> None:
    """Log the e-graph and the rules that fired."""
    log.info(
        "found %d e-nodes in %d e-classes of %d segments (%d distinct, %d remembered); stopped: %s",
        graph.enodes, graph.eclasses, report.segments, report.distinct_segments,
        report.remembered_segments, graph.stop or "at its end",
    )  # fmt: skip
    for rule, count in sorted(graph.matches.items(), key=lambda item: -item[1]):
        log.debug("rule %s fired %d times", rule, count)
    for law, why in graph.faults.items():
        log.warning("law %s failed: %s", law, why)


def chosen(extraction: Extraction, report: Report) -> None:
    """Log the plan and its steps."""
    log.info(
        "chose %d steps of %d kernels in %d rounds, %d timed%s: %.3f ms expected",
        len(extraction.plan.steps), extraction.considered, extraction.rounds, extraction.timed,
        ", the plan remembered" if report.remembered_plan
        else ", as the plan of other sizes has it" if report.followed else "",
        extraction.plan.cost_s * 1e3,
    )  # fmt: skip
    for step in extraction.plan.steps:
        log.debug("%.3f ms by %s: %s", step.cost_s * 1e3, step.kernel.implementation,
                  step.kernel.term.label)  # fmt: skip


def not_followed() -> None:
    log.info("the plan of other sizes can't be followed at these: they are searched")


def timed(result: Race, kept: bool) -> None:
    log.info(
        "timed the original at %.3f ms and the program at %.3f ms: %s",
        result.before.median_s * 1e3, result.after.median_s * 1e3,
        "the original stays" if kept else "the program is used",
    )  # fmt: skip


def raced(result: Race) -> None:
    log.info(
        "timed the program of own kernels at %.3f ms, and with regions on engines at %.3f ms",
        result.before.median_s * 1e3, result.after.median_s * 1e3,
    )  # fmt: skip


def tuned(kernels: int, result: Race) -> None:
    log.info(
        "timed the program at %.3f ms, and with %d tuned kernels at %.3f ms",
        result.before.median_s * 1e3, kernels, result.after.median_s * 1e3,
    )  # fmt: skip


def beside(rival: Extraction, result: Race) -> None:
    engines = ", ".join(region.engine for region in rival.regions)
    log.info(
        "timed the program at %.3f ms, and the whole program on %s at %.3f ms",
        result.before.median_s * 1e3, engines, result.after.median_s * 1e3,
    )  # fmt: skip


def explained(program: CompiledProgram) -> None:
    """Log the explanation if ``DEBUG`` is on; it isn't computed otherwise, since it replays the
    search's log."""
    if not log.isEnabledFor(logging.DEBUG):
        return
    try:
        log.debug("%s", program.explain())
    except EqsynthError as error:
        log.debug("no explanation: %s", error)


def refused(what: str, why: BaseException | str) -> None:
    log.info("refused %s: %s", what, why)
