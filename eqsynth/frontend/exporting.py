"""Calls of ``torch.export`` and of its decompositions, with the errors that capture needs.

Not here: the translation of the exported graph into the IR (``torch_export.py``).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from eqsynth.errors import CaptureError, SeveralGraphsError
from eqsynth.lower.functional import (
    copied,
    exported_functions,
    is_composed,
    with_graph,
)
from eqsynth.lower.weights import storages

# Operators with a decomposition that isn't in torch's default table.
_MORE_DECOMPOSITIONS: Final = (
    torch.ops.aten.native_batch_norm.default,
    torch.ops.aten._native_batch_norm_legit.default,
    torch.ops.aten._native_batch_norm_legit.no_stats,
    torch.ops.aten._native_batch_norm_legit_functional.default,
)

# Operators that are never decomposed, since torch's decomposition isn't equal to the operator: that
# of ``index_add`` takes negative positions, where the operator raises an error, and those of the
# interpolations compute with fewer digits.
_KEPT_WHOLE: Final = frozenset(
    f"aten::{name}"
    for name in (
        "index_add", "index_copy", "index_fill", "upsample_linear1d", "upsample_bilinear2d",
        "upsample_trilinear3d", "upsample_bicubic2d",
    )
)  # fmt: skip

# torch knows that ``_assert_async.msg`` has a side effect, but not that ``_assert_async.default``
# has one, and so ``torch.export`` would drop it as an operator whose result isn't used.
torch.fx.node.has_side_effect(torch.ops.aten._assert_async.default)


def apart(module: torch.nn.Module, inputs: Any) -> Any:
    """Return ``inputs``, with a copy of each tensor that shares memory with the module.

    ``torch.export`` takes an input that is the module's own buffer for that buffer, and the program
    would then read the buffer in each call, whatever input is given.
    """
    taken = storages([*module.parameters(), *module.buffers()])
    return tree_map_only(
        torch.Tensor, lambda x: x.detach().clone() if storages([x]) & taken else x, inputs
    )


def export(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.export.ExportedProgram:
    """Export the module, as functions without writes into their arguments.

    Raises:
        CaptureError: ``torch.export`` can't read or write a file that it needs.
        SeveralGraphsError: ``torch.export`` fails otherwise.
    """
    try:
        return exported_functions(module, args, kwargs)
    except OSError as error:
        # No fault of the module: torch writes temporary files, and reads its own.
        raise CaptureError(
            "torch.export can't be used here",
            where=type(module).__name__,
            got=f"{type(error).__name__}: {error}"[:300],
            expected="files that torch can read, and a temporary directory that it can write to",
            hint="the original runs as it is; see TMPDIR, and what is free on the disk",
        ) from error
    except Exception as error:  # torch.export raises whatever went wrong anywhere below it
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise SeveralGraphsError(
            "torch.export refuses the module",
            where=type(module).__name__,
            got=f"{type(error).__name__}: {lines[0] if lines else ''}"[:300],
            expected="a module whose control flow doesn't depend on the values of tensors",
            hint="the original runs as it is; see torch.export's documentation to change it",
        ) from error


def decomposed(
    exported: torch.export.ExportedProgram, nodes: Collection[Node]
) -> torch.export.ExportedProgram:
    """Return the program with these calls of operators decomposed, each by itself.

        y = adaptive_avg_pool1d(x, 1)       y = mean(x, [-1], keepdim=True)

    A call stays whole if torch has no decomposition, if it fails (there are arguments that only the
    operator takes), or if it has a side effect that the call hasn't: ``linalg_inv`` would become an
    inverse and an assertion that the inverse exists. Such calls are marked, and ``is_whole`` tells.
    """
    graph, table = Graph(), _decompositions()
    new: dict[Node, Any] = {}  # of a call with several results: a tuple
    for node in exported.graph.nodes:
        parts = _parts(node, table) if node in nodes else None
        if parts is not None:
            new[node] = _inlined(parts, node, graph, new)
        elif node.target is operator.getitem and isinstance(new[node.args[0]], tuple):
            new[node] = new[node.args[0]][node.args[1]]
        else:
            new[node] = copied(node, graph, new.__getitem__)
            if node in nodes:
                new[node].meta[_WHOLE] = True
    graph.eliminate_dead_code()  # results of a call that nobody reads
    results = next(node for node in exported.graph.nodes if node.op == "output").all_input_nodes
    return with_graph(exported, graph, {x.name: new[x].name for x in results})


def is_whole(node: Node) -> bool:
    """Whether ``decomposed`` was asked for this call, and left it as it is."""
    return _WHOLE in node.meta


_WHOLE: Final = "eqsynth: not decomposed"
_INSIDE: Final = "eqsynth: parts of"


@functools.cache
def _decompositions() -> dict[Any, Any]:
    """Operator -> the function by which torch decomposes it."""
    return {
        **torch.export.default_decompositions(),
        **torch._decomp.get_decompositions(_MORE_DECOMPOSITIONS),
        torch.ops.aten.as_strided_scatter.default: _as_strided_scatter,
    }


def _as_strided_scatter(
    input: torch.Tensor,
    src: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """A write by strides in memory as a write to a diagonal, or else to positions.

        as_strided_scatter(x, src, [4], [5], 0)    diagonal_scatter(x, src), x of 4 rows and columns
        as_strided_scatter(x, src, [2], [7], 1)    index_put(x.reshape(16), [[1, 8]], src)

    ``x.fill_diagonal_(9)`` exports as the first.

    The strides hold for the tensor that was exported, and a program may hold the same value in
    another order in memory. Positions among the tensor's elements don't depend on that.

    Raises:
        ValueError: the tensor has gaps in memory, or elements that overlap.
    """
    strides = input.stride()
    order = sorted(range(input.ndim), key=lambda axis: -strides[axis])
    ordered = input.permute(order)
    if not ordered.is_contiguous():
        raise ValueError("a tensor with gaps in memory")
    begin = 0 if storage_offset is None else storage_offset - input.storage_offset()
    back = sorted(range(input.ndim), key=order.__getitem__)
    if input.ndim == 2 and (begin, *size) == (0, min(input.shape)):
        if [*stride] == [ordered.shape[1] + 1]:
            return ordered.diagonal_scatter(src).permute(back)
    elements = torch.arange(input.numel(), device=input.device)
    written = elements.as_strided(size, stride, begin).reshape(-1)
    flat = ordered.reshape(-1).index_put((written,), src.reshape(-1))
    return flat.reshape(ordered.shape).permute(back)


def _parts(node: Node, table: Mapping[Any, Any]) -> Graph | None:
    """The graph of a call's decomposition, whose inputs are the call's tensors."""
    target: Any = node.target
    inside = node.meta.get(_INSIDE, ())
    if target.name().partition(".")[0] in _KEPT_WHOLE or target in inside:
        return None
    # An operator that is composed of others is taken apart by being called.
    function = table.get(target, target if is_composed(target) else None)
    if function is None:
        return None
    values, spec = tree_flatten((node.args, dict(node.kwargs)))
    places = [n for n, value in enumerate(values) if isinstance(value, Node)]
    given = [values[n].meta["val"] for n in places]

    def call(*tensors: torch.Tensor) -> Any:
        filled = list(values)
        for n, tensor in zip(places, tensors, strict=True):
            filled[n] = tensor
        args, kwargs = tree_unflatten(filled, spec)
        made = function(*args, **kwargs)
        return tuple(made) if isinstance(made, tuple | list) else made  # not a named tuple

    mode = detect_fake_mode([node.meta.get("val"), given]) or nullcontext()
    try:
        # In inference mode the operators' autograd kernels aren't used (``functional``).
        with mode, torch.inference_mode(), _without_onednn():
            graph = make_fx(dispatch_functionalize(call))(*given).graph
    except Exception:  # whatever goes wrong anywhere in a decomposition
        return None
    inner = [part for part in graph.nodes if part.op not in ("placeholder", "output")]
    effects = any(part.is_impure() for part in inner) and not node.is_impure()
    if effects or any(part.op != "call_function" or part.target is target for part in inner):
        return None
    made = [part for part in graph.nodes if part.op == "output"][0].args[0]
    if not _same_kinds(node.meta.get("val"), made):
        return None
    for part in inner:
        origin = {key: node.meta[key] for key in _ORIGIN if key in node.meta}
        part.meta = {**origin, "val": part.meta.get("val"), _INSIDE: (*inside, target)}
    return graph


@contextmanager
def _without_onednn() -> Iterator[None]:
    """With oneDNN torch would make one operator of a layer of an LSTM, and that has no parts."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def _same_kinds(value: Any, made: Any) -> bool:
    """Whether a decomposition's results have the shapes and dtypes of the operator's."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # torch.export's own

    if isinstance(value, tuple | list):
        same = isinstance(made, tuple | list) and len(made) == len(value)
        return same and all(map(_same_kinds, value, made))
    if not isinstance(value, torch.Tensor) or not isinstance(made, Node):
        return value is None and made is None
    own = made.meta["val"]
    if not isinstance(own, torch.Tensor) or (own.ndim, own.dtype) != (value.ndim, value.dtype):
        return False
    # `x[mask]` has a size that depends on values; whether two such sizes are equal isn't always
    # known, and asking torch then raises.
    return all(statically_known_true(a == b) for a, b in zip(own.shape, value.shape, strict=True))


def _inlined(parts: Graph, call: Node, graph: Graph, new: Mapping[Node, Any]) -> Any:
    """Append the parts of a call to a graph; the call's result there, or the tuple of its
    results."""
    given = iter([x for x in tree_leaves((call.args, dict(call.kwargs))) if isinstance(x, Node)])
    inner: dict[Node, Any] = {}
    for part in parts.nodes:
        if part.op == "placeholder":
            inner[part] = new[next(given)]
        elif part.op == "output":
            made = part.args[0]
            several = isinstance(made, tuple | list)
            return tuple(map(inner.get, made)) if several else inner[made]
        else:
            inner[part] = graph.node_copy(part, inner.__getitem__)
    raise AssertionError("a graph without an output")


# What a node knows of its place in the user's model (``origin_of``).
_ORIGIN: Final = ("nn_module_stack", "stack_trace")


def origin_of(node: torch.fx.Node) -> str:
    """The place of a graph's node in the user's model: ``layer1.0.conv1, resnet.py:60``."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    own = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    line = ""
    for text in (node.meta.get("stack_trace") or "").splitlines():
        if text.strip().startswith('File "') and not any(folder in text for folder in own):
            file, number = text.split('"')[1], text.split("line ")[1].split(",")[0]
            line = f"{Path(file).name}:{number}"
    return ", ".join(part for part in (path, line) if part) or node.name
