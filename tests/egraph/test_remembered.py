"""Saturated segments are kept in files: they come back equal, some are never kept, and damaged
files are ignored."""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import eqsynth
from eqsynth.egraph import remembered
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.remembered import Saturated
from eqsynth.egraph.saturation import saturate_terms
from eqsynth.egraph.schedule import DEFAULT_PHASES, PROVE_PHASES
from eqsynth.ir.tensor import Op, Tensor
from eqsynth.testing.consistency import assert_egraph_consistent
from tests.egraph.programs import LIMITS, RULES
from tests.terms import leaf, op

A, B, C = leaf("x0", 2, 8), leaf("x1", 8, 8), leaf("x2", 8, 1)
ROOTS: tuple[Tensor, ...] = (op("Relu", op("Matmul", op("Matmul", A, B), C)),)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    yield tmp_path / "saturated-1"


@pytest.fixture(scope="module")
def graph() -> EGraph:
    return saturate_terms(ROOTS, RULES, DEFAULT_PHASES, LIMITS, True)


def key(roots: tuple[Tensor, ...] = ROOTS) -> str:
    return remembered.key_of(roots, RULES, DEFAULT_PHASES, LIMITS, True)


def test_what_is_kept_comes_back_whole(home: Path, graph: EGraph) -> None:
    assert remembered.load(key(), ROOTS, 60.0) is None
    remembered.keep(key(), graph, 1.0)
    found = remembered.load(key(), ROOTS, 60.0)
    assert found is not None and found.seconds == 0.0
    assert replace(found, seconds=graph.seconds) == graph
    assert found.log is not None and found.log == graph.log
    assert_egraph_consistent(found)


def test_operators_are_at_the_places_of_the_program_that_asks(home: Path, graph: EGraph) -> None:
    remembered.keep(key(), graph, 1.0)
    product = Op("Matmul", (Op("Matmul", (A, B), (), "one"), C), (), "two")
    roots = (Op("Relu", (product,), (), "three"),)
    assert key(roots) == key()
    found = remembered.load(key(roots), roots, 60.0)
    assert found is not None
    own = [m for members in found.original.values() for m in members if isinstance(m, Op)]
    assert [m.origin for m in own] == ["one", "two", "three"]
    every = {m.origin for members in found.classes.values() for m in members if isinstance(m, Op)}
    assert every == {"", "one", "two", "three"}


def test_another_text_of_a_rule_of_scopes_has_another_file() -> None:
    """Rules of scopes differ in their text, not in the program that requests them."""
    other = next(r.scopes for r in RULES.rules if r.scopes and r.law == "delta-under-sum")
    rules = [replace(r, scopes=other) if r.law == "hoist" else r for r in RULES.rules]
    changed = replace(RULES, rules=tuple(rules))
    assert remembered.key_of(ROOTS, changed, DEFAULT_PHASES, LIMITS, True) != key()


def test_another_search_has_another_file() -> None:
    others = [
        remembered.key_of(ROOTS[0].args, RULES, DEFAULT_PHASES, LIMITS, True),  # type: ignore[attr-defined]
        remembered.key_of(ROOTS, RULES.without("factor"), DEFAULT_PHASES, LIMITS, True),
        remembered.key_of(ROOTS, RULES, PROVE_PHASES, LIMITS, True),
        remembered.key_of(ROOTS, RULES, DEFAULT_PHASES, replace(LIMITS, enodes=7), True),
        remembered.key_of(ROOTS, RULES, DEFAULT_PHASES, LIMITS, False),
    ]
    assert len({key(), *others}) == 6
    patient = replace(LIMITS, deadline_s=LIMITS.deadline_s + 1)
    assert remembered.key_of(ROOTS, RULES, DEFAULT_PHASES, patient, True) == key()


@pytest.mark.parametrize("stop", ["node_limit", "worker killed"])
def test_what_has_not_come_to_its_end_is_not_kept(home: Path, graph: EGraph, stop: str) -> None:
    remembered.keep(key(), replace(graph, stop=stop), 60.0)
    assert remembered.load(key(), ROOTS, 60.0) is None
    remembered.keep(key(), replace(graph, faults={"factor": "a fault"}), 60.0)
    assert remembered.load(key(), ROOTS, 60.0) is None


