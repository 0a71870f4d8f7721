"""Rule files as data: what is accepted, what is refused and where, and the two phases."""

from __future__ import annotations

import pickle
import textwrap
from pathlib import Path

import pytest

from eqsynth import kept
from eqsynth.errors import EqsynthError, RuleError, SaturationError, ShapeError
from eqsynth.rules import (
    DEFAULT_FILES,
    Rule,
    RuleSet,
    Var,
    load_rules,
    load_text,
    render,
    rules_dir,
)
from eqsynth.rules import load as load_module
from eqsynth.rules.claim import Claim
from eqsynth.rules.loader import Loader

PRELUDE = """\
;; demo.egg -- for tests.
;; Numerics   real: rounding may differ
;; Status     validated

(sort T)
(sort Ts (Vec T))
(sort Ints (Vec i64))
(constructor Mul (T T) T)
(constructor Add (T T) T)
(constructor Num (i64) T)
(constructor Cat (Ts) T)
(constructor Dims (Ints) T)
(function shape (T) Ints :no-merge)
(relation constant (T))
(ruleset r)
(ruleset r-explore)
(ruleset analysis)
"""
LINES = PRELUDE.count("\n")


def load(text: str) -> RuleSet:
    return load_text(PRELUDE + textwrap.dedent(text), "demo.egg")


def only(text: str) -> Rule:
    (rule,) = load(text).rules
    return rule


def refused(text: str) -> RuleError:
    with pytest.raises(RuleError) as caught:
        load(text)
    return caught.value


@pytest.mark.parametrize("kind", [str, Path])
def test_a_single_file_needs_no_list(kind: type, tmp_path: Path) -> None:
    path = tmp_path / "own.egg"
    path.write_text("(sort Colour)", encoding="utf-8")
    assert load_rules(kind(path)).declarations == load_rules([path]).declarations
    with pytest.raises(RuleError) as caught:
        load_rules("no such file.egg")
    assert caught.value.file == "no such file.egg"


def test_rule_carries_its_place_and_its_mathematics() -> None:
    rule = only("""
        ;; ---- distribution -----

        ;; a b + a c = a (b + c)
        ;; for equal shapes        [TASO Table 2]
        (rewrite (Add (Mul a b) (Mul a c)) (Mul a (Add b c))
          :when ((= (shape b) (shape c))) :ruleset r-explore :name "mul-factor")
    """)
    assert (rule.name, rule.kind, rule.ruleset) == ("mul-factor", "rewrite", "r-explore")
    assert (rule.file, rule.line) == ("demo.egg", LINES + 6)
    assert rule.comment.startswith("a b + a c = a (b + c)\nfor equal shapes")
    assert rule.source == "TASO Table 2"
    assert (rule.numerics.kind, rule.status) == ("real", "validated")
    assert rule.conditions == ("(= (shape b) (shape c))",)
    assert rule.columns == (("root", "T"), ("a", "T"), ("b", "T"), ("c", "T"))
    a, b, c = map(Var, "abc")
    assert rule.equality == (("Add", ("Mul", a, b), ("Mul", a, c)), ("Mul", a, ("Add", b, c)))
    assert rule.instance((0, 1, 2, 3))[1] == ("Mul", 1, ("Add", 2, 3))


def test_section_line_is_no_comment_of_a_rule() -> None:
    rule = only("""
        ;; ---- swaps [Book] ----
        ;; a + b = b + a
        (rewrite (Add a b) (Add b a) :ruleset r :name "n")
    """)
    assert (rule.comment, rule.source) == ("a + b = b + a", "")


@pytest.mark.parametrize(
    ("claim", "what"),
    [
        ("approx (small)", "is no number above 0: (small)"),
        ("approx (-1e-3)", "is no number above 0: (-1e-3)"),
        ("approx (nan)", "is no number above 0: (nan)"),
        ("exact", "unknown class exact"),
    ],
)
def test_a_claim_that_means_nothing_is_refused(claim: str, what: str) -> None:
    text = f';; (numerics: {claim})\n(rewrite (Add a b) (Add b a) :ruleset r :name "own")'
    with pytest.raises(RuleError) as error:
        only(text)
    assert what in error.value.what and error.value.line > 0


