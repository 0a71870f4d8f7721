"""The list of real models, and the command that runs it. No model is built here but where its
library is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import models, models_page
from benchmarks.about import about
from benchmarks.model_runs import Row, difference, tried
from benchmarks.models import Journal, line, run
from benchmarks.zoo import LIBRARIES, MODELS, Call, installed
from eqsynth.executor import Worker


class Cache:
    def __init__(self) -> None:
        self.rows = torch.zeros(1, 3)


class Grows(nn.Module):
    def __init__(self, by: float = 0.0, forgets: bool = False) -> None:
        super().__init__()
        self.by, self.forgets = by, forgets

    def forward(self, x: Tensor, cache: Cache) -> dict[str, Any]:
        if not self.forgets:
            cache.rows = torch.cat([cache.rows, x + self.by])
        return {"y": x, "cache": cache}


class Pairs(Grows):
    def forward(self, x: Tensor, cache: Cache) -> Any:
        super().forward(x, cache)
        return x, cache


def test_models_of_all_libraries_are_listed() -> None:
    assert len(MODELS) >= 40
    assert {model.library for model in MODELS.values()} == set(LIBRARIES)


@pytest.mark.parametrize(
    ("other", "differs"),
    [(Grows(), 0.0), (Grows(by=0.5), 0.25), (Grows(forgets=True), float("inf")),
     (Pairs(), float("inf"))],  # fmt: skip
)
def test_a_model_differs_by_its_results_and_by_what_it_does_to_its_arguments(
    other: nn.Module, differs: float
) -> None:
    cache = Cache()
    call = Call(Grows(), (torch.tensor([[0.0, 1.0, 2.0]]),), {"cache": cache})
    assert difference(call, other, shuffle=False) == differs
    assert (difference(call, other, shuffle=True) > 0) == (differs > 0)
    assert cache.rows.shape == (1, 3)


def test_a_journal_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "models.jsonl"
    first = Journal(path, {"size": "probe"})
    first.add(Row("bert", "transformers", cpu_s=3.0, opaque=("a",), flops=(2, 1)))
    with path.open("a") as file:
        file.write('{"name": "gpt2", "libr')
    again = Journal(path, {"size": "probe"})
    assert list(again.rows) == ["bert"] and again.rows["bert"].cpu_s == 3.0
    told: list[str] = []
    (row,) = run(["bert"], again, 1.0, told.append, ("probe", 1.0, "flops", 1, False, None))
    assert row.equal and not told
    assert "equal" in line(row) and models.table([row]).row_count == 1
    assert not Journal(path, {"size": "small"}).rows


def test_what_fails_or_differs_is_not_equal() -> None:
    assert not Row("bert", "transformers", error="x").equal
    assert not Row("bert", "transformers", differs=1e-3).equal
    assert "DIFFERS" in line(Row("bert", "transformers", differs=float("inf")))


def test_the_rows_are_written_into_a_document(tmp_path: Path) -> None:
    page = tmp_path / "models.md"
    page.write_text(f"# Head\n{models_page.BEGIN}\nold\n{models_page.END}\ntail\n")
    times = {"eager": 0.004, "inductor": 0.003, "eqsynth": 0.002}
    rows = [
        Row("bert", "transformers", differs=2e-7, wall_s=3.25, opaque_share=0.05, median_s=times),
        Row("bart", "transformers", differs=1e-3, median_s=times),
        Row("gpt2", "transformers", kept=True, median_s={"eager": 0.004}),
        Row("opt", "transformers", error="no memory"),
    ]
    for _ in range(2):  # written again, it is the same
        models_page.write(page, rows, "small", "--limit-s 5", about())
        text = page.read_text()
        assert text.startswith("# Head\n") and text.endswith("\ntail\n") and "old" not in text
        assert text.count("| bert |") == 1 and "4 layers of 256" in text and "`--limit-s 5`" in text
    assert "| bert | 2e-07 | replaced | 5% | 3.2 | 4.000 | 3.000 | 2.000 | 2.00 | 1.50 |" in text
    assert "| bart | 1e-03 | replaced | 0% | 0.0 | 4.000 | 3.000 | 2.000 |  |  |" in text
    assert "2 of 4 are equal to eager. Geometric means: 2.00 over eager (1 models)" in text
    assert "bert" in models_page.plot(rows) and "opt" not in models_page.plot(rows)
    page.write_text("# Head\n")
    with pytest.raises(ValueError, match="models-table"):
        models_page.write(page, rows, "small", "", about())


def test_the_documents_table_has_its_place() -> None:
    text = (Path(models.__file__).parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
    assert 0 < text.index(models_page.BEGIN) < text.index("| bert |") < text.index(models_page.END)


@pytest.mark.rotating
def test_a_task_is_found_by_the_process_that_runs_it() -> None:
    with Worker() as worker, pytest.raises(KeyError) as caught:
        worker.run(tried, "no such model", "probe", 1.0, "flops", 1, False)
    assert caught.value.args == ("no such model",)
    assert tried.__module__ != "__main__"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "llama_step"])
def test_a_real_model(name: str) -> None:
    if not installed(MODELS[name].library):
        pytest.skip("transformers isn't installed")
    row = tried(name, "probe", 10.0, "flops", 1, False)
    assert row.equal and not row.kept and row.operators > 50 and not row.warnings
