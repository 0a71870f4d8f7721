"""Every operator and many scopes in torch, against the interpreter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from lower_cases import arguments, assert_equal, examples, scopes

from eqsynth.ir.index import Index
from eqsynth.ir.operators import OPERATORS
from eqsynth.ir.tensor import Op, Scope, Tensor, args_of
from eqsynth.lower.torch_ops import run_term

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