@pytest.mark.parametrize("option", [":when ((= a (Num 1)))", ":ruleset analysis", ':name "other"'])
def test_an_option_is_said_once(option: str) -> None:
    """Else the engine takes the last one: of two conditions the first would be forgotten."""
    rule = '(rewrite (Add a b) a :when ((= a b)) :ruleset r :name "own" {})'
    assert only(rule.format("")).name == "own"
    error = refused(rule.format(option))
    assert error.what == f"{option.split()[0]} is said twice"
    assert (error.line, error.column) == (LINES + 1, rule.index("{") + 1)


def test_the_header_may_claim_numerics_of_proofs() -> None:
    assert PRELUDE.count("Numerics   real") == 1
    prelude = PRELUDE.replace("Numerics   real", "Numerics   proof-cancels")
    text = '(rewrite (Add a b) (Add b a) :ruleset r :name "own")'
    (rule,) = load_text(prelude + text, "demo.egg").rules
    assert rule.numerics.kind == "proof-cancels" and rule.numerics.for_proofs


def test_a_rule_may_override_what_the_header_says() -> None:
    rule = only("""
        ;; (numerics: approx (1e-3)) (status: proved)
        (rewrite (Add a b) (Add b a) :ruleset r :name "add-commute")
    """)
    assert (rule.numerics, rule.status) == (Claim("approx", 1e-3, "approx (1e-3)"), "proved")


def test_birewrite_is_two_rules() -> None:
    forth, back = load('(birewrite (Add a b) (Add b a) :ruleset r :name "swap")').rules
    assert (forth.name, back.name) == ("swap", "swap-reverse")
    assert forth.equality is not None and back.equality == forth.equality[::-1]


def test_definitions_in_the_body_are_written_out_on_both_sides() -> None:
    rule, _ = load("""
        (rule ((= e (Add x y)) (= y (Mul p q)) (constant x))
              ((let z (Mul y x)) (union z e)) :ruleset r :name "n")
        (rule ((= e (Num 1))) ((constant e)) :ruleset analysis :name "constants")
    """).rules
    assert rule.equality is not None
    assert [render(side) for side in rule.equality] == ["(Add x (Mul p q))", "(Mul (Mul p q) x)"]
    assert rule.conditions == ("(constant x)",)
    assert [name for name, _ in rule.columns] == ["e", "x", "p", "q"]


def test_computed_values_are_columns_and_move_into_the_query() -> None:
    rule = only(
        """
        (rewrite (Add (Num a) (Num _)) (Cat (vec-of (Num (/ 1 a)) (Dims (shape (Num 3)))))
          :ruleset r :name "n")
    """.replace("(Dims (shape (Num 3)))", "(Num (+ a 1))")
    )
    assert rule.equality is not None
    assert [sort for _, sort in rule.columns] == ["T", "i64", "i64", "i64", "i64"]
    assert "(/ 1 a)" in rule.program[3] and "(/ 1 a)" not in rule.program[4]
    assert rule.instance((0, 2, 7, 0, 3)) == (
        ("Add", ("Num", 2), ("Num", 7)),
        ("Cat", (("Num", 0), ("Num", 3))),
    )


def test_a_vector_in_a_pattern_is_matched() -> None:
    rule = only("""
        (rewrite (Cat (vec-of (Cat (vec-of x)) y)) (Cat (vec-of y x)) :ruleset r :name "n")
    """)
    x, y = Var("x"), Var("y")
    left = ("Cat", ("vec-of", ("Cat", ("vec-of", x)), y))
    assert rule.equality == (left, ("Cat", ("vec-of", y, x)))
    assert rule.program[3].count("vec-get") == 3 and "(= 2 (vec-length v))" in rule.program[3]