def test_seconds_that_others_had_the_processor_do_not_count(home: Path, graph: EGraph) -> None:
    remembered.keep(key(), replace(graph, stop="deadline", busy=0.4), 10.0)
    assert remembered.load(key(), ROOTS, 7.0) is not None
    assert remembered.load(key(), ROOTS, 8.0) is None
    assert 0 < graph.busy <= 1


def test_what_the_deadline_stopped_serves_searches_with_little_more_time(
    home: Path, graph: EGraph
) -> None:
    remembered.keep(key(), replace(graph, stop="deadline", busy=1.0), 2.0)
    assert remembered.is_kept(key())
    for seconds, serves in ((1.0, True), (2.0, True), (3.9, True), (4.0, False), (60.0, False)):
        assert (remembered.load(key(), ROOTS, seconds) is not None) == serves
    remembered.keep(key(), graph, 2.0)
    assert remembered.load(key(), ROOTS, math.inf) is not None


class Harm:
    """An object whose pickle, when read, would create a directory."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (os.environ["EQSYNTH_CACHE"] + "/harm",)


def sealed(value: object) -> bytes:
    data = zlib.compress(pickle.dumps(value))
    return hashlib.blake2b(data, digest_size=16).digest() + data


def test_a_file_that_is_no_good_is_as_good_as_none(home: Path, graph: EGraph) -> None:
    remembered.keep(key(), graph, 1.0)
    path = home / key()
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    other = saturate_terms((op("Relu", A),), RULES, DEFAULT_PHASES, LIMITS, True)
    for data in (
        b"", whole[:10], whole[:-1], bytes(flipped), b"text", sealed(Harm()), sealed([1]),
        sealed(graph), sealed(Saturated(other, math.inf)),
        sealed(Saturated(replace(graph, roots=other.roots), math.inf)),
    ):  # fmt: skip
        path.write_bytes(data)
        assert remembered.load(key(), ROOTS, 60.0) is None
    assert not (home.parent / "harm").exists()
    path.write_bytes(whole)
    assert remembered.load(key(), ROOTS, 60.0) is not None


def test_files_that_were_not_used_for_longest_go(
    home: Path, graph: EGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        remembered.keep(name, graph, 1.0)
    size = (home / "a").stat().st_size
    for age, name in enumerate("bca"):
        os.utime(home / name, ns=(age, age))
    assert remembered.load("b", ROOTS, 60.0) is not None  # used now
    monkeypatch.setattr(remembered, "MAX_BYTES", 3 * size)
    remembered.keep("d", graph, 1.0)
    assert {path.name for path in home.iterdir()} == {"a", "b", "d"}
    monkeypatch.setattr(remembered, "MAX_BYTES", size - 1)
    remembered.keep("e", graph, 1.0)
    assert not (home / "e").exists()


def test_a_directory_that_cannot_be_written_costs_nothing_but_time(
    tmp_path: Path, graph: EGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path / "file"))
    remembered.keep(key(), graph, 1.0)
    assert remembered.load(key(), ROOTS, 60.0) is None


def test_the_second_optimize_does_not_saturate(home: Path) -> None:
    """A second model with the same layers isn't saturated. The log that explains it is kept too."""
    torch.manual_seed(0)

    def module() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Linear(6, 6), torch.nn.ReLU(), torch.nn.Linear(6, 6, bias=False),
            torch.nn.Linear(6, 2), torch.nn.Tanh(),
        ).eval()  # fmt: skip

    x = torch.randn(3, 6)
    programs = [
        eqsynth.optimize(module(), (x,), objective="flops", time_limit_s=120) for _ in range(2)
    ]
    first, second = (program.report for program in programs)
    assert first.stop == second.stop == "saturated" and first.remembered_segments == 0
    assert second.remembered_segments == second.distinct_segments == first.distinct_segments > 0
    assert "saturate" in second.stages_s and second.rules_fired == first.rules_fired
    assert str(programs[1].explain()) == str(programs[0].explain())
    assert "fold-constants" in str(programs[1].explain()) or "factor" in second.rules_fired
