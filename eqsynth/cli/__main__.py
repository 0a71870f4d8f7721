"""``python -m eqsynth.cli``."""

from eqsynth.cli import app

app()
