"""What rules may do to rounding: the classes that a setting of ``numerics`` allows."""

from __future__ import annotations

from typing import Final

NUMERICS: Final = {
    "bitwise": ("bitwise",),
    "real": ("bitwise", "real"),
    "cancels": ("bitwise", "real", "cancels"),
    "approx": ("bitwise", "real", "cancels", "approx"),
}
