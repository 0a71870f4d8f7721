"""A module that torch captures as several graphs, each of them a program; Python runs between them.

Not here: how the graphs become programs (``by_graphs.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch


class Graphs(torch.nn.Module):
    """A module whose graphs run as compiled programs, with the module's current weights. It is
    called like the module.

    Attributes:
        module: the user's module; each graph checks its weights before a call.
    """

    def __init__(self, module: torch.nn.Module, compiled: Callable[..., Any]) -> None:
        """
        Args:
            compiled: what ``torch.compile`` returned for the module.
        """
        super().__init__()
        self.module = module
        self._compiled = [compiled]  # in a list, so that it is no submodule
        self.training = module.training  # it was compiled in evaluation mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled[0](*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Module:
        # The compiled graphs belong to this module, so a copy is a copy of the module without them.
        return copy.deepcopy(self.module, memo)