def test_vectors_that_contain_new_terms_stay_in_the_pattern() -> None:
    rule = only("""
        (rewrite (Cat ts) (Cat (vec-push (vec-append ts (vec-of (Num 1))) (Num 2)))
          :ruleset r :name "n")
    """)
    assert rule.instance((0, (7, 8)))[1] == ("Cat", (7, 8, ("Num", 1), ("Num", 2)))


def test_a_vector_that_says_nothing_is_no_condition() -> None:
    error = refused("""
        (rewrite (Cat (vec-of x y)) (Add x y)
          :when ((vec-of x y)) :ruleset r :name "wrong")
    """)
    assert error.file == "demo.egg" and error.line > LINES and error.got


def test_definition_in_terms_of_itself_ends() -> None:
    rule = only('(rule ((= e (Add e b))) ((union e b)) :ruleset r :name "n")')
    assert rule.equality == (("Add", Var("e"), Var("b")), Var("b"))


def test_strings_are_written_as_they_were_read() -> None:
    text = '(constructor Str (String) T)\n(rewrite (Str "a\\\\b\\"c") (Num 1) :ruleset r :name "n")'
    rule = only(text)
    assert rule.equality is not None and rule.equality[0] == ("Str", 'a\\b"c')
    assert render(rule.equality[0]) in text


def test_laws_and_analyses_run_in_one_phase() -> None:
    request, apply, shape = load("""
        ;; a law       [Paper 1]
        (law split (T i64) (T T))
        (rule ((= e (Add (Num n) b))) ((split-request e n)) :ruleset r :name "split")
        (rule ((split-answer e x)) ((union e x)) :ruleset r :name "split-apply")
        (rule ((= e (Add a b)) (= s (shape a))) ((set (shape e) s)) :ruleset analysis :name "add-s")
    """).rules
    assert (request.kind, request.law, request.relation) == (
        "law-request",
        "split",
        "split-request",
    )
    assert request.source == apply.source == "Paper 1"
    assert [sort for _, sort in request.columns] == ["T", "i64"]
    assert (apply.kind, apply.law, apply.match_ruleset) == ("law-apply", "split", "")
    assert (shape.kind, shape.equality, shape.apply_ruleset) == ("analysis", None, "analysis/all")


def test_only_a_declared_law_has_requests_and_answers() -> None:
    """The names of relations decide nothing: what a law's relations are, the form ``law`` says."""
    request, apply, other = load("""
        (law split (T) (T T))
        (relation own-request (T))
        (relation own-answer (T T))
        (rule ((= e (Num 1))) ((own-request e) (own-answer e e)) :ruleset analysis :name "own")
        (rule ((own-answer e x)) ((union e x)) :ruleset r :name "own-apply")
        (rule ((= e (Num 1))) ((split-request e)) :ruleset r :name "split")
    """).rules
    assert [(r.kind, r.law) for r in (request, apply, other)] == [
        ("analysis", ""),
        ("rewrite", ""),
        ("law-request", "split"),
    ]


def test_a_law_by_hand_is_refused() -> None:
    """Relations of requests and answers without the form ``law``: no law would fill the answers,
    and the file would state nothing."""
    error = refused("""
        (relation split-request (T))
        (relation split-answer (T T))
        (rule ((= e (Num 1))) ((split-request e)) :ruleset r :name "split")
        (rule ((split-answer e x))
              ((union e x)) :ruleset r :name "split-apply")
    """)
    assert (error.file, error.line) == ("demo.egg", LINES + 5) and error.column == 9
    assert "nothing fills the relation split-answer" in error.what
    assert "(law <law>" in (error.hint or "") and "split-apply" in (error.got or "")
    # The form makes it a law, in whatever order the forms stand.
    law = "(law split (T) (T T))"
    rules = load(f"""
        {law}
        (rule ((split-answer e x)) ((union e x)) :ruleset r :name "split-apply")
        (rule ((= e (Num 1))) ((split-request e)) :ruleset r :name "split")
    """).rules
    assert [rule.kind for rule in rules] == ["law-apply", "law-request"]


