"""Settings for every test: threads, cache directory, hypothesis profiles, golden files."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before torch is imported by anything: two threads, also in the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("MKL_NUM_THREADS", "2")
# An engine takes seconds to compile a program; tests that are about engines name them.
os.environ.setdefault("EQSYNTH_ENGINES", "")

# Rule files below are material of tests, many of them wrong on purpose; the pytest plugin of
# eqsynth would make each of their rules a test.
collect_ignore_glob = ["*.egg"]

settings.register_profile(
    "quick", max_examples=50, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden files instead of comparing"
    )
    parser.addoption(
        "--differential-part", default=None, help="which part of the table of operators is run"
    )


_cache_directory: str | None = None


def pytest_configure(config: pytest.Config) -> None:
    """One cache directory for the whole run, so that the machine is measured once."""
    global _cache_directory
    _cache_directory = tempfile.mkdtemp(prefix="eqsynth-tests-")
    os.environ["EQSYNTH_CACHE"] = _cache_directory


def pytest_unconfigure(config: pytest.Config) -> None:
    if _cache_directory is not None:
        shutil.rmtree(_cache_directory, ignore_errors=True)


@dataclass(frozen=True)
class Golden:
    """Compares text with a file; with `--update-golden` writes the file instead."""

    directory: Path
    update: bool

    def check(self, name: str, text: str) -> None:
        path = self.directory / name
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), f"no golden file {name}; make it with --update-golden"
        assert text == path.read_text(encoding="utf-8"), f"{name} changed; see --update-golden"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden.check("explain/chain.txt", text)` against `tests/golden/explain/chain.txt`."""
    return Golden(Path(__file__).parent / "golden", request.config.getoption("--update-golden"))
