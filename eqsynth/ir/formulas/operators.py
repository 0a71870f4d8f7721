"""Operators and views as formulas: ``relu(x @ wᵀ + b)``, ``conv3x3(x, w, stride 2)``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from eqsynth.ir.formulas.parts import (
    ATOM,
    MATMUL,
    PRODUCT,
    SUM,
    Formula,
    Operands,
    infix,
    permuted,
    tight,
    window,
)  # fmt: skip
from eqsynth.ir.tensor import Op

_INFIX = {
    "Add": (" + ", SUM), "Sub": (" - ", SUM), "Mul": (" * ", PRODUCT), "Div": (" / ", PRODUCT),
    "Matmul": (" @ ", MATMUL), "FloorDivide": (" // ", PRODUCT),
}  # fmt: skip


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def call_name(op: Op) -> str:
    """Return an operator's name in a formula: ``conv3x3``, ``max_pool2x2``, ``softmax``."""
    match op.name:
        case "Conv2d" | "FusedConv2d" | "FusedConv2dAdd":
            return f"conv{window(op.args[1].shape[2:])}"
        case "ConvTranspose2d":
            return f"conv_transpose{window(op.args[1].shape[2:])}"
        case "MaxPool2d" | "AvgPool2d":
            kernel = op.attrs[0]
            assert isinstance(kernel, tuple)
            return f"{op.name[:3].lower()}_pool{window(kernel)}"
        case "FusedMatmul" | "FusedMatmulAdd":
            return "matmul"
        case "Opaque":
            return str(op.attrs[0]).removeprefix("aten::").split(".")[0]
    return _snake(op.name.removeprefix("Reduce"))


def operator_formula(op: Op, operands: Operands) -> Formula:
    args = [operands(arg) for arg in op.args]
    kind = op.row.kind
    if op.name in _INFIX:
        return infix(*_INFIX[op.name], *args)
    if op.name == "Neg":
        return f"-{tight(args[0], ATOM)}", PRODUCT
    if kind == "view":
        return _view(op, args)
    if op.name == "Full":
        return f"{op.attrs[1]:g}", ATOM
    parts = [text for text, _ in args]
    if op.name in ("FusedMatmul", "FusedMatmulAdd", "FusedConv2d", "FusedConv2dAdd"):
        parts[2] = f"bias {parts[2]}"
        parts[3:] = [f"add {part}" for part in parts[3:]]
    parts += _attributes(op)
    return f"{call_name(op)}({', '.join(parts)})", ATOM


def _attributes(op: Op) -> list[str]:
    """Return the texts of the attributes that don't have their usual value: ``["stride 2"]``."""
    known = dict(zip((name for name, _ in op.row.attrs), op.attrs, strict=False))
    rank = len(op.args[0].shape) if op.args else 0
    told = []
    for name, value in known.items():
        if name in ("kernel", "target", "eps", "keepdim", "dtype") or (
            name == "shape" and op.name == "Opaque"
        ):
            continue
        if name == "post":
            told += [str(value)] if value != "none" else []
        elif isinstance(value, tuple):
            usual = {"stride": 1, "dilation": 1, "padding": None, "output_padding": 0}
            alike = f"{value[0]}" if len(set(value)) == 1 else str(value)
            if name == "axes" and op.row.reducer:
                told.append(f"axis {alike}" if len(value) == 1 else f"axes {value}")
            elif name == "padding" and "kernel" in known:
                told += [f"padding {alike}"] if any(value) else []
            elif name == "padding":
                kernel = op.args[1].shape[2:]
                same = all(2 * p == s - 1 for p, s in zip(value, kernel, strict=False))
                told += [] if same else [f"padding {alike}"]
            elif set(value) != {usual.get(name)}:
                told.append(f"{name} {alike}")
        elif name in ("groups", "align_corners", "axes"):
            told += [f"{name} {value}"] if value not in (0, 1) else []
        elif name == "axis":
            told += [f"axis {value}"] if value != rank - 1 else []
        else:
            told.append(f"{value}")
    return told


def _view(op: Op, args: Sequence[Formula]) -> Formula:
    source, before, after = args[0] if args else ("", ATOM), op.args[0].shape, op.shape
    rank = len(before)
    match op.name:
        case "Permute":
            order = op.attrs[0]
            assert isinstance(order, tuple)
            return permuted(source, before, order)
        case "Reshape" if [e for e in before if e != 1] == [e for e in after if e != 1]:
            return _unit_axes(source, before, after)
        case "Reshape":
            return f"reshape({source[0]}, {list(after)})", ATOM
        case "Expand":
            return source if before == after else (f"expand({source[0]}, {list(after)})", ATOM)
        case "Slice":
            axis, start, stop, step = (int(str(a)) for a in op.attrs)
            cut = f"{start}:{stop}" + (f":{step}" if step != 1 else "")
            at = ", ".join(cut if n == axis else ":" for n in range(rank))
            return f"{tight(source, ATOM)}[{at}]", ATOM
        case "Concat":
            inner = ", ".join(text for text, _ in args)
            return f"concat({inner}, axis {op.attrs[0]})", ATOM
    inner = ", ".join([source[0], *(str(a) for a in op.attrs)])
    return f"{_snake(op.name)}({inner})", ATOM


def _unit_axes(source: Formula, before: Sequence[int], after: Sequence[int]) -> Formula:
    """Write a reshape that only adds or removes axes of extent 1.

    New axes at the end matter in a broadcast and are written ``x[:, None]``; other axes of extent 1
    aren't written."""
    tail = len(after) - len(before)
    if tail > 0 and list(after[: len(before)]) == list(before) and set(after[len(before) :]) == {1}:
        at = ", ".join([*(":" for _ in before), *("None" for _ in range(tail))])
        return (f"{tight(source, ATOM)}[{at}]", ATOM) if before else source
    return source