def test_a_relation_may_be_filled_by_a_later_rule() -> None:
    first, second = load("""
        (relation one (T))
        (rule ((= e (Add a b)) (one a)) ((union e b)) :ruleset r :name "add-one")
        (rule ((= e (Num 1))) ((one e)) :ruleset analysis :name "is-one")
    """).rules
    assert (first.kind, second.kind) == ("rewrite", "analysis")


@pytest.mark.parametrize("text", ["(law)", "(law split)", "(law split (T))", "(law (T) (T T))",
                                  "(law split (T) (T T) :n)", "(law split T (T T))"])  # fmt: skip
def test_a_law_is_a_name_and_two_lists_of_sorts(text: str) -> None:
    assert "a name and the sorts" in refused(text).what


def test_a_law_is_declared_once() -> None:
    assert "exists already" in refused("(law split (T) (T T))\n(law split (T) (T T))").what
    assert "unknown sort" in refused("(law split (T) (T Q))").what


@pytest.mark.parametrize(
    "form",
    [
        '(include "x.egg")', '(input constant "x")', '(output "f" (Num 1))', "(run r 1)",
        "(run-schedule (saturate r))", "(check (= 1 1))", "(extract (Num 1))", "(let x (Num 1))",
        "(push)", "(pop)", "(print-size)", "(print-function Add 1)", "(delete (Num 1))",
        "(constant (Num 1))", "(datatype D (A))", "(py-exec)", "(fail (check (= 1 2)))",
    ],
)  # fmt: skip
def test_only_declarations_and_rules_are_forms(form: str) -> None:
    error = refused("\n  " + form)
    assert (error.file, error.line) == ("demo.egg", LINES + 2)
    assert error.column == (1 if textwrap.dedent("\n  " + form) == "\n" + form else 3)
    assert form[:8] in error.got and error.hint and "rewrite" in error.expected


@pytest.mark.parametrize(
    ("rule", "what", "hint"),
    [
        ('(rewrite (Ad a b) (Add b a) :ruleset r :name "n")', "unknown operator Ad", "Add"),
        ('(rewrite (Add a b) (Add b a) :ruleset r-explor :name "n")', "unknown ruleset", "r-expl"),
        ('(rewrite (Add a b) (Add b a) :name "n")', "no ruleset", ":ruleset"),
        ("(rewrite (Add a b) (Add b a) :ruleset r)", "no name", ":name"),
        ("(rule ((= e (Num 1))) ((constant e)) :ruleset r)", "no name", ":name"),
        ('(rewrite (Add a b) (Add b a) :ruleset r :name "N 1")', "not a name", "Rename"),
        ('(rewrite (Add a b) (Add b c) :ruleset r :name "n")', "variable c", "Bind"),
        ('(rewrite (Add a 1) (Add a a) :ruleset r :name "n")', "sorts do not fit", ""),
        ('(rewrite (Add a) (Add a a) :ruleset r :name "n")', "1 arguments", ""),
        ('(rewrite (Add a b) a :subsume :ruleset r :name "n")', "subsume", ""),
        ('(rewrite a (Add a a) :ruleset r :name "n")', "left-hand", "constructor"),
        ('(rule ((= e (Num 1))) ((delete (Num 1))) :ruleset r :name "n")', "cannot do", ""),
        ('(rule ((= e (Num 1))) ((panic "x")) :ruleset r :name "n")', "cannot do", ""),
        ('(rewrite (Num a) (Num (py-call a)) :ruleset r :name "n")', "operator py-call", ""),
        ('(rewrite (Num a) (Dims (shape (Num a))) :ruleset r :name "n")', "shape of a term", ""),
        ('(rewrite (Add r b) b :ruleset r :name "n")', "name of a ruleset", "variable"),
        ("(ruleset r)", "ruleset r exists", "Rename"),
        ("(sort T)", "T exists", "Rename"),
        ("(constructor M_x (T) T)", "reserved", ""),
        ("(constructor C (Tt) T)", "unknown sort Tt", "T"),
        ("(sort F (UnstableFn (T) T))", "kind of sort", "vector"),
        ("(function f (T) i64 :merge (py-eval old))", "operator py-eval", ""),
        ('(rule ((= e (Num 1)) (= f (Num 2))) ((union e f) (union f e)) :ruleset r :name "n")',
         "unites twice", "one rule"),
    ],
)  # fmt: skip
def test_mistakes_are_named_with_their_place(rule: str, what: str, hint: str) -> None:
    error = refused("\n\n" + rule)
    assert what in error.what
    assert hint in error.hint
    assert (error.file, error.line) == ("demo.egg", LINES + 3)
    assert error.got


