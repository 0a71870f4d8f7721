"""Tests of this folder share what checks mutants (``test_indices.py``)."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
