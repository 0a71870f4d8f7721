"""Pictures of pages: what is drawn, by which call of a browser."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import pictures

# Keeps the page in the place of a picture of it.
BROWSER = """\
#!/usr/bin/env python3
import sys
from pathlib import Path
from urllib.parse import urlsplit

picture = next(a.partition("=")[2] for a in sys.argv if a.startswith("--screenshot="))
address = urlsplit(sys.argv[-1])
assert address.fragment == "r0"
Path(picture).write_text(Path(address.path).read_text())
"""


@pytest.mark.rotating
def test_the_page_of_the_documents_convolution_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = tmp_path / "browser"
    browser.write_text(BROWSER.replace("/usr/bin/env python3", sys.executable))
    browser.chmod(0o755)
    monkeypatch.setenv("EQSYNTH_BROWSER", str(browser))
    asked = ["pictures", "--only", "convolution", "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", asked)
    pictures.main()
    page = (tmp_path / "convolution.png").read_text()
    assert "39 times fewer FLOPs" in page and "conv.weight" in page


def test_pictures_of_the_documents_are_those_that_are_drawn() -> None:
    drawn = {f"{name}.png" for name in pictures.PICTURES}
    assert {path.name for path in pictures.DOCS.glob("*.png")} == drawn
