"""A batch of random programs in other engines: where do they differ from torch by more than
rounding? What ``hunt.py`` runs in its workers.

A program is drawn, saturated, and taken in up to three forms that its e-graph holds to be equal: as
drawn, of fewest FLOPs, of least estimated time. Each form runs in each engine and is compared as
the result of ``optimize`` is (``lower/check.py``): on nine kinds of inputs, element by element,
with what moving the inputs by some roundings does to torch's result, which grows with the lengths
of its sums, and with torch in float64 where that leaves doubt. A form on which torch itself differs
from the program as drawn is a fault of eqsynth's, and none of an engine.

Not here: which batches are run, and how they are kept and told (``hunt.py``).
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
"""A region as a function of tensors, its arguments; whatever it raises is a program that the engine
doesn't take."""

OURS: Final = "eqsynth"
"""Whose fault it is where two forms of a program differ in torch."""

BATCH: Final = 6
_LIMITS: Final = Limits(2_000, 4.0)
_TRIES: Final = 80
# Values from here on are as good as infinite: their squares are.
_LARGEST: Final = 1e18
_INTEGERS: Final = 2.0**31
# An element of float64 that is so near is what float32 makes of it.
_NARROW: Final = 2.0**-18


@dataclass
class Finding:
    """A program, as small as could be made, that an engine computes otherwise.

    Attributes:
        operators: of the program, sorted.
        how: ``differs``; ``narrower``: float64 is computed as float32; ``dies``: the process does.
        got, expected, where: an element, and on what inputs.
        original: the program that it was found in.
        data: the program as a pickle, from which to replay it.
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
    """What one batch gave; the counts are by engine.

    Attributes:
        compared: forms of programs that were right, or wrong.
        refused: that the engine doesn't take.
        edges: that differ where torch has an infinity, a NaN, or an integer beyond its type on the
            way: no promise of anybody's.
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
    """TVM's Relax, from ONNX, as it compiles for the CPU by default."""
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
    """An engine of eqsynth's, also on what eqsynth has learnt not to give it."""
    return ENGINES[name].compiled(region, {})


def installed() -> dict[str, str]:
    """Names of the engines that are here, and their versions."""
    found = {name: engine.version() for name, engine in ENGINES.items()}
    with suppress(ImportError):
        import onnx
        import tvm

        found["tvm"] = f"{tvm.__version__} {onnx.__version__}"
    return {name: version for name, version in found.items() if version is not None}


def engine_of(name: str) -> Compile:
    """The engine of a name; ``package.module:function`` is one of yours."""
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
    """The term with others in the places of some of its subterms."""
    known = dict(images)
    for part in topological([term]):
        if part not in known:
            known[part] = over(part, known)
    return known[term]


class Different(Exception):
    """A result that differs by more than rounding.

    Attributes:
        kind: ``differs`` or ``narrower`` (see ``Finding``), or ``edge``: by what is no promise of
            anybody's.
    """

    def __init__(self, found: Mismatch, kind: str) -> None:
        super().__init__(str(found))
        self.found, self.kind = found, kind


def compared(term: Tensor, compile_: Compile, like: Tensor | None = None) -> bool:
    """Whether the engine takes the term, which it then computes as torch does.

    Args:
        like: the term that torch computes; the same one if it is None.

    Raises:
        Different: it computes something else.
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
    """torch, operator by operator: what engines and forms are compared with."""
    inputs = tuple(Input(str(n), arg.type) for n, arg in enumerate(region.args))
    return Plain(Program(inputs, region.outputs), {}, lambda made, _: made[0])


def _dtype(term: Tensor) -> torch.dtype:
    found: torch.dtype = getattr(torch, term.dtype)
    return found


def _added(term: Tensor) -> int:
    """At most so many terms are added up on a way to an element: by each operator as many as it has
    operations for one element."""
    parts = [part for part in topological([term]) if isinstance(part, Op | Scope)]
    return sum(flops(part) // max(part.type.size, 1) for part in parts)


def _is_edge(region: Region, args: Sequence[torch.Tensor]) -> bool:
    """Whether some value on the way is no number, too large for one, or an integer that its type
    may not hold."""
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
    """Whether the type that an argument is cast to holds its numbers."""
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
    """Programs of fewer operators: a part of the term, the smallest first; or the term with an
    input in the place of a part, the largest first."""
    parts = [p for p in topological([term]) if isinstance(p, Op | Scope) and p != term]
    yield from parts
    for number, part in enumerate(reversed(parts)):
        if not isinstance(part, Op) or part.args:
            yield replaced(term, {part: Input(f"cut{len(parts)}_{number}", part.type)})


def minimized(
    term: Tensor, error: Different, failure: Callable[[Tensor], Different | None]
) -> tuple[Tensor, Different]:
    """The smallest program that fails so, as far as tries go.

    Args:
        failure: what is wrong with a program.
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
    # Positions that are computed may lie anywhere once a part is cut off.
    if any(not isinstance(at, Input) for at in positions(topological([term]))):
        return None
    try:
        compared(term, compile_)
    except Different as error:
        return error if error.kind == kind else None
    except Exception:  # of torch, which the smaller program doesn't please
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
    """The program, and others that its e-graph holds to be equal."""
    graph = saturate_terms((term,), _rules(), DEFAULT_PHASES, _LIMITS, False)
    found = [planned_terms(graph, estimated_plan(graph, kind))[0] for kind in OBJECTIVES]
    computed = [t for t in (term, *found) if not isinstance(t, Input | Weight)]
    return tuple(dict.fromkeys(computed))


def cases(number: int, size: int = BATCH) -> list[Tensor]:
    """The first so many programs of a batch."""
    drawn = dict.fromkeys(PROGRAMS.of(number))
    return [term for term in drawn if not isinstance(term, Input | Weight)][:size]


def hunted(term: Tensor, engines: Mapping[str, Compile], into: Hunted) -> None:
    """One program in all engines."""
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


def _finding(
    name: str, compile_: Compile, term: Tensor, form: Tensor, error: Different
) -> Finding:
    least = form
    if name != OURS:
        least, error = minimized(form, error, partial(_failure, compile_, error.kind))
    found = error.found
    return Finding(
        name, operators_of(least), error.kind, render(least), found.got, found.expected,
        found.where, render(term), base64.b64encode(pickle.dumps(least)).decode(),
    )  # fmt: skip


def operators_of(term: Tensor) -> list[str]:
    """The operators of a term, each once, sorted; a scope by its reduction."""
    parts = topological([term])
    names = {
        part.name if isinstance(part, Op) else f"Scope {part.reducer if part.reduction else 'map'}"
        for part in parts
        if isinstance(part, Op | Scope)
    }
    return sorted(names)


def run_batch(number: int, names: Sequence[str], size: int = BATCH) -> dict[str, Any]:
    """The task of a worker: a batch in engines, and its forms against each other."""
    begin, into = time.monotonic(), Hunted(number)
    _say_nothing()
    engines: dict[str, Compile] = {OURS: in_torch}
    engines |= {name: engine_of(name) for name in names}
    for term in cases(number, size):
        hunted(term, engines, into)
    into.seconds = time.monotonic() - begin
    return asdict(into)


def _say_nothing() -> None:
    """Engines warn of much, some of them past Python."""
    warnings.simplefilter("ignore")
    if is_worker():
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def run_one(number: int, index: int, name: str) -> dict[str, Any]:
    """The task of a worker where a batch has ended one: a program of it in one engine."""
    into = Hunted(number)
    _say_nothing()
    hunted(cases(number)[index], {name: engine_of(name)}, into)
    return asdict(into)
