"""eqsynth: an equality-saturation optimizer for tensor programs.

    program = eqsynth.optimize(model.eval(), (x,))
    y = program(x)

The names below are the public interface. Most of them are imported at their first use, since they
need heavy libraries: ``import eqsynth`` itself stays cheap for tools and worker processes.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

from eqsynth.errors import (
    CaptureError,
    CompileWarning,
    DtypeError,
    EqsynthError,
    EquivalenceError,
    EquivalenceWarning,
    ExplanationTooLong,
    ExtractionError,
    FaultWarning,
    GradientWarning,
    LoweringError,
    RuleError,
    SaturationError,
    SeveralGraphsError,
    ShapeError,
    UnsteadyError,
    UnsupportedOperatorError,
    WeightError,
    WritingError,
)
from eqsynth.garbage import collecting_seldom

__version__ = "0.1.0"

# Everything is logged under this name. The handler keeps Python from printing warnings of users who
# haven't set up logging.
logging.getLogger("eqsynth").addHandler(logging.NullHandler())

_LAZY = {
    "optimize": "eqsynth.by_graphs",
    "prove_equal": "eqsynth.prove",
    "CompiledProgram": "eqsynth.lower.program",
    "load": "eqsynth.lower.bundle",
    "save": "eqsynth.lower.bundle",
    "input": "eqsynth.frontend.expression",
    "weight": "eqsynth.frontend.expression",
    "scope": "eqsynth.frontend.expression",
    "sum": "eqsynth.frontend.expression",
    "max": "eqsynth.frontend.expression",
    "min": "eqsynth.frontend.expression",
    "prod": "eqsynth.frontend.expression",
}

__all__ = [
    "CaptureError",
    "CompileWarning",
    "DtypeError",
    "EqsynthError",
    "EquivalenceError",
    "EquivalenceWarning",
    "ExplanationTooLong",
    "ExtractionError",
    "FaultWarning",
    "GradientWarning",
    "LoweringError",
    "RuleError",
    "SaturationError",
    "SeveralGraphsError",
    "ShapeError",
    "UnsteadyError",
    "UnsupportedOperatorError",
    "WeightError",
    "WritingError",
    "ops",
    *_LAZY,
]


def __getattr__(name: str) -> Any:
    if name == "ops":
        return importlib.import_module("eqsynth.frontend.ops")
    if name in _LAZY:
        with collecting_seldom():
            value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'eqsynth' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
