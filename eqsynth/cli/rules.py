"""``eqsynth rules``: the catalogue, the checker and the verifier of rules."""

from __future__ import annotations

from collections import Counter
from functools import partial
from os.path import realpath
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from eqsynth.cli.output import AsJson, fail, print_json, say, say_aside, table
from eqsynth.errors import EqsynthError

rules_app = typer.Typer(
    help="The catalogue, the checker and the verifier of rules.", no_args_is_help=True
)

Files = Annotated[
    list[Path] | None,
    typer.Argument(help="Rule files or directories of them; without any, eqsynth's own."),
]


@rules_app.command("list")
def list_rules(files: Files = None, as_json: AsJson = False) -> None:
    """Lists the rules: name, kind, ruleset, numerics, status, what they say.

    eqsynth rules list my.egg
    """
    from eqsynth.rules.catalogue import entry

    rules, names = _load(files or [])
    entries = [entry(rules, name) for name in names]
    if as_json:
        print_json([vars(e) for e in entries])
        return
    columns = ("name", "kind", "ruleset", "numerics", "status", "what it says")
    table(columns, [
        (e.name, e.kind, e.ruleset, e.numerics, e.status, e.statement) for e in entries
    ])  # fmt: skip
    say(f"{len(entries)} rules")


@rules_app.command("show")
def show_rule(
    name: Annotated[str, typer.Argument(help="The name of a rule.")],
    files: Files = None,
    as_json: AsJson = False,
) -> None:
    """Shows a rule: both sides, conditions, status, numerics, source, where it is tested.

    eqsynth rules show relu-of-relu
    """
    from eqsynth.rules.catalogue import entry

    rules, _ = _load(files or [])
    try:
        found = entry(rules, name)
    except EqsynthError as error:
        fail(error)
    if as_json:
        print_json(vars(found))
        return
    tested = ", ".join(found.tested)
    rows = {
        "says": found.statement,
        "left": found.left,
        "right": found.right,
        "if": "\n".join(found.conditions),
        "kind": f"{found.kind}, in the ruleset {found.ruleset}",
        "numerics": found.numerics,
        "status": f"{found.status}, says its file",
        "source": found.source,
        "stands in": found.place,
        "tested": f"{tested}, and eqsynth rules check" if tested else "eqsynth rules check",
    }
    say(found.name)
    for key, value in rows.items():
        for number, line in enumerate(value.splitlines()):
            say(f"  {'' if number else key:{max(map(len, rows))}}  {line}")


@rules_app.command("reference")
def print_reference() -> None:
    """Prints every rule of eqsynth's own, file by file, as a page.

    eqsynth rules reference > docs/rules.md
    """
    from eqsynth.cli.rule_reference import reference
    from eqsynth.rules import load_rules

    typer.echo(reference(load_rules()), nl=False)


