"""The operator table and ``rules/schema.egg`` declare the same operators to Python and egglog."""

from __future__ import annotations

import pytest

from eqsynth.ir.operators import OPERATORS, AttrKind, Operator
from eqsynth.rules import load_rules

SORTS: dict[AttrKind, str] = {"int": "i64", "float": "f64", "str": "String", "ints": "Ints"}
# Tensors that aren't operators.
LEAVES = {"Scope", "Tok", "Input", "Weight"}
SCHEMA = load_rules(["schema.egg"]).known.signatures


def declared(row: Operator) -> tuple[str, ...]:
    args = ("Tensors",) if row.arity is None else ("Tensor",) * row.arity
    return (*args, *(SORTS[kind] for _, kind in row.attrs))


@pytest.mark.parametrize("row", OPERATORS.values(), ids=OPERATORS)
def test_an_operator_is_declared_as_the_table_says(row: Operator) -> None:
    signature = SCHEMA[row.name]
    assert signature.kind == "constructor" and signature.output == "Tensor"
    assert tuple(signature.inputs) == declared(row)


def test_the_schema_declares_no_other_operator() -> None:
    tensors = {n for n, s in SCHEMA.items() if s.kind == "constructor" and s.output == "Tensor"}
    assert tensors == {*OPERATORS, *LEAVES}
