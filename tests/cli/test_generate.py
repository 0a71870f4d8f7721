"""``eqsynth rules generate``: counts, the remainder, exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eqsynth import generate
from eqsynth.cli import app
from eqsynth.rules import rules_dir
from eqsynth.tasks import LocalExecutor


def run(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["rules", "generate", *args], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.rotating
def test_what_saturation_does_not_derive_is_the_remainder() -> None:
    asked = ("-n", "1", "--world", "matrices", "--inputs", "2", "--processes", "1")
    (own,) = json.loads(run(*asked, "--json"))["worlds"]
    found: dict[str, Any] = own
    assert found["graphs"] >= found["initial"] > found["renamed"] >= found["common"]
    assert found["subsumed"] == found["asked"] == sum(found["outcomes"].values())
    assert found["outcomes"]["derived"] and "refuted" not in found["outcomes"]
    assert len(found["remainder"]) == found["outcomes"].get("not derived", 0)
    text = run(*asked)
    assert "after common subgraphs" in text
    assert all(one["equality"] in text for one in found["remainder"])


@pytest.mark.rotating
def test_what_is_not_derived_is_written_as_rules_if_it_is_proved(tmp_path: Path) -> None:
    """Without time to search nothing is derived but what is one term; answers that the cache has
    are those of other rules."""
    own, path = tmp_path / "own.egg", tmp_path / "found.egg"
    own.write_text(
        ';; own.egg -- an operator.\n;;\n;; Needs      schema.egg\n\n(ruleset own)\n\n'
        '(define (Thrice a) "(a) [*n] = 3 * a[*n]" :ruleset own)\n', encoding="utf-8"
    )  # fmt: skip
    asked = (str(own), "-n", "1", "--world", "matrices", "--inputs", "1", "--processes", "1",
             "--limit-s", "0", "--write", str(path))  # fmt: skip
    told = json.loads(run(*asked, "--json"))
    open_ = [one["equality"] for one in told["worlds"][0]["remainder"]]
    assert open_ == [one["equality"] for one in told["rules"]] and len(open_) > 3
    rules = [rule for one in told["rules"] for rule in one["rules"]]
    text = path.read_text(encoding="utf-8")
    assert rules and all(rule in text for rule in rules)
    run(*asked[:-1], str(tmp_path / "nowhere" / "found.egg"), code=2)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file with an operator, so that answers that are kept for other tests aren't taken."""
    path = tmp_path / "own.egg"
    path.write_text(
        ';; own.egg -- an operator.\n;;\n;; Needs      schema.egg\n\n(ruleset own)\n\n'
        '(define (Twice a) "(a) [*n] = 2 * a[*n]" :ruleset own)\n', encoding="utf-8"
    )  # fmt: skip
    return path


ASKED = ("-n", "1", "--world", "matrices", "--inputs", "1", "--processes", "1", "--limit-s", "0")


@pytest.mark.rotating
def test_what_is_not_proved_is_told_with_what_is_left_to_show(own: Path, tmp_path: Path) -> None:
    """A matrix of the enumeration is its three first rows; of other sizes it isn't."""
    with own.open("a", encoding="utf-8") as file:
        file.write("(define (Top a) (Slice a 0 0 3 1) :ruleset own)\n")
    path = tmp_path / "found.egg"
    asked = (str(own), *ASKED, "--write", str(path))
    told = json.loads(run(*asked, "--json"))["rules"]
    left = {one["equality"]: one["why"] for one in told if not one["rules"]}
    written = {one["equality"] for one in told if one["rules"]}
    assert "x0 = Top(x0)" in left and written
    head, rest = run(*asked).split("so not written\n")
    rows = rest.splitlines()
    assert "" not in left.values()
    assert rows[0].startswith("equality") and len(rows) == len(left) + 2
    for row, (equality, why) in zip(rows[1:], left.items(), strict=False):
        assert row.startswith(equality) and row.endswith(why.removeprefix("left to show: "))
    assert not any(row.startswith(f"{equality}  ") for equality in written for row in rows)
    number = path.read_text(encoding="utf-8").count(":name")
    assert f"{path}: {number} rules, " in rows[-1]
    assert f"of {len(written)} of {len(told)}" in rows[-1]


def test_a_file_that_is_read_is_not_written(own: Path, tmp_path: Path) -> None:
    before = own.read_text(encoding="utf-8")
    run(str(own), *ASKED, "--write", str(own), code=2)
    run(str(tmp_path), *ASKED, "--write", str(tmp_path / "." / "own.egg"), code=2)
    assert own.read_text(encoding="utf-8") == before


@pytest.mark.rotating
def test_a_directory_of_rule_files_is_taken(own: Path) -> None:
    """And a file of eqsynth's own, which is there already."""
    files = str(own.parent), str(rules_dir() / "contract.egg")
    (world,) = json.loads(run(*files, *ASKED, "--json"))["worlds"]
    assert world["asked"] and any("Twice" in one["equality"] for one in world["remainder"])


@pytest.mark.rotating(parts=4)
def test_an_operator_that_is_not_enumerated_is_told(own: Path) -> None:
    with own.open("a", encoding="utf-8") as file:
        file.write("(constructor Open (Tensor) Tensor)\n"
                   "(constructor Front (Tensor i64) Tensor)\n"
                   "(define (Front a n) (Slice a 0 0 n 1) :ruleset own)\n")  # fmt: skip
    text = run(str(own), *ASKED, "--derive", "0")
    assert "Open isn't enumerated: no rule defines it" in text
    assert "Front isn't enumerated: it has attributes" in text
    assert text.count("isn't enumerated") == 2


@pytest.mark.rotating
def test_an_interrupt_ends_what_runs_and_leaves_the_file(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C comes while proofs run: the executor's block is left by it."""
    path, write = tmp_path / "found.egg", generate.write
    path.write_text("before", encoding="utf-8")
    left: list[object] = []

    def interrupted(*args: Any, **rest: Any) -> Iterator[generate.Written]:
        yield next(write(*args, **rest))
        raise KeyboardInterrupt

    def leave(tasks: LocalExecutor, kind: object, *rest: Any) -> None:
        left.append(kind)
        ends(tasks, kind, *rest)  # type: ignore[arg-type]

    ends = LocalExecutor.__exit__
    monkeypatch.setattr(generate, "write", interrupted)
    monkeypatch.setattr(LocalExecutor, "__exit__", leave)
    text = run(str(own), *ASKED, "--write", str(path), code=130)
    assert "goes on" in text and left == [KeyboardInterrupt]
    assert path.read_text(encoding="utf-8") == "before"


def test_a_world_that_is_none_exits_with_2() -> None:
    run("-n", "1", "--world", "graphs", code=2)
