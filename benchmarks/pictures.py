"""Makes the pictures of explanations in the documents, from eqsynth's own HTML page.

    python -m benchmarks.pictures                  README's and that of docs/how-it-works.md
    python -m benchmarks.pictures --only report --seconds 60

It needs a browser of Chromium's kind, named by ``EQSYNTH_BROWSER`` or found on ``PATH``, which
takes the picture of the page that ``report.to_html`` writes, at its first region (``#r0``).
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import Any

import torch
from torch import nn

import eqsynth

DOCS = Path(__file__).resolve().parents[1] / "docs"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "headless_shell")


class Attention(nn.Module):
    """Without a softmax, so that its products may be taken in another order."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.n = nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.n(x)
        return torch.relu(self.o((self.q(y) @ self.k(y).transpose(-1, -2)) @ self.v(y))) + x


def report() -> tuple[nn.Module, torch.Tensor]:
    return Attention().eval(), torch.randn(1, 512, 64)


def convolution() -> tuple[nn.Module, torch.Tensor]:
    """What docs/how-it-works.md follows, as that page makes it."""
    text = (DOCS / "how-it-works.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0], names)
    return names["model"], names["image"]


PICTURES: dict[str, tuple[Callable[[], tuple[nn.Module, torch.Tensor]], str]] = {
    "report": (report, "time"), "convolution": (convolution, "flops"),
}  # fmt: skip


def draw(page: Path, picture: Path, browser: str) -> None:
    """
    Raises:
        subprocess.CalledProcessError: the browser fails.
    """
    subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
         "--window-size=1400,860", f"--screenshot={picture}", f"{page.as_uri()}#r0"],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=tuple(PICTURES), default=list(PICTURES))
    parser.add_argument("--seconds", type=float, default=30.0, help="of each search")
    parser.add_argument("--folder", type=Path, default=DOCS)
    args = parser.parse_args()
    browser = os.environ.get("EQSYNTH_BROWSER") or next(filter(None, map(which, BROWSERS)), None)
    if browser is None:
        sys.exit("no browser: set EQSYNTH_BROWSER to a Chromium")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only:
            torch.manual_seed(0)
            make, objective = PICTURES[name]
            model, x = make()
            page = Path(folder) / f"{name}.html"
            program = eqsynth.optimize(
                model, (x,), objective=objective, time_limit_s=args.seconds, engines=()
            )
            program.report.to_html(page)
            draw(page, (args.folder / f"{name}.png").resolve(), browser)
            print(f"{args.folder / name}.png")


if __name__ == "__main__":
    main()
