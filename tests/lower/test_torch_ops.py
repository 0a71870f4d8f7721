"""Every operator and many scopes in torch, against the interpreter."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given

sys.path.insert(0, str(Path(__file__).parent))
from cases import arguments, assert_equal, examples, oracle, sample, scopes, tensor  # noqa: E402

from eqsynth.errors import LoweringError  # noqa: E402
from eqsynth.ir.index import Index  # noqa: E402
from eqsynth.ir.interpret import evaluate  # noqa: E402
from eqsynth.ir.operators import OPERATORS  # noqa: E402
from eqsynth.ir.scalar import Cast, Prod, Read, Sum, Num  # noqa: E402
from eqsynth.ir.tensor import Op, Scope, Tensor, Weight, args_of  # noqa: E402
from eqsynth.ir.types import TensorType  # noqa: E402
from eqsynth.lower import torch_scopes  # noqa: E402
from eqsynth.lower.torch_ops import evaluate_constant, evaluate_constants, run_term  # noqa: E402

it = Index.iterator


def run(term: Tensor, values: list[torch.Tensor]) -> torch.Tensor:
    by_argument = dict(zip(args_of(term), values, strict=True))
    args = term.args if isinstance(term, Op) else args_of(term)
    return run_term(term, [by_argument[arg] for arg in args])


@pytest.mark.parametrize("name", sorted(set(OPERATORS) - {"Opaque"}))
def test_an_operator_gives_what_the_interpreter_gives(name: str) -> None:
    for term in examples(name):
        values = arguments(term)
        assert_equal(term, run(term, values), values)


@given(scopes())
def test_a_scope_gives_what_the_interpreter_gives(scope: Scope) -> None:
    values = arguments(scope)
    assert_equal(scope, run(scope, values), values)
