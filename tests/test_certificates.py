"""Each equality of a search holds by itself; one that doesn't is told, whoever it is from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import eqsynth
from eqsynth.certificates import Certified, certify
from eqsynth.certificates.crops import elements
from eqsynth.egraph.encode import encode_tensor
from eqsynth.egraph.graph import Equality, Log
from eqsynth.egraph.snapshot import Handle
from eqsynth.errors import CertificateError, EquivalenceWarning
from eqsynth.ir.index import Index
from eqsynth.ir.interpret import evaluate_one
from eqsynth.ir.scalar import Call, Num, Read, product, total
from eqsynth.ir.tensor import Op, Scope, Tensor, args_of, topological
from tests.egraph.programs import PROGRAMS, RULES, saturated
from tests.terms import it, leaf, op


def log_of(left: Tensor, right: Tensor, rule: str = "planted") -> Log:
    """The log of a search that has united two terms."""
    parts: dict[Tensor, Any] = {}
    definitions = {}
    for n, term in enumerate(topological([left, right])):
        definitions[n] = encode_tensor(term, {arg: parts[arg] for arg in args_of(term)})
        parts[term] = Handle(n)
    return Log((Equality(parts[left], parts[right], rule),), definitions)


def of(left: Tensor, right: Tensor) -> Certified:
    return certify(log_of(left, right), RULES)


@pytest.mark.rotating(table="programs")
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_that_is_united_is_equal(name: str) -> None:
    log = saturated(name).log
    assert log is not None
    found = certify(log, RULES)
    assert not found.failures and not found.unchecked
    assert sum(found.checked.values()) == len(log.equalities)


def test_the_first_wrong_equality_is_told() -> None:
    log = saturated("attention").log
    assert log is not None
    known = list(log.equalities)
    at = len(known) // 2
    # The class of a tensor is said to be one of another value; then once more.
    first = next(n for n, d in log.definitions.items() if d[0] == "Input")
    doubled = ("Add", Handle(first), Handle(first))
    for place in (at, at + 5):
        known[place] = Equality(doubled, Handle(first), f"planted-{place}")
    error, again = certify(replace(log, equalities=tuple(known)), RULES).failures
    assert error.rules == (f"planted-{at}",) and again.rules == (f"planted-{at + 5}",)
    assert error.index == (0, 0, 0) and "Add(a, a): float32[2, 4, 3]" in error.where
    value = float(error.got.split()[0])
    assert float(error.expected) == pytest.approx(2 * value) != 0.0


def test_an_index_has_its_value_at_all_places() -> None:
    i = ("It", 0, 6)
    right = Log((Equality(("IDiv", ("IAdd", ("IMul", 4, i), ("INum", 3)), 4), i, "right"),), {})
    assert certify(right, RULES).checked == {"indices": 1}
    wrong = Log((Equality(("IDiv", i, 5), ("INum", 0), "wrong"),), {})
    (error,) = certify(wrong, RULES).failures
    assert error.index == (5,) and error.expected == "1" and error.got.startswith("0 at [5]")


def test_a_wrong_type_is_a_difference() -> None:
    (error,) = of(leaf("x", 2, 3), op("Permute", leaf("x", 2, 3), attrs=((1, 0),))).failures
    assert error.expected == "float32[2, 3]" and error.index == ()


def test_large_tensors_are_sampled_and_their_borders_seen() -> None:
    # Too many points: a sum over 8 of 512 x 512.
    x, i, j, k = leaf("x", 512, 520), it(0, 512), it(1, 512), it(2, 8)

    def summed(tensor: Tensor, row: Index, column: Index, times: int = 1) -> Scope:
        return Scope((512, 512), (8,), total([Read(tensor, (row, column))] * times))

    def also(scope: Scope) -> Scope:
        """The larger of the body and itself, of which no map says that it is the body."""
        return replace(scope, body=Call("max", (scope.body, scope.body)))

    assert of(summed(x, i, j + k), also(summed(x, i, j - k + 7))).checked == {"sampled": 1}
    (error,) = of(summed(x, i, j + k), summed(x, i.minimum(510), j + k)).failures
    assert error.index[0] == 511
    # What is read of a large scope is computed where it is read.
    twice = summed(x, i, j + k, 2)
    again = Scope((512, 512), (), total([Read(twice, (i, j))] * 2))
    assert of(summed(x, i, j + k, 4), also(again)).checked == {"sampled": 1}
    assert of(summed(x, i, j + k, 3), again).failures
    # Of what is read in part nobody knows whether it is finite: 0 * log(x) may be NaN.
    logs = Scope((512, 512), (8,), Call("log", (Read(x, (i, j + k)),)))
    none = Scope((512, 512), (2,), product([Num(0.0), Read(logs, (i, j))]))
    assert not of(none, op("Full", attrs=((512, 512), 0.0, "float32"))).failures


def test_what_is_too_large_is_counted() -> None:
    x, i, j = leaf("x", 4096), it(1, 4096), it(2, 4096)
    read = Read(x, (j,))
    one = Scope((2,), (4096, 4096), Read(x, (i,)))
    assert of(one, Scope((2,), (4096, 4096), read)).checked == {"maps": 1}
    other = Scope((2,), (4096, 4096), Call("max", (read, read)))
    assert of(one, other).unchecked == {"too large": 1}


def test_rounding_is_told_from_a_difference() -> None:
    x = leaf("x", 64)

    def there_and_back(far: float, off: float = 0.0) -> Scope:
        there = Scope((64,), (), total([Read(x, (it(0, 64),)), Num(far)]))
        return Scope((64,), (), total([Read(there, (it(0, 64),)), Num(off - far)]))

    assert of(x, there_and_back(1e10)).checked == {"precise": 1}
    assert of(x, there_and_back(1e10, 1e-5)).failures
    # Nothing but rounding is left, and nothing but rounding differs.
    one, more = there_and_back(0.1), there_and_back(0.1, 1e-9)
    assert of(op("Sub", x, one), op("Mul", op("Sub", x, one), x)).checked == {"precise": 1}
    assert of(op("Sub", x, one), op("Sub", x, more)).failures
    # More digits than there are.
    assert of(x, there_and_back(1e25)).unchecked == {"rounding": 1}


def test_where_something_given_is_not_finite_the_rest_counts() -> None:
    log = op("Log", leaf("x", 64))
    two, three = (Scope((64,), (), total([Read(log, (it(0, 64),))] * n)) for n in (2, 3))
    assert of(op("Add", log, log), two).checked == {"whole": 1}
    assert of(op("Add", log, log), three).failures
    none = Scope((64,), (), product([Num(0.0), Read(log, (it(0, 64),))]))
    assert not of(none, op("Full", attrs=((64,), 0.0, "float32"))).failures
    # Here all that is given is finite, and the log isn't.
    (error,) = certify(
        Log(
            (Equality(("Exp", ("Log", Handle(0))), Handle(0), "planted"),),
            {0: ("Input", "x", [64], "float32")},
        ),
        RULES,
    ).failures
    assert error.expected == "nan"


WRONG = """\
;; mine.egg -- a rule that is wrong.
;;
;; Rulesets   mine   never ends
;; Needs      schema.egg
;; Numerics   real
;; Status     validated

