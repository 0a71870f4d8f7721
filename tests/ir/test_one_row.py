"""A scalar function is one row of the table: all that there is of an operator follows from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# `deg2rad`, which torch has and eqsynth hasn't, made of a product: before anything reads the table.
ROW = """
from eqsynth.ir import functions
from eqsynth.ir.functions import Function, Made

row = Function("deg2rad", 1, Made("x * 0.017453292519943295"), "float", True, finite=True,
               torch="deg2rad")
functions.FUNCTIONS["deg2rad"] = row

import numpy as np
import torch

import eqsynth
from eqsynth.egraph.proving import meet
from eqsynth.egraph.schedule import Limits
from eqsynth.frontend.aten import TABLE
from eqsynth.frontend.expression import program_of
from eqsynth.ir.interpret import evaluate
from eqsynth.ir.tensor import Op
from eqsynth.lower.scalar_functions import FLOAT
from eqsynth.lower.torch_ops import function_of
from eqsynth.rules import load_rules
from eqsynth.testing.differential.table import ROWS, without_rows

x = eqsynth.input("x", (3, 4))
term = program_of(eqsynth.ops.deg2rad(x))[0].outputs[0]
assert isinstance(term, Op) and (term.name, term.dtype) == ("Deg2rad", "float32")
value = np.linspace(-400, 400, 12).reshape(3, 4)
np.testing.assert_allclose(evaluate(term, {"x": value}), np.deg2rad(value))
given = torch.from_numpy(value).float()
torch.testing.assert_close(function_of(term)(given), torch.deg2rad(given))
assert "aten::deg2rad" in TABLE and not without_rows()
assert any(own.entry == "aten::deg2rad" for own in ROWS)
assert "deg2rad" in FLOAT

# Its definition, and what it is made of where proofs meet.
rules = load_rules()
assert rules["deg2rad-definition"].status == "definition"
for other in (
    eqsynth.scope(lambda i, j: eqsynth.ops.deg2rad(x[i, j]), i=3, j=4),
    x * 0.017453292519943295,
):
    sides = [program_of(side)[0].outputs for side in (eqsynth.ops.deg2rad(x), other)]
    assert meet(*sides, rules, Limits()).proved
assert not meet(*(program_of(side)[0].outputs for side in (eqsynth.ops.deg2rad(x), x * 0.0174)),
                rules, Limits()).proved
"""


NAMES = """
from eqsynth.rules import load_rules
print("deg2rad-definition" in [rule.name for rule in load_rules().rules])
"""


@pytest.mark.rotating
def test_a_row_is_enough(tmp_path: Path) -> None:
    """Also where the cache directory has the rules of the table without the row; afterwards, a
    process without the row finds rules without it."""

    def printed(code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False,
            env={**os.environ, "EQSYNTH_CACHE": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert [printed(code) for code in (NAMES, ROW, NAMES)] == ["False\n", "", "False\n"]
