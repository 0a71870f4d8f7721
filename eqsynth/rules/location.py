"""Where the rule files are.

A wheel carries the repository's `rules/` inside the package as `eqsynth/_rules`; a checkout
(an editable install) reads `rules/` beside the package. Loading the files is not done here.
"""

from pathlib import Path

from eqsynth.errors import RuleError

# In the order of loading: a file may use what the files before it declare.
DEFAULT_FILES = (
    "schema.egg",
    "shape.egg",
    "index.egg",
    "scalar.egg",
    "operators.egg",
    "elementwise.egg",
    "views.egg",
    "derive.egg",
    "correlate.egg",
    "contract.egg",
    "linear.egg",
    "expand.egg",
    "reduce.egg",
    "maps.egg",
    "match.egg",
    "merge.egg",
    "epilogue.egg",
    "attention.egg",
    "simplify.egg",
    "views-match.egg",
)


def rules_directory() -> Path:
    """The directory that holds `*.egg`: of this installation, or of the checkout it runs from.

    Raises:
        FileNotFoundError: the installation has no rules.
    """
    package = Path(__file__).resolve().parents[1]
    candidates = (package / "_rules", package.parent / "rules")
    for directory in candidates:
        if directory.is_dir():
            return directory
    looked = " and ".join(str(directory) for directory in candidates)
    raise FileNotFoundError(
        f"eqsynth's rule files are missing: looked in {looked}; install the package again"
    )


def rules_dir() -> Path:
    """The directory of the rule files that come with eqsynth.

    Raises:
        RuleError: the installation has none.
    """
    try:
        return rules_directory()
    except FileNotFoundError as error:
        raise RuleError(str(error), hint="Install eqsynth again.") from error


def rule_path(name: str | Path) -> Path:
    """Where a rule file is: a name of `DEFAULT_FILES` is eqsynth's own, whatever lies in the
    working directory; any other is looked for from there, a bare name then among our own.

    Raises:
        RuleError: there is no such file; it says where it was looked for.
    """
    path, own = Path(name), rules_dir() / name
    if str(name) in DEFAULT_FILES:
        return own
    if path.exists():
        return path
    bare = path.parent == Path()
    if bare and own.exists():
        return own
    looked = [path.absolute(), own] if bare else [path.absolute()]
    raise RuleError(
        "there is no such rule file",
        file=str(name),
        got=f"nothing at {' and '.join(map(str, looked))}",
        expected="the path of a rule file, from the working directory",
        hint="Give the whole path.",
    )
