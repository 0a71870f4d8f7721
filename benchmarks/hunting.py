"""Run a batch of random programs in other engines, and compare the results with torch's.

A program is drawn and saturated, and gives up to three equal forms: as drawn, the form of fewest
FLOPs, and the form of least estimated time. Each form runs in each engine. Its result is compared
with torch's as the result of ``optimize`` is (``lower/check.py``): by elements, on nine kinds of
inputs. The allowed difference is found by moving torch's inputs by some roundings, and grows with
the length of sums; in doubtful cases torch in float64 decides. If torch's results of a form and of
the program as drawn differ, this is a fault of eqsynth and not of an engine.

Not here: which batches are run, how they are kept, and the report (``hunt.py``).
"""

from __future__ import annotations

import base64
import importlib
import math
import os
import pickle
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from typing import Any, Final

import torch
from hypothesis import strategies as st

from benchmarks.batches import Draws
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, Limits
from eqsynth.errors import EquivalenceError
from eqsynth.explain import planned_terms
from eqsynth.ir.data import sample_all
from eqsynth.ir.printing import render
from eqsynth.ir.program import Program, positions
from eqsynth.ir.tensor import Input, Op, Region, Scope, Tensor, Weight, over, topological
from eqsynth.ir.work import flops
from eqsynth.lower.check import Mismatch, check_equivalence
from eqsynth.lower.engines.table import ENGINES
from eqsynth.lower.engines.through_onnx import model_of
from eqsynth.lower.reruns import Plain, evaluate
from eqsynth.rules import RuleSet, load_rules
from eqsynth.serving import is_worker
from eqsynth.testing import strategies
from eqsynth.testing.search import OBJECTIVES, estimated_plan

Call = Callable[..., Any]
Compile = Callable[[Region], Call]
"""Compiles a region to a function of its arguments. Any error means that the engine refuses it."""

OURS: Final = "eqsynth"
"""The name of the engine in findings where two forms of a program differ in torch."""

BATCH: Final = 6
_LIMITS: Final = Limits(2_000, 4.0)
_TRIES: Final = 80
# Larger values count as infinite, since their squares are.
_LARGEST: Final = 1e18
_INTEGERS: Final = 2.0**31
# A float64 result with a relative error up to this was computed in float32.
_NARROW: Final = 2.0**-18


@dataclass
class Finding:
    """A shrunk program that an engine computes differently from torch.

    Attributes:
        operators: the program's operators, sorted.
        how: ``differs``; ``narrower`` if float64 is computed as float32; ``dies`` if the engine's
            process ends.
        got, expected, where: an element that differs, and the inputs.
        original: the program before it was shrunk.
        data: the program as a pickle, to replay it.
    """

    engine: str
    operators: list[str]
    how: str
    program: str
    got: str = ""
    expected: str = ""
    where: str = ""
    original: str = ""
    data: str = ""


@dataclass
class Hunted:
    """The result of one batch. Counts are numbers of forms, by engine.

    Attributes:
        compared: forms whose result was compared.
        refused: forms that the engine refuses.
        edges: forms that differ where an intermediate value is infinite, NaN, or too large for its
            integer type. No engine promises a result there.
    """

    number: int
    programs: int = 0
    forms: int = 0
    compared: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    edges: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0


# ---- engines --------------------------------------------------------------------------------


def _on_tvm(region: Region) -> Call:
    """A region in TVM's Relax, imported from ONNX, with TVM's default compilation for the CPU."""
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    model = from_onnx(onnx.load_from_string(model_of(region, {})))
    machine = relax.VirtualMachine(relax.build(model, target="llvm"), tvm.cpu())

    def run(*args: torch.Tensor) -> torch.Tensor:
        found = machine["main"](*(tvm.runtime.from_dlpack(x.contiguous()) for x in args))
        result: torch.Tensor = torch.utils.dlpack.from_dlpack(
            found if hasattr(found, "__dlpack__") else found[0]
        )
        return result

    return run


def _on_engine(name: str, region: Region) -> Call:
    """A region in one of eqsynth's engines, also if eqsynth itself never gives such regions to it
    because of known faults."""
    return ENGINES[name].compiled(region, {})


def installed() -> dict[str, str]:
    """Name -> version of the engines that are installed."""
    found = {name: engine.version() for name, engine in ENGINES.items()}
    with suppress(ImportError):
        import onnx
        import tvm

        found["tvm"] = f"{tvm.__version__} {onnx.__version__}"
    return {name: version for name, version in found.items() if version is not None}


def engine_of(name: str) -> Compile:
    """The engine with this name. ``package.module:function`` names an engine that a user wrote."""
    home, _, function = name.partition(":")
    if function:
        found: Compile = getattr(importlib.import_module(home), function)
        return found
    return _on_tvm if name == "tvm" else partial(_on_engine, name)


# ---- one program in one engine --------------------------------------------------------------


