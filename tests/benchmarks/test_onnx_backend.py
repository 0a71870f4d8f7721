import sys

import pytest

from benchmarks.onnx_backend import main


@pytest.mark.rotating
@pytest.mark.filterwarnings("ignore")
def test_it_counts_ends_and_names_what_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["onnx_backend", "--only", "string_concat", "--no-capture"])
    main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["5", "unknown"] in lines
    assert [line[0] for line in lines if line and line[-1] == "STRING"] == ["5"]
