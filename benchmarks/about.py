"""The origin of a benchmark's result: machine, versions, commit."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from eqsynth.extract.measure import describe_cpu

_ROOT = Path(__file__).resolve().parents[1]


def about(packages: Iterable[str] = ()) -> dict[str, Any]:
    """The machine, the versions of Python and packages, and the commit, as plain data for JSON.

    Args:
        packages: further packages whose versions are listed; those that aren't installed are left
            out.
    """
    return {
        "machine": {
            **asdict(describe_cpu()),
            "memory_bytes": psutil.virtual_memory().total,
            "system": f"{platform.system()} {platform.machine()}",
        },
        "versions": {
            "python": platform.python_version(),
            **_versions(("eqsynth", "torch", "apache-tvm", "egglog", "numpy", *packages)),
        },
        "commit": _git("rev-parse", "--short", "HEAD"),
        "changed_since_commit": bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _git(*arguments: str) -> str:
    """The output of a git command; empty without git or a repository."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()