def test_unknown_operator_is_found_to_the_column_behind_other_letters() -> None:
    error = refused('\n;; é\n(rewrite (Add é b)\n  (Ad é b) :ruleset r :name "n")')
    assert (error.line, error.column) == (LINES + 4, 3)


def test_duplicate_names() -> None:
    rule = '(rewrite (Add a b) (Add b a) :ruleset r :name "n")\n'
    error = refused(rule + rule)
    assert (error.what, error.line) == ("rule n exists already", LINES + 2)
    assert f"demo.egg:{LINES + 1}" in error.expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("(" * 100_000, "deeper"),
        ("(rewrite " + "(Add a " * 5000 + "a" + ")" * 5000 + ' a :ruleset r :name "n")', "deeper"),
        ("(ruleset x\n(ruleset y)", "not closed"),
        ("(ruleset x))", "closing parenthesis"),
        ('(rule () () :name "x', "not closed"),
        ("stray", "outside"),
        ("()", "cannot contain"),
        (f'(rewrite (Num {"9" * 5000}) (Num 1) :ruleset r :name "n")', "64 bits"),
        ('(rewrite (Num 9223372036854775808) (Num 1) :ruleset r :name "n")', "64 bits"),
        ('(rewrite (Num a) (Num 1e999) :ruleset r :name "n")', "double"),
        ("(constructor C (" + "T " * 20_000 + ") T)", "longer"),
        ("; " + "x" * (1 << 20), "too large"),
        ("\x00", "invisible"),
    ],
)
def test_hostile_text_is_refused(text: str, what: str) -> None:
    assert what in refused(text).what


def test_doubling_lets_and_definitions_are_refused() -> None:
    lets = " ".join(f"(let v{i + 1} (Add v{i} v{i}))" for i in range(60))
    rule = f'(rule ((= v0 (Num 1))) ({lets} (union v0 v60)) :ruleset r :name "n")'
    assert "too large" in refused(rule).what
    facts = " ".join(f"(= v{i} (Add v{i + 1} v{i + 1}))" for i in range(60))
    rule = f'(rule ({facts}) ((union v0 (Num 1))) :ruleset r :name "n")'
    assert "too large" in refused(rule).what


def test_unclosed_form_points_at_the_form_and_the_next() -> None:
    error = refused("\n(ruleset x\n(ruleset y)\n")
    assert error.line == LINES + 2 and f"line {LINES + 3}" in error.hint


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.egg"
    file.write_text(PRELUDE)
    assert load_rules([file]).rulesets == ("r", "r-explore", "analysis")
    with pytest.raises(RuleError) as caught:
        load_rules([tmp_path / "absent.egg"])
    assert caught.value.file.endswith("absent.egg")
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(RuleError, match="UTF-8"):
        load_rules([file])
    file.write_text("é" * (1 << 20))  # its first MiB and a byte end within a letter
    with pytest.raises(RuleError, match="too large"):
        load_rules([file])


OWN = """\
;; mine.egg
;; Numerics   real
;; Status     validated

(define (Blend a b (t f64)) (Add a (Mul (Sub b a) (Full (vec-empty) t (dtype a)))))
(define (RowProduct x w) "(x, w) [*n, j] = sum(k) x[*n, k] * w[j, k]")
"""


