"""The profile: recorded times come back, families of kernels give estimates, files can be exported
and imported, and processes share a file."""

import multiprocessing
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from eqsynth.errors import EqsynthError
from eqsynth.extract.profile import (
    Measurement,
    MeasurementKey,
    Profile,
    Ratio,
    library_versions,
)
from eqsynth.extract.timing import Timing

KEY = MeasurementKey(
    "onednn.linear:relu", ((1, 512), (512, 64), (1, 64)), ((512, 1), (1, 512), (64, 1)),
    ("float32", "float32", "float32"),
)  # fmt: skip
TIMING = Timing(2e-5, 1e-5, 3e-5, 7)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "profile.sqlite"


def numbered(number: int, implementation: str = "torch.add") -> MeasurementKey:
    return MeasurementKey(implementation, ((number,),), ((1,),), ("float32",))


def test_a_time_comes_back_in_another_profile(path: Path) -> None:
    Profile("t", path=path).record(KEY, TIMING, 5e-6)
    found = Profile("t", path=path).lookup(KEY)
    assert found == Measurement(TIMING, 5e-6, found.measured_at if found else "")


def test_every_part_of_the_key_counts(path: Path) -> None:
    Profile("t", path=path).record(KEY, TIMING, 5e-6)
    changed = [
        replace(KEY, implementation="onednn.linear"),
        replace(KEY, shapes=((2, 512), (512, 64), (2, 64))),
        replace(KEY, strides=((512, 1), (64, 1), (64, 1))),
        replace(KEY, dtypes=("bfloat16",) * 3),
        replace(KEY, term="stride 2"),
        replace(KEY, schedule="tile 16"),
    ]
    profile = Profile("t", path=path)
    assert [profile.lookup(other) for other in changed] == [None] * len(changed)
    assert profile.lookup_many([*changed, KEY]).keys() == {KEY}
    assert Profile("u", path=path).lookup(KEY) is None
    assert Profile("t", "torch=0.0", path).lookup(KEY) is None


