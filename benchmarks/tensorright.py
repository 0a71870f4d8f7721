"""Prove the rewrites of XLA's algebraic simplifier that TensorRight proves [TensorRight].

    python -m benchmarks.tensorright                 verify each of them
    python -m benchmarks.tensorright --only slice    those whose name has this text in it
    python -m benchmarks.tensorright --json FILE
    python -m benchmarks.tensorright --table         also the table of docs/coming-from.md

TensorRight (POPL 2025) counts 175 rewrites in XLA's simplifier. It proves 115 of them for all ranks
and sizes, and publishes 118 in its own language: the 115, and 3 on which its solver runs out of
time. The other 57 are published nowhere, so this comparison is about the 118. Each is stated again
as a rule of eqsynth in ``tests/verify/tensorright/``, and proved by ``eqsynth rules verify``. A
rule's name is the topic and the number of the rewrite in TensorRight's list.

The outcome of a rewrite is that of ``rules verify``, or ``not expressible`` (:data:`LACKING`). A
rule that says less than the rewrite is counted on its own (:data:`NARROWER`), and so is a rule
along one axis that is applied once for each of XLA's axes (:data:`EACH_AXIS`). All times are
processor time.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from eqsynth.rules import DEFAULT_FILES, Rule, RuleSet, load_rules
from eqsynth.verify import Verdict, verify_rule

FOLDER: Final = Path(__file__).resolve().parents[1] / "tests" / "verify" / "tensorright"
PUBLISHED: Final = (115, 175)
"""How many rewrites TensorRight proves, and of how many."""

LIST: Final[dict[str, tuple[str, ...]]] = {
    topic: tuple(numbers.split())
    for topic, numbers in {
        "add": "01 02 03 04", "sub": "00 01 02", "mul": "01 02 03 04 05 06 07 08 09 10",
        "divmod": "00 01 02 03 04 05 06 07", "max": "01 02", "not": "01 02",
        "logical": "01 02 03 04 05 06 07 08 09 10 11", "compare": "01 02 03 04 05 06",
        "clamp": "01 02 03", "select": "01 02 03 04", "iota": "01",
        "broadcast": "01 02 03 04 05 06 07 08", "concat": "01 02 03 04 05 06 07",
        "conv": "00 01 03", "dot": "01 02 03 04 05 06", "dyslice": "01 02 03 04 05",
        "dyupslice": "01 02 03 04", "pad": "01 02 03 04", "reduce": "01 02 03 04 05 06 07 08",
        "relabel": "01 02", "reverse": "01 02 03 04",
        "slice": "01 02 03 04 05 06 07 08 09 10 11 12 13",
    }.items()
}  # fmt: skip
"""The topics of TensorRight's list, with the numbers of the rewrites in each."""

NOT_THEIRS: Final = ("divmod-06", "divmod-07", "slice-13")
"""The rewrites of the list on which TensorRight's solver runs out of time."""

_AXIS: Final = "along one axis, XLA's is along several at once"
_THREE: Final = "of three axes"
NARROWER: Final[dict[str, str]] = {
    **{name: _AXIS for name in (
        "slice-13", "reverse-01", "dyupslice-01", "dyupslice-02", "dyupslice-03", "dyupslice-04",
    )},
    "reverse-03": "one axis of each of the three sets",
    **{name: _THREE for name in ("relabel-01", "relabel-02")},
    "reduce-04": _AXIS,
    "max-01": "of floats, an integer is never infinite",
    "max-02": "of floats, an integer is never infinite",
    "divmod-00": "of floats, the quotient of integers is a float",
    "reduce-03": "of floats",
    "divmod-06": "where int64 doesn't wrap, by a positive number",
    "divmod-07": "where int64 doesn't wrap, by a positive number",
    "reduce-01": "of two vectors",
    "reduce-05": "one axis of each of the two sets",
    "reduce-06": "of matrices with one batch axis",
    "reduce-07": "the axes stay, with extent 1",
    "reduce-08": "of two axes",
    "dot-01": "of matrices",
    "dot-02": "of matrices with one batch axis",
    "dot-04": "of matrices with one batch axis",
    "dot-05": "of matrices, the one without columns",
    "dot-06": "of matrices with one batch axis",
    "conv-00": "two spatial axes, padded alike on both sides and not inside",
    "conv-01": "two spatial axes, padded alike on both sides",
    "conv-03": "a kernel of one point, an image of one column",
}  # fmt: skip
"""Rewrite -> what the rule of eqsynth says less than it."""

_SLICES, _PADDED, _PADDING = "slice-passes-slice", "slice-passes-pad", "pad-passes-slice"
EACH_AXIS: Final[dict[str, tuple[str, ...]]] = {
    **{name: () for name in (
        "slice-01", "slice-02", "slice-09", "broadcast-05", "broadcast-06", "pad-01", "pad-02",
        "pad-03", "dyslice-02", "dyslice-04",
    )},
    "slice-03": ("slice-09",), "dyslice-03": ("slice-09",),
    **{name: (_SLICES,) for name in ("slice-07", "dyslice-05")},
    **{name: (_PADDED,) for name in ("slice-04", "slice-05", "slice-06")},
    "pad-04": (_PADDING,),
}  # fmt: skip
"""Rewrite whose rule is along one axis -> the rules by which it holds along several axes.

A slice or a padding of XLA along several axes is one of eqsynth's after the other: ``x[1:3, 2:6]``
is ``slice(slice(x, 0, 1, 3), 1, 2, 6)``. So the rewrite along n axes is n applications of the rule,
between which operators along different axes change places by the rules that are named here. A test
derives each of these rewrites along two or three axes by these rules alone.
"""

