"""The examples of README.md run as they stand, one after the other, for a small model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import helper
from onnx.numpy_helper import from_array

import eqsynth

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
RULES = re.findall(r"^```egg\n(;; (\S+).*?)^```$", README, re.MULTILINE | re.DOTALL)


def write_as_onnx(model: torch.nn.Sequential, path: Path) -> None:
    """The first example's model, two linear layers, as a file of any batch."""
    stored = [from_array(p.detach().numpy(), name) for name, p in model.named_parameters()]
    values = [helper.make_tensor_value_info(name, 1, ["batch", 64]) for name in "xy"]
    layers = [
        helper.make_node("Gemm", ["x", "0.weight", "0.bias"], ["h"], transB=1),
        helper.make_node("Gemm", ["h", "1.weight", "1.bias"], ["y"], transB=1),
    ]
    graph = helper.make_graph(layers, "linear", values[:1], values[1:], stored)
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One test: each goes on where the last one has ended, in the same process. The first stands
    by itself; after it there is an ONNX file of its model."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    assert RULES
    for text, name in RULES:
        Path(name).write_text(text, encoding="utf-8")
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"README.md, Python block {number + 1}", "exec"), names)
        if number == 0:
            write_as_onnx(names["model"], tmp_path / "model.onnx")
        if number == 0 or "model.onnx" in block:
            torch.testing.assert_close(names["y"], names["model"](names["x"]), rtol=1e-4, atol=1e-5)
        if "A = " in block or "load" in block:
            result = names["program"](torch.randn(64, 512))
            assert result.shape == (64, 32) and (result >= 0).all()
        if "rules=" in block:
            assert names["signed"].report.rules_fired["positive-minus-negative"] == 1
        if "proof" in block:
            assert names["proof"].stop == "proved"


def test_names_that_the_readme_uses_are_public() -> None:
    used = set(re.findall(r"\beqsynth\.([a-z_]+)\b", "\n".join(BLOCKS)))
    assert used >= {"optimize", "prove_equal"} and used <= set(eqsynth.__all__)


def test_files_that_the_readme_names_exist() -> None:
    named = set(re.findall(r"`((?:\w+/)*\w+\.(?:md|txt))`", README))
    assert "rules/README.md" in named
    assert [name for name in named if not (ROOT / name).is_file()] == []
