"""Makes ``lower_cases`` importable for the tests here (pytest runs in importlib mode)."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
