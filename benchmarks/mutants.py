"""Judge mutants of definitions, requests of laws and rules of scopes: is a wrong one accepted?

    python -m benchmarks.mutants [--head define] [--part K/N] [--only TEXT] [--json FILE]

    sum(k) a[^n, i, k] * b[^n, k, j]  ->  sum(k) a[^n, k, k] * b[^n, k, j]      refused: value

Each mutant (``benchmarks/rule_mutants.py``) is put in a copy of its rule file, and the copy is
loaded instead of the file. A mutant is refused if

- the copy doesn't load, or
- ``rules check`` finds samples on which the rule's sides differ, or no samples that it matches.

An operator that only a rule file defines (``Attention``) means whatever its definition says, so the
definition can't be checked itself. A mutant of it is refused if a rule about the operator is.

A mutant that is accepted is checked again with more samples (``MORE``). If it is still accepted,
either it is as true as the original rule, and ``ACCEPTED`` gives the reason; or the samples have a
gap. Only a mutant that is as true as its rule may be ``proved``. A request of a law is true for
each term about which the law answers: the law's function checks the terms itself, or fails on
unsuitable ones, which is an error (``shape``). So only a request's claim about rounding can be
wrong. The exit status is 1 if a mutant is accepted without a reason.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.rule_mutants import HEADS, Mutant, form_mutants
from eqsynth.errors import RuleError
from eqsynth.ir.operators import OPERATORS
from eqsynth.rules import DEFAULT_FILES, Rule, RuleSet
from eqsynth.rules.load import load_text
from eqsynth.rules.tree import Tree, is_call
from eqsynth.testing.soundness import SAMPLES, check_rule
from eqsynth.verify import verify_rule

LIMIT_S: Final = 10.0
"""The most processor time (s) for one check of a mutant."""

MORE: Final = 200
"""The number of samples for a mutant that is accepted on the samples of a usual check."""

_ENOUGH = "the bound is above all indices, as it has to be"
ACCEPTED: Final[Mapping[str, tuple[int, str]]] = {
    "grouped-conv2d-definition": (3, "one group is a group; fewer cases"),
    "conv-transpose2d-definition": (22, _ENOUGH),
    "grouped-conv-transpose2d-definition": (24, _ENOUGH + "; two numbers that are equal"),
    "gbmm-definition": (1, "sums of few products, in the order of the reference"),
    "reduce-max-definition": (1, "a maximum rounds nothing"),
    "reduce-min-definition": (1, "a minimum rounds nothing"),
    "max-pool2d-definition": (1, "a maximum rounds nothing"),
    "softmax-definition": (5, "keepdim is 1 or not 0; longer axes; the reference's own steps"),
    "layer-norm-affine": (1, "the reference's own steps"),
    "layer-norm-definition": (3, "d != t is t != d; in 16 bits equal over the reals, too"),
    "embedding-definition": (1, "where an id names no row, the left side is an error"),
    "iota-definition": (1, "an iterator rounds nothing"),
    **dict.fromkeys(
        ("add-definition", "mul-definition", "maximum-definition", "minimum-definition",
         "equal-definition", "not-equal-definition", "logical-and-definition",
         "logical-or-definition"), (2, "the operands commute; element by element")
    ),
    "attention-definition": (2, "factors commute; what it says of its own digits is no rule's"),
    "causal-attention-definition": (2, "the same"),
    "masked-attention-definition": (5, "the same; operands commute; keepdim is 1 or not 0"),
    "hoist": (1, "where it is worth doing is no condition of the equality"),
    "delta-under-sum": (1, "integers that wrap are a ring"),
    "diagonal-is-product": (4, "0 and 1 times f are exact, also of integers, and wherever e lies"),
    "order-is-ones": (1, "0 and 1 are exact in every dtype"),
    **dict.fromkeys(("triangle-is-product", "other-triangle-is-product"),
                    (2, "0 and 1 times f are exact, also of integers")),
    "diagonal": (3, "where j is i, F(j, i) and F(i, j) are F(i, i); 0 times an integer is 0"),
    "diagonal-term": (11, "the same; what is compared is finite"),
    **dict.fromkeys(("scale-of-shifted", "scale-of-shifted-and-shift"),
                    (18, "what is constant, and where it is worth doing, are no conditions of the "
                     "equality; f may be infinite; integers that wrap are a ring")),
}  # fmt: skip
"""Rule -> the number of its mutants that are as true as the rule, and the reason.

