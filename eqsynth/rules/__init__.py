"""Rule files: reading them as data, and the catalogue of what was read."""

from eqsynth.rules.lint import lint
from eqsynth.rules.load import load_rules, load_text
from eqsynth.rules.location import DEFAULT_FILES, rules_dir
from eqsynth.rules.rule import Rule
from eqsynth.rules.ruleset import RuleSet
from eqsynth.rules.tree import Tree, Var, instantiate, render

__all__ = [
    "DEFAULT_FILES",
    "Rule",
    "RuleSet",
    "Tree",
    "Var",
    "instantiate",
    "lint",
    "load_rules",
    "load_text",
    "render",
    "rules_dir",
]
