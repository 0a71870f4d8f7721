"""Rule files from strangers: whatever they hold, the process lives and the result is right.

Each file of `hostile/` says in its header how it must end. `result`: the search may be cut short,
and what comes out is right. Otherwise the error that names the file's fault.
"""

from __future__ import annotations

import math
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import eqsynth
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.saturation import saturate_in_worker
from eqsynth.egraph.schedule import Limits
from eqsynth.errors import EqsynthError, EquivalenceError, RuleError, SaturationError
from eqsynth.executor import Worker
from eqsynth.frontend.expression import program_of
from eqsynth.ir.tensor import Tensor
from eqsynth.rules import DEFAULT_FILES, RuleSet, load_rules, load_text
from eqsynth.testing import assert_egraph_consistent
from tests.rules import mutation

FILES = sorted((Path(__file__).parent / "hostile").glob("*.egg"))
ERRORS = {e.__name__: e for e in (RuleError, SaturationError, EquivalenceError)}
MEMORY = 3 << 29
# Of the processor, so that it doesn't depend on what else runs: ten times what any text takes.
CPU_S = 30
# What waits for something else than the processor hangs.
HANG_S = 600.0


def header(path: Path, field: str) -> list[str]:
    found = re.search(rf"^;; {field} +(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return re.split(r",\s*", found.group(1)) if found else []


def _errors(path: Path) -> tuple[type[EqsynthError], ...]:
    """The errors that the file may end in; one that also carries data is one of them."""
    return tuple(ERRORS[name] for name in header(path, "Ends in") if name in ERRORS)


def marked(paths: list[Path]) -> list[object]:
    """The files as parameters, those that keep a worker busy to its deadline as slow ones."""
    slow = pytest.mark.slow
    return [
        pytest.param(p, id=p.stem, marks=[slow] if "slow" in header(p, "Runs") else [])
        for p in paths
    ]


def deadline(path: Path, cut_s: float) -> float:
    """Of a search: it may be cut short where the file says so; a fault that must be found is found
    by the work that it takes, however slow the machine is."""
    return cut_s if "result" in header(path, "Ends in") else HANG_S


def program(path: Path) -> tuple[Tensor, ...]:
    """A sum of a few tensors, or of many where the file needs them to explode."""
    count = 24 if "large" in header(path, "Runs") else 2
    terms = [eqsynth.input(f"x{n}", (2, 3)) for n in range(count)]
    return program_of(eqsynth.ops.relu(sum(terms[1:], terms[0])) * 2)[0].outputs


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker(memory_limit=MEMORY) as worker:
        yield worker


def test_every_file_says_how_it_ends() -> None:
    assert len(FILES) > 50
    for path in FILES:
        assert set(header(path, "Ends in")) <= {"result", *ERRORS} and header(path, "Ends in"), path


@pytest.mark.rotating
@pytest.mark.parametrize("path", marked([p for p in FILES if "whole" not in header(p, "Runs")]))
def test_saturation_ends_as_the_file_says(path: Path, worker: Worker) -> None:
    ends, outcome = header(path, "Ends in"), "result"
    try:
        rules = load_rules([*DEFAULT_FILES, path])
        limits = Limits(5000, deadline(path, 3.0))
        graph = saturate_in_worker(worker, program(path), rules, limits=limits)
        assert isinstance(graph, EGraph) and graph.stop
        assert_egraph_consistent(graph)
    except EqsynthError as error:
        outcome = type(error).__name__
        assert error.what and error.hint
        if isinstance(error, RuleError):
            assert (error.file, error.line > 0) == (str(path), True)
        if isinstance(error, SaturationError) and "analysis-shape" not in path.read_text():
            assert set(error.rules) & {"hostile", "hostile-too"}
    assert outcome in ends


class Net(torch.nn.Module):
    """Two segments: only the second holds a sum, which the hostile files are about."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 4, bias=False)
        self.second = torch.nn.Linear(4, 5, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + y)


def optimized(path: Path, time_limit_s: float) -> eqsynth.CompiledProgram:
    """The program, which must agree with torch whatever its rules were."""
    torch.manual_seed(0)
    module, inputs = Net().eval(), (torch.randn(2, 3), torch.randn(2, 5))
    made = eqsynth.optimize(
        module, inputs, rules=[path], time_limit_s=time_limit_s, objective="flops",
        memory_limit=MEMORY, strict=True,
    )  # fmt: skip
    torch.testing.assert_close(made(*inputs), module(*inputs), atol=1e-5, rtol=1e-5)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=[p.stem for p in FILES])
def test_optimize_is_right_or_says_which_rule_is_not(path: Path) -> None:
    try:
        optimized(path, deadline(path, 6.0))
    except EqsynthError as error:
        assert isinstance(error, _errors(path)), error
        assert error.what and error.hint


@pytest.mark.rotating
def test_a_worker_that_dies_costs_its_segment_only() -> None:
    path = Path(__file__).parent / "hostile" / "strings-double.egg"
    report = optimized(path, HANG_S).report
    assert "worker killed" in report.stop or "worker memory" in report.stop
    assert report.distinct_segments == 2
    # The other segment, in which nothing is added, was searched by a new worker.
    assert report.rules_fired


@pytest.mark.rotating
def test_a_wrong_result_names_the_rule() -> None:
    with pytest.raises(EquivalenceError) as caught:
        optimized(Path(__file__).parent / "hostile" / "other-operand.egg", HANG_S)
    assert "hostile" in caught.value.hint


@pytest.mark.rotating
@pytest.mark.parametrize(
    ("file", "outcome"),
    [
        ("grow-forever", "proved"),
        ("strings-double", "worker"),
        ("other-shape", SaturationError),
        ("law-tower", RuleError),
    ],
)
def test_prove_equal(file: str, outcome: str | type[EqsynthError]) -> None:
    path = Path(__file__).parent / "hostile" / f"{file}.egg"
    x, y = eqsynth.input("x", (2, 3)), eqsynth.input("y", (2, 3))
    other = y + x if file == "grow-forever" else y - x
    sides = eqsynth.ops.relu(x + y), eqsynth.ops.relu(other)
    if isinstance(outcome, str):
        limit_s = HANG_S if outcome == "proved" else 10.0
        proof = eqsynth.prove_equal(*sides, rules=[path], time_limit_s=limit_s, memory_limit=MEMORY)
        assert outcome in proof.stop and bool(proof) is (outcome == "proved")
    else:
        with pytest.raises(outcome):
            eqsynth.prove_equal(*sides, rules=[path], time_limit_s=HANG_S, memory_limit=MEMORY)


# ---- texts that are made, since nobody could read them -------------------------------------------

END = ':ruleset simplify :name "hostile"'


def each(count: int, form: str) -> str:
    return "\n".join(form.replace("#", str(number)) for number in range(count))


def nested(depth: int) -> str:
    return f"(rewrite {'(Relu ' * depth}x{')' * depth} x {END})"


def facts(count: int, fact: str, then: str) -> str:
    body = " ".join(fact.replace("##", str(n + 1)).replace("#", str(n)) for n in range(count))
    return f"(rule ({body}) ({then}) {END})"


REFUSED = {
    "deep": nested(100_000),
    "open": "(" * 200_000,
    "closed": ")" * 200_000,
    "million e-nodes": f"(rewrite (Add {'(Relu x) ' * 1_000_000}) x {END})",
    "quotes": '"' * 200_000,
    "backslashes": '"' + "\\" * 200_000,
    "many forms": each(9_000, f"(rewrite (Add a b) (Add b a) {END[:-1]}-#\")"),
    "many sorts": each(9_000, "(sort Sort#)"),
    "many rulesets": each(9_000, "(ruleset r#)"),
    "many arguments": f"(relation wide ({'Tensor ' * 500}))",
    "long word": f"(rewrite (Add {'a' * 4_000} b) b {END})",
    "huge integer": f"(rewrite (INum {'9' * 4_000}) (INum 1) {END})",
    "huge number": f"(rewrite (Num x) (Num 1e400) {END})",
    "lets that double": (
        "(rule ((= w0 (Relu x))) ("
        + " ".join(f"(let w{n + 1} (Add w{n} w{n}))" for n in range(60))
        + f" (union w0 w60)) {END})"
    ),
    "lets that nest": (
        "(rule ((= w0 (Relu x))) ("
        + " ".join(f"(let w{n + 1} (Relu w{n}))" for n in range(210))
        + f" (union w0 w210)) {END})"
    ),
    "definitions that nest": facts(120, "(= w# (Neg (Relu w##)))", "(union w0 w120)"),
    "definitions that double": facts(90, "(= w# (Add w## w##))", "(union w0 w90)"),
    "overrides": f";; {'(numerics: ' * 20_000}\n(rewrite (Relu x) x {END})",
    "word and string": f'(relation"a b" (Tensor))\n(rewrite (Relu x) x {END})',
    "NUL": f"(rewrite (Relu x\x00) x {END})",
    "other direction": f";; \u202e x\n(rewrite (Relu x) x {END})",
    "invisible": f"(rewrite (Re\u200blu x) x {END})",
    "look-alike": "(constructor R\u0435lu (Tensor) Tensor)",
    "ours again": "(constructor Relu (Tensor) Tensor)",
    "the engine's sort": "(sort i64)",
    "our variable": "(relation e (Tensor))",
    "our variable as a ruleset": "(ruleset e)",
    "generated name": "(relation root (Tensor))",
    "primitive": "(function + (i64 i64) i64 :no-merge)",
    "handle": f"(rewrite (Tok n) (Tok 0) {END})",
    "python": f'(rewrite (Num x) (Num (py-eval "1")) {END})',
    "file": '(input shape "/etc/passwd")',
    "unknown ruleset": '(rewrite (Relu x) x :ruleset nowhere :name "hostile")',
    "same rule twice": f"(rewrite (Relu x) x {END})\n(rewrite (Relu x) x {END})",
}  # fmt: skip
LOADED = {
    "long comment": f";; {'[' * 200_000}\n(rewrite (Relu x) x {END})",
    "comments": ";;\n" * 60_000 + each(900, f"(rewrite (Relu x) x {END[:-1]}-#\")"),
    "many equalities": each(700, "(sort Sort#)") + facts(240, "(= w# w##)", "(union y y)").replace(
        "(= w0 w1)", "(= w0 w1) (= w0 y) (= y (Relu z))"
    ),
    "long forms": "".join(
        facts(110, "(= w (Add a# b#))", "(union w a0)").replace("hostile", f"hostile-{n}")
        for n in range(50)
    ),
    "windows": f";; a\r\n(rewrite (Relu x)\r\n  x {END})\r\n",
}  # fmt: skip


def loaded(text: str) -> tuple[str, ...]:
    """A worker's task: the names of the rules of a text, loaded behind our own.

    A worker that uses the processor for longer than ``CPU_S`` is ended by the system.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime) + CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    rules = load_text(text, "hostile.egg", after=DEFAULT_FILES)
    return tuple(rule.name for rule in rules.rules if rule.file == "hostile.egg")