def region_of(term: Tensor) -> Region:
    """The term as a region over its inputs and weights."""
    args = [part for part in topological([term]) if isinstance(part, Input | Weight)]
    images: dict[Tensor, Tensor] = {a: Input(str(n), a.type) for n, a in enumerate(args)}
    return Region((replaced(term, images),), tuple(args))


def replaced(term: Tensor, images: Mapping[Tensor, Tensor]) -> Tensor:
    """The term with some of its subterms replaced by others."""
    known = dict(images)
    for part in topological([term]):
        if part not in known:
            known[part] = over(part, known)
    return known[term]


class Different(Exception):
    """A result that differs by more than rounding.

    Attributes:
        kind: ``differs`` or ``narrower`` (see ``Finding``), or ``edge`` (see ``Hunted``).
    """

    def __init__(self, found: Mismatch, kind: str) -> None:
        super().__init__(str(found))
        self.found, self.kind = found, kind


def compared(term: Tensor, compile_: Compile, like: Tensor | None = None) -> bool:
    """Compare an engine's result of a term with torch's. Return False if the engine refuses it.

    Args:
        like: the term that torch computes; by default the same one.

    Raises:
        Different: the results differ.
    """
    region, original = region_of(term), region_of(like or term)
    try:
        call = compile_(region)
    except Exception:  # whatever an engine raises: it doesn't take the program
        return False
    read = [original.args.index(arg) for arg in region.args]

    def engine(*given: torch.Tensor) -> Any:
        return call(*(given[n] for n in read))

    env = sample_all(like or term)
    args = [torch.from_numpy(env[arg.label].copy()).to(_dtype(arg)) for arg in original.args]
    try:
        check_equivalence(engine, in_torch(original), args, summed=[_added(term)])
    except Mismatch as error:
        cause = error.__cause__
        if cause is not None and not isinstance(cause, EquivalenceError):
            return False  # the engine has raised: it doesn't take the program after all
        raise Different(error, _kind(original, error)) from error
    return True


def _kind(region: Region, error: Mismatch) -> str:
    if _is_edge(region, error.inputs[0]):
        return "edge"
    expected = float(error.expected.partition(",")[0]) if region.dtype == "float64" else math.nan
    near = abs(float(error.got) - expected) <= _NARROW * abs(expected)
    return "narrower" if near else "differs"


def in_torch(region: Region) -> torch.nn.Module:
    """The region in torch, operator by operator; engines and forms are compared with this."""
    inputs = tuple(Input(str(n), arg.type) for n, arg in enumerate(region.args))
    return Plain(Program(inputs, region.outputs), {}, lambda made, _: made[0])


def _dtype(term: Tensor) -> torch.dtype:
    found: torch.dtype = getattr(torch, term.dtype)
    return found


