"""Calls of ``torch.export`` and of its decompositions, with the errors that capture needs.

Not here: the translation of the exported graph into the IR (``torch_export.py``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from torch.export.graph_signature import InputKind
from torch.utils._pytree import tree_map_only

from eqsynth.errors import SeveralGraphsError
from eqsynth.lower.torch_graph import quiet, taken_apart
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
        SeveralGraphsError: ``torch.export`` fails.
    """
    try:
        with quiet():
            with torch.no_grad():
                exported = torch.export.export(module, args, kwargs)
            return taken_apart(exported, {})
    except Exception as error:  # torch.export raises whatever went wrong anywhere below it
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise SeveralGraphsError(
            "torch.export refuses the module",
            where=type(module).__name__,
            got=f"{type(error).__name__}: {lines[0] if lines else ''}"[:300],
            expected="a module whose control flow doesn't depend on the values of tensors",
            hint="the original runs as it is; see torch.export's documentation to change it",
        ) from error


def decompositions() -> dict[Any, Any]:
    """Operator -> the function by which torch decomposes it."""
    table = {
        **torch.export.default_decompositions(),
        **torch._decomp.get_decompositions(_MORE_DECOMPOSITIONS),
    }
    return {t: d for t, d in table.items() if t.name().partition(".")[0] not in _KEPT_WHOLE}


def decomposed(
    exported: torch.export.ExportedProgram, working: dict[Any, Any], more: dict[Any, Any]
) -> tuple[torch.export.ExportedProgram, dict[Any, Any]]:
    """Return the program with more operators decomposed, and all decompositions that worked.

    An operator stays whole if its decomposition fails, since there are arguments that only the
    operator takes. It also stays whole if its decomposition has a side effect that the program
    didn't have: ``linalg_inv`` would become an inverse and an assertion that the inverse exists.
    Where several decompositions fail together, each half of them is tried by itself.

    Args:
        working: the decompositions that have worked for this program so far.
        more: the decompositions to try.
    """
    try:
        made = taken_apart(exported, {**working, **more})
        if not _has_effects(made) or _has_effects(exported):
            return made, {**working, **more}
    except Exception:  # whatever goes wrong anywhere in a decomposition
        pass
    if len(more) == 1:
        return exported, working
    parts = list(more.items())
    for half in (parts[: len(parts) // 2], parts[len(parts) // 2 :]):
        exported, working = decomposed(exported, working, dict(half))
    return exported, working


def _has_effects(exported: torch.export.ExportedProgram) -> bool:
    specs = exported.graph_signature.input_specs
    return any(spec.kind == InputKind.TOKEN for spec in specs)


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
