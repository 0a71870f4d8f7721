"""Saturated segments in the cache directory: a segment that was saturated once, by any process,
isn't again.

A file each, under the digest of all that the e-graph follows from: the segment, the rules, the
phases, the bound on e-nodes, eqsynth's code and egglog's version. Only what came to its own end is
kept, so that a deadline on one day isn't one for ever. The directory is the user's own; a file is
read as data all the same (see :class:`_Reader`), and one that is damaged is as good as none.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import platformdirs

from eqsynth.egraph import graph as graphs
from eqsynth.egraph import snapshot
from eqsynth.egraph.graph import EGraph
from eqsynth.egraph.schedule import Limits, Phase
from eqsynth.ir import index, scalar, tensor, types
from eqsynth.ir.scalar import digest_of
from eqsynth.ir.tensor import ClassRef, Tensor, over, topological
from eqsynth.rules import RuleSet

MAX_BYTES: Final = 256 << 20
"""Of more, the files that weren't used for longest go."""

_COMPLETE: Final = ("saturated", "rounds")
_PACKAGE: Final = Path(__file__).resolve().parents[1]
_CHECKSUM: Final = 16


def directory() -> Path:
    """``$EQSYNTH_CACHE`` or the user's cache directory, and in it the saturated segments."""
    home = os.environ.get("EQSYNTH_CACHE") or platformdirs.user_cache_dir("eqsynth")
    return Path(home) / "saturated-1"


def key_of(
    roots: Sequence[Tensor],
    rules: RuleSet,
    phases: Sequence[Phase],
    limits: Limits,
    log_matches: bool,
) -> str:
    """The name of the file: equal for searches that end in the same e-graph.

    The deadline isn't part of it: a search that it has ended isn't kept.
    """
    programs = [(r.name, r.kind, r.ruleset, r.relation, r.columns, r.program) for r in rules.rules]
    versions = metadata.version("egglog"), _code()
    own = [root.digest for root in roots]
    rest = (rules.declarations, programs, tuple(phases), limits.enodes, log_matches, versions)
    return digest_of(len(own), *own, *rest).hex()


def _code() -> str:
    """The code that decides what is in an e-graph, as it is now."""
    paths = [p for layer in ("ir", "rules", "egraph") for p in (_PACKAGE / layer).rglob("*.py")]
    return _digest_of_files(tuple(sorted((str(p), p.stat().st_mtime_ns) for p in paths)))


@lru_cache(maxsize=1)
def _digest_of_files(files: tuple[tuple[str, int], ...]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for name, _changed in files:
        data = Path(name).read_bytes()
        found.update(f"{name.removeprefix(str(_PACKAGE))} {len(data)}\n".encode() + data)
    return found.hexdigest()


def load(key: str, roots: Sequence[Tensor]) -> EGraph | None:
    """The e-graph that was kept, with its operators at the places of these roots; None if there is
    none."""
    path = directory() / key
    try:
        data = path.read_bytes()
        if hashlib.blake2b(data[_CHECKSUM:], digest_size=_CHECKSUM).digest() != data[:_CHECKSUM]:
            return None
        found = _Reader(io.BytesIO(zlib.decompress(data[_CHECKSUM:]))).load()
    except (OSError, zlib.error, pickle.UnpicklingError, EOFError, AttributeError, TypeError):
        return None
    with suppress(OSError):
        os.utime(path)
    return _placed(found, roots) if isinstance(found, EGraph) else None


def keep(key: str, graph: EGraph) -> None:
    """Keeps an e-graph that is complete; where nothing can be written, nothing is."""
    if graph.stop not in _COMPLETE or graph.faults:
        return
    data = zlib.compress(pickle.dumps(graph, protocol=pickle.HIGHEST_PROTOCOL), 1)
    whole = hashlib.blake2b(data, digest_size=_CHECKSUM).digest() + data
    home = directory()
    if len(whole) > MAX_BYTES:
        return
    with suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=home, prefix="new-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(whole)
            # At once, so that nobody reads half of it.
            os.replace(name, home / key)
        except BaseException:
            os.unlink(name)
            raise
        _shrink(home)


def _shrink(home: Path) -> None:
    """Files go until the rest is small enough, longest unused first; other processes may be at it
    too."""
    found = []
    for path in home.iterdir():
        with suppress(OSError):
            status = path.stat()
            found.append((status.st_mtime_ns, status.st_size, path))
    left = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if left <= MAX_BYTES:
            return
        with suppress(OSError):
            path.unlink()
        left -= size


def _placed(graph: EGraph, roots: Sequence[Tensor]) -> EGraph | None:
    """The e-graph with the program's own operators, which know their place in the user's model;
    None if it isn't one of this program."""
    classes = {member: ref for ref, members in graph.original.items() for member in members}
    refs: dict[Tensor, ClassRef] = {}
    own: dict[Tensor, Tensor] = {}
    for term in topological(roots):
        member = over(term, refs)
        if member not in classes:
            return None
        refs[term], own[member] = classes[member], member
    if tuple(refs[root] for root in roots) != tuple(graph.roots):
        return None

    def placed(found: Mapping[ClassRef, tuple[Tensor, ...]]) -> dict[ClassRef, tuple[Tensor, ...]]:
        return {ref: tuple(own.get(m, m) for m in members) for ref, members in found.items()}

    return replace(
        graph, classes=placed(graph.classes), original=placed(graph.original), seconds=0.0
    )


class _Reader(pickle.Unpickler):
    """Pickle is the one format that keeps what terms and logs share (as trees they would be larger
    by orders of magnitude), but it may name any function to call. This reader knows the classes of
    terms and e-graphs, and no function."""

    def find_class(self, module: str, name: str) -> Any:
        known = _CLASSES.get((module, name))
        if known is None:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of an e-graph")
        return known


_CLASSES: Final[Mapping[tuple[str, str], type]] = {
    (kind.__module__, kind.__name__): kind
    for kind in (
        EGraph, graphs.Log, graphs.Equality, snapshot.Handle, types.TensorType,
        tensor.Input, tensor.Weight, tensor.Op, tensor.Scope, tensor.ClassRef,
        scalar.Num, scalar.Read, scalar.Prod, scalar.Sum, scalar.Call, scalar.Value, scalar.Cast,
        index.Index, index.It, index.FloorDiv, index.Mod, index.Min, index.Max,
    )
}  # fmt: skip
