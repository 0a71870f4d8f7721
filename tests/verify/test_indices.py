"""Rules of indices, proved over all integers or refuted with numbers that replay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.rule_mutants import mutated
from eqsynth.rules import DEFAULT_FILES, load_rules
from eqsynth.testing.soundness import check_rule
from eqsynth.verify import Verdict, to_verify, verify_rule, verify_rules

pytest.importorskip("z3")

OURS = load_rules()
HEAD = ";; own.egg -- own.\n;;\n;; Numerics   bitwise\n;; Status     validated\n\n"


@pytest.fixture
def verified(tmp_path: Path):  # type: ignore[no-untyped-def]
    def one(text: str) -> Verdict:
        path = tmp_path / "own.egg"
        path.write_text(HEAD + text, encoding="utf-8")
        rules = load_rules([*DEFAULT_FILES, path])
        (rule,) = (r for r in rules.rules if r.file == str(path) and r.name == "own")
        return verify_rule(rules, rule)

    return one


@pytest.mark.rotating
def test_every_rule_of_indices_is_proved() -> None:
    names = [rule.name for rule in OURS.rules if rule.file.endswith("index.egg")]
    found = list(verify_rules(OURS, names))
    assert len(found) == 41 + 13
    assert {v.rule.name for v in found if v.outcome != "proved"} == set()


def test_what_only_steers_is_not_verified() -> None:
    names = {rule.name for rule in to_verify(OURS, OURS.names)}
    assert "add-range" in names and "add-divides" in names
    assert "add-weight" not in names and "factor-apply" not in names


@pytest.mark.rotating
@pytest.mark.parametrize(
    "rule",
    [
        # Quotients of the engine truncate: -1 / 2 is 0.
        "(rewrite (IDiv (INum c) m) (INum (/ c m)) :when ((> m 0))",
        # m < 0 would make a divisor that is negative; what a quotient is says nothing of that.
        "(rewrite (IDiv (IMul c x) m) (IDiv x (/ m c)) :when ((> m 0) (= 0 (% m c)))",
        "(rewrite (IMod x m) x :when ((>= (low x) 0) (<= (high x) m))",
        "(rewrite (IDiv (IAdd x y) m) (IAdd (IDiv x m) (IDiv y m))",
        "(rewrite (IMax (IMin x c) d) (IMin (IMax x d) c)",
    ],
)
def test_a_wrong_rule_is_refuted_with_numbers(verified, rule: str) -> None:  # type: ignore[no-untyped-def]
    verdict = verified(f'{rule} :ruleset index :name "own")')
    assert verdict.outcome == "refuted"
    assert " = " in verdict.why


@pytest.mark.parametrize(
    "claim",
    [
        "(set (high e) (- m 2))",
        "(set (low e) 1)",
        "(divides m e)",
    ],
)
def test_a_wrong_range_is_refuted(verified, claim: str) -> None:  # type: ignore[no-untyped-def]
    rule = f'(rule ((= e (IMod x m)) (> m 1)) ({claim}) :ruleset analysis-index :name "own")'
    assert verified(rule).outcome == "refuted"


def test_a_rule_that_never_matches_is_not_proved(verified) -> None:  # type: ignore[no-untyped-def]
    rule = '(rewrite (IMod x m) (INum 5) :when ((> m 3) (< m 2)) :ruleset index :name "own")'
    verdict = verified(rule)
    assert (verdict.outcome, "none were found" in verdict.why) == ("not proved", True)


def test_what_a_relation_of_a_user_says_is_not_supposed(verified) -> None:  # type: ignore[no-untyped-def]
    rule = ('(relation small (Idx i64))\n'
            '(rule ((= e (IMod x m))) ((small x m)) :ruleset analysis-index :name "said")\n'
            '(rewrite (IMod x m) x :when ((small x m)) :ruleset index :name "own")')  # fmt: skip
    assert verified(rule).outcome != "proved"


def test_the_time_limit_leaves_a_rule_not_proved() -> None:
    verdict = verify_rule(OURS, OURS["div-of-mod"], limit_s=0.0)
    assert (verdict.outcome, verdict.why) == (
        "not proved", "left to show: the time limit ended it"
    )  # fmt: skip


def test_the_engine_has_the_integers_that_proofs_suppose() -> None:
    """Quotients truncate, and what overflows or divides by 0 is no match: not another number."""
    from egglog import bindings as egg

    engine = egg.EGraph()

    def run(text: str) -> None:
        engine.run_program(*engine.parse_program(text))

    run("(relation in (i64)) (relation out (String i64)) (in 9223372036854775807)")
    for expression, value in {
        "(/ -7 2)": -3, "(% -7 2)": -1, "(/ 7 -2)": -3, "(% 7 -2)": 1,
        "(* 2 x)": None, "(+ x x)": None, "(/ 1 (- x x))": None, "(% 1 (- x x))": None,
    }.items():  # fmt: skip
        run(f'(rule ((in x) (= y {expression})) ((out "{expression}" y))) (run 1)')
        if value is not None:
            run(f'(check (out "{expression}" {value}))')
        else:
            with pytest.raises(egg.EggSmolError):
                run(f'(check (out "{expression}" y))')


def proved_mutants(
    file: str, numerics: str, folder: Path, names: tuple[str, ...] = (),
    needs: tuple[Path, ...] = (), every: int = 1, first: int = 0,
) -> list[str]:  # fmt: skip
    """The mutants that are proved, after the checker of rules found nothing wrong with them.

    Args:
        every, first: of all mutants, every so-manyth from the ``first`` on is tried.
    """
    rules, texts = mutated(file, numerics, folder, names, needs)
    found = []
    for name in [*texts][first::every]:
        # Without the other mutants: among them are analyses, on which the samples would rely.
        alone = replace(rules, rules=(*OURS.rules, rules[name]))
        if verify_rule(alone, rules[name]).outcome == "proved":
            found.append(texts[name])
            if rules[name].kind == "rewrite":
                checked = check_rule(alone, rules[name], samples=8, limit_s=3)
                # What no sample matches was found wrong on none.
                assert checked.error is None or checked.error.kind == "vacuous", texts[name]
    return found


@pytest.mark.rotating
def test_no_mutant_is_proved_that_the_checker_refuses(tmp_path: Path) -> None:
    found = proved_mutants("index.egg", "bitwise", tmp_path, ("mod-of-small",))
    # Stricter conditions.
    assert len(found) == 2, "\n".join(found)


@pytest.mark.slow
def test_no_mutant_of_an_index_rule_is_proved_that_the_checker_refuses(tmp_path: Path) -> None:
    assert proved_mutants("index.egg", "bitwise", tmp_path)
