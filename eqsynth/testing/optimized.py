"""The check of ``optimize`` as a whole on one module: every promise about its result."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from eqsynth.errors import EqsynthError, EquivalenceError
from eqsynth.explain import NoExplanation
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.torch_export import capture
from eqsynth.ir.tensor import Op, topological
from eqsynth.lower.bundle import load, save
from eqsynth.lower.program import CompiledProgram
from eqsynth.pipeline import optimize
from eqsynth.testing.equivalence import assert_equivalent


def assert_optimize_sound(
    module: torch.nn.Module,
    example_inputs: Sequence[Any],
    *further: Sequence[Any],
    objective: str = "flops",
    time_limit_s: float = 20.0,
    again: bool = True,
    **settings: Any,
) -> CompiledProgram:
    """Optimize a module and check the promises of ``optimize``.

    - The program computes what the module computes, on the example inputs, on inputs of other kinds
      (``eqsynth.lower.kinds``), and on the ``further`` ones. Results are judged as ``optimize``
      judges them. A second call gives the same bits.
    - The module's weights don't change.
    - FLOPs don't rise. If the optimized program is optimized again, its FLOPs don't rise and its
      results stay right. If the compiled program itself is optimized, it gives the same bits.
    - The program gives the same bits after it is saved and loaded.
    - Arguments of another shape or dtype are errors of eqsynth.

    Args:
        further: more arguments, of the shapes and dtypes of ``example_inputs``.
        again: whether the optimized program is optimized again. Without that, the check takes a
            third of the time.
        objective, time_limit_s, settings: arguments of ``optimize``. With ``objective="flops"`` no
            kernel is timed, which makes it quick.

    Returns:
        The optimized program.

    Raises:
        EquivalenceError: a promise doesn't hold.

    >>> layer = torch.nn.Linear(2, 2).eval()
    >>> program = assert_optimize_sound(layer, (torch.ones(1, 2),))        # doctest: +SKIP
    """
    before = {name: value.clone() for name, value in module.state_dict().items()}
    limits: dict[str, Any] = {"objective": objective, "time_limit_s": time_limit_s}
    limits |= {"progress": False, "strict": True} | settings
    program = optimize(module, example_inputs, **limits)
    for args in (example_inputs, *further):
        assert_equivalent(program, module, tuple(args))
    first = program(*example_inputs)
    _same("a second call", program(*example_inputs), first)
    _same("the module's weights", dict(module.state_dict()), before)
    report = program.report
    if objective == "flops" and report.flops_after > report.flops_before:
        _differ("FLOPs", f"{report.flops_after:,}", f"at most {report.flops_before:,}")
    if program.original is None:
        _refuses_others(program, example_inputs)
        with tempfile.TemporaryDirectory(prefix="eqsynth-") as directory:
            save(program, Path(directory) / "program")
            loaded = load(Path(directory) / "program")
        _same("the program that was saved and loaded", loaded(*example_inputs), first)
        if again and not _has_opaque(program):
            _optimized_again(program, module, example_inputs, limits)
    if again:  # a compiled program can't be captured, so optimize gives the program itself
        _same("it, optimized", optimize(program, example_inputs, **limits)(*example_inputs), first)
    return program


def _optimized_again(
    program: CompiledProgram, module: torch.nn.Module, args: Sequence[Any], limits: dict[str, Any]
) -> None:
    """Optimize the found program once more, as an expression, and check its FLOPs and results.

    Raises:
        EquivalenceError: the FLOPs rise, or the results differ.
    """
    explanation = program.explain()
    if isinstance(explanation, NoExplanation) or not program.inputs:
        return
    captured = capture(module, tuple(args))
    found = explanation.found
    outputs = sum(isinstance(place, int) for place in set(captured.convention.results))
    if captured.buffers or len(found.outputs) != outputs:
        return
    weights = captured.weights
    values = {w.name: weights[w.name] for w in found.weights() if w.name in weights}
    again = optimize([Expr(term, values) for term in found.outputs], **limits)
    before, after = program.report.flops_after, again.report.flops_after
    if limits["objective"] == "flops" and after > before:
        _differ("FLOPs, optimized again", f"{after:,}", f"at most {before:,}")
    flat, tree = tree_flatten(tuple(args))
    tensors = [position for position, arg in enumerate(flat) if isinstance(arg, torch.Tensor)]
    place = dict(zip((p.input.name for p in program.inputs), tensors, strict=True))
    places = [place[p.input.name] for p in again.inputs]

    def expected(*given: torch.Tensor) -> list[Any]:
        changed = list(flat)
        for position, value in zip(places, given, strict=True):
            changed[position] = value
        return _outputs(program(*tree_unflatten(changed, tree)), changed)

    given = [flat[position] for position in places]
    assert_equivalent(lambda *values: _outputs(again(*values), ()), expected, given)


def _outputs(result: Any, given: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors of a program's result, each once, without those that are arguments."""
    known = {id(x) for x in given}
    tensors = (leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor))
    return list({id(x): x for x in tensors if id(x) not in known}.values())


def _has_opaque(program: CompiledProgram) -> bool:
    terms = (t for step in program.steps for t in topological([step.kernel.term]))
    return any(isinstance(t, Op) and t.name == "Opaque" for t in terms)


def _refuses_others(program: CompiledProgram, args: Sequence[Any]) -> None:
    for position, arg in enumerate(args):
        if not isinstance(arg, torch.Tensor):
            continue
        other = torch.float64 if arg.dtype != torch.float64 else torch.int32
        for wrong in (arg[None], arg.to(other)):
            try:
                program(*args[:position], wrong, *args[position + 1 :])
            except EqsynthError:
                continue
            _differ(
                f"a call with another argument {position}",
                "no error", f"an error: the program is for {arg.dtype} {tuple(arg.shape)}",
            )  # fmt: skip


def _same(where: str, got: Any, expected: Any) -> None:
    (mine, tree), (theirs, other) = tree_flatten(got), tree_flatten(expected)
    same = tree == other and all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isnan(), b.isnan())
        if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(mine, theirs, strict=True)
    )  # fmt: skip
    if not same:
        _differ(where, str(got), str(expected))


def _differ(where: str, got: str, expected: str) -> None:
    raise EquivalenceError(
        "optimize doesn't keep what it promises",
        where=where,
        got=got,
        expected=expected,
        hint="this is a fault in eqsynth, or in a rule of yours",
    )
