"""The built wheel carries the rules, and finds them when it is installed away from the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FIND_RULES = "from eqsynth.rules.location import rules_directory; print(rules_directory())"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the wheel's files, as an installer would lay them out."""
    directory = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory / "site")
    return directory / "site"


def found_rules(site: Path | None, cwd: Path) -> Path:
    env = dict(os.environ)
    env.pop("PYTHONPATH", None)
    if site is not None:
        env["PYTHONPATH"] = str(site)
    done = subprocess.run(
        [sys.executable, "-c", FIND_RULES],
        cwd=cwd, env=env, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return Path(done.stdout.strip())


def rule_files(directory: Path) -> dict[str, str]:
    return {str(p.relative_to(directory)): p.read_text() for p in directory.rglob("*.egg")}


def test_wheel_finds_its_rules(site: Path, tmp_path: Path) -> None:
    directory = found_rules(site, tmp_path)
    assert directory == (site / "eqsynth" / "_rules").resolve()
    assert rule_files(directory) == rule_files(ROOT / "rules") != {}


def test_checkout_finds_its_rules() -> None:
    assert found_rules(None, ROOT) == ROOT / "rules"


def test_wheel_carries_the_package_and_nothing_else(site: Path) -> None:
    files = {p.relative_to(site).parts[0] for p in site.rglob("*") if p.is_file()}
    assert {name for name in files if not name.endswith(".dist-info")} == {"eqsynth"}
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "eqsynth").rglob("*.py")}
    assert modules <= {str(p.relative_to(site)) for p in site.rglob("*.py")}
    assert (site / "eqsynth" / "py.typed").exists()
