"""The command that feeds damaged and odd input to eqsynth: it goes on where it ended, and tells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import fuzz


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    journal = tmp_path / "results" / "fuzz.json"
    before = 0
    for _ in range(2):
        assert not fuzz.run(["onnx"], 0.01, journal, turn_s=0.0)
        tried = fuzz.load(journal)["onnx"]
        assert tried.next == tried.inputs == sum(tried.ends.values()) > before
        before = tried.next
    assert f"{before} inputs" in fuzz.table(fuzz.load(journal))


def test_what_escapes_is_told_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr("eqsynth.testing.onnx_damage.module_of", broken)
    journal = tmp_path / "fuzz.json"
    assert fuzz.run(["onnx"], 0.01, journal, turn_s=0.0)
    assert "ZeroDivisionError: a fault" in capsys.readouterr().out
    assert fuzz.load(journal)["onnx"].escaped[0] == "0: ZeroDivisionError: a fault"


def test_a_journal_that_was_cut_short_is_begun_anew(tmp_path: Path) -> None:
    journal = tmp_path / "fuzz.json"
    for text in ("{", "[]", json.dumps({"onnx": {"no": 1}})):
        journal.write_text(text, encoding="utf-8")
        assert fuzz.load(journal)["onnx"] == fuzz.Tried()


def test_a_profile_that_was_broken_is_seen(tmp_path: Path) -> None:
    assert fuzz._state(tmp_path) == (set(), [])
    (tmp_path / "profile.broken-1").touch()
    assert fuzz._state(tmp_path)[1] == ["moved aside: profile.broken-1"]
