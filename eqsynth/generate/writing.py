"""Equalities of an enumeration as rules, each proved for all sizes.

    smul(x0, s) + smul(x1, s) = smul(x0 + x1, s)
    ->  (rewrite (Add (Mul x0 s) (Mul x1 s)) (Mul (Add x0 x1) s) :when (...) :ruleset ...)

The tensors of an enumeration have one size. A number that is an extent there, such as the 3 in the
identity matrix of 3 rows, is in a rule the extent of an axis of a tensor, and it isn't known of
which one; nor is it known which tensors have to have equal shapes. So an equality has several
*readings*, the more general ones first. The verifier decides: the first reading that it proves is
written, and an equality without one isn't written. Nothing is proved here (``verify/``), and no
file is read or written but the rules (``answers.py`` keeps what was proved).

Two graphs of two outputs are a join: the rule applies where both outputs of the left graph are
there, and unites each of them with an output of the right graph. All rules that are written are in
one ruleset that runs under a budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product
from pathlib import Path
from typing import Final, Protocol

from eqsynth.errors import FileError, RuleError
from eqsynth.generate.answers import Question, Side, answers, key_of
from eqsynth.generate.rule_text import Family, file_of
from eqsynth.ir.tensor import Input, Op, Tensor, topological
from eqsynth.rules import DEFAULT_FILES, load_rules, load_text
from eqsynth.tasks import Executor
from eqsynth.verify import verify_rule, z3_version
from eqsynth.written import check as check_path
from eqsynth.written import written

MOST_READINGS: Final = 100
"""The most readings of an equality that the verifier is asked about."""

LIMIT_S: Final = 4.0
"""Processor time (s) that the proof of one reading may take."""

_NO_RULE: Final = "no rule says this: each side is an input, or lacks one of the other side's"

_EXTENTS: Final[Mapping[str, tuple[int, ...]]] = {
    "Full": (0,), "Iota": (0,), "Reshape": (0,), "Slice": (1, 2),
}  # fmt: skip
"""Operator -> which of its attributes are extents."""

_DTYPES: Final[Mapping[str, int]] = {"Full": 2, "Cast": 0}
"""Operator -> which of its attributes is a dtype that may be that of the tensors."""

Extents = int | tuple[int, ...]


class Equality(Protocol):
    """Two graphs with equal outputs, as a candidate is; its text is said above the rules."""

    @property
    def terms(self) -> tuple[Side, Side]: ...


@dataclass(frozen=True)
class Written:
    """An equality and what became of it.

    Attributes:
        rules: the rules that say it; none if it wasn't proved.
        why: how the last of its rules was proved, or why the most general reading wasn't.
    """

    equality: Equality
    rules: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Reading:
    """One way to state an equality for other sizes.

    Attributes:
        extents: an extent, or the extents of a tensor -> the term of a rule that stands for it;
            "" if the extents of a tensor are written one by one.
        conditions: what has to hold besides.
    """

    extents: Mapping[Extents, str]
    conditions: tuple[str, ...]


def write(
    equalities: Sequence[Equality],
    path: str | Path,
    files: Sequence[str | Path] = (),
    *,
    executor: Executor | None = None,
    limit_s: float = LIMIT_S,
) -> Iterator[Written]:
    """Prove equalities, and write a rule file of those that are proved. The file is written when
    the last outcome has been taken; a run that ends before leaves the file as it was. What was
    proved is kept (``answers.py``).

    Args:
        files: rule files whose operators the terms may have.
        executor: runs the proofs; by default one process on this machine.

    Raises:
        RuleError: a file can't be used.
        FileError: the path can't be written to.
        UnsupportedOperatorError: z3 isn't installed.
    """
    path, paths = Path(path), tuple(str(Path(file).resolve()) for file in files)
    check(path, paths)
    family = Family.of(path, load_rules([*DEFAULT_FILES, *paths]))
    layers, versions = ("testing", "generate", "verify"), (z3_version(), limit_s)
    question = Question(
        prove, (paths, limit_s), "proved", key_of(paths, layers, *versions),
        is_final=lambda found: found[2],
        lost=lambda error: ((), f"the proof's worker: {error.reason}", False),
        timeout_s=4 * MOST_READINGS * limit_s + 60,
    )  # fmt: skip
    terms = (equality.terms for equality in equalities)
    said: list[tuple[str, str]] = []
    for equality, (forms, why, _) in zip(
        equalities, answers(question, terms, executor), strict=True
    ):
        rules = tuple(map(family.rule, forms))
        said += [(str(equality), rule) for rule in rules]
        yield Written(equality, rules, why)
    with written(path) as place:
        place.write_text(file_of(path.name, family, said, paths), encoding="utf-8")


def check(path: str | Path, files: Sequence[str | Path]) -> None:
    """Refuse a path before the work is done.

    Raises:
        FileError: it can't be written to, or it is one of the rule files that are read.
    """
    check_path(path)
    if Path(path).resolve() in {Path(file).resolve() for file in files}:
        raise FileError(
            "the file to write is one of the rule files that are read",
            where=str(path),
            got="a file whose rules would be lost",
            expected="the path of another file",
            hint="name another file; both may be loaded together",
        )


def prove(
    left: Side, right: Side, files: tuple[str, ...], limit_s: float
) -> tuple[tuple[str, ...], str, bool]:
    """Look, in a worker, for the first reading of each direction that the verifier proves.

    Returns:
        The rules without names, how the last one was proved or why the most general reading wasn't,
        and whether more time wouldn't change that.
    """
    proved, is_final, why = list[str](), True, ""
    for before, after in ((left, right), (right, left)):
        if any(isinstance(term, Input) for term in before) or not _inputs(after) <= _inputs(before):
            continue
        is_late = False
        for reading in islice(_readings(before, after), MOST_READINGS):
            rules = _rules(before, after, reading)
            verdicts, seconds = _verdicts(rules, files, limit_s)
            left_to_show = [said for is_proved, said in verdicts if not is_proved]
            if not left_to_show:
                proved += rules
                why = verdicts[0][1]
                break
            is_late |= seconds >= limit_s
            why = why or left_to_show[0]
        else:
            is_final &= not is_late
    return tuple(proved), why or _NO_RULE, is_final


def _verdicts(
    forms: Sequence[str], files: Sequence[str], limit_s: float
) -> tuple[list[tuple[bool, str]], float]:
    """Whether each rule is proved, and how, or what is left to show; and the most seconds."""
    name, before = "reading.egg", [*DEFAULT_FILES, *files]
    family = Family.of(name, load_rules(before))
    text = file_of(name, family, [("", family.rule(form)) for form in forms], files)
    try:
        rules = load_text(text, name, after=before)
    except RuleError as error:  # a variable that the left side doesn't bind
        return [(False, error.what)], 0.0
    own = [rule for rule in rules.rules if rule.file == name]
    assert len(own) == len(forms)
    verdicts = [verify_rule(rules, rule, limit_s=limit_s, samples=False) for rule in own]
    return (
        [(verdict.outcome == "proved", " ".join(verdict.why.split())) for verdict in verdicts],
        max(verdict.seconds for verdict in verdicts),
    )


def _inputs(side: Side) -> set[Tensor]:
    return {term for term in topological(side) if isinstance(term, Input)}


# ---- readings -----------------------------------------------------------------------------


def _readings(left: Side, right: Side) -> Iterator[Reading]:
    """The readings, the more general ones first: fewer conditions, whatever the extents are."""
    inputs = sorted(_inputs(left), key=lambda term: term.label)
    everything, matched = _extents((*left, *right)), _extents(left)
    doubled = {n: n // 2 for n in everything if isinstance(n, int) and n / 2 in everything}
    extents = [one for one in everything if one not in doubled]
    choices = [_standing_for(one, inputs, one in matched) for one in extents]
    for conditions in _conditions(inputs):
        for chosen in product(*choices):
            found = dict(zip(extents, chosen, strict=True))
            for number, half in doubled.items():
                if half in found:
                    found[number] = f"(* 2 {found[half]})"
            yield Reading(found, conditions)


def _extents(side: Side) -> list[Extents]:
    """What stands for extents in the terms: tuples of them, and numbers other than 0 and 1."""
    found: dict[Extents, None] = {}
    for term in topological(side):
        if isinstance(term, Op):
            for place in _EXTENTS.get(term.name, ()):
                value = term.attrs[place]
                parts = value if isinstance(value, tuple) else (value,)
                numbers = tuple(n for n in parts if isinstance(n, int))
                if isinstance(value, tuple):
                    found[numbers] = None
                found |= dict.fromkeys(n for n in numbers if n > 1)
    return list(found)


def _standing_for(extents: Extents, inputs: Sequence[Tensor], is_matched: bool) -> list[str]:
    """The terms of a rule that extents may stand for. A number is an extent of an input or the sum
    of two equal ones; a tuple is an input's shape, or written one number after the other ("").
    Where no input has them they are a variable if the left side has them, else as they are."""
    if isinstance(extents, tuple):
        shapes = [f"(shape {x.label})" for x in inputs if x.shape == extents]
        variable = "_".join(["t", *map(str, extents)])
        return [*(shapes or [variable] * is_matched), ""]
    axes = [(x.label, a, n) for x in inputs for a, n in enumerate(x.shape)]
    one = [f"(vec-get (shape {x}) {a})" for x, a, n in axes if n == extents]
    two = [f"(* 2 (vec-get (shape {x}) {a}))" for x, a, n in axes if 2 * n == extents]
    return one or two or [f"n{extents}" if is_matched else str(extents)]


def _conditions(inputs: Sequence[Tensor]) -> Iterator[tuple[str, ...]]:
    """The conditions of a reading, few first: on ranks, then that two inputs have one shape, or
    all of them, then squares. First with all inputs of one dtype, then of float32."""
    if not inputs:
        yield from ((), ('(= d "float32")',))
        return
    names = [x.label for x in inputs]
    one = tuple(f"(= (dtype {names[0]}) (dtype {other}))" for other in names[1:])
    floats = tuple(f'(= (dtype {name}) "float32")' for name in names)
    ranks = tuple(
        f"(= {len(x.shape)} (vec-length (shape {x.label})))" if x.shape
        else f"(= (shape {x.label}) (vec-empty))"
        for x in inputs
    )  # fmt: skip
    pairs = [
        f"(= (shape {x.label}) (shape {y.label}))"
        for x, y in combinations(inputs, 2)
        if x.shape == y.shape != ()
    ]
    square = tuple(
        f"(= (vec-get (shape {name}) 0) (vec-get (shape {name}) 1))"
        for shape, name in {x.shape: x.label for x in reversed(inputs)}.items()
        if len(shape) == 2 and shape[0] == shape[1]
    )
    shapes = ((), ranks, *((*ranks, pair) for pair in pairs), (*ranks, *pairs),
              (*ranks, *pairs, *square))  # fmt: skip
    yield from dict.fromkeys((*dtypes, *own) for dtypes in (one, floats) for own in shapes)


# ---- text ---------------------------------------------------------------------------------


def _rules(left: Side, right: Side, reading: Reading) -> list[str]:
    """The rules of one direction, without names: one for each output."""
    inputs = sorted(_inputs(left), key=lambda term: term.label)
    ways = [(_text(a, reading, inputs), _text(b, reading, inputs))
            for a, b in zip(left, right, strict=True)]  # fmt: skip
    conditions = " ".join(reading.conditions)
    if len(ways) == 1:
        ((before, after),) = ways
        return [f"(rewrite {before} {after}" + f" :when ({conditions})" * bool(conditions) + ")"]
    facts = " ".join(f"(= e{n} {before})" for n, (before, _) in enumerate(ways))
    return [
        f"(rule ({facts} {conditions}) ((union e{n} {after})))"
        for n, (_, after) in enumerate(ways)
    ]


def _text(term: Tensor, reading: Reading, inputs: Sequence[Tensor]) -> str:
    if isinstance(term, Input):
        return term.label
    assert isinstance(term, Op)
    args = [_text(arg, reading, inputs) for arg in term.args]
    row = term.row
    if row.arity is None:
        args = [f"(vec-of {' '.join(args)})"]
    extents, dtype = _EXTENTS.get(term.name, ()), _DTYPES.get(term.name)
    for place, attr in enumerate(term.attrs):
        if place == dtype:
            args.append(f"(dtype {inputs[0].label})" if inputs else "d")
        elif place in extents:
            args.append(_attr(attr, reading.extents))
        else:
            args.append(_attr(attr, {}))
    return f"({' '.join([term.name, *args])})"


def _attr(attr: object, extents: Mapping[Extents, str]) -> str:
    if isinstance(attr, tuple):
        if extents.get(attr):
            return extents[attr]
        parts = [_attr(part, extents) for part in attr]
        return f"(vec-of {' '.join(parts)})" if parts else "(vec-empty)"
    if isinstance(attr, str):
        return f'"{attr}"'
    if isinstance(attr, float):
        return repr(attr)
    assert isinstance(attr, int)
    return extents.get(attr, str(attr))
