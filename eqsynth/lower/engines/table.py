"""The engines that eqsynth knows, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from eqsynth.lower.engines.engine import Engine
from eqsynth.lower.engines.inductor import Inductor
from eqsynth.lower.engines.onnx_runtime import OnnxRuntime
from eqsynth.lower.engines.open_vino import OpenVino

ENGINES: Final[Mapping[str, Engine]] = {
    engine.name: engine for engine in (Inductor(), OnnxRuntime(), OpenVino())
}
