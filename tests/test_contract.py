"""The house rules that a program can check: layers, heavy imports, length of files."""

import ast
import gc
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from eqsynth.egraph.remembered import CODE

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "eqsynth"

LAYERS = {
    "errors": 0, "notebook": 0, "garbage": 0, "kept": 1, "written": 1, "serving": 1,
    "executor": 2, "ir": 2, "calculus": 3, "expansion": 3, "tasks": 3, "tuning": 2, "rules": 3,
    "egraph": 4, "certificates": 5, "extract": 5, "lower": 6, "frontend": 7, "numerics": 8,
    "progress": 8, "report": 8, "explain": 8, "settings": 8, "race": 8, "sizes": 8, "reproducer": 8,
    "ambient": 7, "graph_weights": 7, "lowered": 8, "telling": 9, "original": 9, "why_not": 9,
    "segmented": 9, "differing": 9, "checking": 10, "searching": 10, "planned": 10,
    "running": 11, "prove": 11, "pipeline": 12, "testing": 13, "compile_options": 13,
    "background": 13, "peers": 13, "side_by_side": 14, "compile_backend": 14, "verify": 14,
    "generate": 15, "by_graphs": 15, "cli": 16,
}  # fmt: skip
# The public face: they hand on what lives in the layers, and nothing imports them.
FACES = {"__init__", "__main__"}
HOMES = {
    "egglog": {"egraph", "rules"}, "tvm": {"lower"}, "tvm_ffi": {"lower"}, "z3": {"verify"},
    "onnx": {"frontend", "lower", "testing", "pipeline"}, "onnxruntime": {"lower", "peers"},
    "openvino": {"lower", "peers"},
}  # fmt: skip
HEAVY = ("torch", "tvm", "tvm_ffi", "egglog", "onnx", "onnxruntime", "openvino", "z3")
# What is trusted imports what it is about and nothing else.
TRUSTED = {
    "calculus": {"calculus", "ir", "errors"},
    "expansion": {"expansion", "ir", "errors"},
}
# What checks a search reads its log, and shares nothing with what found the equalities.
INDEPENDENT = {
    "certificates": (
        "certificates", "ir.", "errors", "rules", "egraph.graph", "egraph.encode",
        "egraph.snapshot",
    ),
}  # fmt: skip
# Lines of code of the trusted part: of the room that programs and proofs trust, and of the room
# that only proofs trust. Docstrings aren't counted: they hold the written proofs of the laws, and a
# proof mustn't be cut short to meet a limit.
MAX_TRUSTED_LINES = {"calculus": 1625, "expansion": 1900}
MAX_LINES = 600
# A test file may hold one long list of cases.
MAX_TEST_LINES = 750
MAX_RULE_LINES = 300


DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
ASKED_ABOUT = (*DOCUMENTED, ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Constant)


@cache
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """The nodes of a module's syntax tree that tests ask about, in the order of ``ast.walk``, which
    takes three times as long. A module is parsed once for several tests."""
    nodes: list[ast.AST] = [ast.parse(source)]
    for node in nodes:
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                nodes.append(value)
            elif isinstance(value, list):
                nodes += [part for part in value if isinstance(part, ast.AST)]
    return tuple(node for node in nodes if isinstance(node, ASKED_ABOUT))


@pytest.fixture(autouse=True, scope="module")
def trees_are_forgotten() -> Iterator[None]:
    """The syntax trees are a million objects, which the collector of cyclic garbage would read
    again and again, here and in the tests of other modules."""
    gc.disable()
    yield
    nodes_of.cache_clear()
    gc.enable()


def imported_modules(source: str, module: tuple[str, ...], is_package: bool) -> Iterator[str]:
    """Absolute names that a module imports, inside functions too."""
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = node.level - is_package
            base = module[: len(module) - up] if node.level else ()
            prefix = ".".join((*base, *filter(None, [node.module])))
            # `from eqsynth import ir` imports eqsynth.ir: name the member, not only the package.
            yield from (f"{prefix}.{alias.name}" for alias in node.names)


