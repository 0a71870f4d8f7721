"""ONNX's own tests of operators, each also as the program that it is captured as."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
import torch

from eqsynth.frontend.onnx.table import TABLE
from eqsynth.lower.onnx_operator import torch_of
from eqsynth.testing.onnx_backend import Case, Verdict, cases, run
from tests import turns

# `make test` captures one of so many cases, others at each of the test's turns.
PARTS = 50
RIGHT = (Verdict.CAPTURED, Verdict.RUNS, Verdict.UNKNOWN, Verdict.OLD, Verdict.RANDOM)


def wrong(chosen: Sequence[Case], captured: bool) -> list[str]:
    outcomes = [run(case, captured) for case in chosen]
    return [f"{o.case}: {o.tells}" for o in outcomes if o.verdict not in RIGHT]


@pytest.mark.rotating
@pytest.mark.filterwarnings("ignore")
def test_a_part_of_the_operators() -> None:
    found = cases("node")
    assert len(found) > 1500
    part = found[turns.turn_of_now() // turns.SELDOM % PARTS :: PARTS]
    assert not wrong(part, captured=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_operator() -> None:
    outcomes = [run(case, captured=False) for case in cases("node")]
    assert not [o for o in outcomes if o.verdict not in RIGHT]
    assert sum(o.verdict is Verdict.RUNS for o in outcomes) > 1600


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["simple", "pytorch-operator", "pytorch-converted"])
def test_small_models(kind: str) -> None:
    assert not wrong(cases(kind), captured=True)


def test_attributes_of_entries_are_those_of_onnx() -> None:
    """An attribute that an entry takes and ONNX doesn't know is a slip of the pen."""
    known: dict[str, set[str]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        known.setdefault(schema.name, set()).update(schema.attributes)
    slips = {name: entry.attributes - known[name] for name, entry in TABLE.items()}
    assert not {name: slip for name, slip in slips.items() if slip}


@pytest.mark.parametrize("kind", [np.ulonglong, np.ulong, np.longlong, np.int_])
def test_types_that_numpy_has_twice(kind: type) -> None:
    array = np.array([0, 1, 2**62], dtype=kind)
    dtype = torch.uint64 if array.dtype.kind == "u" else torch.int64
    assert torch_of(array, dtype).tolist() == [0, 1, 2**62]