Each other rule of ``elementwise.egg`` has one, which claims ``bitwise``: elementwise results are
equal to the last bit.
"""


@dataclass(frozen=True)
class Judged:
    """The result of judging a mutant.

    Attributes:
        fate: ``doesn't load``, the kind of the checker's refusal, or ``accepted``.
        equalities: the number of equalities that the checker accepted, and how many exactly.
        verified: the verifier's outcome.
    """

    file: str
    head: str
    rule: str
    text: str
    claims: bool
    fate: str
    equalities: tuple[int, int] = (0, 0)
    verified: str = ""


def judge(mutant: Mutant, looks: Sequence[int] = (SAMPLES, MORE)) -> Judged:
    """Load a mutant instead of its original, check it and verify it.

    Args:
        looks: the number of samples of each check; a check is made only if the previous one
            accepted the mutant. A request of a law is checked once.
    """
    told = (mutant.file, mutant.head, mutant.rule, mutant.text, mutant.claims)
    place = DEFAULT_FILES.index(mutant.file) if mutant.file in DEFAULT_FILES else None
    before = DEFAULT_FILES[:place]
    try:
        rules = load_text(mutant.content, f"mutants/{mutant.file}", after=before)
        judging = list(_judging(rules, mutant.rule))
    except RuleError:
        return Judged(*told, "doesn't load")
    fate, accepted, exact = "accepted", 0, 0
    for samples in looks[:1] if mutant.head == "ask" else looks:
        for rule in judging if fate == "accepted" else ():
            found = check_rule(rules, rule, samples=samples, search_s=0.0, limit_s=LIMIT_S)
            accepted, exact = accepted + found.accepted, exact + found.exact
            if found.error is not None:
                fate = found.error.kind
                break
    outcomes = {verify_rule(rules, rule, samples=False).outcome for rule in judging}
    verified = "proved" if outcomes == {"proved"} else min(outcomes - {"proved"})
    return Judged(*told, fate, (accepted, exact), verified)


def _judging(rules: RuleSet, name: str) -> Iterator[Rule]:
    """The rules to judge for a mutant: the changed rule; or, if it defines an operator that isn't
    built in, the rewrites in which that operator occurs."""
    rule = rules[name]
    operator = next((d.name for d in rules.definitions.values()
                     if any(case.rule == name for case in d.cases)), "")  # fmt: skip
    if not operator or operator in OPERATORS:
        yield rule
        return
    for other in rules.rules:
        sides = (*other.body, *(other.equality or ()))
        if other.kind == "rewrite" and other.name != name and operator in _heads(sides):
            yield other


def _heads(trees: Iterable[Tree]) -> Iterator[str]:
    for tree in trees:
        if is_call(tree):
            yield tree[0]
            yield from _heads(tree[1:])


def all_mutants(heads: Iterable[str] = HEADS, part: tuple[int, int] = (1, 1)) -> list[Mutant]:
    """The mutants of all forms with these heads in eqsynth's rule files; for ``part=(k, n)``, the
    k-th of n parts."""
    wanted = {*heads}
    found = [m for file in DEFAULT_FILES for m in form_mutants(file) if m.head in wanted]
    return found[part[0] - 1 :: part[1]]


def unexplained(found: Iterable[Judged]) -> list[Judged]:
    """The accepted mutants for which there is no reason: those beyond the number that ``ACCEPTED``
    gives for their rule."""
    left = Counter({rule: number for rule, (number, _) in ACCEPTED.items()})
    told = []
    for judged in found:
        if judged.fate != "accepted" or (judged.head == "ask" and not judged.claims):
            continue
        if judged.file == "elementwise.egg" and judged.claims and judged.rule not in ACCEPTED:
            continue
        left[judged.rule] -= 1
        if left[judged.rule] < 0:
            told.append(judged)
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--head", choices=HEADS, action="append", help="forms of this kind alone")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="of N parts the K-th")
    parser.add_argument("--only", default="", help="mutants whose text contains this")
    parser.add_argument("--json", type=Path, help="write what became of each mutant")
    given = parser.parse_args()
    first, step = map(int, given.part.split("/"))
    mutants = [m for m in all_mutants(given.head or HEADS, (first, step)) if given.only in m.text]
    found = []
    for mutant in mutants:
        judged = judge(mutant)
        found.append(judged)
        if judged.fate == "accepted" or judged.verified == "proved":
            print(f"{judged.rule} ({judged.verified}, {judged.equalities}): {judged.text}",
                  flush=True)  # fmt: skip
        if given.json:
            given.json.write_text(json.dumps([asdict(j) for j in found], indent=1))
    for head in HEADS:
        fates = Counter(j.fate for j in found if j.head == head)
        print(f"{head}: {fates.total()} mutants; " +
              ", ".join(f"{n} {fate}" for fate, n in fates.most_common()))  # fmt: skip
    without = unexplained(found)
    for judged in without:
        print(f"no reason is given for {judged.rule}: {judged.text}")
    return bool(without)


if __name__ == "__main__":
    raise SystemExit(main())