def _added(term: Tensor) -> int:
    """A bound on the number of terms that are added up for one element, over all operators on the
    way to it."""
    parts = [part for part in topological([term]) if isinstance(part, Op | Scope)]
    return sum(flops(part) // max(part.type.size, 1) for part in parts)


def _is_edge(region: Region, args: Sequence[torch.Tensor]) -> bool:
    """Whether an intermediate value is NaN, infinite or very large, or an integer that its type may
    not hold."""
    parts = [p for p in topological(region.outputs) if isinstance(p, Op | Scope)]
    leaves = {str(n): x for n, x in enumerate(args)}
    with torch.no_grad():
        values = evaluate(parts, leaves)
        wide = evaluate(parts, leaves, exact=True)
    for value, exact in zip(values, wide, strict=True):
        if not value.numel():
            continue
        most = _LARGEST if value.is_floating_point() else _INTEGERS
        size = exact.double().abs()
        if not bool(value.isfinite().all()) or not bool((size < most).all()):
            return True
    casts = (p for p in parts if isinstance(p, Op) and p.name == "Cast")
    return any(not _fits(p, leaves) for p in casts)


def _fits(cast: Op, leaves: Mapping[str, torch.Tensor]) -> bool:
    """Whether the dtype of a cast holds the numbers of its argument."""
    with torch.no_grad():
        (given,) = evaluate([cast.args[0]], leaves)
    dtype = _dtype(cast)
    if dtype == torch.bool or not given.numel():
        return True
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    whole = given.double()
    return bool(((whole >= limits.min) & (whole <= limits.max)).all())


# ---- smaller programs -----------------------------------------------------------------------


def _smaller(term: Tensor) -> Iterator[Tensor]:
    """Smaller programs: subterms, smallest first; then the term with a subterm replaced by an
    input, largest subterm first."""
    parts = [p for p in topological([term]) if isinstance(p, Op | Scope) and p != term]
    yield from parts
    for number, part in enumerate(reversed(parts)):
        if not isinstance(part, Op) or part.args:
            yield replaced(term, {part: Input(f"cut{len(parts)}_{number}", part.type)})


def minimized(
    term: Tensor, error: Different, failure: Callable[[Tensor], Different | None]
) -> tuple[Tensor, Different]:
    """The smallest program that fails in the same way, within a number of tries.

    Args:
        failure: returns the difference of a program's results if it fails in the same way, or None.
    """
    tries = _TRIES
    while True:
        for part in _smaller(term):
            tries -= 1
            if tries < 0:
                return term, error
            found = failure(part)
            if found is not None:
                term, error = part, found
                break
        else:
            return term, error


def _failure(compile_: Compile, kind: str, term: Tensor) -> Different | None:
    # Computed positions may be out of range in a program that was cut.
    if any(not isinstance(at, Input) for at in positions(topological([term]))):
        return None
    try:
        compared(term, compile_)
    except Different as error:
        return error if error.kind == kind else None
    except Exception:  # of torch: it doesn't compute the smaller program
        return None
    return None


# ---- a batch --------------------------------------------------------------------------------


@cache
def _rules() -> RuleSet:
    return load_rules()


def _programs(_number: int) -> st.SearchStrategy[Tensor]:
    floats = ("float32", "float32", "float32", "float32", "float32", "float64")
    return st.one_of(
        strategies.operator_programs(steps=5, dtypes=(*floats, "int64", "int32")),
        strategies.operator_programs(steps=4, dtypes=floats, structures=True, largest=6),
        strategies.operator_programs(steps=3, dtypes=floats, largest=24, size=4096),
        strategies.scopes(empty=False, dtypes=("float32", "float64")),
    )


PROGRAMS: Final = Draws(_programs, BATCH, tries=0)


def forms(term: Tensor) -> tuple[Tensor, ...]:
    """The program, and up to two equal programs from its e-graph."""
    graph = saturate_terms((term,), _rules(), DEFAULT_PHASES, _LIMITS, False)
    found = [planned_terms(graph, estimated_plan(graph, kind))[0] for kind in OBJECTIVES]
    computed = [t for t in (term, *found) if not isinstance(t, Input | Weight)]
    return tuple(dict.fromkeys(computed))


def cases(number: int, size: int = BATCH) -> list[Tensor]:
    """The first ``size`` programs of a batch."""
    drawn = dict.fromkeys(PROGRAMS.of(number))
    return [term for term in drawn if not isinstance(term, Input | Weight)][:size]


def hunted(term: Tensor, engines: Mapping[str, Compile], into: Hunted) -> None:
    """Run one program in all engines, and add the result to ``into``."""
    into.programs += 1
    for form in forms(term):
        into.forms += 1
        for name, compile_ in engines.items():
            like = term if name == OURS else None
            counts = into.compared
            try:
                if not compared(form, compile_, like):
                    counts = into.refused
            except Different as error:
                if error.kind == "edge":
                    counts = into.edges
                else:
                    into.findings.append(_finding(name, compile_, term, form, error))
            except Exception:  # of torch: it doesn't compute this form on these inputs
                counts = into.refused
            counts[name] = counts.get(name, 0) + 1


def _finding(name: str, compile_: Compile, term: Tensor, form: Tensor, error: Different) -> Finding:
    least = form
    if name != OURS:
        least, error = minimized(form, error, partial(_failure, compile_, error.kind))
    found = error.found
    return Finding(
        name, operators_of(least), error.kind, render(least), found.got, found.expected,
        found.where, render(term), base64.b64encode(pickle.dumps(least)).decode(),
    )  # fmt: skip


def operators_of(term: Tensor) -> list[str]:
    """The names of a term's operators, sorted, without duplicates; scopes are named by their
    reductions: ``Scope sum``, ``Scope map``."""
    parts = topological([term])
    names = {
        part.name if isinstance(part, Op) else f"Scope {part.reducer if part.reduction else 'map'}"
        for part in parts
        if isinstance(part, Op | Scope)
    }
    return sorted(names)


def run_batch(number: int, names: Sequence[str], size: int = BATCH) -> dict[str, Any]:
    """The task of a worker: run a batch in engines, and compare the forms with each other."""
    begin, into = time.monotonic(), Hunted(number)
    _say_nothing()
    engines: dict[str, Compile] = {OURS: in_torch}
    engines |= {name: engine_of(name) for name in names}
    for term in cases(number, size):
        hunted(term, engines, into)
    into.seconds = time.monotonic() - begin
    return asdict(into)


def _say_nothing() -> None:
    """Silence warnings. Some engines write theirs to file descriptor 2; a worker discards these."""
    warnings.simplefilter("ignore")
    if is_worker():
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def run_one(number: int, index: int, name: str) -> dict[str, Any]:
    """The task of a worker after another worker died in a batch: run one program of the batch in
    one engine, to find out which of them ends the process."""
    into = Hunted(number)
    _say_nothing()
    hunted(cases(number)[index], {name: engine_of(name)}, into)
    return asdict(into)