def violations(path: Path, source: str) -> list[str]:
    """Imports of the module at `path` (relative to the repository) that the layers forbid."""
    module = path.with_suffix("").parts
    is_package = module[-1] == "__init__"
    if is_package:
        module = module[:-1]
    layer = module[1] if len(module) > 1 else "__init__"
    if layer not in LAYERS and layer not in FACES:
        return [f"{path}: {layer} has no place in the layers"]
    found = []
    for name in imported_modules(source, module, is_package):
        top, _, rest = name.partition(".")
        if layer not in HOMES.get(top, {layer}):
            found.append(f"{path}: {top} is imported in {', '.join(sorted(HOMES[top]))} only")
        if top != "eqsynth" or layer in FACES:
            continue
        target = rest.split(".")[0]
        if target not in LAYERS:
            found.append(f"{path}: imports the public face ({name})")
        elif target != layer and (
            LAYERS[target] >= LAYERS[layer] or target not in TRUSTED.get(layer, {target})
        ):
            found.append(f"{path}: {layer} imports {target}")
        elif not rest.startswith(INDEPENDENT.get(layer, "")):
            found.append(f"{path}: {layer} imports {rest}")
    return found


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_imports_run_one_way() -> None:
    files = python_files()
    assert files
    found = [
        line
        for path in files
        for line in violations(path.relative_to(ROOT), path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_a_kept_e_graph_is_forgotten_with_all_code_that_made_it() -> None:
    """Each subpackage that ``egraph`` imports is one of those whose code is part of the key."""
    rooms = {
        name.split(".")[1]
        for path in (PACKAGE / "egraph").rglob("*.py")
        for name in imported_modules(path.read_text(encoding="utf-8"), (), False)
        if name.startswith("eqsynth.")
    }
    assert {room for room in rooms if (PACKAGE / room).is_dir()} == set(CODE)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("eqsynth/ir/tensor.py", "from eqsynth.egraph import session"),
        ("eqsynth/ir/tensor.py", "from eqsynth import egraph"),
        ("eqsynth/ir/tensor.py", "from ..egraph.session import run"),
        ("eqsynth/ir/__init__.py", "from .. import egraph"),
        ("eqsynth/ir/tensor.py", "def f():\n    import eqsynth.lower.vendor"),
        ("eqsynth/ir/tensor.py", "import eqsynth"),
        ("eqsynth/frontend/torch.py", "from eqsynth.testing import strategies"),
        ("eqsynth/lower/program.py", "from eqsynth.frontend.captured import Captured"),
        ("eqsynth/explain.py", "from eqsynth.pipeline import optimize"),
        ("eqsynth/errors.py", "from eqsynth.executor import Worker"),
        ("eqsynth/pipeline.py", "from eqsynth.testing import consistency"),
        ("eqsynth/extract/cost.py", "import egglog.bindings"),
        ("eqsynth/pipeline.py", "from tvm import te"),
        ("eqsynth/rules/loader.py", "def f():\n    import z3"),
        ("eqsynth/testing/soundness.py", "from eqsynth.verify import verify_rule"),
        ("eqsynth/__init__.py", "import tvm"),
        ("eqsynth/calculus/inline.py", "from eqsynth.executor import Worker"),
        ("eqsynth/calculus/inline.py", "from eqsynth.egraph.view import View"),
        ("eqsynth/calculus/inline.py", "from eqsynth.expansion.expanded import expanded"),
        ("eqsynth/expansion/sums.py", "from eqsynth.rules import RuleSet"),
        ("eqsynth/certificates/values.py", "from eqsynth.calculus.views import defining_scope"),
        ("eqsynth/certificates/values.py", "from eqsynth.egraph.tactics.paths import Path"),
        ("eqsynth/certificates/values.py", "from eqsynth import calculus"),
        ("eqsynth/utils.py", ""),
    ],
)
def test_a_planted_import_is_found(path: str, source: str) -> None:
    assert violations(Path(path), source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("eqsynth/egraph/session.py", "import egglog.bindings\nfrom eqsynth.ir import tensor"),
        ("eqsynth/lower/kernels.py", "from tvm import te\nfrom .vendor import call"),
        ("eqsynth/lower/__init__.py", "from .vendor import call\nfrom ..extract import target"),
        ("eqsynth/__init__.py", "from eqsynth.errors import EqsynthError"),
        ("eqsynth/__init__.py", "from eqsynth.pipeline import optimize"),
        ("eqsynth/lower/backends.py", "from eqsynth.executor import Worker"),
        ("eqsynth/executor.py", "from eqsynth.errors import EqsynthError"),
        ("eqsynth/pipeline.py", "from eqsynth.explain import explain_plan"),
    ],
)
def test_an_allowed_import_is_not_reported(path: str, source: str) -> None:
    assert violations(Path(path), source) == []