LACKING: Final[dict[str, str]] = {
    "concat-01": "there is one Concat of any number of tensors: both sides are one term",
    "dyslice-01": "there is one Slice, for static and dynamic starts: both sides are one term",
}  # fmt: skip
"""Rewrite -> why no rule of eqsynth states it."""


@dataclass(frozen=True)
class Found:
    """The outcome for one rewrite of the list.

    Attributes:
        outcome: that of ``rules verify``, or ``not expressible``, or ``not stated``.
        why: what is left to show, or why no rule states it; empty if the rule is proved.
        narrower: what the rule says less than the rewrite; empty if it says as much.
        each_axis: whether the rule is applied once for each axis of the rewrite.
    """

    name: str
    outcome: str
    seconds: float
    why: str
    narrower: str
    each_axis: bool

    @property
    def said(self) -> str:
        """The outcome, and how much of the rewrite it is about."""
        if self.outcome == "proved" and self.narrower:
            return "proved, but narrower"
        return "proved, axis by axis" if self.outcome == "proved" and self.each_axis else (
            self.outcome)  # fmt: skip


def names() -> tuple[str, ...]:
    """The names of the rewrites of the list, in its order."""
    return tuple(f"{topic}-{number}" for topic, numbers in LIST.items() for number in numbers)


def stated() -> tuple[RuleSet, dict[str, Rule]]:
    """All rules, and those that state a rewrite of the list by their name."""
    files = sorted(FOLDER.glob("*.egg"))
    rules = load_rules([*DEFAULT_FILES, *files])
    own = {rule.name: rule for rule in rules.rules if Path(rule.file).parent == FOLDER}
    return rules, {name: own[name] for name in names() if name in own}


def verified(asked: Iterable[str]) -> Iterator[Found]:
    """Verify the rewrites of these names; yield the outcomes one by one."""
    rules, own = stated()
    helpers: dict[str, Verdict] = {}
    for name in asked:
        narrower, each_axis = NARROWER.get(name, ""), name in EACH_AXIS
        if name in own:
            verdict = verify_rule(rules, own[name], limit_s=60.0)
            why = "" if verdict.outcome == "proved" else verdict.why
            seconds = verdict.seconds
            for helper in EACH_AXIS.get(name, ()):
                if helper not in helpers:
                    helpers[helper] = verify_rule(rules, rules[helper], limit_s=60.0)
                    seconds += helpers[helper].seconds
                if helpers[helper].outcome != "proved":
                    narrower = f"{_AXIS}, since {helper} is {helpers[helper].outcome}"
            yield Found(name, verdict.outcome, seconds, why, narrower, each_axis)
        else:
            outcome = "not expressible" if name in LACKING else "not stated"
            yield Found(name, outcome, 0.0, LACKING.get(name, ""), narrower, each_axis)


def totals(found: list[Found]) -> str:
    """The counts of a run over the whole list, beside the published ones."""
    counts = Counter(one.outcome for one in found)
    said = ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())
    parts = Counter(one.said for one in found)
    each, less = parts["proved, axis by axis"], parts["proved, but narrower"]
    return (
        f"{len(found)} rewrites: {said}; of those that are proved, {parts['proved'] + each} say as "
        f"much as TensorRight's ({each} of them axis by axis) and {less} less; "
        f"{sum(one.seconds for one in found):.0f} s of "
        f"the processor. TensorRight proves {len(names()) - len(NOT_THEIRS)} of these "
        f"{len(names())}, which are its {PUBLISHED[0]} of {PUBLISHED[1]}"
    )


def table(found: list[Found]) -> str:
    """A table in Markdown: for each topic how many rewrites are proved, and how many aren't."""
    head = ("topic", "rewrites", "proved", "proved, axis by axis", "proved, but narrower",
            "not proved", "not expressible")  # fmt: skip
    rows = [head, ("---",) * len(head)]
    for topic in (*LIST, "all"):
        own = [one for one in found if topic in (one.name.rpartition("-")[0], "all")]
        counts = Counter(one.said for one in own)
        rows.append((topic, str(len(own)), *(str(counts[column]) for column in head[2:])))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    rows = []
    for found in verified(name for name in names() if asked.only in name):
        rows.append(found)
        said = "; ".join(part for part in (found.why, found.narrower) if part)
        print(f"{found.name:14}  {found.outcome:15}  {found.seconds:5.1f} s  {said}", flush=True)
    print(totals(rows))
    if asked.table:
        print(table(rows))
    if asked.json:
        asked.json.write_text(json.dumps([asdict(r) for r in rows], indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