@rules_app.command("check")
def check(
    files: Annotated[list[Path], typer.Argument(help="Rule files, or directories of them.")],
    name: Annotated[str | None, typer.Option(help="Check this rule only.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Equalities to judge for each rule.")] = 20,
    processes: Annotated[int, typer.Option(min=0, help="0: as many as there are cores.")] = 0,
    part: Annotated[
        str, typer.Option(metavar="K/N", help="Of N equal parts of the rules, check the K-th.")
    ] = "1/1",
    limit_s: Annotated[
        float, typer.Option(min=0, help="Seconds of the processor that one rule may take.")
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Checks rule files: what the linter finds, and whether each rule is sound.

    eqsynth rules check my.egg

    Sound is: types, values, digits in float32, exact equality. That a rule was tested proves
    nothing: the table says on how many samples. Exits with 1 if a rule is refused
    or the linter finds something, with 2 for what can't be loaded. A file given here is loaded
    after eqsynth's own.
    """
    from eqsynth.rules.catalogue import find
    from eqsynth.testing.rule_files import (
        check_rules,
        lint_for_check,
        processes_to_use,
        to_check,
    )

    rules, names = _load(files)
    findings = [] if name is not None else lint_for_check(files)
    if name is not None:
        try:
            names = [find(rules, name).name]
        except EqsynthError as error:
            fail(error)
    if not as_json:
        for finding in findings:
            say(str(finding), "yellow")
    names = [rule.name for rule in to_check(rules, names, _part(part))]
    total = len(names)
    results, interrupted = [], False
    with _progress() as progress:
        task = progress.add_task("checking", total=total)
        try:
            for found in check_rules(
                rules, names, samples=samples, processes=processes or processes_to_use(),
                limit_s=limit_s,
            ):  # fmt: skip
                results.append(found)
                progress.update(task, advance=1, description=found.rule.name)
                if found.error is not None and not as_json:
                    say(str(found.error), "red")
        except KeyboardInterrupt:
            interrupted = True
    if as_json:
        print_json({
            "rules": [_checked(found) for found in results],
            "findings": [_finding(finding) for finding in findings],
            "interrupted": interrupted,
        })  # fmt: skip
    else:
        _summary(results, findings)
    if interrupted:
        Console(stderr=True).print(f"interrupted after {len(results)} of {total} rules")
        raise typer.Exit(130)
    if findings or any(found.error is not None for found in results):
        raise typer.Exit(1)


@rules_app.command("verify")
def verify(
    files: Files = None,
    name: Annotated[str | None, typer.Option(help="Verify this rule only.")] = None,
    limit_s: Annotated[
        float, typer.Option(min=0, help="Seconds of the processor that one rule may take.")
    ] = 20.0,
    as_json: AsJson = False,
) -> None:
    """Proves rules for all sizes that their conditions allow, or refutes them with numbers.

    eqsynth rules verify my.egg

    Neither proved nor refuted is not proved: what is left to show is told. Exits with 1 if a rule
    is refuted, with 2 for what can't be loaded or if z3-solver isn't installed. A file given here
    is loaded after eqsynth's own.
    """
    from eqsynth.rules.catalogue import find
    from eqsynth.verify import to_verify, verify_rules

    rules, names = _load(files or [])
    results, interrupted = [], False
    with _progress() as progress:
        try:
            names = names if name is None else [find(rules, name).name]
            names = [rule.name for rule in to_verify(rules, names)]
            task = progress.add_task("verifying", total=len(names))
            for verdict in verify_rules(rules, names, limit_s=limit_s):
                results.append(verdict)
                progress.update(task, advance=1, description=verdict.rule.name)
        except EqsynthError as error:
            fail(error)
        except KeyboardInterrupt:
            interrupted = True
    if as_json:
        print_json({"rules": [_verified(v) for v in results], "interrupted": interrupted})
    else:
        columns = ("rule", "outcome", "numerics", "how, or what is left")
        table(columns, [(v.rule.name, v.outcome, str(v.rule.numerics), v.why) for v in results],
              red=[v.outcome == "refuted" for v in results])  # fmt: skip
        counts = Counter(v.outcome for v in results)
        say(f"{len(results)} rules: " + ", ".join(f"{n} {word}" for word, n in counts.items()))
    if interrupted:
        Console(stderr=True).print(f"interrupted after {len(results)} of {len(names)} rules")
        raise typer.Exit(130)
    if any(v.outcome == "refuted" for v in results):
        raise typer.Exit(1)


@rules_app.command("generate")
def generate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Rule files: their operators are enumerated too, their rules derive."),
    ] = None,
    operators: Annotated[
        int,
        typer.Option("--operators", "-n", min=1, max=5, help="Graphs of up to so many operators."),
    ] = 2,
    inputs: Annotated[int, typer.Option(min=1, max=6, help="Matrices among the inputs.")] = 3,
    world: Annotated[str, typer.Option(help="matrices, images, or all of both.")] = "all",
    derive: Annotated[
        int,
        typer.Option(
            min=-1, help="Candidates, smallest first, that saturation is asked about; -1: all."
        ),
    ] = 200,
    processes: Annotated[int, typer.Option(min=0, help="0: as many as there are cores.")] = 0,
    executor: Annotated[
        str,
        typer.Option(help="local: processes of this machine; ray: the machines of a Ray cluster."),
    ] = "local",
    limit_s: Annotated[
        float, typer.Option(min=0, help="Seconds that the search for one derivation may take.")
    ] = 20.0,
    write: Annotated[
        Path | None,
        typer.Option(help="A rule file to write: what isn't derived, but proved for all sizes."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Enumerates operator graphs, and tells which of their equalities the rules don't derive.

    eqsynth rules generate my.egg --operators 2 --world matrices --write found.egg

    What was done is kept in the cache directory: a run that was ended goes on where it was. Exits
    with 1 if a sample refutes an equality.
    """
    from eqsynth.egraph.defined import operators_of
    from eqsynth.generate import derive as derived
    from eqsynth.generate import enumerate_graphs, reduced, with_own, worlds_of
    from eqsynth.generate import write as rules_of
    from eqsynth.generate.writing import check
    from eqsynth.tasks import executor as executor_of
    from eqsynth.testing.rule_files import further_files, processes_to_use
    from eqsynth.verify.verifying import require_z3

    rules, _ = _load(files or [])
    further = further_files(files or [])
    worlds = with_own(worlds_of(inputs), operators_of(rules.definitions))
    read = set(map(realpath, further))
    for operator in rules.definitions.values():
        if realpath(operator.file) in read and not operator.cases:
            say_aside(f"{operator.name} isn't enumerated: no rule defines it")
        elif realpath(operator.file) in read and operator.attributes:
            say_aside(f"{operator.name} isn't enumerated: it has attributes")
    chosen = [w for w in worlds if world in (w.name, "all")]
    if not chosen:
        names = ", ".join(w.name for w in worlds)
        raise typer.BadParameter(f"{world} is no world: there are {names} and all")
    told: list[dict[str, Any]] = []
    open_: list[Any] = []
    proved: list[dict[str, Any]] = []
    interrupted, failed = False, None
    try:
        if write is not None:
            require_z3()
            check(write, further)
        # An error or Ctrl-C leaves this block, which ends the tasks that run.
        with (
            executor_of(executor, processes or processes_to_use()) as tasks,
            _progress() as progress,
        ):
            task = progress.add_task("generating", total=None)

            def show(stage: str, done: int, total: int = 0) -> None:
                progress.update(task, description=stage, completed=done, total=total or None)

            for own in chosen:
                found = enumerate_graphs(own, operators, executor=tasks, told=show)
                candidates, counts = reduced(found, partial(show, f"{own.name}, pruning"))
                asked = candidates if derive < 0 else candidates[:derive]
                told.append({
                    "world": own.name, "evaluated": found.evaluated, "left_out": found.left_out,
                    "chunks_from_cache": found.from_cache, "seconds": round(found.seconds, 3),
                    **vars(counts), "asked": len(asked), "outcomes": Counter(), "remainder": [],
                })  # fmt: skip
                answers = derived(asked, further, executor=tasks, limit_s=limit_s)
                for at, one in enumerate(answers):
                    show(f"{own.name}, deriving", at + 1, len(asked))
                    told[-1]["outcomes"][one.outcome] += 1
                    open_ += [one.candidate] * (one.outcome == "not derived")
                    if one.outcome in ("not derived", "refuted"):
                        told[-1]["remainder"].append({
                            "equality": str(one.candidate), "outcome": one.outcome,
                            "why": one.why, "exact": one.is_exact,
                        })  # fmt: skip
            if write is not None:
                for at, rule in enumerate(rules_of(open_, write, further, executor=tasks)):
                    show("proving", at + 1, len(open_))
                    proved.append({
                        "equality": str(rule.equality), "rules": rule.rules, "why": rule.why,
                    })  # fmt: skip
    except EqsynthError as error:
        failed = error
    except KeyboardInterrupt:
        interrupted = True
    if as_json and failed is None:
        print_json({"worlds": told, "rules": proved, "interrupted": interrupted})
    elif told:
        _generated(told)
        if write is not None and failed is None and not interrupted:
            _written(proved, write)
    if failed is not None:
        fail(failed)
    if interrupted:
        left = "" if write is None else f"; {write} isn't written"
        say_aside(f"interrupted{left}; the same command goes on where this one was")
        raise typer.Exit(130)
    if any(own["outcomes"]["refuted"] for own in told):
        raise typer.Exit(1)


def _generated(told: list[dict[str, Any]]) -> None:
    from eqsynth.generate import OUTCOMES

    rows = (
        ("graphs enumerated", "graphs"), ("candidates", "initial"),
        ("after renaming of inputs", "renamed"), ("after common subgraphs", "common"),
        ("after subsumption", "subsumed"), ("saturation was asked about", "asked"),
    )  # fmt: skip
    table(("", *(own["world"] for own in told)), [
        (label, *(str(own[key]) for own in told)) for label, key in rows
    ])  # fmt: skip
    for own in told:
        if own["remainder"]:
            say(f"\n{own['world']}: what saturation doesn't derive")
            table(("equality", "outcome", "why"), [
                (one["equality"], one["outcome"], one["why"]) for one in own["remainder"]
            ], red=[one["outcome"] == "refuted" for one in own["remainder"]])  # fmt: skip
        counts = ", ".join(f"{own['outcomes'][w]} {w}" for w in OUTCOMES if own["outcomes"][w])
        say(f"{own['world']}: {counts or 'nothing was asked'}")


def _written(proved: list[dict[str, Any]], path: Path) -> None:
    left = [one for one in proved if not one["rules"]]
    if left:
        say("\nnot proved for all sizes, so not written")
        table(("equality", "left to show for its most general reading"), [
            (one["equality"], one["why"].removeprefix("left to show: ")) for one in left
        ])  # fmt: skip
    rules = {rule for one in proved for rule in one["rules"]}
    if not proved:
        say(f"{path}: no rules, since nothing is left that isn't derived")
        return
    say(f"{path}: {_counted(len(rules), 'rule')}, each proved for all sizes, of "
        f"{len(proved) - len(left)} of {_counted(len(proved), 'equality', 'equalities')} "
        "that aren't derived")  # fmt: skip


def _counted(number: int, word: str, many: str = "") -> str:
    return f"{number} {word if number == 1 else many or word + 's'}"


def _verified(verdict: Any) -> dict[str, Any]:
    rule = verdict.rule
    return {
        "rule": rule.name, "file": rule.file, "line": rule.line, "outcome": verdict.outcome,
        "why": verdict.why, "numerics": str(rule.numerics), "status": rule.status,
        "seconds": round(verdict.seconds, 3),
    }  # fmt: skip


def _progress() -> Progress:
    """A progress bar on standard error if that is a terminal, else nothing."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _part(text: str) -> tuple[int, int]:
    """Parse the option ``--part``: ``2/8`` -> ``(2, 8)``."""
    first, _, count = text.partition("/")
    if not (first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count)):
        raise typer.BadParameter(f"{text} is no part: 2/8 is the second of eight")
    return int(first), int(count)


def _summary(results: list[Any], findings: list[Any]) -> None:
    columns = ("rule", "verdict", "known", "numerics", "claimed status")
    table(columns, [
        (
            found.rule.name, "sound" if found.error is None else f"refused: {found.error.kind}",
            found.known, str(found.rule.numerics), found.rule.status,
        )
        for found in results
    ], red=[found.error is not None for found in results])  # fmt: skip
    refused = sum(found.error is not None for found in results)
    judged = sum(found.accepted for found in results)
    exact = sum(found.method == "exact" for found in results)
    say(
        f"{len(results)} rules, {refused} refused; {judged} equalities judged; {exact} rules "
        f"exact at all their samples, none proved by it; "
        f"the linter finds {len(findings) or 'nothing'}"
    )


def _finding(error: Any) -> dict[str, Any]:
    return {
        "what": error.what, "file": error.file, "line": error.line, "got": error.got,
        "expected": error.expected, "hint": error.hint,
    }  # fmt: skip


def _checked(found: Any) -> dict[str, Any]:
    error = found.error
    return {
        "rule": found.rule.name,
        "file": found.rule.file,
        "line": found.rule.line,
        "sound": error is None,
        "kind": None if error is None else error.kind,
        "error": None if error is None else str(error),
        "accepted": found.accepted,
        "exact": found.exact,
        "method": found.method,
        "known": found.known,
        "timed_out": found.timed_out,
        "overflows": found.overflows,
        "numerics": str(found.rule.numerics),
        "status": found.rule.status,
        "seconds": round(found.seconds, 3),
    }


def _load(files: list[Path]) -> tuple[Any, list[str]]:
    """Load eqsynth's own rules and those of the files.

    Returns:
        All rules, and the names of those to work on: the files' rules, or all without files.
    """
    from eqsynth.rules import load_rules
    from eqsynth.testing.rule_files import load_for_check

    try:
        if files:
            return load_for_check(files)
        rules = load_rules()
        return rules, list(rules.names)
    except EqsynthError as error:
        fail(error)
