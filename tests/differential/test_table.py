"""Every operator that eqsynth takes, against torch: the table of `eqsynth/testing/differential`.

`make test` runs a part of the table, another every three hours; `--differential-part N` runs part
N, and `python -m benchmarks.differential` the whole.
"""


import pytest
import torch

from eqsynth.frontend import aten
from eqsynth.testing.differential.harness import cases_of, run
from eqsynth.testing.differential.row import Case, Operand, Row
from eqsynth.testing.differential.table import ROWS, without_rows
from tests.turns import turn_of_now

PARTS = 160


def test_every_operator_has_rows() -> None:
    assert without_rows() == []


def test_an_operator_without_rows_is_found() -> None:
    rows = tuple(row for row in ROWS if row.entry != "aten::relu")
    assert {"aten::relu", "ops.relu"} <= set(without_rows(rows))


@pytest.mark.parametrize(
    "name",
    ["add", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge", "logical_and",
     "logical_or"],
)  # fmt: skip
def test_either_operand_is_broadcast_somewhere(name: str) -> None:
    """A definition ``a[*n] + b[^n]``, which broadcasts b alone, is wrong where a is broadcast."""
    entries = (f"aten::{name}", f"aten::{name}.Tensor")
    pairs = [row.args[:2] for row in ROWS if row.entry in entries and len(row.args) > 1]
    shapes = [(a.shape, b.shape) for a, b in pairs
              if isinstance(a, Operand) and isinstance(b, Operand)]  # fmt: skip
    whole = [(a, b, torch.broadcast_shapes(a, b)) for a, b in shapes]
    assert any(a != both for a, _, both in whole) and any(b != both for _, b, both in whole)


@pytest.mark.rotating
def test_parts_are_the_whole_table() -> None:
    parts = [{case.name for case in cases_of(ROWS, part, PARTS)} for part in range(PARTS)]
    names = [case.name for case in cases_of(ROWS)]
    assert set().union(*parts) == set(names)
    assert sum(map(len, parts)) == len(set(names)) == len(names)


def test_a_part_of_the_table(request: pytest.FixtureRequest) -> None:
    given = request.config.getoption("--differential-part")
    part = turn_of_now() if given is None else int(given)
    # A few parts have no row for some column. The fixed part has rows for all of them.
    outcome, fixed = (run(cases_of(ROWS, n, PARTS)) for n in (part, 4))
    print(outcome)
    told = "\n".join(map(str, outcome.failures))
    assert not outcome.failures, f"{outcome}\n{told}\nagain: --differential-part {part % PARTS}"
    assert not fixed.failures
    assert {"compiled", "interpreter", "torch", "tvm"} <= set(fixed.computed)


@pytest.mark.slow
def test_the_whole_table() -> None:
    outcome = run(cases_of(ROWS))
    print(outcome)
    assert not outcome.failures, f"{outcome}\n" + "\n".join(map(str, outcome.failures))
    # An entry that refuses everything would be right, and useless. (Other rows are of operators
    # without an entry, which torch decomposes.)
    refusing = {case.row.entry for case in outcome.refused if not case.row.refused}
    assert not refusing.intersection(aten.TABLE) - outcome.taken


@pytest.mark.slow
def test_a_sample_through_optimize() -> None:
    part = turn_of_now()
    cases = cases_of(ROWS, part, 5 * PARTS)[:24]
    outcome = run(cases, ("optimized",))
    print(outcome)
    assert outcome.computed["optimized"]
    assert not outcome.failures, f"{outcome}\n" + "\n".join(map(str, outcome.failures))


# ---- the harness sees faults ----------------------------------------------------------------


def _case(entry: str, *args: object, dtype: str = "float32", **options: object) -> Case:
    return Case(Row(entry, args, options, (dtype,)), dtype)


def _columns(case: Case) -> set[str]:
    return {column for f in run([case]).failures for column in f.columns.split(", ")}


ALL_OF_A_MAP = {"interpreter", "torch", "tvm", "compiled"}


def test_an_entry_that_drops_an_attribute_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def dropping(input, other, alpha=1):  # type: ignore[no-untyped-def]
        return input + other

    monkeypatch.setitem(aten.TABLE, "aten::add", dropping)
    x = Operand((5, 7))
    assert _columns(_case("aten::add.Tensor", x, x, alpha=2)) == ALL_OF_A_MAP
    assert _columns(_case("aten::add.Tensor", x, x)) == set()


def test_a_tail_that_is_cut_off_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(input):  # type: ignore[no-untyped-def]
        from eqsynth.frontend import ops

        return ops.sub(ops.add(ops.exp(input), 1), 1)

    monkeypatch.setitem(aten.TABLE, "aten::exp", cut)
    assert _columns(_case("aten::exp", Operand())) == ALL_OF_A_MAP


def test_a_value_where_torch_raises_is_seen() -> None:
    x = Operand((5, 7), kind="normal")
    zeros = Operand((5, 7), change=torch.zeros_like)
    case = _case("aten::fmod.Tensor", x, zeros, dtype="int32")
    assert _columns(case) == set()  # it has no entry: torch runs it, and raises


def test_an_entry_that_must_refuse_and_does_not_is_seen() -> None:
    row = Row("aten::relu", (Operand((5, 7)),), refused=True)
    assert [f.columns for f in run([Case(row, "float32")]).failures] == ["entry"]


def test_a_failure_tells_the_smallest_operand_and_what_came_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_small(input):  # type: ignore[no-untyped-def]
        from eqsynth.frontend import ops

        return ops.where(ops.lt(ops.abs(input), 0.4), 0.0, input)

    monkeypatch.setitem(aten.TABLE, "aten::clone", without_small)
    failures = run([_case("aten::clone", Operand(kind="edges"))]).failures
    (failure,) = [f for f in failures if "interpreter" in f.columns]
    assert (failure.case.dtype, failure.kind, failure.got) == ("float32", "edges", "0.0")
    assert float(failure.expected.split()[0]) == 5 * 2**-149
