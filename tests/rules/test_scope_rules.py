"""Rules of scopes as text in rule files: what is read, and what is refused and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from eqsynth.errors import RuleError
from eqsynth.rules import DEFAULT_FILES, RuleSet, lint, load_text
from eqsynth.rules.scope_rules.cursor import MAX_DEPTH, TextError
from eqsynth.rules.scope_rules.parser import MAX_TEXT, parse
from eqsynth.rules.scope_rules.syntax import Absent, Compare, Divides, Equals, Has, Times
from eqsynth.testing.rule_files import load_for_check
from eqsynth.testing.soundness import check_rule

DELTA = "[*x] = sum(k, *y) F(k) * [k == E] => [*x] = sum(*y) F(E)"


def load(form: str, header: str = "") -> RuleSet:
    return load_text(f"{header}(ruleset mine)\n{form}\n", "my.egg", after=DEFAULT_FILES)


def rule_of(text: str, options: str = ':ruleset mine :name "my-rule"') -> str:
    return f'(rule-of-scopes "{text}" {options})'


# ---- what is read ---------------------------------------------------------------------


def test_a_rule_says_two_sides_and_conditions() -> None:
    rule = parse(f"{DELTA} if 0 <= E < #k, k not in E, 2 divides #k, finite F, #k == 4")
    assert isinstance(rule.left.body, Times) and isinstance(rule.left.body.parts[1], Equals)
    assert [type(c) for c in rule.conditions] == [Compare, Compare, Absent, Divides, Has, Compare]
    assert (rule.bodies, rule.indices) == ((("F", ("k",)),), ("E",))
    assert (rule.left.reducer, rule.right.reducer) == ("sum", "sum")
    assert [(axis.name, axis.group) for axis in rule.left.axes] == [("k", False), ("y", True)]


def test_a_rule_becomes_a_law_of_its_name() -> None:
    rules = load(rule_of(f"{DELTA} if k not in E", ':ruleset mine :name "my-rule"'),
                 ";; Numerics   bitwise\n;; Status     validated\n\n")  # fmt: skip
    request, apply = rules["my-rule"], rules["my-rule-apply"]
    assert (request.kind, apply.kind) == ("law-request", "law-apply")
    assert request.law == apply.law == "my-rule"
    assert (request.file, request.line, request.ruleset) == ("my.egg", 5, "mine")
    assert (request.numerics.kind, request.status) == ("bitwise", "validated")
    assert request.scopes == parse(f"{DELTA} if k not in E")


def test_options_say_numerics_and_what_an_answer_gives() -> None:
    options = ':numerics "approx (1e-3)" :gives derived :ruleset mine :name "my-rule"'
    rules = load(rule_of("[*x] = max(*y) -F => [*x] = -{min(*y) F}", options))
    assert {str(rules[name].numerics) for name in ("my-rule", "my-rule-apply")} == {"approx (1e-3)"}
    assert "derived" in rules["my-rule-apply"].program[-1]


# ---- what is refused, and where --------------------------------------------------------

# What is wrong -> a text with ^ before it; what stands there, and a word of the hint or of what
# was expected.
WRONG = {
    "no arrow": ("[*x] = sum(*y) F^", "the end of the text", "=>"),
    "two heads": ("[*x] = sum(*y) F => ^[] = F", "[", "[*x]"),
    "misspelt function": ("[*x] = sum(*y) ^rellu(F) => [*x] = F", "rellu", "Did you mean relu?"),
    "misspelt reducer": ("[*x] = ^summ(*y) F => [*x] = F", "summ", "Did you mean sum?"),
    "misspelt iterator": ("[*x] = sum(kk, *y) F(kk) => [*x] = sum(*y) F(^kkk)", "kkk",
                          "Did you mean kk?"),
    "misspelt variable": ("[*x] = max(*y) Body => [*x] = max(*y) ^Boddy", "Boddy",
                          "Did you mean Body?"),
    "misspelt group": ("[*x] = max(*yy) F => [*x] = max(*^yyy) F", "yyy", "Did you mean yy?"),
    "unbound extent": ("[*x] = max(*y) F => [*x] = max(q < #^k) F", "k", "Known here: none"),
    "iterator of the other side": ("[*x] = sum(k, *y) F(k) => [*x] = sum(*y) F(^k)", "k",
                                   "Reduce over k here"),
    "free index": ("[*x] = sum(k, *y) F(k) * [k == E] => [*x] = sum(*y) F(^E)", "E",
                   "k not in E"),
    "free group": ("[*x] = sum(*y, *z) F * G => [*x] = sum(*y) ^F * {sum(*z) G}", "F",
                   "*z not in F"),
    "free in a condition": ("[*x] = sum(k) F(k) => [*x] = sum(k) F(k) if 0 <= ^j < 3", "j",
                            "Known here: k"),
    "index nowhere said": ("[*x] = sum(k) F(k) * [^E == k] => [*x] = F(E)", "E", "[k == E]"),
    "iterator as factor": ("[*x] = sum(k) ^k * F(k) => [*x] = sum(k) F(k)", "k", "F(k)"),
    "other arguments": ("[*x] = sum(k) F(k) * ^F => [*x] = sum(k) F(k)", "F", "(k) each time"),
    "argument missing": ("[*x] = sum(k) F(k) => [*x] = sum(k) ^F", "F", "1, as on the left"),
    "scope inside": ("[*x] = sum(k) ^{sum(*y) F} => [*x] = sum(k) F", "{", "inlined"),
    "order of an unknown": ("[*x] = where([^E <= F], G, 0) => [*x] = G", "E", "[0 <= E]"),
    "end of an order": ("[*x] = where([0 <= ^E , F, 0) => [*x] = F", "E", "[0 <= E]"),
    "range on the left": ("[*x] = sum(k) F(k) * ^[0 <= k < 2] => [*x] = F(0)", "[", "[k == E]"),
    "no condition": ("[*x] = sum(k) F(k) => [*x] = sum(k) F(k) if k^", "the end of the text",
                     "k not in E"),
    "known extent again": ("[*x] = sum(k) F(k) => [*x] = sum(^k < 3) F(k)", "k", "another name"),
    "iterator twice": ("[*x] = sum(k, ^k) F(k) => [*x] = sum(k) F(k)", "k", "another name"),
    "name of an iterator": ("[*x] = sum(^if) F => [*x] = F", "if", "small letter"),
    "number as index": ("[*x] = sum(k) F(k) => [*x] = F(^1.5)", "1.5", "integer"),
    "wrong character": ("[*x] = sum(k) F(k) ^? G => [*x] = sum(k) F(k)", "?", "reads"),
    "arity": ("[*x] = max(*y) ^exp(F, G) => [*x] = max(*y) F", "exp", "1"),
    "something behind": ("[*x] = max(*y) F => [*x] = max(*y) F ^F", "F", "conditions"),
}  # fmt: skip


@pytest.mark.rotating
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_has_its_place(wrong: str) -> None:
    marked, got, says = WRONG[wrong]
    text = marked.replace("^", "")
    first = '(rule-of-scopes "'
    with pytest.raises(RuleError) as caught:
        load(rule_of(text))
    error = caught.value
    column = len(first) + marked.index("^") + 1
    assert (error.file, error.line, error.column) == ("my.egg", 2, column)
    assert error.got == got
    assert says in f"{error.expected} {error.hint}"


def test_the_place_is_that_of_its_line() -> None:
    with pytest.raises(RuleError) as caught:
        load(rule_of("[*x] = max(*y) F\n   =>  [*x] = rellu({max(*y) F})"))
    assert (caught.value.line, caught.value.column) == (3, 15)


OPTIONS = {
    "no name": (":ruleset mine", ':name "<operator>-<law>"'),
    "no ruleset": (':name "my-rule"', ":ruleset"),
    "unknown ruleset": (':ruleset mien :name "my-rule"', "Did you mean mine?"),
    "unknown option": (':rulesett mine :name "my-rule"', "Did you mean :ruleset?"),
    "option twice": (':ruleset mine :ruleset mine :name "my-rule"', ":name"),
    "option without value": (':ruleset mine :name "my-rule" :numerics', "a word"),
    "numerics": (':ruleset mine :numerics exact :name "my-rule"', "bitwise"),
    "choose": (':ruleset mine :choose last :name "my-rule"', "first"),
    "gives": (':ruleset mine :gives everything :name "my-rule"', "derived"),
    "name of another": (':ruleset normal :name "hoist"', "other than"),
}


@pytest.mark.parametrize("wrong", OPTIONS)
def test_options_that_mean_nothing_are_refused(wrong: str) -> None:
    options, says = OPTIONS[wrong]
    with pytest.raises(RuleError) as caught:
        load(rule_of("[*x] = max(*y) -F => [*x] = -{min(*y) F}", options))
    assert caught.value.line == 2
    assert says in f"{caught.value.expected} {caught.value.hint}"


@pytest.mark.parametrize("form", ["(rule-of-scopes)", "(rule-of-scopes :ruleset mine)",
                                  '(rule-of-scopes "a\\\\b" :ruleset mine :name "b")'])  # fmt: skip
def test_a_form_without_a_text_is_refused(form: str) -> None:
    with pytest.raises(RuleError) as caught:
        load(form)
    assert caught.value.line == 2


# ---- texts from strangers --------------------------------------------------------------

HOSTILE = {
    "deep": "[*x] = max(*y) " + "(" * 900 + "F" + ")" * 900 + " => [*x] = F",
    "deep index": "[*x] = sum(k) F(k) => [*x] = F(" + "-" * 900 + "1)",
    "deep functions": "[*x] = max(*y) " + "exp(" * 400 + "F" + ")" * 400 + " => [*x] = F",
    "deep scopes": "[*x] = max(*y) F => [*x] = " + "{" * 900 + "F" + "}" * 900,
    "negative of negative": "[*x] = max(*y) " + "-" * 1900 + "F => [*x] = F",
    "huge": "[*x] = sum(*y) " + " * ".join(["F"] * 450) + " => [*x] = F",
    "many variables": "[*x] = sum(*y) A*B*C*D*E*F*G*H*(I + J) => [*x] = A",
    "many axes": "[a,b,c,d,e,f,g,h] = sum(*y) F => [a,b,c,d,e,f,g,h] = F",
    "many groups": "[*x] = sum(*a, *b, *c) F => [*x] = F",
    "endless spaces": "[*x] = sum(*y)" + " " * 1900 + "F ==",
    "endless number": "[*x] = sum(*y) F * " + "9" * 1900 + " => [*x] = F",
    "endless index": "[*x] = sum(k) F(k) => [*x] = F(" + "9" * 1900 + ")",
    "endless name": "[*x] = sum(*y) " + "F" * 1900,
    "too long": "[*x] = max(*y) F" + " " * MAX_TEXT + "=> [*x] = F",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_texts_are_refused(kind: str) -> None:
    with pytest.raises(TextError):
        parse(HOSTILE[kind])
    if len(HOSTILE[kind]) < 4000:
        with pytest.raises(RuleError):
            load(rule_of(HOSTILE[kind]))


def test_what_a_person_writes_is_not_too_deep() -> None:
    depth = MAX_DEPTH // 3
    parse("[*x] = max(*y) " + "exp(" * depth + "F" + ")" * depth + " => [*x] = {max(*y) exp(F)}"
          " if *y not in F")  # fmt: skip


# ---- the checker ------------------------------------------------------------------------

HEADER = """\
;; my.egg -- for tests.
;;
;; Rulesets   mine   for tests; saturates
;; Numerics   real
;; Status     validated

(ruleset mine)

"""
TRUE = {
    "a diagonal": f"{DELTA} if 0 <= E < #k, k not in E, finite F",
    "linearity": "[*x] = sum(*y) F + G => [*x] = {sum(*y) F} + {sum(*y) G}",
    "in halves": "[*x] = sum(k, *y) F(k) => [*x] = sum(q < #k // 2, r < 2, *y) F(2*q + r) "
                 "if 2 divides #k",
}  # fmt: skip


@pytest.mark.rotating
@pytest.mark.parametrize("name", TRUE)
def test_true_rules_are_sampled_and_sound(name: str) -> None:
    rules = load(rule_of(TRUE[name]), HEADER.replace("(ruleset mine)\n\n", ""))
    checked = check_rule(rules, rules["my-rule"], samples=8)
    assert checked.error is None and checked.accepted >= 8


def test_the_text_is_the_mathematics_that_the_linter_asks_for(tmp_path: Path) -> None:
    path = tmp_path / "my.egg"
    form = rule_of(TRUE["linearity"]).replace("=>", "=>\n ")
    path.write_text(HEADER + form + "\n", encoding="utf-8")
    assert lint([*DEFAULT_FILES, path]) == []
    _, names = load_for_check([path])
    assert names[0] == "my-rule"
