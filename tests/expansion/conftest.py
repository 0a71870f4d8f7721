"""Makes ``tests.terms`` importable (pytest runs in importlib mode)."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
