"""Modes that see the operators of a module which may compile functions itself.

    with Guard(): module(x)       module calls torch.cond, or a function of torch.compile
    module(x)                     must compute as before the mode

Not here: what the modes do (``reruns.py``, ``traps.py``).
"""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class OperatorMode(TorchDispatchMode):
    """A mode that leaves Dynamo at work.

    Under torch's own kind of mode Dynamo skips each frame that it meets, and skips it ever after:
    a compiled function stays uncompiled in the user's later calls, and ``torch.cond``, which
    compiles itself, raises an error in all of them.

    Operators of higher order, such as ``cond``, are seen as one operator; what their functions
    call isn't seen.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


def name_of(func: Any) -> str:
    """An operator's name without its overload and the underscore of operators in place:
    ``aten.add_.Tensor`` -> ``add``. Of an operator of higher order it is empty."""
    packet = getattr(func, "overloadpacket", None)
    return "" if packet is None else str(packet.__name__.rstrip("_"))
