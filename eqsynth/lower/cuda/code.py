"""Kernels as CUDA source text, and how each of them is launched: all that running them takes,
without TVM.

Not here: how the text is generated (``source.py``), compiled (``nvrtc.py``) and launched
(``driver.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from eqsynth.extract.kernel import Kernel
from eqsynth.lower.cuda.driver import Launch

PRELUDE: Final = """\
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;

// What TVM writes for infinity and NaN; CUDA has these names in a header, which nvrtc lacks.
#define CUDART_INF_F __int_as_float(0x7f800000)
#define CUDART_NAN_F __int_as_float(0x7fffffff)
#define CUDART_INF __longlong_as_double(0x7ff0000000000000ll)
#define CUDART_NAN __longlong_as_double(0x7ff8000000000000ll)

// A float of 16 bits in memory; it is computed in 32.
struct half {
  unsigned short bits;
  half() = default;
  __device__ half(float value) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  }
  __device__ operator float() const {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
};
"""


@dataclass(frozen=True)
class Entry:
    """A kernel of a source.

    Attributes:
        symbol: the kernel's name in the source.
        arguments: what the kernel is called with: positions of the term's arguments, and -1 for the
            result.
    """

    symbol: str
    launch: Launch
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """CUDA source text without :data:`PRELUDE`, and its kernels."""

    text: str
    entries: Mapping[Kernel, Entry]