(ruleset mine)

;; |x| = x for x >= 0, and this for all
(rewrite (Abs x) x :ruleset mine :name "abs-of-mine")
"""


def test_a_wrong_rule_costs_the_search_and_the_proof(tmp_path: Path) -> None:
    path = tmp_path / "mine.egg"
    path.write_text(WRONG)
    x = eqsynth.input("x", (4, 4))
    expression = eqsynth.ops.abs(x - 1)
    settings: dict[str, Any] = {
        "rules": [path], "objective": "flops", "time_limit_s": 600, "check": False, "certify": True,
    }  # fmt: skip
    with pytest.raises(CertificateError) as caught:
        eqsynth.optimize(expression, strict=True, **settings)
    assert caught.value.rules == ("abs-of-mine",)
    with pytest.warns(EquivalenceWarning, match="abs-of-mine"):
        program = eqsynth.optimize(expression, explain=False, **settings)
    assert program.report.backend == "original" and "abs-of-mine" in program.report.reason
    assert program.report.certified is not None and program.report.certified.failures
    assert torch.equal(program(torch.zeros(4, 4)), torch.ones(4, 4))
    assert eqsynth.prove_equal(expression, x - 1, rules=[path])
    proof = eqsynth.prove_equal(expression, x - 1, rules=[path], certify=True)
    assert not proof and "abs-of-mine" in proof.stop


@pytest.mark.rotating
def test_a_report_and_a_proof_count_them() -> None:
    a, b = eqsynth.input("a", (2, 3)), eqsynth.input("b", (3, 2))
    program = eqsynth.optimize(a @ b + a @ b, objective="flops", certify=True)
    found = program.report.certified
    assert found is not None and found.checked["whole"] > 0 and not found.failures
    assert dict(program.report.rows())["certificates"] == str(found)
    proof = eqsynth.prove_equal(a @ b, (a @ b) * 1.0, certify=True)
    assert proof and proof.certified is not None and not proof.certified.failures


PRODUCTS: list[tuple[str, list[tuple[int, ...]], tuple[Any, ...]]] = [
    ("Matmul", [(2, 1, 3, 4), (3, 4, 2)], ()),
    ("FusedMatmul", [(3, 4), (4, 2), (2,)], ("relu",)),
    ("FusedMatmulAdd", [(2, 3, 4), (4, 2), (2,), (2, 3, 2)], ("none",)),
    ("Conv2d", [(2, 4, 5, 6), (6, 2, 3, 2)], ((2, 1), (1, 0), (1, 2), 2)),
    ("FusedConv2d", [(1, 2, 4, 4), (3, 2, 2, 2), (3,)], ((1, 2), (0, 1), (1, 1), 1, "relu")),
    ("FusedConv2dAdd", [(1, 2, 4, 4), (2, 1, 2, 2), (2,), (1, 2, 3, 3)],
     ((1, 1), (0, 0), (1, 1), 2, "none")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shapes", "attrs"), PRODUCTS)
def test_an_element_of_a_product_is_one_of_what_it_reads(
    name: str, shapes: list[tuple[int, ...]], attrs: tuple[Any, ...]
) -> None:
    rng = np.random.default_rng(0)
    inputs = [leaf(f"x{n}", *shape) for n, shape in enumerate(shapes)]
    product = op(name, *inputs, attrs=attrs)
    assert isinstance(product, Op)
    values = [rng.standard_normal(shape) for shape in shapes]
    whole = evaluate_one(product, dict(zip(inputs, values, strict=True)), {})
    found = elements(product, values, [axis.reshape(-1) for axis in np.indices(whole.shape)])
    np.testing.assert_allclose(found.reshape(whole.shape), whole, rtol=1e-12)


def test_what_is_too_large_is_checked_over_any_tensors() -> None:
    # `t` takes 2^25 points; what is said of it holds of any tensor.
    x = leaf("x", 4096)
    t = Scope((2,), (4096, 4096), Read(x, (it(1, 4096),)))
    definitions: dict[int, Any] = {0: encode_tensor(x, {}), 1: encode_tensor(t, {x: Handle(0)})}

    def said(times: int) -> Certified:
        own = leaf("t", 2)
        body = total([Read(own, (it(0, 2),))] * times)
        right = Scope((2,), (), Call("max", (body, body)))
        sides = ("Add", Handle(1), Handle(1)), encode_tensor(right, {own: Handle(1)})
        return certify(Log((Equality(*sides, "planted"),), definitions), RULES)

    assert said(2).checked == {"over any": 1}
    # What doesn't hold of any may hold of this one: nobody knows.
    assert said(3).unchecked == {"too large": 1} and not said(3).failures


def test_what_no_memory_holds_is_not_drawn() -> None:
    # The sides name a tensor of 2^40 elements.
    x, i = leaf("x", 1 << 20), it(0, 1 << 20)
    t = Scope((1 << 20, 1 << 20), (), Read(x, (i,)))
    read = Read(t, (it(0, 2), it(0, 2)))
    one, other = (Scope((2,), (), body) for body in (read, Call("max", (read, read))))
    found = of(one, other)
    assert found.unchecked == {"too large": 1} and not found.failures


def test_the_smallest_of_the_elements_that_differ_is_told() -> None:
    x, k = leaf("x", 512, 520), it(2, 8)
    one, other = (
        Scope((512, 512), (8,), Read(x, (it(0, 512), it(1, 512) + at))) for at in (k, k * -1 + 6)
    )
    (error,) = of(one, replace(other, body=Call("max", (other.body, other.body)))).failures
    # Every element differs: of those that are sampled it is the first in their order.
    assert error.index[0] == 0