def heavy_modules_after(statement: str) -> list[str]:
    code = f"import sys\n{statement}\nprint(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_importing_eqsynth_is_light() -> None:
    assert heavy_modules_after("import eqsynth") == []


def test_a_heavy_import_is_seen() -> None:
    assert heavy_modules_after("import egglog.bindings") == ["egglog"]


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
           tokenize.ENDMARKER}  # fmt: skip


def lines_of_code(source: str) -> int:
    """The number of lines that aren't empty and don't hold a comment or a docstring alone."""
    docstrings = {
        line
        for node in nodes_of(source)
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    code = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(code - docstrings)


@pytest.mark.parametrize("room", TRUSTED)
def test_the_trusted_part_stays_small(room: str) -> None:
    files = [*(PACKAGE / room).rglob("*.py")]
    counted = sum(lines_of_code(path.read_text(encoding="utf-8")) for path in files)
    assert 500 < counted <= MAX_TRUSTED_LINES[room]


def test_lines_of_code_are_all_lines_but_comments_docstrings_and_empty_ones() -> None:
    source = '''"""What the file
holds."""

# A comment.
LIMIT = 3
"""A text after a value counts: it is no docstring."""


class Law:
    """Holds
    a proof.
    """

    text = """two
    lines"""  # and a comment


async def law(
    x: int,
) -> int:
    "In one line."
    # Another comment.
    return x
'''
    assert lines_of_code(source) == 9
    assert lines_of_code("") == 0


def test_files_stay_short() -> None:
    code = [p for top in ("eqsynth", "tests", "benchmarks") for p in (ROOT / top).rglob("*.py")]
    rules = list((ROOT / "rules").glob("*.egg"))
    limits = [(p, MAX_TEST_LINES if "tests" in p.parts else MAX_LINES) for p in code]
    limits += [(p, MAX_RULE_LINES) for p in rules]
    found = [
        f"{path.relative_to(ROOT)}: {lines(path)} lines, at most {limit}"
        for path, limit in limits
        if lines(path) > limit
    ]
    assert not found, "\n".join(found)


def tracked_though_ignored(tree: Path) -> list[str]:
    """What git keeps though .gitignore names it, as an environment or a link to one: a checkout
    that has the link deletes a directory of that name."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--ignored", "--exclude-standard"],
        cwd=tree, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split("\0")[:-1]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="nothing is tracked outside of a clone")
def test_nothing_that_is_ignored_is_tracked() -> None:
    assert tracked_though_ignored(ROOT) == []


def test_a_tracked_link_that_is_ignored_is_seen(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text((ROOT / ".gitignore").read_text(encoding="utf-8"))
    (tmp_path / ".venv").symlink_to(tmp_path)
    for command in (["init", "-q"], ["add", "-f", ".venv", ".gitignore"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert tracked_though_ignored(tmp_path) == [".venv"]


DEVICES = ("cpu", "cuda", "llvm")


def device_names(source: str) -> list[int]:
    """Lines where a text is the name of a device; parts of texts with values in them aren't."""
    joined = [node for node in nodes_of(source) if isinstance(node, ast.JoinedStr)]
    parts = {part for node in joined for part in node.values}
    return [
        node.lineno
        for node in nodes_of(source)
        if isinstance(node, ast.Constant)
        and node not in parts
        and isinstance(node.value, str)
        and (node.value in DEVICES or node.value.startswith(tuple(f"{d}:" for d in DEVICES)))
    ]


def test_devices_are_named_by_the_target_and_the_backends() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}"
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] != "lower"
        and path.relative_to(PACKAGE) != Path("extract/target.py")
        for line in device_names(path.read_text())
    }
    assert not found, "eqsynth.extract.target has the names of devices"


def test_the_code_of_a_device_is_asked_for_through_the_backends() -> None:
    """A module outside of `lower/` asks `backends.py` or `places.py`, and knows no device's own."""
    of_devices = [path.name for path in (PACKAGE / "lower").iterdir() if path.name in DEVICES]
    assert of_devices, "a device has a folder of its own"
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] != "lower"
        for name in imported_modules(
            path.read_text(), path.relative_to(ROOT).with_suffix("").parts, False
        )
        if any(name.startswith(f"eqsynth.lower.{device}") for device in of_devices)
    ]
    assert not found


def test_a_device_that_is_named_is_found() -> None:
    assert device_names("x.to('cuda:0')\ny.device.type != \"cpu\"\n'the CPU'\n") == [1, 2]
