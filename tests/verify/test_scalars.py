"""Rewrites of scalars, proved for all values and dtypes; wrong ones aren't."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_indices import proved_mutants
from test_tensors import HEAD, of_file

from eqsynth.rules import load_rules
from eqsynth.verify import verify_rules

pytest.importorskip("z3")

OURS = load_rules()


def test_rules_of_scalars_are_proved() -> None:
    names = [rule.name for rule in OURS.rules if rule.file.endswith("scalar.egg")]
    found = list(verify_rules(OURS, names))
    assert len(found) == 9
    assert {v.rule.name: v.why for v in found if v.outcome != "proved"} == {}


@pytest.mark.rotating
@pytest.mark.parametrize(
    "rule",
    [
        '(rewrite (Call "neg" v) (Call "relu" v)',
        # The second operand is any value.
        '(rewrite (Call "max" v) (Call "relu" (vec-of (vec-get v 0)))',
        '(rewrite (Call "max" v) x :when ((= x (vec-get v 0)))',
        # float16 isn't the dtype of x, and digits are lost on the way.
        '(rewrite (Convert "float32" (Convert "float16" x)) (Convert "float32" x)',
        # 1 or 0 converted to what wraps, and then computed with: 255 is not -1.
        '(rewrite (Convert "float32" (Call "floor" (vec-of (Convert "uint8" '
        '(Call "sub" (vec-of (Convert "uint8" (Call "eq" v)) x)))))) '
        '(Convert "float32" (Call "sub" (vec-of (Convert "float32" (Call "eq" v)) x)))',
        # One sits at 0, not at 1.
        '(rewrite (Convert "float32" (Call "eq" v)) '
        '(Read (Full (vec-of 1) 1.0 "float32") (vec-of (IAdd i (IAdd (INum 1) (IMul -1 j)))) 0.0) '
        ":when ((= (vec-get v 0) (Value i)) (= (vec-get v 1) (Value j)))",
        # The right side is of another dtype.
        '(rewrite (Convert "float32" (Call "eq" v)) '
        '(Read (Full (vec-of 1) 1.0 "float64") (vec-of (IAdd i (IMul -1 j))) 0.0) '
        ":when ((= (vec-get v 0) (Value i)) (= (vec-get v 1) (Value j)))",
        # 1 / x isn't 1 / sqrt(x).
        '(rewrite (Call "reciprocal" v) (Call "rsqrt" v)',
        # Not the same bits.
        '(rewrite (Call "reciprocal" v) (Call "rsqrt" w) '
        ':when ((= 1 (vec-length v)) (= (vec-get v 0) (Call "sqrt" w)))',
    ],
)
def test_what_is_wrong_is_not_proved(tmp_path: Path, rule: str) -> None:
    path = tmp_path / "own.egg"
    text = f'{rule} :ruleset scalar :name "own")'
    path.write_text(HEAD.format("bitwise") + text, encoding="utf-8")
    (verdict,) = of_file(path, samples=False)
    assert verdict.outcome == "not proved" and "fault" not in verdict.why


@pytest.mark.slow
def test_no_mutant_of_a_scalar_rule_is_proved_that_the_checker_refuses(tmp_path: Path) -> None:
    assert proved_mutants("scalar.egg", "bitwise", tmp_path)
