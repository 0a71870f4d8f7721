"""Rule files (``*.egg``): loading them as data, checking their form, and the catalogue of rules.

``load_rules()["factor"]`` is the rule of that name. Not here: whether a rule is true (``verify``,
``testing``), running rules (``egraph``).
"""

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
