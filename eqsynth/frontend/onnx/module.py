"""The torch module of an ONNX model.

The module runs the model operator by operator, for inputs of any shapes that the model takes. The
model's initializers become buffers of the module, and so weights of a captured program, except for
initializers that are read as shapes, axes or conditions: these stay constants.
"""

from __future__ import annotations

import inspect
import keyword
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import psutil
import torch

from eqsynth.errors import DtypeError, EqsynthError, ShapeError
from eqsynth.frontend.onnx.definitions import Definitions
from eqsynth.frontend.onnx.graphs import Bodies, Body, Operator, TypeOf, type_of
from eqsynth.frontend.onnx.reading import read, told_opsets
from eqsynth.frontend.onnx.running import Runner
from eqsynth.frontend.onnx.table import Refused
from eqsynth.frontend.onnx.values import Mode, Value
from eqsynth.lower.calling import Interface

Tensor = torch.Tensor

# The largest tensor of a model, as a share of the machine's memory.
_SHARE: Final = 0.5
# How example inputs are given.
_EXAMPLES: Final = (
    'eqsynth.optimize("model.onnx", (x,)); on the command line: eqsynth optimize --inputs FILE'
)


class OnnxModule(torch.nn.Module):
    """The torch module of an ONNX model; its ``forward`` has the model's inputs as parameters.

    Attributes:
        types: name of a parameter -> the type that the model gives for the input.
        interface: the model's own names of its inputs and outputs.
    """

    types: dict[str, TypeOf]
    interface: Interface

    def __init__(self, source: Any) -> None:
        super().__init__()
        model = read(source)
        bodies = Bodies(model)
        self._body: Body = bodies.of_graph(model.graph, told_opsets(model))
        self._constants = bodies.tensors
        self._weights: dict[str, str] = {}
        told = {info.name: type_of(info.type) for info in model.graph.input}
        names = _Names()
        self.types = {names.of(name): told[name] for name in self._body.inputs}
        self.interface = Interface(self._body.inputs, self._body.outputs)
        self._definitions = Definitions()
        self._most_bytes = int(psutil.virtual_memory().total * _SHARE)
        places = [o.place for o in self._body.all_operators()]
        self._names = _Names()
        self._labels = {
            place: self._names.of(place.partition(" ")[2].strip("'")) for place in places
        }
        for label in self._labels.values():
            self.add_module(label, _Operator())
        self.__class__ = _with_arguments(tuple(self.types))
        self.eval()

    def try_out(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Run the model once, and make buffers of its constants.

        The run checks that every tensor of the model fits into this machine's memory, and finds the
        constants that are read as shapes, axes or conditions; all others become buffers.

        Raises:
            EqsynthError: the inputs don't fit, an operator of the model fails on them, or a tensor
                is too large.
        """
        runner = self._runner(Mode.TRY)
        with torch.no_grad():
            runner.body(self._body, self._inputs(args, kwargs))
        for key in self._constants:
            if key not in runner.relied and key not in self._weights:
                self._weights[key] = name = self._names.of(key)
                self.register_buffer(name, self._constants[key])

    def _inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Value]:
        bound = inspect.signature(self.forward).bind(*args, **kwargs).arguments
        sizes: dict[str, tuple[int, str]] = {}
        for name, kind in self.types.items():
            _fits(name, bound[name], kind, sizes)
        return [Value(bound[name]) for name in self.types]

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        capturing = torch.compiler.is_exporting() or torch.compiler.is_compiling()
        runner = self._runner(Mode.CAPTURE if capturing else Mode.RUN)
        results = [v.data for v in runner.body(self._body, self._inputs(args, kwargs))]
        return results[0] if len(results) == 1 else tuple(results)

    def _runner(self, mode: Mode) -> Runner:
        return Runner(
            mode, self._constant, self._most_bytes, self._call, self._definitions
        )

    def _constant(self, key: str) -> Value:
        tensor = self._constants[key]
        name = self._weights.get(key)
        return Value(tensor if name is None else getattr(self, name), tensor, frozenset({key}))

    def _call(
        self,
        operator: Operator,
        function: Callable[..., Any],
        args: Sequence[Any],
        options: Mapping[str, Any],
    ) -> Any:
        label = self._labels.get(operator.place)
        if label is None:  # the operator is part of ONNX's definition of an operator of the model
            return function(*args, **options)
        result = getattr(self, label)(function, *args, **options)
        if isinstance(result, Exception):
            raise result
        return result


class _Operator(torch.nn.Module):
    """An operator of the model as a submodule, so that torch records where a call comes from.

    If an entry refuses a case, ``forward`` returns the error instead of raising it: an error that
    is raised out of a submodule disturbs how ``torch.export`` tracks submodules.
    """

    def forward(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except (Refused, NotImplementedError) as error:
            return error


def _with_arguments(names: Sequence[str]) -> type[OnnxModule]:
    """A subclass of ``OnnxModule`` whose ``forward`` has a signature with these parameters.

    ``torch.export``, and eqsynth's own binding of arguments, read the names from the signature.
    """

    def forward(self: OnnxModule, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in ("self", *names)]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return type("OnnxModule", (OnnxModule,), {"forward": forward})


# ---- inputs -----------------------------------------------------------------------------------


def _fits(name: str, value: Any, kind: TypeOf, sizes: dict[str, tuple[int, str]]) -> None:
    """Check that an input has the dtype and shape that the model gives for it.

    Args:
        kind: the model's type; an extent of it may be a name, such as ``batch``.
        sizes: name of an extent -> its size and the input that it was first seen in. The name must
            mean the same size everywhere; new names are added.

    Raises:
        DtypeError, ShapeError: the input has another dtype or shape.
    """
    if not isinstance(value, torch.Tensor):
        return
    if kind.dtype is not None and value.dtype != kind.dtype:
        raise DtypeError(
            f"input {name!r} has another dtype than in the model",
            where=name,
            got=str(value.dtype),
            expected=str(kind.dtype),
            hint="cast it",
        )
    if kind.extents is None:
        return
    wanted = f"({', '.join('?' if e is None else str(e) for e in kind.extents)})"
    fitting = len(kind.extents) == value.ndim
    for extent, size in zip(kind.extents, value.shape, strict=False):
        if isinstance(extent, int):
            fitting = fitting and extent == size
        elif extent is not None:
            known, other = sizes.setdefault(extent, (int(size), name))
            if known != size:
                wanted += f" with {extent} = {known}, as in input {other!r}"
                fitting = False
    if not fitting:
        raise ShapeError(
            f"input {name!r} has another shape than in the model",
            where=name,
            got=str(tuple(value.shape)),
            expected=wanted,
            hint="give a tensor of this shape",
        )


def inputs_for(module: OnnxModule, seed: int = 0) -> tuple[Tensor, ...]:
    """Random inputs in the shapes and dtypes that the model gives.

    Raises:
        ShapeError: an extent is open, or an input is too large for this machine's memory.
        EqsynthError: the model doesn't say that an input is a tensor of a dtype that torch has.
    """
    generator = torch.Generator().manual_seed(seed)
    found = []
    for name, kind in module.types.items():
        if kind.dtype is None:
            raise EqsynthError(
                f"the model doesn't tell what input {name!r} is",
                where=name,
                got="no tensor of a known element type",
                expected="example inputs",
                hint=f"give them: {_EXAMPLES}",
            )
        if kind.extents is None or not all(isinstance(e, int) for e in kind.extents):
            extents = kind.extents or ()
            axis = next((i for i, e in enumerate(extents) if not isinstance(e, int)), 0)
            open_extent = extents[axis] if extents else None
            raise ShapeError(
                f"the size of input {name!r} is open in the model",
                where=f"input {name!r}, axis {axis}",
                got="no shape" if kind.extents is None else str(open_extent or "no size"),
                expected="a number",
                hint=f"give example inputs: {_EXAMPLES}",
            )
        shape = [e for e in kind.extents if isinstance(e, int)]
        count = 1
        for extent in shape:
            count *= extent
        if min(shape, default=0) < 0 or count * kind.dtype.itemsize > module._most_bytes:
            raise ShapeError(
                f"input {name!r} is larger than this machine's memory",
                where=name,
                got=str(shape),
                expected=f"at most {module._most_bytes} bytes",
                hint="look at the shapes in the model",
            )
        if kind.dtype.is_floating_point:
            found.append(torch.randn(shape, generator=generator).to(kind.dtype))
        else:
            found.append(torch.randint(0, 2, shape, generator=generator).to(kind.dtype))
    return tuple(found)


# ---- names -----------------------------------------------------------------------------------


class _Names:
    """Makes identifiers of Python, each of which is different from those before."""

    def __init__(self) -> None:
        self._taken = {"self", "types", "interface", "training"}
        self._copies: Counter[str] = Counter()

    def of(self, name: str) -> str:
        """Turn a name of the model into an identifier: ``/layer.1/Conv`` -> ``onnx_layer_1_Conv``.

        A number is added if the identifier is taken: ``onnx_layer_1_Conv_2``.
        """
        base = re.sub(r"\W", "_", name) or "value"
        taken = keyword.iskeyword(base) or hasattr(torch.nn.Module, base)
        if base[0] == "_" or base[0].isdigit() or taken:
            base = f"onnx_{base.lstrip('_')}"
        found = base
        while found in self._taken:
            self._copies[base] += 1
            found = f"{base}_{self._copies[base] + 1}"
        self._taken.add(found)
        return found
