"""Finds the rule files.

A wheel contains the repository's `rules/` inside of the package, as `eqsynth/_rules`; a checkout
(an editable install) uses `rules/` beside the package. Not here: loading the files (`load.py`).
"""

from pathlib import Path

from eqsynth.errors import RuleError

# In the order of loading: a file may use declarations of the files before it.
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
    """Return the directory with `*.egg`, of this installation or of the checkout.

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
    """Return the directory of the rule files that come with eqsynth.

    Raises:
        RuleError: the installation has no rule files.
    """
    try:
        return rules_directory()
    except FileNotFoundError as error:
        raise RuleError(str(error), hint="Install eqsynth again.") from error


def rule_path(name: str | Path) -> Path:
    """Return the path of a rule file.

    A name of `DEFAULT_FILES` is eqsynth's own file, even if the working directory has a file of
    this name. Any other path is relative to the working directory; a bare name that isn't there is
    looked up among eqsynth's own files.

    Raises:
        RuleError: there is no such file; the message lists the paths that were tried.
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