def in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process has loaded is forgotten, and no file can be loaded anew."""
    load_module._remembered.cache_clear()
    load_module._loaded.cache_clear()
    monkeypatch.setattr(Loader, "load", lambda *_: pytest.fail("a file was loaded anew"))


def test_rules_are_kept_for_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, those of eqsynth and of users, with every class that they consist of."""
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path))
    load_module._remembered.cache_clear()
    own = tmp_path / "mine.egg"
    own.write_text(OWN)
    files = [*DEFAULT_FILES, own]
    expected = load_rules(files)
    with monkeypatch.context() as patch:
        in_another_process(patch)
        assert load_rules(files) == expected and "Blend" in expected.definitions


@pytest.mark.parametrize("change", ["text", "place", "code", "file kept"])
def test_rules_of_other_files_are_not_taken(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path / "cache"))
    load_module._remembered.cache_clear()
    own = tmp_path / "mine.egg"
    own.write_text(PRELUDE)
    assert load_rules([own]).rulesets
    load_module._remembered.cache_clear()
    if change == "text":
        own.write_text(PRELUDE + "(sort Another)")
    elif change == "place":
        own = own.rename(tmp_path / "other.egg")
    elif change == "code":
        monkeypatch.setattr(kept, "code_of", lambda *_: "other code")
    else:
        (kept_file,) = (tmp_path / "cache" / "rules-1").iterdir()
        kept_file.write_bytes(kept_file.read_bytes()[:-1])
    read = []
    loaded = Loader.load
    monkeypatch.setattr(Loader, "load", lambda *args: (read.append(args), loaded(*args))[1])
    load_module._loaded.cache_clear()
    found = load_rules([own])
    assert read and ("Another" in found.known.eq_sorts) == (change == "text")


def test_a_kept_file_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Harmful:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "ran",)

    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path / "cache"))
    load_module._remembered.cache_clear()
    own = tmp_path / "mine.egg"
    own.write_text(PRELUDE)
    expected = load_rules([own])
    (kept_file,) = (tmp_path / "cache" / "rules-1").iterdir()
    kept.keep(kept_file, Harmful(), 1 << 20)
    load_module._remembered.cache_clear()
    assert load_rules([own]) == expected and not (tmp_path / "ran").exists()


def test_mistakes_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQSYNTH_CACHE", str(tmp_path / "cache"))
    own = tmp_path / "mine.egg"
    own.write_text(PRELUDE + "(sort T)")
    for _ in range(2):
        with pytest.raises(RuleError):
            load_rules([own])
    assert not (tmp_path / "cache").exists()


def test_schema_loads_and_is_plain_data() -> None:
    rules = load_rules(["schema.egg"])
    assert (rules_dir() / "schema.egg").is_file()
    assert rules.known.signatures["Read"].inputs == ("Tensor", "Idxs", "f64")
    assert pickle.loads(pickle.dumps(rules)) == rules


def test_selection_by_numerics_and_status() -> None:
    rules = load("""
        ;; (numerics: cancels)
        (rewrite (Add a b) (Add b a) :ruleset r :name "c")

        ;; (status: unproved)
        (rewrite (Mul a b) (Mul b a) :ruleset r :name "u")

        (rewrite (Mul a (Num 1)) a :ruleset r :name "one")
    """)
    assert rules.select().names == ("one",)
    assert rules.select(numerics=("real", "cancels")).names == ("c", "one")
    assert rules.of("r")[0].name == "c"
    with pytest.raises(RuleError, match="unknown ruleset") as caught:
        rules.of("q-explore")
    assert "r-explore" in caught.value.hint
    with pytest.raises(RuleError) as caught:
        rules["onee"]
    assert "one" in caught.value.hint


def test_errors_keep_their_fields_across_processes() -> None:
    error = RuleError("w", file="f", line=2, column=3, got="g", expected="e", hint="h")
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.what, copy.where, copy.line, copy.hint) == ("w", "f:2:3", 2, "h")
    assert str(copy) == str(error) == "w\n  at: f:2:3\n  got: g\n  expected: e\n  h"
    assert issubclass(ShapeError, ValueError) and issubclass(ShapeError, EqsynthError)
    dead = pickle.loads(pickle.dumps(SaturationError("w", rules=("a",))))
    assert dead.rules == ("a",)
