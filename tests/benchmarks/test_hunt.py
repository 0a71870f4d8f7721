"""The hunt for faults of other engines: one that is planted is found, made small, told and kept."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import hunt, hunting
from benchmarks.hunting import OURS, Hunted, compared, hunted, in_torch
from eqsynth.ir.tensor import Input, Op, Region, Tensor
from eqsynth.ir.types import TensorType

X = Input("x", TensorType((5, 8), "float32"))
W = Input("w", TensorType((8, 8), "float32"))
# A tanh among other operators, of which the product adds up in another order.
PROGRAM = Op("Softmax", (Op("Add", (Op("Tanh", (Op("Matmul", (X, W)),)), X)),), (1,))


def in_blocks(region: Region) -> hunting.Call:
    """As torch, but for the order of sums: by float64, rounded at the end."""
    wide = in_torch(region).double()
    return lambda *given: wide(*(x.double() for x in given)).float()


def of_tanh(region: Region) -> hunting.Call:
    """As torch, but each result with a tanh in it is off by a thousandth."""
    right = in_torch(region)
    off = 1.001 if "Tanh" in hunting.operators_of(region.outputs[0]) else 1.0
    return lambda *given: right(*given) * off


def refusing(region: Region) -> hunting.Call:
    raise NotImplementedError("no such operator")


def raising(region: Region) -> hunting.Call:
    def call(*_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not this size")

    return call


@pytest.mark.rotating
def test_a_planted_fault_is_found_and_made_small() -> None:
    engines = {"right": in_blocks, "off": of_tanh, "refusing": refusing, "raising": raising}
    into = Hunted(0)
    hunted(PROGRAM, engines, into)
    assert {found.engine for found in into.findings} == {"off"}
    least = min(into.findings, key=lambda found: len(found.operators))
    assert least.operators in (["Tanh"], ["Scope map"]) and least.how == "differs"
    assert float(least.got) == pytest.approx(1.001 * float(least.expected.split(",")[0]), rel=1e-4)
    assert into.compared["right"] == into.forms and into.compared["off"] == into.forms
    assert into.refused == {"refusing": into.forms, "raising": into.forms}


def narrow(region: Region) -> hunting.Call:
    right = in_torch(region)
    return lambda *given: right(*given).float().double()


def zeroed(region: Region) -> hunting.Call:
    right = in_torch(region)
    return lambda *given: right(*given).nan_to_num(0.0)


@pytest.mark.parametrize(
    ("term", "engine", "kind"),
    [
        (Op("Exp", (Input("x", TensorType((4,), "float64")),)), narrow, "narrower"),
        (Op("Log", (X,)), zeroed, "edge"),  # of numbers below zero
        (Op("Tanh", (X,)), of_tanh, "differs"),
    ],
)
def test_kinds_of_differences(term: Tensor, engine: hunting.Compile, kind: str) -> None:
    with pytest.raises(hunting.Different) as caught:
        compared(term, engine)
    assert caught.value.kind == kind


def test_forms_that_are_not_equal_are_our_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Op("Relu", (X,))
    monkeypatch.setattr(hunting, "forms", lambda term: (term, wrong))
    into = Hunted(0)
    hunted(Op("Tanh", (X,)), {OURS: in_torch, "right": in_blocks}, into)
    assert [found.engine for found in into.findings] == [OURS]


PLANTED = """
import os
from benchmarks.hunting import in_torch

def dies(region):
    right = in_torch(region)
    def call(*given):
        os.abort()
    return call

def right(region):
    return in_torch(region)
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """An engine by its name, found here and in processes that start from here."""
    (tmp_path / "planted_for_hunt.py").write_text(PLANTED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    importlib.invalidate_caches()
    return lambda name: f"planted_for_hunt:{name}"


@pytest.mark.rotating
def test_the_command_goes_on_where_it_was(
    planted: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An engine that ends its process is a finding, by the program that it ends with."""
    given = ["--engines", planted("dies"), planted("right"), "--size", "1", "--minutes"]
    files = ["--journal", str(tmp_path / "h.jsonl"), "--json", str(tmp_path / "h.json")]
    assert hunt.main([*given, "0.01", *files]) == 1
    known = json.loads((tmp_path / "h.json").read_text())["findings"]
    assert {(row["engine"], row["how"]) for row in known} == {(planted("dies"), "dies")}
    assert "SIGABRT" in known[0]["got"] or "killed" in known[0]["got"]
    lines = (tmp_path / "h.jsonl").read_text().splitlines()
    (tmp_path / "h.jsonl").write_text("\n".join([*lines, lines[-1][:40]]))  # cut short
    capsys.readouterr()
    assert hunt.main([*given, "0", *files]) == 1
    assert json.loads((tmp_path / "h.json").read_text())["findings"] == known
    assert "dies" in capsys.readouterr().out
    assert hunt.main([*given, "0", *files, "--fresh"]) == 0


def test_an_engine_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        hunt.main(["--engines", "xla", "--minutes", "0"])
    assert ended.value.code == 2 and "xla" in capsys.readouterr().err
