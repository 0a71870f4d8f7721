"""A captured program: the IR, the tensors and functions outside of it, and how it is called.

Every frontend gives a :class:`Captured`, so that the stages after capture know no frontend. Here
is also the capture of expressions. Not here: the capture of torch modules (``torch_export.py``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from eqsynth.errors import DtypeError, EqsynthError, ShapeError
from eqsynth.frontend.expr import Expr
from eqsynth.frontend.expression import program_of
from eqsynth.ir.program import Program
from eqsynth.ir.tensor import Input, Tensor, Weight, topological
from eqsynth.lower.calling import Fixed, Given, Interface, bound, by_name, leaves_of, placed

if TYPE_CHECKING:
    import torch

    from eqsynth.lower.memory_reads import Memory
    from eqsynth.lower.weights import Recipe


@dataclass(frozen=True)
class Convention:
    """How the arguments and results of the user's call map to a program's inputs and outputs.

    For ``forward(self, pair, scale)``, called as ``module((x, y), 2)``, ``arguments`` is
    ``(0, 1, Fixed(2))``: x and y are inputs 0 and 1, and 2 is a constant of the program.

    Attributes:
        parameters: the signature that arguments are bound to; None if they are positional.
        spec: the structure of the arguments' pytree; None without a signature.
        any_order: whether dicts among the arguments may have their keys in any order.
        arguments: for each leaf of the arguments, the position of an input, or a constant.
        out_spec: the structure of the result; None for a single tensor.
        results: for each leaf of the result, the position of an output, an input that is
            returned, or a constant.
        in_a_row: whether the arguments are positional and each is one leaf. A positional call
            then needs no binding and no flattening, which cost 20 us a call.
        interface: the names in the file that the module was read from; None if there is no such
            file.
    """

    arguments: tuple[int | Fixed, ...]
    results: tuple[int | Fixed | Given, ...]
    parameters: inspect.Signature | None = None
    spec: Any = None
    out_spec: Any = None
    in_a_row: bool = True
    any_order: bool = False
    interface: Interface | None = None


@dataclass(frozen=True)
class Captured:
    """A program with the tensors and functions that it needs besides its inputs.

    Attributes:
        program: the IR. Its inputs are the user's inputs, then one for each of ``buffers``; its
            outputs are the user's outputs, then the new values of the buffers it changes.
        weights: the tensors of the program's weights, by name.
        paths: weight -> its names in the module. A weight that was made during capture (the
            tensor of a literal) has no name.
        fixed: tensors of the module that are no weights of the program, but whose values went
            into it, by their names in the module.
        settings: the module's other state that the program relies on (``settings_of``).
        opaque: the functions that run ``Opaque`` operators, by the operator's attribute
            ``target``: from the tensors of the operator's arguments to its result.
        buffers: tensors of the module that the program changes.
        buffer_paths: the names of ``buffers`` in the module.
        mutations: position of an output -> position of the input that it is written back to.
        memories: name of an input -> how it has to lie in memory in each call. Inputs of which it
            doesn't matter have no entry.
    """

    program: Program
    weights: Mapping[str, torch.Tensor]
    convention: Convention
    opaque: Mapping[str, Callable[..., torch.Tensor]] = field(default_factory=dict)
    buffers: tuple[torch.Tensor, ...] = ()
    mutations: Mapping[int, int] = field(default_factory=dict)
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fixed: Mapping[str, torch.Tensor] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    buffer_paths: tuple[str, ...] = ()
    memories: Mapping[str, Memory] = field(default_factory=dict)

    def bind(self, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
        """Return the tensors for ``program.inputs``, from the arguments of a call.

        Raises:
            ShapeError, DtypeError: an argument isn't what the program was captured with.
            EqsynthError: the number or the structure of the arguments differs.
        """
        return self.values(self._leaves(args, kwargs))

    def values(self, leaves: Sequence[Any]) -> list[torch.Tensor]:
        """Return the tensors for ``program.inputs``, from the leaves of a call's arguments.

        Raises:
            ShapeError, DtypeError: a tensor has another shape or dtype than at capture.
            EqsynthError: an argument that is no tensor has another value than at capture.
        """
        inputs = self.program.inputs
        tensors: list[Any] = [None] * (len(inputs) - len(self.buffers))
        for leaf, place in zip(leaves, self.convention.arguments, strict=True):
            if isinstance(place, Fixed):
                _check_constant(leaf, place.value)
            else:
                _check_tensor(leaf, inputs[place])
                tensors[place] = leaf
        return [*tensors, *self.buffers]

    def _leaves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        convention = self.convention
        count = len(convention.arguments)
        if convention.in_a_row and not kwargs and len(args) == count:
            return args
        if convention.parameters is None:
            got = f"{len(args)} values" + (f" and {', '.join(kwargs)}" if kwargs else "")
            raise EqsynthError(
                "the arguments don't fit the program's inputs",
                got=got,
                expected=f"{count} positional values",
                hint="give a tensor for each input of the expression, in their order",
            )
        tree = bound(convention.parameters, args, kwargs, by_name(convention.spec))
        return leaves_of(tree, convention.spec, convention.any_order)

    def recipe(self, terms: Mapping[str, Tensor]) -> Recipe:
        """The recipe by which constants of a plan are computed from the module's weights.

        Args:
            terms: for each constant, the term over weights that computes it.
        """
        from eqsynth.lower.weights import Recipe, digest

        weights = {leaf for leaf in topological(list(terms.values())) if isinstance(leaf, Weight)}
        infinite = {
            path: self.weights[leaf.name]
            for leaf in weights
            if not bool(self.weights[leaf.name].isfinite().all())
            for path in self.paths.get(leaf.name, ())
        }
        kept = {w.name: self.weights[w.name] for w in weights if not self.paths.get(w.name)}
        return Recipe(
            terms,
            self.paths,
            kept,
            {path: digest(value) for path, value in {**self.fixed, **infinite}.items()},
            self.settings,
            self.buffer_paths,
            self.opaque,
        )

    def unflatten(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor] = ()
    ) -> Any:
        """Return the result in the structure that the user's module gives, from the values of
        ``program.outputs``, and of ``program.inputs`` for the inputs that are returned."""

        leaves = placed(self.convention.results, outputs, inputs)
        if self.convention.out_spec is None:
            return leaves[0]
        from torch.utils._pytree import tree_unflatten

        return tree_unflatten(leaves, self.convention.out_spec)


def _check_tensor(value: Any, kind: Input) -> None:
    import torch

    if not isinstance(value, torch.Tensor):
        raise DtypeError(
            what=f"input {kind.name!r} is no tensor",
            where=kind.name,
            got=type(value).__name__,
            expected=f"a torch.Tensor, {kind.type}",
            hint="make it a tensor: torch.as_tensor",
        )
    if value.shape != kind.shape:
        raise ShapeError(
            what=f"input {kind.name!r} has another shape than the program was captured with",
            where=kind.name,
            got=str(tuple(value.shape)),
            expected=str(kind.shape),
            hint="shapes are fixed: optimize once more for this one",
        )
    if value.dtype is not _dtype(kind.dtype):
        raise DtypeError(
            what=f"input {kind.name!r} has another dtype than the program was captured with",
            where=kind.name,
            got=str(value.dtype),
            expected=f"torch.{kind.dtype}",
            hint="cast it, or optimize once more for this dtype",
        )


@cache
def _dtype(name: str) -> torch.dtype:
    import torch

    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _check_constant(value: Any, expected: Any) -> None:
    nan = value != value and expected != expected
    if type(value) is not type(expected) or (value != expected and not nan):
        raise EqsynthError(
            "an argument that is no tensor has another value than at capture",
            got=repr(value),
            expected=repr(expected),
            hint="such arguments are constants of the program: optimize once more for this value",
        )


def expressions_of(program: object, kwargs: Mapping[str, Any]) -> Expr | Sequence[Expr]:
    """Return ``program`` as one expression or several, after a check that it is that.

    Raises:
        EqsynthError: ``program`` is something else, or there are keyword arguments.
    """
    if not isinstance(program, Expr) and not (
        isinstance(program, Sequence) and program and all(isinstance(e, Expr) for e in program)
    ):
        raise EqsynthError(
            "optimize: this is no program",
            got=type(program).__name__,
            expected="a torch.nn.Module, an exported program, an ONNX model, an expression, or "
            "several expressions",
            hint="a function becomes a program as the forward of a torch.nn.Module"
            if callable(program)
            else "build an expression with eqsynth.input, eqsynth.weight and eqsynth.ops",
        )
    if kwargs:
        raise EqsynthError(
            "optimize: an expression has no arguments by name",
            got=", ".join(kwargs),
            expected="no example_kwargs",
            hint="an expression is called with its inputs in a row",
        )
    return program


def capture_expression(outputs: Expr | Sequence[Expr], seed: int = 0) -> Captured:
    """Return an expression (or several) as a captured program, called with its inputs in a row.

    Weights without a value get random values of unit scale, the same for the same seed. Divisions
    of integers become calls of torch, which raises an error where a divisor is 0.
    """
    import torch

    from eqsynth.frontend.opaque import divided_by_torch

    program, values = program_of(outputs)
    roots, calls = divided_by_torch(program.outputs)
    program = Program(program.inputs, roots)
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for weight in program.weights():
        dtype = getattr(torch, weight.dtype)
        value = values.get(weight.name)
        if value is not None:
            weights[weight.name] = torch.as_tensor(value).detach().to(dtype)
        elif dtype.is_floating_point:
            weights[weight.name] = torch.randn(weight.shape, generator=generator).to(dtype)
        else:
            weights[weight.name] = torch.randint(0, 2, weight.shape, generator=generator).to(dtype)
    count = len(program.outputs)
    out_spec = None
    if not isinstance(outputs, Expr):
        from torch.utils._pytree import tree_flatten

        _, out_spec = tree_flatten((0,) * count)
    convention = Convention(
        tuple(range(len(program.inputs))), tuple(range(count)), out_spec=out_spec
    )
    paths = {name: (name,) for name in weights}
    return Captured(program, weights, convention, calls, paths=paths)