@pytest.mark.rotating
@pytest.mark.parametrize("name", REFUSED)
def test_a_text_that_is_refused(name: str, worker: Worker) -> None:
    with pytest.raises(RuleError) as caught:
        worker.run(loaded, REFUSED[name], timeout_s=HANG_S)
    error = caught.value
    assert error.file == "hostile.egg" and error.what and error.hint
    assert len(str(error)) < 2000


@pytest.mark.rotating
@pytest.mark.parametrize("name", LOADED)
def test_a_text_that_is_only_large(name: str, worker: Worker) -> None:
    assert worker.run(loaded, LOADED[name], timeout_s=HANG_S)


def test_files_that_are_none(tmp_path: Path) -> None:
    big, binary, marked = tmp_path / "big.egg", tmp_path / "binary.egg", tmp_path / "bom.egg"
    with big.open("wb") as stream:
        stream.truncate(100 << 20)
    binary.write_bytes(bytes(range(256)))
    for path in (big, binary, tmp_path, tmp_path / "absent.egg", "a\0b.egg", "/dev/zero"):
        with pytest.raises(RuleError) as caught:
            load_rules([*DEFAULT_FILES, path])
        assert caught.value.file and caught.value.hint
    marked.write_bytes(b"\xef\xbb\xbf" + f"(rewrite (Relu x) x {END})".encode())
    assert "hostile" in load_rules([*DEFAULT_FILES, marked]).names


@given(st.randoms(use_true_random=False))
def test_changed_forms_load_or_are_refused(random: mutation.Choices) -> None:
    text = mutation.PRELUDE + mutation.hostile_file(random, mutation.SEEDS)
    try:
        assert isinstance(load_text(text, "fuzz.egg"), RuleSet)
    except RuleError as error:
        assert error.what and error.hint and error.file == "fuzz.egg"


@pytest.mark.rotating
@given(st.text(max_size=200))
def test_any_text_loads_or_is_refused(text: str) -> None:
    try:
        assert isinstance(load_text(text, "fuzz.egg"), RuleSet)
    except RuleError as error:
        assert error.what and error.hint and error.file == "fuzz.egg"
