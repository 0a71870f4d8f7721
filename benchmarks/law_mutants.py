"""Mutants of the laws of the calculus: does a test fail on each of them?

    python -m benchmarks.law_mutants [NAME ...] [--only TEXT] [--part N] [--json FILE]

    _require(read in leaves(scope.body), ...)  ->  _require(True, ...)        inline.py: found

Each mutant changes one place of one module of ``eqsynth/calculus`` such that the law refuses less
or does something else: a condition is dropped, a bound moves by one, a sign changes. The tests of
that module run. A mutant on which they pass is listed: either it is as right as the law, or a
condition's edge has no test.

The tests run in a fork of this process, in which torch and pytest are imported already, and the
mutant is compiled in place of the module when the tests import it. No file is changed.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
LAWS: Final = ROOT / "eqsynth" / "calculus"
TESTS: Final = ROOT / "tests" / "calculus"

LIMIT_S: Final = 240
"""How long (s) the tests may take. A mutant that makes a law run for ever is found by that."""

_MOVED: Final = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Add: ast.Sub,
    ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
}  # fmt: skip
"""Operator -> the operator that a mutant has instead."""


@dataclass(frozen=True)
class Mutant:
    """One changed place of a module, and what stands there before and after."""

    module: str
    line: int
    before: str
    after: str


def changes(node: ast.AST, returns_bool: bool) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Yield for a node: its child that changes, as text ``field`` or ``field.n``, and the child
    before and after."""
    yes, no = ast.Constant(value=True), ast.Constant(value=False)
    match node:
        case ast.Call(func=ast.Name(id="_require"), args=[held, *_]):
            yield "args.0", held, yes
        case ast.BoolOp(op=op, values=values):
            for n, value in enumerate(values):
                yield f"values.{n}", value, yes
                if isinstance(op, ast.Or):
                    yield f"values.{n}", value, no
        case ast.Compare(ops=ops):
            for n, comparison in enumerate(ops):
                if type(comparison) in _MOVED:
                    yield f"ops.{n}", comparison, _MOVED[type(comparison)]()
        case ast.BinOp(op=op) if type(op) in _MOVED:
            yield "op", op, _MOVED[type(op)]()
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield "test", test, no
            if not isinstance(node, ast.While):
                yield "test", test, yes
        case ast.comprehension(ifs=ifs):
            for n, test in enumerate(ifs):
                yield f"ifs.{n}", test, yes
        case ast.Return(value=ast.expr() as value) if returns_bool:
            yield "value", value, yes
        case ast.match_case(guard=ast.expr() as guard):
            yield "guard", guard, yes
    for field, value in ast.iter_fields(node):
        for n, child in enumerate(value if isinstance(value, list) else [value]):
            name = f"{field}.{n}" if isinstance(value, list) else field
            match child:
                case ast.Constant(value=int() as number) if type(number) is int:
                    yield name, child, ast.Constant(value=number + 1)
                case ast.Call(func=ast.Name(id="all" | "any")) if not name.startswith("values"):
                    yield name, child, yes


def mutants_of(source: str, module: str) -> Iterator[tuple[Mutant, ast.Module]]:
    """Yield each mutant of a module's source, and its tree."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    boolean = {
        id(inner)
        for outer in nodes
        if isinstance(outer, ast.FunctionDef) and isinstance(outer.returns, ast.Name)
        and outer.returns.id == "bool"
        for inner in ast.walk(outer)
    }  # fmt: skip
    line = 0
    for place, node in enumerate(nodes):
        line = getattr(node, "lineno", line)
        for field, before, after in changes(node, id(node) in boolean):
            changed = copy.deepcopy(tree)
            mutated = list(ast.walk(changed))[place]
            name, _, n = field.partition(".")
            if n:
                getattr(mutated, name)[int(n)] = after
            else:
                setattr(mutated, name, after)
            ast.fix_missing_locations(changed)
            at = getattr(before, "lineno", line)
            yield Mutant(module, at, _text(node, before), _text(node, after)), changed


def _text(node: ast.AST, part: ast.AST) -> str:
    if isinstance(part, ast.expr):
        return ast.unparse(part)
    around = f" in {ast.unparse(node)}" if isinstance(node, ast.expr) else ""
    return f"{type(part).__name__}{around}"


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the mutant in place of its module."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self.name, self.path, self.tree = name, path, tree

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def get_source(self, fullname: str) -> str:
        return ast.unparse(self.tree)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.tree, str(self.path), "exec")


def survives(mutant: Mutant, tree: ast.Module, part: str) -> bool:
    """Whether the tests of the mutant's module pass with it, within the limit; of tests that rotate
    those of one part, or ``all``."""
    own = TESTS / f"test_{mutant.module}.py"
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    status = 1
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        signal.alarm(LIMIT_S)
        path = LAWS / f"{mutant.module}.py"
        sys.meta_path.insert(0, _Loader(f"eqsynth.calculus.{mutant.module}", path, tree))
        import pytest

        # With assertions of its own pytest would import plugins, and eqsynth is one, by itself.
        plain = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow",
                 "--assert=plain", "--part", part]  # fmt: skip
        status = int(pytest.main([*plain, str(own if own.exists() else TESTS)]))
    finally:
        os._exit(status)


def _import_what_tests_need() -> None:
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401

    import eqsynth.ir.interpret
    import eqsynth.ir.scopes
    import eqsynth.testing.numbers  # noqa: F401

    for name in [name for name in sys.modules if name.startswith("eqsynth.calculus")]:
        del sys.modules[name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="modules of the calculus; default: all")
    parser.add_argument("--only", default="", help="change only what contains this text")
    parser.add_argument("--part", default="all", help="part of the rotating tests (8 s a mutant in "
                        "all, 1 s in one part)")  # fmt: skip
    parser.add_argument("--json", type=Path, help="where the mutants that survive are written")
    options = parser.parse_args()
    from rich.progress import track

    names = options.names or sorted(
        path.stem for path in LAWS.glob("*.py") if path.stem != "__init__"
    )
    _import_what_tests_need()
    found, all_of_them = list[Mutant](), 0
    for name in names:
        made = [
            (mutant, tree)
            for mutant, tree in mutants_of((LAWS / f"{name}.py").read_text(), name)
            if options.only in mutant.before
        ]
        all_of_them += len(made)
        for mutant, tree in track(made, description=name, disable=not sys.stderr.isatty()):
            if survives(mutant, tree, options.part):
                found.append(mutant)
                print(f"{name}.py:{mutant.line}: {mutant.before}  ->  {mutant.after}", flush=True)
    print(f"{all_of_them} mutants, {len(found)} on which no test fails")
    if options.json:
        options.json.write_text(json.dumps([asdict(mutant) for mutant in found], indent=1))
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
