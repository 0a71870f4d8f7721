"""A module that torch captures as several graphs: each is a program, and Python joins them.

Not here: how the graphs become programs (``by_graphs.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch


class Graphs(torch.nn.Module):
    """Called like the module; its graphs run as they were compiled, with the weights of now.

    Attributes:
        module: the user's own, whose weights each graph looks at before a call.
    """

    def __init__(self, module: torch.nn.Module, compiled: Callable[..., Any]) -> None:
        """
        Args:
            compiled: what ``torch.compile`` made of it.
        """
        super().__init__()
        self.module = module
        self._compiled = [compiled]  # no submodule
        self.training = module.training  # in evaluation mode, as when it was compiled

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled[0](*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Module:
        # What is compiled is bound to the module that it was compiled for.
        return copy.deepcopy(self.module, memo)
