"""The check that a module gives the same result for the same inputs.

Without that, a compiled program couldn't be compared with the original. Two results may differ by
rounding alone: a reduction over several threads may add in another order each time. With one thread
the order is always the same, so a difference that stays with one thread isn't rounding, but comes
from state that the module keeps. Not here: the check that the module takes its example inputs at
all (``examples.py``).
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from eqsynth.errors import UnsteadyError
from eqsynth.frontend.examples import is_plain, kept_buffers
from eqsynth.lower.functional import specs_copied
from eqsynth.lower.kinds import inputs_of
from eqsynth.lower.reruns import Reference, Values, may_be_copied
from eqsynth.lower.rounding import Evidence, distance, judge

# How far two runs with one thread may differ, in roundings of the largest value of a row: code may
# be compiled differently from call to call.
_ROUNDINGS: Final = 64.0


def check_steady(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> None:
    """Run the module twice on its example inputs and compare the results; then look for state.

    The search for state compares the module with a copy that hasn't been called before: both get
    other inputs (``_check_memory``). Buffers and the states of random generators are restored.

    Raises:
        UnsteadyError: the second call gives another result, or the results of the module depend
            on the calls before.
    """
    given: Values = (args, dict(kwargs or {}))
    fresh = _copy(module)
    with kept_generators():
        before = _generators()
        first = _results(module, given)
        drawn = [name for name, state in _generators().items() if state != before[name]]
        try:
            second = _results(module, given)
        except Exception as error:  # whatever a user's module raises
            raise _unsteady(module, f"{type(error).__name__}: {error}") from error
        if not _near(first, second, 0.0):
            if drawn:
                raise UnsteadyError(
                    "the module draws random numbers",
                    where=type(module).__name__,
                    got=f"two results for one input: it uses the generator of {', '.join(drawn)}",
                    expected="a result that is determined by the inputs",
                    hint="the original runs as it is; give the random values as an input",
                )
            if not _alone_equal(module, given):
                raise _unsteady(module, "two results for one input")
        if fresh is not None:
            _check_memory(module, fresh, given, first)


def _check_memory(
    module: torch.nn.Module, fresh: torch.nn.Module, given: Values, first: Sequence[Any]
) -> None:
    """Check that earlier calls don't change the results of later ones.

    Args:
        module: the module, called before on ``given``.
        fresh: a copy of the module, made before that call.
        given: the example inputs.
        first: the result of the module's first call on ``given``.

    Raises:
        UnsteadyError: on other inputs the two differ, or the module gives another result for
            ``given`` afterwards.
    """
    other = inputs_of(given, "random", {})
    try:
        expected = _results(fresh, other)
        got = _results(module, other)
        again = _results(module, given)
    except Exception:  # it doesn't take them
        return
    if not _rounding(got, expected, fresh, other):
        raise _unsteady(module, "another result on other inputs than if it is called first on them")
    if not _rounding(again, first, fresh, given):
        raise _unsteady(module, "another result after a call with other inputs")


def _rounding(
    got: Sequence[Any], expected: Sequence[Any], module: torch.nn.Module, values: Values
) -> bool:
    """Whether the results ``got`` and ``expected`` differ by no more than rounding explains.

    Args:
        module, values: the module and the arguments of ``expected``, which the judge runs again on
            slightly moved arguments to see how far rounding can go.
    """
    if _near(got, expected, 0.0):
        return True
    reference = Reference(module)
    pair = [[x for x in leaves if _is_dense(x)] for leaves in (got, expected)]
    rest = [[x for x in leaves if not _is_dense(x)] for leaves in (got, expected)]
    if not _near(rest[0], rest[1]) or [(x.shape, x.dtype) for x in pair[0]] != [
        (x.shape, x.dtype) for x in pair[1]
    ]:
        return False

    def moved(seed: int) -> list[torch.Tensor] | None:
        results = reference.moved(values, seed)
        return None if results is None else [x for x in results if _is_dense(x)]

    return judge(pair[0], pair[1], Evidence(moved)).wrong is None


def _unsteady(module: torch.nn.Module, got: str) -> UnsteadyError:
    return UnsteadyError(
        "the module keeps something from call to call",
        where=type(module).__name__,
        got=got,
        expected="a result that is determined by the inputs and the buffers",
        hint="the original runs as it is; keep counters in buffers, or out of forward",
    )


def _copy(module: torch.nn.Module) -> torch.nn.Module | None:
    try:
        with specs_copied():
            return copy.deepcopy(module) if may_be_copied(module) else None
    except Exception:  # whatever copying a user's module raises
        return None


def _results(module: torch.nn.Module, values: Values) -> list[Any]:
    args, kwargs = tree_map_only(torch.Tensor, torch.clone, values)
    with torch.no_grad(), kept_buffers(module):
        leaves = tree_leaves(module(*args, **kwargs))
        return [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _alone_equal(module: torch.nn.Module, given: Values) -> bool:
    """Whether two runs with one thread agree up to rounding."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _near(_results(module, given), _results(module, given))
    finally:
        torch.set_num_threads(threads)


def _near(one: Sequence[Any], other: Sequence[Any], roundings: float = _ROUNDINGS) -> bool:
    return len(one) == len(other) and all(
        _leaf_near(a, b, roundings) for a, b in zip(one, other, strict=True)
    )


def _is_dense(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and is_plain(leaf)


def _leaf_near(a: Any, b: Any, roundings: float) -> bool:
    if type(a) is not type(b):
        return False
    if not _is_dense(a):
        # Other objects count as equal, since their classes may not define what equal means.
        # Capture refuses results that it can't hold.
        return not isinstance(a, bool | int | float | complex | str) or a == b or a != a
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.numel():
        return True
    far = distance(a, b)
    if not a.is_floating_point() or not roundings:
        return not bool(far.any())
    size = b.double().abs().nan_to_num(0.0, 0.0, 0.0)
    row = size.amax(-1, keepdim=True) if size.ndim else size
    return bool((far <= roundings * torch.finfo(a.dtype).eps * row).all())


def _generators() -> dict[str, Any]:
    """The states of the random generators that a module may draw from."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 -- the one that is global
    numpy = (kind, np.asarray(keys).tobytes(), *rest)
    return {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "numpy": numpy,
        "python": random.getstate(),
    }


@contextmanager
def kept_generators() -> Iterator[None]:
    """Leave the random generators of torch, NumPy and Python as they were before the block."""
    numpy, python = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            np.random.set_state(numpy)  # noqa: NPY002
            random.setstate(python)