def test_key_text_is_the_same_in_another_process() -> None:
    code = (
        "from eqsynth.extract.profile import MeasurementKey as K; import sys; "
        f"sys.stdout.write({KEY!r}.text())".replace("MeasurementKey(", "K(")
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == KEY.text()


def test_the_newest_time_stays(path: Path) -> None:
    profile = Profile("t", path=path)
    profile.record(KEY, TIMING, 5e-6)
    profile.record(KEY, replace(TIMING, median_s=1e-5), 5e-6)
    found = profile.lookup(KEY)
    assert found is not None and found.timing.median_s == 1e-5


def test_a_time_of_a_quiet_machine_stays(path: Path) -> None:
    """Whichever is measured first."""
    profile, quiet = Profile("t", path=path), replace(TIMING, median_s=1e-5)
    disturbed = replace(TIMING, disturbed=True)
    found = []
    for timing in (disturbed, quiet, disturbed, replace(quiet, samples=9)):
        profile.record(KEY, timing, 5e-6)
        known = profile.lookup(KEY)
        assert known is not None
        found.append(known.timing)
    assert found == [disturbed, quiet, quiet, replace(quiet, samples=9)]


def test_disturbed_times_are_left_out_on_a_quiet_machine(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def answer(quiet: bool) -> Callable[[], bool]:
        return lambda: asked.append(quiet) or quiet  # type: ignore[func-returns-value]

    profile, other = Profile("t", path=path), numbered(1, KEY.implementation)
    rows = [profile.row_of(key) for key in (KEY, other)]
    profile.record(KEY, TIMING, 5e-6)
    for elsewhere in (Profile("u", path=path), Profile("t", "torch=0.0", path)):
        elsewhere.record(KEY, replace(TIMING, disturbed=True), 5e-6)
    after = "eqsynth.extract.profile.RETRY_AFTER"
    with monkeypatch.context() as context:
        context.setattr(after, timedelta(0))
        profile.retry_disturbed(answer(True))
    assert not asked  # only another target and other libraries have disturbed times
    profile.record(other, replace(TIMING, disturbed=True), 5e-6)
    profile.retry_disturbed(answer(True))
    assert not asked and len(profile.lookup_many([KEY, other])) == 2  # it is of this moment

    monkeypatch.setattr(after, timedelta(0))
    profile.retry_disturbed(answer(False))
    assert asked == [False] and len(profile.lookup_many([KEY, other])) == 2
    profile.retry_disturbed(answer(True))
    assert profile.lookup_many([KEY, other]).keys() == {KEY}
    assert profile.lower_quartiles(rows).keys() == {rows[0]}
    assert len(profile.family_ratios(KEY.family)) == 1
    # What is measured now counts, even if it is disturbed again.
    profile.record(other, replace(TIMING, disturbed=True), 5e-6)
    assert len(profile.lookup_many([KEY, other])) == 2


def test_many_keys_at_once(path: Path) -> None:
    profile = Profile("t", path=path)
    profile.record_many({numbered(n): (TIMING, 1e-6) for n in range(1201)})
    assert len(profile.lookup_many(numbered(n) for n in range(1300))) == 1201


def test_ratios_are_those_of_one_family_on_one_target(path: Path) -> None:
    profile = Profile("t", path=path)
    assert profile.family_ratios("torch.add") == []
    profile.record(numbered(3, "torch.add:3"), Timing(3e-6, 1e-6, 4e-6, 5), 2e-6)
    profile.record(numbered(0, "torch.mul"), Timing(1e-9, 1e-9, 1e-9, 5), 1e-6)
    Profile("u", path=path).record(numbered(0), Timing(1e-9, 1e-9, 1e-9, 5), 1e-6)
    assert profile.family_ratios("torch.add") == [Ratio(1.5, 2e-6, 3)]
    profile.record(KEY, TIMING, 5e-6)
    assert profile.family_ratios(KEY.family) == [Ratio(4.0, 5e-6, 512 + 512 * 64 + 64)]


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_time_is_refused(path: Path, bad: float) -> None:
    profile = Profile("t", path=path)
    with pytest.raises(ValueError):
        profile.record(KEY, replace(TIMING, median_s=bad), 1e-6)
    with pytest.raises(ValueError):
        profile.record(KEY, TIMING, bad)
    assert profile.lookup(KEY) is None


def test_import_takes_new_times_and_keeps_newer_ones(path: Path, tmp_path: Path) -> None:
    here, there = Profile("t", path=path), Profile("t", path=tmp_path / "there.sqlite")
    there.record(KEY, TIMING, 5e-6)
    there.record(numbered(1), TIMING, 5e-6)
    there.store_document("target", "theirs")
    here.record(KEY, replace(TIMING, median_s=1e-5), 5e-6)
    there.record(numbered(2), TIMING, 5e-6)
    here.record(numbered(2), replace(TIMING, median_s=1e-5), 5e-6)
    there.record(numbered(2), replace(TIMING, median_s=3e-5), 5e-6)
    there.close()
    assert here.import_from(tmp_path / "there.sqlite") == 3
    medians = {key: found.timing.median_s for key, found in here.lookup_many(
        [KEY, numbered(1), numbered(2)]).items()}  # fmt: skip
    assert medians == {KEY: 1e-5, numbered(1): 2e-5, numbered(2): 3e-5}
    assert here.load_document("target") == "theirs"


def test_import_leaves_out_what_is_no_time(path: Path, tmp_path: Path) -> None:
    import sqlite3

    there = Profile("t", path=tmp_path / "there.sqlite")
    there.record_many({numbered(n): (TIMING, 1e-6) for n in range(4)})
    there.close()
    with sqlite3.connect(tmp_path / "there.sqlite") as db:
        change = "UPDATE times SET {} WHERE kernel LIKE '%\"shapes\":[[{}]]%'"
        db.execute(change.format("median_s = -1.0", 1))
        db.execute(change.format("roofline_s = 'fast'", 2))
        db.execute(change.format("disturbed = 2", 3))
    db.close()
    here = Profile("t", path=path)
    here.import_from(tmp_path / "there.sqlite")
    assert here.lookup_many(numbered(n) for n in range(4)).keys() == {numbered(0)}


@pytest.mark.parametrize("content", [None, b"not a database, but long enough to be one " * 40, b""])
def test_importing_what_is_no_profile_is_an_error(
    path: Path, tmp_path: Path, content: bytes | None
) -> None:
    source = tmp_path / "there.sqlite"
    if content is not None:
        source.write_bytes(content)
    with pytest.raises(EqsynthError) as caught:
        Profile("t", path=path).import_from(source)
    assert caught.value.where == str(source)
    assert source.exists() == (content is not None)


def test_the_first_document_stays_unless_replaced(path: Path) -> None:
    profile = Profile("t", path=path)
    assert profile.load_document("target") is None
    assert profile.store_document("target", "one") == "one"
    assert Profile("t", path=path).store_document("target", "two") == "one"
    assert profile.store_document("target", "two", replace=True) == "two"


def write_many(path: Path, start: int, count: int) -> None:
    profile = Profile("t", path=path)
    for number in range(start, start + count):
        profile.record(numbered(number), TIMING, 1e-6)


@pytest.mark.rotating
def test_processes_that_write_at_once_lose_nothing(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(path, 100 * i, 100)) for i in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(3600)
    assert [writer.exitcode for writer in writers] == [0] * 4
    assert len(Profile("t", path=path).lookup_many(numbered(n) for n in range(500))) == 400


def test_a_forked_process_shares_the_file(path: Path) -> None:
    profile = Profile("t", path=path)
    profile.record(numbered(0), TIMING, 1e-6)
    child = multiprocessing.get_context("fork").Process(
        target=lambda: profile.record(numbered(1), TIMING, 1e-6)
    )
    child.start()
    child.join(3600)
    profile.record(numbered(2), TIMING, 1e-6)
    assert child.exitcode == 0
    assert len(profile.lookup_many(numbered(n) for n in range(3))) == 3


def test_versions_name_torch_and_tvm() -> None:
    assert "torch=" in library_versions() and "apache-tvm=" in library_versions()
