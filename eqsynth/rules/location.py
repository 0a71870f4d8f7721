"""Where the rule files are.

A wheel carries the repository's `rules/` inside the package as `eqsynth/_rules`; a checkout
(an editable install) reads `rules/` beside the package. Loading the files is not done here.
"""

from pathlib import Path


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
