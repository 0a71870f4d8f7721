"""``python -m eqsynth``: the command line, also where its script isn't on the path."""

from eqsynth.cli import app

if __name__ == "__main__":
    app(prog_name="eqsynth")
