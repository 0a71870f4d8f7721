"""Encodes IR terms as the nested tuples that the engine takes, and decodes e-nodes into terms.

``relu(x)`` is encoded as ``("Relu", <x>)``. A sum in an index is a chain ``(IAdd x (IAdd y …))``
with larger coefficients first, so that the rules on ``//`` and ``%`` find the divisible part first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from eqsynth.egraph.snapshot import Handle
from eqsynth.ir.index import Atom, FloorDiv, Index, It, Max, Min, Mod, atom_key, number_of
from eqsynth.ir.operators import Attr, Operator, operator
from eqsynth.ir.scalar import Call, Cast, Num, Prod, Read, Scalar, Sum, Value, children
from eqsynth.ir.tensor import ClassRef, Input, Op, Scope, Tensor, Weight
from eqsynth.ir.types import TensorType

Term = tuple[Any, ...]

NONE_DEFINED: Final[Mapping[str, Operator]] = {}
"""The operators that rule files define, if there are none."""


def encode_tensor(term: Tensor, parts: Mapping[Tensor, Any]) -> Any:
    """Encode one term, given ``parts``, the encodings of its arguments."""
    if isinstance(term, ClassRef):
        return Handle(term.handle)
    if isinstance(term, Input | Weight):
        return (type(term).__name__, term.name, list(term.shape), term.dtype)
    if isinstance(term, Op):
        args: list[Any] = [parts[arg] for arg in term.args]
        if term.row.arity is None:
            args = [args]
        return (term.name, *args, *(encode_attr(attr) for attr in term.attrs))
    assert isinstance(term, Scope)
    body = encode_scalar(term.body, parts)
    return ("Scope", list(term.traversal), list(term.reduction), term.reducer, body)


def encode_attr(attr: Attr) -> Any:
    return list(attr) if isinstance(attr, tuple) else attr


def encode_scalar(scalar: Scalar, parts: Mapping[Tensor, Any]) -> Term:
    """Encode a body, given ``parts``, the encodings of the tensors that it reads. Equal subterms
    become one object."""
    done: dict[Scalar, Term] = {}

    def encoded(part: Scalar) -> Term:
        if part not in done:
            done[part] = _encode(part, [encoded(child) for child in children(part)], parts)
        return done[part]

    return encoded(scalar)


def _encode(scalar: Scalar, operands: list[Term], parts: Mapping[Tensor, Any]) -> Term:
    match scalar:
        case Num(value=value):
            return ("Num", value)
        case Read(tensor=tensor, index=index, fill=fill):
            return ("Read", parts[tensor], [encode_index(i) for i in index], fill)
        case Prod() | Sum():
            return (type(scalar).__name__, operands)
        case Call(fn=fn):
            return ("Call", fn, operands)
        case Value(index=index):
            return ("Value", encode_index(index))
    assert isinstance(scalar, Cast)
    return ("Convert", scalar.dtype, *operands)


@lru_cache(maxsize=1 << 14)
def encode_index(index: Index) -> Term:
    """Encode an index. Equal indices become one object, which is then inserted only once."""
    chain: list[Term] = [
        _atom(atom) if c == 1 else ("IMul", c, _atom(atom))
        for atom, c in sorted(index.terms, key=lambda term: (-abs(term[1]), atom_key(term[0])))
    ]
    if index.const or not chain:
        chain.append(("INum", index.const))
    result = chain.pop()
    while chain:
        result = ("IAdd", chain.pop(), result)
    return result


def _atom(atom: Atom) -> Term:
    if isinstance(atom, It):
        return ("It", atom.slot, atom.extent)
    return (_OPERATIONS[type(atom)], encode_index(atom.value), number_of(atom))


_OPERATIONS = {FloorDiv: "IDiv", Mod: "IMod", Min: "IMin", Max: "IMax"}


# ---- back: from a constructor and decoded arguments --------------------------


def decode_index(name: str, args: Sequence[Any]) -> Index:
    """Return an index from its constructor and decoded arguments."""
    match name, tuple(args):
        case "It", (slot, extent):
            return Index(0, ((It(slot, extent), 1),))
        case "INum", (value,):
            return Index(value)
        case "IAdd", (left, right):
            return left + right  # type: ignore[no-any-return]
        case "IMul", (factor, index):
            return index * factor  # type: ignore[no-any-return]
        case "IDiv", (index, divisor):
            return index // divisor  # type: ignore[no-any-return]
        case "IMod", (index, divisor):
            return index % divisor  # type: ignore[no-any-return]
        case "IMin", (index, bound):
            return index.minimum(bound)  # type: ignore[no-any-return]
    index, bound = args
    return index.maximum(bound)  # type: ignore[no-any-return]


def decode_scalar(name: str, args: Sequence[Any]) -> Scalar:
    """Return a scalar from its constructor and decoded arguments."""
    match name, tuple(args):
        case "Num", (value,):
            return Num(value)
        case "Read", (tensor, index, fill):
            return Read(tensor, tuple(index), fill)
        case "Prod", (parts,):
            return Prod(tuple(parts))
        case "Sum", (parts,):
            return Sum(tuple(parts))
        case "Call", (fn, parts):
            return Call(fn, tuple(parts))
        case "Value", (index,):
            return Value(index)
    dtype, arg = args
    return Cast(dtype, arg)


@lru_cache(maxsize=1 << 14)
def scope_as(
    traversal: tuple[int, ...], reduction: tuple[int, ...], body: Scalar, reducer: str
) -> Scope:
    """Return the scope; repeated calls return the same object."""
    return Scope(traversal, reduction, body, reducer)


def decode_tensor(
    name: str, args: Sequence[Any], defined: Mapping[str, Operator] = NONE_DEFINED
) -> Tensor:
    """Return a tensor term from its constructor and decoded arguments.

    Args:
        defined: name -> row of the operators that rule files define.
    """
    if name in ("Input", "Weight"):
        kind = Input if name == "Input" else Weight
        return kind(args[0], TensorType(tuple(args[1]), args[2]))
    if name == "Scope":
        traversal, reduction, reducer, body = args
        return scope_as(tuple(traversal), tuple(reduction), body, reducer)
    own = defined.get(name)
    row = own or operator(name)
    count = 1 if row.arity is None else row.arity
    tensors = args[0] if row.arity is None else args[:count]
    attrs = tuple(tuple(a) if isinstance(a, list) else a for a in args[count:])
    return Op(name, tuple(tensors), attrs, "", own)
