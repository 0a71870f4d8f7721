"""Rules that the generator found missing: proved for all sizes, and what follows by them alone."""

from __future__ import annotations

import pytest

from eqsynth.egraph.proving import meet
from eqsynth.egraph.schedule import Limits
from eqsynth.generate import worlds_of
from eqsynth.ir.tensor import Op, Tensor
from eqsynth.numerics import rules_of
from eqsynth.rules import DEFAULT_FILES, load_rules, rules_dir
from eqsynth.verify import verify_rule

FILES = sorted((rules_dir() / "generated").glob("*.egg"))
MATRICES = next(world for world in worlds_of(2) if world.name == "matrices")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_rule_that_was_generated_is_proved(path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("z3")
    rules = load_rules([*DEFAULT_FILES, path])
    own = [r for r in rules.rules if r.file == str(path) and r.kind in ("rewrite", "law-request")]
    assert own and {verify_rule(rules, rule).outcome for rule in own} == {"proved"}


@pytest.mark.rotating
@pytest.mark.parametrize("files", [(), (str(rules_dir() / "generated" / "diagonal.egg"),)])
def test_a_diagonal_is_its_transpose_by_that_rule(files: tuple[str, ...]) -> None:
    identity, x = MATRICES.leaves["I_matmul"], MATRICES.leaves["x0"]

    def diagonal(tensor: Tensor) -> Op:
        return Op("Mul", (identity, tensor))

    turned = Op("Permute", (diagonal(x),), ((1, 0),))
    rules = rules_of(files, "real", where="a test", proving=True)
    meeting = meet((diagonal(x),), (turned,), rules, Limits(5_000, 60.0))
    assert meeting.proved == bool(files), meeting.stop
