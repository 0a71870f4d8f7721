"""The comparison of two programs that should compute the same.

Terms are evaluated by the interpreter; modules and other callables are run. Not here: the
comparison of two callables (``calls.py``) and of a whole e-graph (``consistency.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eqsynth.errors import EqsynthError, EquivalenceError
from eqsynth.frontend.expr import Expr
from eqsynth.ir.arithmetic import Array
from eqsynth.ir.data import FLOATS, agree, sample_all
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import Tensor
from eqsynth.ir.types import is_float

Program = Tensor | Expr | Callable[..., Any]


def assert_equivalent(
    program: Program,
    reference: Program,
    inputs: Any = None,
    *,
    rtol: float = 1e-7,
    examples: int | None = None,
) -> None:
    """Check that two programs are equal, on data that tends to show faults.

    Two **terms or expressions** are evaluated by the interpreter, with floats in float64. Two
    **callables** (modules, compiled programs, functions of tensors) run on the inputs and on others
    of the same types (``eqsynth.lower.kinds``). A difference that rounding explains is allowed, as
    in ``optimize`` (``eqsynth.lower.rounding``). On the inputs themselves they also have to build
    results of one structure, to write the same arguments, and to leave earlier results alone.

    Args:
        inputs: for terms, arrays by name (by default every kind of ``eqsynth.ir.data``); for
            callables, the tuple of arguments. Or a hypothesis strategy of either: then examples
            are drawn, and the failing one is shrunk.
        rtol: for terms, the difference allowed, relative to the largest value.
        examples: how many to draw from a strategy; by default the hypothesis profile's.

    Raises:
        EquivalenceError: the values, shapes or dtypes differ. The message has both terms; of
            callables the error's ``inputs`` are the arguments on which they differ.
        EqsynthError: a term was given with a callable, or callables without inputs.

    >>> import eqsynth
    >>> x, y = eqsynth.input("x", (2, 3)), eqsynth.input("y", (2, 3))
    >>> assert_equivalent(eqsynth.ops.relu(x) + y, y + eqsynth.ops.relu(x))
    """
    compare = _comparison(program, reference, inputs, rtol)
    if not hasattr(inputs, "example"):
        for given in _given(program, reference, inputs):
            compare(given)
        return
    from hypothesis import given as given_by
    from hypothesis import settings

    @given_by(inputs)
    def check(drawn: Any) -> None:
        compare(drawn)

    (settings(max_examples=examples)(check) if examples else check)()


def _comparison(
    program: Program, reference: Program, inputs: Any, rtol: float
) -> Callable[[Any], None]:
    left, right = (p.tensor if isinstance(p, Expr) else p for p in (program, reference))
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        a, b = left, right
        return lambda env: _compare(a, b, env, rtol)
    if isinstance(left, Tensor) or isinstance(right, Tensor) or inputs is None:
        raise EqsynthError(
            "assert_equivalent: these can't be compared",
            got=f"{type(program).__name__} and {type(reference).__name__}"
            + (" without inputs" if inputs is None else ""),
            expected="two terms or expressions, or two callables and their inputs",
            hint="optimize(expression) gives a callable; give inputs=(x, ...)",
        )
    from eqsynth.testing.calls import compare_calls

    f, g = left, right
    return lambda args: compare_calls(f, g, _arguments(args))


def _arguments(inputs: Any) -> Sequence[Any]:
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def _given(program: Program, reference: Program, inputs: Any) -> list[Any]:
    """The inputs that were given; without any, values of every kind for the terms' leaves."""
    if inputs is not None:
        return [inputs]
    terms = [p.tensor if isinstance(p, Expr) else p for p in (program, reference)]
    both = [term for term in terms if isinstance(term, Tensor)]
    return [
        sample_all(*both, kind=kind, integers="zeros" if kind == "zeros" else "small", seed=seed)
        for seed, kind in enumerate(FLOATS)
    ]


def _compare(program: Tensor, reference: Tensor, env: Mapping[str, Array], rtol: float) -> None:
    if program.type != reference.type:
        raise _differ(program, reference, f"type {program.type}", f"type {reference.type}")
    value, expected = evaluate(program, env), evaluate(reference, env)
    if agree(value, expected, rtol if is_float(reference.dtype) else 0.0):
        return
    raise _differ(program, reference, str(value), f"{expected}\non {dict(env)}")


def _differ(program: Tensor, reference: Tensor, got: str, expected: str) -> EquivalenceError:
    return EquivalenceError(
        "two programs that should be equal have different values",
        got=f"{program}\n{got}",
        expected=f"{reference}\n{expected}",
        hint="the arrays above are a counterexample",
    )
