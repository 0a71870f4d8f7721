"""Kernels and terms as plain data (JSON), for files.

Example: the term ``Add(a, b)`` of a kernel with arguments a and b is ``["op", "Add", [0, 1], []]``,
and the index ``2*i + 1`` is ``[1, [2, "it", 0, 16]]`` for an iterator i in slot 0 with extent 16.
Not here: the files (``bundle.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eqsynth.extract.kernel import Kernel
from eqsynth.extract.schedule import schedule_from_data, schedule_to_data
from eqsynth.ir.index import Atom, FloorDiv, Index, It, Max, Min, Mod, Operation, number_of
from eqsynth.ir.operators import Attr, Operator
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, Value, digest_of
from eqsynth.ir.tensor import Input, Op, Region, Scope, Tensor, args_of, topological
from eqsynth.ir.types import TensorType

Data = Any


def kernel_to_data(kernel: Kernel) -> dict[str, Data]:
    """Write a kernel as plain data."""
    args = args_of(kernel.term)
    return {
        "args": [[arg.label, list(arg.shape), arg.dtype] for arg in args],
        "term": term_to_data(kernel.term, args),
        "constants": list(kernel.constants),
        "implementation": kernel.implementation,
        "inputs": [list(layout) for layout in kernel.inputs],
        "output": list(kernel.output),
        "schedule": schedule_to_data(kernel.schedule),
    }


def kernel_from_data(data: dict[str, Data]) -> Kernel:
    """Read what :func:`kernel_to_data` wrote; malformed data raises one of Python's own errors."""
    args = [Input(name, TensorType(tuple(shape), dtype)) for name, shape, dtype in data["args"]]
    return Kernel(
        term_from_data(data["term"], args),
        tuple(map(bool, data["constants"])),
        str(data["implementation"]),
        tuple(tuple(layout) for layout in data["inputs"]),
        tuple(data["output"]),
        schedule_from_data(data["schedule"]),
    )


def term_to_data(term: Tensor, args: Sequence[Tensor]) -> Data:
    """Write a term as plain data; its arguments are named by their positions in ``args``."""
    if isinstance(term, Op):
        attrs = [list(a) if isinstance(a, tuple) else a for a in term.attrs]
        told = [term.name, [args.index(arg) for arg in term.args], attrs]
        if term.row.expand is None:
            return ["op", *told]
        # An operator of a rule file is stored with its definition written out, since a program is
        # loaded without rule files.
        own = tuple(Input(str(n), arg.type) for n, arg in enumerate(term.args))
        meant = Region((term.row.expand(own, term.attrs),), own)
        return ["defined", *told, term_to_data(meant, own)]
    if isinstance(term, Region):
        # A region is a list of terms, each over the arguments and the terms before it.
        known = [Input(str(n), arg.type) for n, arg in enumerate(term.args)]
        terms: list[Tensor] = list(known)
        lines = []
        for part in topological(term.outputs):
            if part not in known:
                lines.append(term_to_data(part, terms))
                terms.append(part)
        given = [args.index(arg) for arg in term.args]
        return ["region", given, lines, [terms.index(part) for part in term.outputs]]
    assert isinstance(term, Scope)
    body = _scalar_to_data(term.body, args)
    return ["scope", list(term.traversal), list(term.reduction), term.reducer, body]


def term_from_data(data: Data, args: Sequence[Tensor]) -> Tensor:
    """Read what :func:`term_to_data` wrote; malformed data raises one of Python's own errors."""
    if data[0] in ("op", "defined"):
        _, name, positions, attrs = data[:4]
        plain = tuple(tuple(a) if isinstance(a, list) else a for a in attrs)
        parts = [b for a in plain for b in (a if isinstance(a, tuple) else (a,))]
        if not all(isinstance(part, bool | int | float | str) for part in parts):
            raise ValueError(f"{str(name)[:100]} with attributes that are no numbers or names")
        given = tuple(args[k] for k in positions)
        return Op(name, given, plain, defined=_row(name, data[4]) if data[0] == "defined" else None)
    if data[0] == "region":
        given = tuple(args[k] for k in data[1])
        own = [Input(str(n), arg.type) for n, arg in enumerate(given)]
        return Region(_outputs(data, own), given)
    _, traversal, reduction, reducer, body = data
    return Scope(tuple(traversal), tuple(reduction), _scalar_from_data(body, args), reducer)


def _outputs(region: Data, args: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The output terms of a region."""
    _, _, lines, outputs = region
    terms = list(args)
    for line in lines:
        terms.append(term_from_data(line, terms))
    return tuple(terms[k] for k in outputs)


def _row(name: str, meant: Data) -> Operator:
    """An operator of a rule file, made from its definition at these types of arguments."""

    def expand(args: Sequence[Tensor], attrs: Sequence[Attr]) -> Tensor:
        (output,) = _outputs(meant, args)
        return output

    def infer(types: Sequence[TensorType], *attrs: Attr) -> TensorType:
        return expand([Input(str(n), kind) for n, kind in enumerate(types)], attrs).type

    digest = digest_of("defined", name, repr(meant))
    return Operator(name, None, infer, kind="defined", expand=expand, digest=digest)


def _scalar_to_data(scalar: Scalar, args: Sequence[Tensor]) -> Data:
    match scalar:
        case Num(value=value):
            return ["num", value]
        case Value(index=index):
            return ["value", _index_to_data(index)]
        case Cast(dtype=dtype, arg=arg):
            return ["cast", dtype, _scalar_to_data(arg, args)]
        case Call(fn=fn, args=parts):
            return ["call", fn, *(_scalar_to_data(part, args) for part in parts)]
        case Prod(factors=parts) | Sum(terms=parts):
            name = "prod" if isinstance(scalar, Prod) else "sum"
            return [name, *(_scalar_to_data(part, args) for part in parts)]
    assert isinstance(scalar, Read)
    index_data = [_index_to_data(index) for index in scalar.index]
    return ["read", args.index(scalar.tensor), index_data, scalar.fill]


def _scalar_from_data(data: Data, args: Sequence[Tensor]) -> Scalar:
    kind, *rest = data
    match kind:
        case "num":
            return Num(rest[0])
        case "value":
            return Value(_index_from_data(rest[0]))
        case "cast":
            return Cast(rest[0], _scalar_from_data(rest[1], args))
        case "call":
            return Call(rest[0], tuple(_scalar_from_data(part, args) for part in rest[1:]))
        case "prod":
            return Prod(tuple(_scalar_from_data(part, args) for part in rest))
        case "sum":
            return Sum(tuple(_scalar_from_data(part, args) for part in rest))
        case "read":
            position, index, fill = rest
            return Read(args[position], tuple(map(_index_from_data, index)), fill)
    raise ValueError(f"no scalar {kind!r}")


def _index_to_data(index: Index) -> Data:
    return [index.const, *([c, *_atom_to_data(atom)] for atom, c in index.terms)]


def _atom_to_data(atom: Atom) -> Data:
    if isinstance(atom, It):
        return ["it", atom.slot, atom.extent]
    return [_NAMES[type(atom)], _index_to_data(atom.value), number_of(atom)]


def _index_from_data(data: Data) -> Index:
    const, *terms = data
    return Index(const, tuple((_atom_from_data(*atom), c) for c, *atom in terms))


def _atom_from_data(kind: str, first: Any, second: int) -> Atom:
    if kind == "it":
        return It(first, second)
    (operation,) = (operation for operation, name in _NAMES.items() if name == kind)
    return operation(_index_from_data(first), second)


_NAMES: dict[type[Operation], str] = {FloorDiv: "div", Mod: "mod", Min: "min", Max: "max"}
