"""The operator table: one row for each operator and view that eqsynth knows.

A row holds the operator's name, arity, attributes, type inference and kind. The rows of elementwise
operators are generated from ``functions.py``, and the e-graph's constructors from the rows
(``(operators)`` in ``rules/schema.egg``). ``reference.py`` evaluates operators, ``lower/`` runs
them. An operator without a row is captured as ``Opaque``, unless a rule file defines it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from eqsynth.errors import EqsynthError, UnsupportedOperatorError
from eqsynth.ir import inference, view_inference
from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.types import TensorType

Attr = int | float | str | tuple[int, ...]
AttrKind = Literal["int", "float", "str", "ints"]
Kind = Literal[
    "elementwise", "contraction", "reduction", "view", "constant", "data", "opaque", "defined"
]


@dataclass(frozen=True, slots=True)
class Operator:
    """One row of the table.

    Attributes:
        arity: number of tensor arguments; None if any number.
        attrs: (name, kind) of each attribute, in order.
        kind: ``elementwise`` maps a scalar function over broadcast arguments; ``view`` only
            moves elements; ``data`` reads at indices that are data.
        function: the scalar function that an elementwise operator maps, by name.
        reducer: of a reduction over axes, what reduces them: ``sum`` for ReduceSum; ``mean`` is one
            too. Empty for softmax, cumulative sums, pooling and layer normalization.
        images: the result, and each argument of rank 4, is a batch of images (n, channels, h, w);
            libraries also store such tensors with the channels last. A bias is one number a
            channel. So of convolutions, poolings and upsampling; not of matrix products.
        vendor: a library's fused kernel, as ``FusedMatmul``: the optimizer introduces it, capture
            never does.
        expand: for an operator that a rule file defines: returns the term that it equals, from its
            arguments and attributes. Such a row isn't in the table; its terms hold it.
        digest: the digest of that definition.
    """

    name: str
    arity: int | None
    infer_type: Callable[..., TensorType]
    attrs: tuple[tuple[str, AttrKind], ...] = ()
    kind: Kind = "elementwise"
    function: str = ""
    reducer: str = ""
    images: bool = False
    vendor: bool = False
    expand: Callable[[Sequence[Any], Sequence[Attr]], Any] | None = None
    digest: bytes = b""

    def infer(
        self, types: Sequence[TensorType], attrs: Sequence[Attr], origin: str = ""
    ) -> TensorType:
        """Return the type of the result.

        Raises:
            ShapeError, DtypeError: the arguments don't fit; the error's ``where`` is ``origin``.
        """
        try:
            if self.arity is not None and len(types) != self.arity:
                inference.shape_error(
                    f"{self.name}: wrong number of arguments", len(types), str(self.arity), ""
                )
            return self.infer_type(types, *attrs)
        except EqsynthError as error:
            if origin and not error.where:
                error.where = origin
            raise


_CONV: Final[tuple[tuple[str, AttrKind], ...]] = (
    ("stride", "ints"),
    ("padding", "ints"),
    ("dilation", "ints"),
    ("groups", "int"),
)
_POST: Final[tuple[tuple[str, AttrKind], ...]] = (("post", "str"),)
_REDUCE: Final[tuple[tuple[str, AttrKind], ...]] = (("axes", "ints"), ("keepdim", "int"))
_POOL: Final[tuple[tuple[str, AttrKind], ...]] = (
    ("kernel", "ints"),
    ("stride", "ints"),
    ("padding", "ints"),
    ("dilation", "ints"),
)


def _named(function: str) -> str:
    return {"gelu_tanh": "GeluTanh", "floordiv": "FloorDivide"}.get(function, function.capitalize())


# Scalar function -> its operator's name, where it isn't the capitalized name of the function.
_ELEMENTWISE_NAMES: Final = {
    "max": "Maximum", "min": "Minimum", "eq": "Equal", "ne": "NotEqual", "lt": "Less",
    "le": "LessEqual", "gt": "Greater", "ge": "GreaterEqual", "and": "LogicalAnd",
    "or": "LogicalOr", "not": "LogicalNot", "mod": "Remainder",
}  # fmt: skip


def _elementwise() -> list[Operator]:
    rows = [Operator(n, 2, inference.elementwise(n), function=n) for n in ("Add", "Sub", "Mul")]
    rows.append(Operator("Neg", 1, inference.elementwise("neg"), function="Neg"))
    for name, function in FUNCTIONS.items():
        operator_name = _ELEMENTWISE_NAMES.get(name, _named(name))
        infer = inference.elementwise(name)
        rows.append(Operator(operator_name, function.arity, infer, function=name))
    rows.append(Operator("Cast", 1, inference.cast, (("dtype", "str"),)))
    return rows


_OTHERS: Final = (
    Operator("Matmul", 2, inference.matmul, (), "contraction"),
    Operator("Conv2d", 2, inference.conv2d, _CONV, "contraction", images=True),
    Operator(
        "ConvTranspose2d",
        2,
        inference.conv_transpose2d,
        (
            ("stride", "ints"),
            ("padding", "ints"),
            ("output_padding", "ints"),
            ("dilation", "ints"),
            ("groups", "int"),
        ),
        "contraction",
        images=True,
    ),
    Operator("G2BMM", 2, inference.g2bmm, (("width", "int"), ("dilation", "int")), "contraction"),
    Operator("GBMM", 2, inference.gbmm, (("dilation", "int"),), "contraction"),
    Operator("FusedMatmul", 3, inference.fused_matmul, _POST, "contraction", vendor=True),
    Operator("FusedMatmulAdd", 4, inference.fused_matmul, _POST, "contraction", vendor=True),
    *(
        Operator(
            name, arity, inference.fused_conv2d, _CONV + _POST, "contraction", images=True,
            vendor=True,
        )
        for name, arity in (("FusedConv2d", 3), ("FusedConv2dAdd", 4))
    ),
    *(
        Operator(
            f"Reduce{reducer.capitalize()}",
            1,
            inference.reduction(reducer),
            _REDUCE,
            "reduction",
            reducer=reducer,
        )
        for reducer in ("sum", "max", "min", "prod", "mean")
    ),
    Operator("Softmax", 1, inference.along_axis, (("axis", "int"),), "reduction"),
    Operator("CumSum", 1, inference.cumulative, (("axis", "int"),), "reduction"),
    Operator("MaxPool2d", 1, inference.pool2d, _POOL, "reduction", images=True),
    Operator("AvgPool2d", 1, inference.avg_pool2d, _POOL, "reduction", images=True),
    Operator(
        "LayerNorm", 3, inference.layer_norm, (("axes", "int"), ("eps", "float")), "reduction"
    ),
    Operator("Permute", 1, view_inference.permute, (("order", "ints"),), "view"),
    Operator("Reshape", 1, view_inference.reshape, (("shape", "ints"),), "view"),
    Operator("Expand", 1, view_inference.expand, (("shape", "ints"),), "view"),
    Operator(
        "Slice",
        1,
        view_inference.slice_,
        (("axis", "int"), ("start", "int"), ("stop", "int"), ("step", "int")),
        "view",
    ),
    Operator(
        "Pad",
        1,
        view_inference.pad,
        (("before", "ints"), ("after", "ints"), ("value", "float")),
        "view",
    ),
    Operator("Concat", None, view_inference.concat, (("axis", "int"),), "view"),
    Operator("Reverse", 1, view_inference.reverse, (("axes", "ints"),), "view"),
    Operator("Shift", 1, view_inference.shift, (("axis", "int"), ("amount", "int")), "view"),
    Operator("Unfold", 1, view_inference.unfold, (("axis", "int"), ("size", "int")), "view"),
    Operator("Stride", 1, view_inference.stride, (("axis", "int"), ("step", "int")), "view"),
    Operator("Split", 1, view_inference.split, (("axis", "int"), ("block", "int")), "view"),
    Operator("Merge", 1, view_inference.merge, (("axis", "int"),), "view"),
    Operator(
        "UpsampleBilinear2d",
        1,
        inference.upsample,
        (("size", "ints"), ("align_corners", "int")),
        "contraction",
        images=True,
    ),
    Operator(
        "Full",
        0,
        inference.given,
        (("shape", "ints"), ("value", "float"), ("dtype", "str")),
        "constant",
    ),
    Operator(
        "Iota",
        0,
        inference.given,
        (("shape", "ints"), ("axis", "int"), ("dtype", "str")),
        "constant",
    ),
    Operator(
        "Interpolation",
        0,
        inference.interpolation,
        (("extents", "ints"), ("align_corners", "int"), ("dtype", "str")),
        "constant",
    ),
    Operator(
        "Literal",
        0,
        inference.literal,
        (("shape", "ints"), ("numerators", "ints"), ("denominators", "ints"), ("dtype", "str")),
        "constant",
    ),
    Operator("Embedding", 2, inference.embedding, (), "data"),
    Operator("Gather", 2, inference.gather, (("axis", "int"),), "data"),
    Operator(
        "Opaque",
        None,
        inference.opaque,
        (("target", "str"), ("shape", "ints"), ("dtype", "str")),
        "opaque",
    ),
)

OPERATORS: Final[dict[str, Operator]] = {row.name: row for row in (*_elementwise(), *_OTHERS)}

# Activations that a library's fused kernel can apply to its result before storing it.
POST_FUNCTIONS: Final = ("none", "relu", "sigmoid", "tanh", "silu", "gelu", "gelu_tanh")


def operator(name: str) -> Operator:
    """Return the row of an operator.

    Raises:
        UnsupportedOperatorError: the table has no such row.
    """
    row = OPERATORS.get(name)
    if row is None:
        raise UnsupportedOperatorError(
            what=f"no operator {name!r} in the table",
            got=name,
            expected="an operator of eqsynth/ir/operators.py",
            hint="operators that eqsynth doesn't know are captured as Opaque",
        )
    return row
