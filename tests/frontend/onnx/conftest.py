import sys
from pathlib import Path

# `onnx_models.py` is found by its name.
sys.path.insert(0, str(Path(__file__).parent))
