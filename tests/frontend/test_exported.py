"""Programs of torch.export as what is optimized."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from eqsynth.errors import CaptureError, EqsynthError
from eqsynth.frontend.exported import module_of
from eqsynth.lower.functional import specs_copied
from eqsynth.pipeline import optimize

X = torch.randn(4, 8)


@pytest.fixture(scope="module")
def exported() -> torch.export.ExportedProgram:
    model = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 8)).eval()
    return torch.export.export(model, (X,))


def _file(exported: torch.export.ExportedProgram, folder: Path) -> Path:
    torch.export.save(exported, folder / "model.pt2")
    return folder / "model.pt2"


FORMS: dict[str, Callable[[torch.export.ExportedProgram, Path], tuple[Any, ...]]] = {
    "itself": lambda exported, folder: (exported,),
    "its module, which can't be put into evaluation mode": lambda e, f: (e.module(), (X,)),
    "its file": lambda e, folder: (_file(e, folder),),
    "its file by name, with other inputs": lambda e, f: (str(_file(e, f)), (torch.ones(4, 8),)),
}


@pytest.mark.rotating
@pytest.mark.parametrize("form", FORMS)
def test_it_is_optimized(
    form: str, exported: torch.export.ExportedProgram, tmp_path: Path
) -> None:
    program = optimize(*FORMS[form](exported, tmp_path), objective="flops", time_limit_s=600)
    assert program.original is None
    torch.testing.assert_close(program(X), exported.module()(X))


def test_torch_warns_of_no_specs_that_are_its_own(
    exported: torch.export.ExportedProgram, tmp_path: Path
) -> None:
    """The user has none of them: torch loads and copies the structure of the arguments."""
    path = _file(exported, tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimize(path, objective="flops", engines=(), time_limit_s=60, progress=False)
        with specs_copied():
            warnings.warn("another one", FutureWarning, stacklevel=1)
    told = [str(warning.message) for warning in caught]
    assert not [text for text in told if "treespec" in text] and "another one" in told


def test_training_was_settled_when_it_was_exported() -> None:
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).train()
    program = optimize(torch.export.export(layer, (X,)), objective="flops", time_limit_s=600)
    assert program.original is not None and "random" in str(program.report.reason)


def test_what_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "damaged.pt2").write_bytes(b"PK\x03\x04 and no more")
    for path in (tmp_path / "damaged.pt2", tmp_path / "none.pt2"):
        with pytest.raises(CaptureError) as caught:
            module_of(path, (), {})
        assert caught.value.where == str(path)
    made = torch.export.export(nn.Linear(8, 8).eval(), (X,))
    made.example_inputs = None
    with pytest.raises(CaptureError):
        module_of(made, (), {})


def test_a_function_is_told_how_to_become_a_module() -> None:
    with pytest.raises(EqsynthError) as caught:
        optimize(lambda x: x + 1, (X,))  # type: ignore[arg-type]
    assert "torch.nn.Module" in caught.value.hint
