"""Files of programs, damaged at random: mutated manifests, cut and compressed archives.

Run as a script with a number of cases and a seed: ``python tests/lower/fuzz_bundle.py 5000 1``.
"""

from __future__ import annotations

import copy
import io
import json
import random
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parent))

from eqsynth.errors import EqsynthError  # noqa: E402
from eqsynth.lower.bundle import dumps, loads  # noqa: E402

ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 7, 1 << 31, 1 << 62, 1 << 63, 10**30, -(10**30), 0.5, 1e308,
    float("inf"), float("nan"), "", "x", "t0", "float32", "float64", "bool", "y" * 5000, "\0",
    [], {}, [0], [[]], [1, 0], {"fixed": {"tuple": [1]}}, {"given": 0}, "op", "Relu", "Matmul",
    "torch.view", "onednn.linear", "aten::cumprod", "item", "torch", "tvm",
]  # fmt: skip


@dataclass
class Outcome:
    """How many files ended how."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    escaped: list[str] = field(default_factory=list)


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree of JSON."""
    found, stack = [], [tree]
    while stack:
        part = stack.pop()
        keys = part.keys() if isinstance(part, dict) else range(len(part))
        for key in keys:
            found.append((part, key))
            if isinstance(part[key], list | dict):
                stack.append(part[key])
    return found


def mutated(manifest: Any, draw: random.Random) -> Any:
    """A manifest with one to three parts changed."""
    manifest = copy.deepcopy(manifest)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        # A part that is nested too deeply to be copied stays.
        with suppress(RecursionError):
            _change(manifest, draw)
    return manifest


def _change(manifest: Any, draw: random.Random) -> None:
    known = places(manifest)
    part, key = draw.choice(known)
    value, kind = part[key], draw.randrange(8)
    if kind == 0 and isinstance(value, int):
        part[key] = value + draw.choice((-2, -1, 1, 2, 1 << 32))
    elif kind == 1 and isinstance(part, list):
        part.insert(key, copy.deepcopy(value))
    elif kind == 2:
        del part[key]
    elif kind == 3:
        other, place = draw.choice(known)
        part[key] = copy.deepcopy(other[place])
    elif kind == 4 and isinstance(part, list):
        draw.shuffle(part)
    elif kind == 5 and isinstance(part, dict):
        part[draw.choice(("", "x", "version", "steps"))] = part.pop(key)
    elif kind == 6:
        for _ in range(draw.choice((1, 3, 400))):
            value = [value]
        part[key] = value
    else:
        part[key] = copy.deepcopy(draw.choice(ODD))


def members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as bundle:
        return {name: bundle.read(name) for name in bundle.namelist()}


def archive(parts: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as bundle:
        for name, part in parts.items():
            bundle.writestr(name, part)
    return file.getvalue()


def damaged(data: bytes, draw: random.Random) -> bytes:
    """A file with a manifest, a member, or bytes of it changed."""
    kind, parts = draw.randrange(12), members(data)
    if kind == 0:
        return data[: draw.randrange(len(data))]
    if kind == 1:
        changed = bytearray(data)
        # Code of a shared library is trusted: what the archive's checksum sees is its contents.
        for _ in range(draw.choice((1, 4, 64))):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        return bytes(changed)
    if kind == 2:
        name = draw.choice(list(parts))
        parts[name] = parts[name][: draw.randrange(len(parts[name]) + 1)]
        return archive(parts)
    if kind == 3:
        parts[draw.choice((*parts, "more", "../out", "tensors/99"))] = b"0" * draw.randrange(100)
        return archive(parts)
    if kind == 4:
        del parts[draw.choice(list(parts))]
        return archive(parts, zipfile.ZIP_DEFLATED)
    manifest = mutated(json.loads(parts["manifest.json"]), draw)
    parts["manifest.json"] = json.dumps(manifest).encode()
    return archive(parts)


def subjects() -> Iterator[tuple[str, bytes, Callable[[Any], Any]]]:
    """A file of each kind of program, and a call of it."""
    from programs import convolutions
    from torch import nn

    import eqsynth
    from eqsynth.lower.calling import SavedCalling
    from eqsynth.lower.program import CompiledProgram

    program, _ = convolutions(row=SavedCalling((0,), (0,)))
    image = torch.randn(2, 3, 8, 8)
    yield "convolutions", dumps(program), lambda p: p(image)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.rate = nn.Parameter(torch.ones(4)), 2.0
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor, *, names: tuple[str, ...] = ("a",)) -> Any:
            self.count.add_(1)
            y = (x * self.w).cumprod(0) + self.w.cumprod(0) * self.rate
            return {"y": y, "x": x, "more": [torch.relu(y) * self.count, None]}

    x = torch.randn(3, 4)
    settings: dict[str, Any] = {"objective": "flops", "time_limit_s": 600.0, "progress": False}
    program = eqsynth.optimize(Model().eval(), (x,), **settings)
    assert program.original is None
    yield "model", dumps(program), lambda p: (p(x), p.refresh(Model().eval()), p(x))
    original = CompiledProgram.from_module(Model().eval(), examples=((x,), {}))
    yield "original", dumps(original), lambda p: (p(x), p(x))


def run(cases: int, seed: int, outcome: Outcome | None = None) -> Outcome:
    """Loads and calls damaged files; what isn't an error of eqsynth is in ``escaped``."""
    outcome, draw = outcome or Outcome(), random.Random(seed)
    known = list(subjects())
    for _, data, call in known:
        call(loads(archive(members(data))))  # written anew, but undamaged
    for number in range(cases):
        name, data, call = known[number % len(known)]
        changed, where = damaged(data, draw), "load"
        try:
            program = loads(changed)
            where = "call"
            call(program)
            outcome.counts["harmless"] += 1
        except EqsynthError as error:
            outcome.counts[where] += 1
            outcome.reasons[f"{where}: {error.what} {error.got.partition(':')[0]}"] += 1
        except Exception as error:
            outcome.escaped.append(
                f"{name} {number} {where}: {type(error).__name__}: {error}"[:300]
            )
    return outcome


if __name__ == "__main__":
    found = run(int(sys.argv[1]), int(sys.argv[2]))
    print(dict(found.counts), f"{len(found.escaped)} escaped")
    print("\n".join(found.escaped[:20]))
    for reason, count in found.reasons.most_common(30):
        print(f"{count:6d} {reason[:150]}")
    sys.exit(bool(found.escaped))
