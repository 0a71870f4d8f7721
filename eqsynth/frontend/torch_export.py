"""Capture of a torch module: ``torch.export``, then translation into the IR.

``torch.export`` gives a graph of ATen operators without writes in place. The table in ``aten.py``
turns each of them into operators of the IR. An operator without an entry, or whose entry refuses
its arguments, is decomposed by torch if torch has a decomposition; else it stays opaque
(``opaque.py``) and torch runs it:

    aten.linear(x, w, b)   ->   its entry's terms        aten.fft_rfft(x)   ->   Opaque(x)

A module is refused if ``torch.export`` refuses it, or if the graph has something that no program
can hold: random numbers, side effects, shapes that depend on data, strides that can't be followed.
Not here: checks of the example inputs (``examples.py``).
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from eqsynth.errors import CaptureError, EqsynthError, SeveralGraphsError
from eqsynth.frontend import aten
from eqsynth.frontend.captured import Captured, Convention
from eqsynth.frontend.examples import any_order, refuse_foreign, validate
from eqsynth.frontend.exporting import (
    apart,
    decomposed,
    export,
    is_whole,
    origin_of,
)
from eqsynth.frontend.expr import Expr, origin
from eqsynth.frontend.opaque import Foreign, close, opaque
from eqsynth.frontend.recognized import recognized, said
from eqsynth.frontend.settled import Settled
from eqsynth.frontend.sparse import sparse, sums_rows
from eqsynth.ir.program import Program
from eqsynth.ir.tensor import Input, Weight
from eqsynth.ir.types import DTYPES, TensorType
from eqsynth.lower.calling import Fixed, Given, Interface, bound, signature_of
from eqsynth.lower.functional import is_assertion, specs_copied, tracing
from eqsynth.lower.memory_reads import memory_reads, required
from eqsynth.lower.torch_calls import Named
from eqsynth.lower.torch_scalars import as_bytes
from eqsynth.lower.weights import settings_of, tensor_at


def capture(
    module: torch.nn.Module,
    example_inputs: tuple[Any, ...],
    example_kwargs: Mapping[str, Any] | None = None,
) -> Captured:
    """Return the program that the module computes for inputs of these shapes and dtypes.

    Raises:
        EqsynthError: the inputs don't fit, or the module isn't in evaluation mode (``validate``).
        CaptureError: ``torch.export`` refuses the module, or no program can hold a part of it.
    """
    kwargs = dict(example_kwargs or {})
    validate(module, example_inputs, kwargs)
    parameters = signature_of(module)
    refuse_foreign(module, (example_inputs, kwargs))
    args, kwargs = apart(module, bound(parameters, example_inputs, kwargs, kwargs))
    _, spec = tree_flatten((args, kwargs))
    with tracing(), specs_copied(), warnings.catch_warnings():
        # torch warns of its own recurrent layers, which hold their weights a second time in a list.
        warnings.filterwarnings("ignore", "The tensor attributes? .*_flat_weights", UserWarning)
        with memory_reads(module) as reads:
            exported = export(module, args, kwargs)
        while True:
            translation = _Translation(exported, module)
            program = translation.program()
            more = [node for node in translation.missing if not is_whole(node)]
            if not more:
                break
            exported = decomposed(exported, frozenset(more))
    if translation.refusal is not None:
        raise translation.refusal
    if (scattered := reads.scattered((args, kwargs))) is not None:
        raise CaptureError(
            "the module reads the memory of an input that isn't dense",
            where=type(module).__name__,
            got=f"strides {scattered.stride()}, offset {scattered.storage_offset()}",
            expected="an input without gaps or overlaps; or no as_strided, stride, is_contiguous "
            "or storage_offset of it",
            hint="the original runs as it is",
        )
    arguments, results, mutations = translation.places()
    memories = required(reads.memories((args, kwargs)), arguments, program.inputs)
    weights = {w.name: translation.weights[w.name] for w in program.weights()}
    paths = {name: tuple(translation.paths[name]) for name in weights}
    interface = getattr(module, "interface", None)  # of a module that was read from a file
    return Captured(
        program=program,
        weights=weights,
        convention=Convention(
            arguments,
            results,
            parameters,
            spec,
            exported.call_spec.out_spec,
            in_a_row=not kwargs and spec == tree_flatten(((0,) * len(args), {}))[1],
            any_order=any_order(module, args, kwargs),
            interface=interface if isinstance(interface, Interface) else None,
        ),
        opaque=translation.opaque,
        buffers=tuple(translation.live.values()),
        mutations=mutations,
        paths=paths,
        fixed=translation.fixed,
        settings=settings_of(module, paths),
        buffer_paths=tuple(translation.live_paths),
        memories=memories,
    )


# Operators whose arguments are strides in the memory of the exported tensor.
_BY_STRIDES: Final = frozenset(
    {"aten::as_strided", "aten::as_strided_copy", "aten::as_strided_scatter"}
)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class _Translation:
    """The translation of an exported graph into the IR, in one pass over its nodes.

    Attributes:
        env: node of the graph -> its value: a term, a ``Foreign`` call, a constant, or a tuple.
        weights: the tensors of the program's weights, by name.
        missing: calls of operators without an entry, or whose entry refused; torch may decompose
            them.
        refusal: the first reason why the graph can't be captured; None if it can be.
        live: tensors of the module that the program changes, by the name of their input.
        live_paths: their names in the module.
        paths: weight -> its names in the module.
        fixed: tensors that are no weights of the program, but whose values are in it, by their
            names in the module.
        opaque: the calls that ``Opaque`` operators run, by the operator's target.
        settled: the values of nodes that depend on no input and no parameter.
    """

    def __init__(self, exported: torch.export.ExportedProgram, module: torch.nn.Module) -> None:
        self.exported = exported
        self.module = module
        self.signature = exported.graph_signature
        self.env: dict[torch.fx.Node, Any] = {}
        self.weights: dict[str, torch.Tensor] = {}
        self.live: dict[str, torch.Tensor] = {}
        self.live_paths: list[str] = []
        self.paths: dict[str, list[str]] = {}
        self.fixed: dict[str, torch.Tensor] = {}
        self.opaque: dict[str, Any] = {}
        self.missing: list[torch.fx.Node] = []
        self.settled = Settled()
        self.refusal: CaptureError | None = None
        self._inputs: dict[str, Input] = {}  # by placeholder
        self._weight_names: dict[tuple[object, ...], str] = {}
        self._names: set[str] = set()
        self._outputs: list[Any] = []

    # -- inputs and outputs ---------------------------------------------------------------------

    def program(self) -> Program:
        """Translate the graph: return the program, and fill in this object's attributes."""
        graph = self.exported.graph
        # The user's inputs come first: where a weight has the same name, the weight is renamed.
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        specs = list(zip(placeholders, self.signature.input_specs, strict=True))
        specs.sort(key=lambda pair: pair[1].kind != InputKind.USER_INPUT)
        for node, spec in specs:
            self.env[node] = self._placeholder(node, spec)
        self._run(graph)
        outputs = []
        for value, spec in zip(self._outputs, self.signature.output_specs, strict=True):
            if isinstance(value, Foreign | Named):
                self.refusal = self.refusal or CaptureError(
                    "a result has a dtype that eqsynth can't hold",
                    where=str(spec.arg),
                    got=value.name,
                    expected=", ".join(DTYPES),
                    hint="convert the result inside the module, e.g. by torch.view_as_real",
                )
            if isinstance(value, Expr):
                outputs.append((spec.kind != OutputKind.USER_OUTPUT, spec.arg.name, value.tensor))
        outputs = [row for n, row in enumerate(outputs) if row[0] or row not in outputs[:n]]
        users = self._users()
        # An input that is returned as it is needs no output. One is kept if there is no other,
        # since a program has at least one output.
        outputs = [row for row in outputs if row[0] or row[1] not in users] or outputs[:1]
        outputs.sort(key=lambda row: row[0])
        return Program(tuple(self._inputs.values()), tuple(term for _, _, term in outputs))

    def places(
        self,
    ) -> tuple[tuple[int | Fixed, ...], tuple[int | Fixed | Given, ...], dict[int, int]]:
        """The places of the leaves of arguments and results, as ``Convention`` and
        ``Captured.mutations`` describe them.

        A tensor that is returned twice is one output of the program; an input that is returned is
        no output, but ``Given``.
        """
        position = {name: i for i, name in enumerate(self._inputs)}
        users = self._users()
        arguments = tuple(
            position[spec.arg.name] if spec.arg.name in position else Fixed(spec.arg.value)
            for spec in self.signature.input_specs
            if spec.kind == InputKind.USER_INPUT
        )
        by_target = {spec.target: spec.arg.name for spec in self.signature.input_specs}
        results: list[int | Fixed | Given] = []
        places: dict[str, int] = {}
        written = []
        for value, spec in zip(self._outputs, self.signature.output_specs, strict=True):
            if spec.kind != OutputKind.USER_OUTPUT:
                name = spec.target if spec.target in position else by_target[spec.target]
                written.append(position[name])
            elif isinstance(value, Expr):
                if spec.arg.name in users:
                    results.append(Given(position[spec.arg.name]))
                else:
                    results.append(places.setdefault(spec.arg.name, len(places)))
            else:
                results.append(Fixed(value))
        return arguments, tuple(results), {len(places) + i: at for i, at in enumerate(written)}

    def _users(self) -> set[str]:
        """The names of the user's inputs."""
        return {s.arg.name for s in self.signature.input_specs if s.kind == InputKind.USER_INPUT}

    def _placeholder(self, node: torch.fx.Node, spec: Any) -> Any:
        value = node.meta.get("val")
        if spec.kind == InputKind.USER_INPUT:
            if not isinstance(value, torch.Tensor):
                return spec.arg.value
            return self._input(node, self._unique(node.name), value)
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            tensor = self._stored(spec)
            if spec.target in {s.target for s in self.signature.output_specs if s.target}:
                name = self._unique(spec.target)
                self.live[name] = tensor
                self.live_paths.append(spec.target)
                return self._input(node, name, tensor)
            lifted = spec.kind == InputKind.CONSTANT_TENSOR
            stored = tensor_at(self.module, spec.target)
            own = not lifted or stored is not None
            if spec.kind != InputKind.PARAMETER:
                function = recognized(tensor) if own else said(tensor)
                if function is None and own:
                    kept = partial(self._kept, spec.target)
                    function = sparse(tensor, kept, columns=bool(sums_rows(node)))
                if function is not None or not own:
                    self.settled.give(node, tensor)
                if function is not None:
                    self.fixed |= {spec.target: tensor} if own else {}
                    return function
            self.settled.give_parameter(node)
            return self._weight(spec.target, tensor, lifted, own)
        if spec.kind == InputKind.TOKEN:
            raise SeveralGraphsError(
                "the module does something beside computing its results",
                where=type(self.module).__name__,
                got="an operator with an effect, which torch.export keeps in its order",
                expected="operators that compute tensors",
                hint="the original runs as it is",
            )
        raise CaptureError(
            "the module holds something that is neither a tensor nor a plain value",
            where=str(spec.target),
            got=str(spec.kind),
            expected="parameters, buffers and tensors",
            hint="the original runs as it is",
        )

    def _stored(self, spec: Any) -> torch.Tensor:
        exported = self.exported
        stored = exported.state_dict.get(spec.target)
        found = exported.constants.get(spec.target) if stored is None else stored
        assert isinstance(found, torch.Tensor)
        return found.detach()

    def _input(self, node: torch.fx.Node, name: str, value: torch.Tensor) -> Expr:
        dtype = _dtype_name(value.dtype)
        if dtype not in DTYPES:
            raise CaptureError(
                "an input has a dtype that eqsynth can't hold",
                where=name,
                got=dtype,
                expected=", ".join(DTYPES),
                hint="the original runs as it is",
            )
        term = Input(name, TensorType(tuple(map(int, value.shape)), dtype))
        self._inputs[node.name] = term
        return Expr(term)

    def _unique(self, name: str) -> str:
        base, count = name, 1
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name

    def _kept(self, name: str, tensor: torch.Tensor) -> Expr:
        """A constant that capture has computed from the tensor ``name`` of the module."""
        known = self._unique(name)
        self.weights[known], self.paths[known] = tensor.clone(), []
        return Expr(Weight(known, TensorType(tuple(tensor.shape), _dtype_name(tensor.dtype))))

    def _weight(
        self, name: str, tensor: torch.Tensor, lifted: bool = False, own: bool = True
    ) -> Expr | Named:
        """The weight for a tensor of the graph.

        Tensors that are the same view of the same memory become one weight (tied weights), and so
        do small lifted constants of equal value. A tensor that the IR can't hold is no weight, but
        a named argument of opaque operators.

        Args:
            lifted: whether the tensor is a constant of the forward function that the export made
                an input of the graph.
            own: whether ``name`` is the tensor's name in the module; else capture has made it up.
        """
        dtype = _dtype_name(tensor.dtype)
        if dtype not in DTYPES or tensor.layout != torch.strided:
            if own:
                self.fixed[name] = tensor
            return Named(name, tensor.clone())
        shape = tuple(tensor.shape)
        key: tuple[object, ...] = (shape, dtype)
        if lifted and tensor.numel() <= 1024:
            key += (as_bytes(tensor.cpu()).numpy().tobytes(),)
        else:
            key += (tensor.data_ptr(), tensor.stride()) if tensor.numel() else (name,)
        known = self._weight_names.get(key)
        if known is None:
            known = self._weight_names[key] = self._unique(name)
            self.weights[known] = tensor if own else tensor.clone()
            self.paths[known] = []
        if own:
            self.paths[known].append(name)
        return Expr(Weight(known, TensorType(shape, dtype)))

    # -- nodes ------------------------------------------------------------------------------------

    def _run(self, graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node.op == "call_function":
                with origin(origin_of(node)):
                    settled = self._settled(node)
                    self.env[node] = self._call(node) if settled is None else settled
            elif node.op == "get_attr":
                self.env[node] = self._attribute(node)
            elif node.op == "output":
                self._outputs = list(self._values(node.args[0]))

    def _settled(self, node: torch.fx.Node) -> Any:
        """The node's value, if it is a constant that jumps; the calls that compute it if it depends
        on parameters; None of other nodes."""
        found = self.settled.jump(node)
        if found is None:
            return self._by_calls(node) if self.settled.is_blurred(node) else None
        value, exact = found
        function = said(value)
        if function is not None or exact:
            return function
        return self._weight(node.name, value, lifted=True, own=False)

    def _by_calls(self, node: torch.fx.Node) -> Any:
        """The node, and all calls before it, left to torch."""

        def called(other: torch.fx.Node) -> Any:
            if other.op != "call_function":
                return self.env[other]
            return Foreign(other.target, str(other.target), *given(other))

        def given(other: torch.fx.Node) -> Any:
            return tree_map_only(torch.fx.Node, called, (other.args, dict(other.kwargs)))

        return self._foreign(node, *given(node))

    def _values(self, tree: Any) -> Any:
        return tree_map_only(torch.fx.Node, lambda node: self.env[node], tree)

    def _attribute(self, node: torch.fx.Node) -> Any:
        assert isinstance(node.target, str)
        value = operator.attrgetter(node.target)(self.exported.graph_module)
        if isinstance(value, torch.Tensor):
            self.settled.give(node, value.detach())
            if (known := said(value)) is not None:
                return known
            return self._weight(node.target, value.detach(), lifted=True, own=False)
        return Named(node.target, value)

    def _call(self, node: torch.fx.Node) -> Any:
        args = tuple(self._values(list(node.args)))
        kwargs = dict(self._values(dict(node.kwargs)))
        if node.target is operator.getitem and not isinstance(args[0], Foreign | Expr):
            part = args[0][args[1]]
            return self._foreign_part(node) if part is None else part
        name = node.target.name() if isinstance(node.target, torch._ops.OpOverload) else ""
        if is_assertion(node):
            return None
        if name.startswith("aten::_assert_async"):
            self._refuse(
                node,
                "the module raises an error where values of tensors aren't as it wants them",
                "a result for all values of the inputs",
                SeveralGraphsError,
            )
        strided = name in _BY_STRIDES and isinstance(args[0], Expr)
        read: tuple[Any, ...] | None = args
        if strided and name != "aten::as_strided_scatter":
            value = node.all_input_nodes[0].meta["val"]
            read = aten.in_memory(args, value.stride(), value.storage_offset())
        translated = None if read is None else self._by_table(node, name, read, kwargs)
        if translated is None and strided:
            self._refuse(node, "a view by the strides in memory", "reads of the tensor's elements")
        return self._foreign(node, args, kwargs) if translated is None else translated

    def _by_table(
        self, node: torch.fx.Node, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The operator's result by its entry; None if it has no entry, or the entry refuses."""
        entry = aten.entry(name)
        if entry is not None and not any(
            isinstance(leaf, Foreign | Named) for leaf in tree_leaves((args, kwargs))
        ):
            result = by_entry(entry, args, kwargs, node.meta.get("val"))
            if result is not None:
                return result
        if isinstance(node.target, torch._ops.OpOverload):
            self.missing.append(node)
        return None

    def _refuse(
        self,
        node: torch.fx.Node,
        what: str,
        expected: str,
        kind: type[CaptureError] = CaptureError,
    ) -> None:
        """Note why the module can't be captured. ``capture`` raises the error, unless the operator
        is decomposed and a later translation finds nothing to refuse."""
        self.refusal = self.refusal or kind(
            what,
            where=origin_of(node),
            got=str(node.target),
            expected=expected,
            hint="the original runs as it is",
        )

    def _foreign_part(self, node: torch.fx.Node) -> Any:
        """A result of a multi-output operator that its entry doesn't give: torch computes it."""
        producer = node.args[0]
        assert isinstance(producer, torch.fx.Node)
        args, kwargs = self._values(list(producer.args)), self._values(dict(producer.kwargs))
        whole = self._foreign(producer, tuple(args), kwargs)
        return self._foreign(node, (whole, node.args[1]), {})

    def _foreign(self, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call left to torch: an ``Opaque`` operator if the IR can hold its result, else a
        ``Foreign`` call."""
        target, value = node.target, node.meta.get("val")
        if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()):
            self._refuse(
                node, "the module draws random numbers", "a result that is determined by the inputs"
            )
        elif any(map(_is_dynamic, tree_leaves(value))):
            self._refuse(
                node,
                "a shape depends on the values of tensors",
                "shapes that are known when the module is captured",
                SeveralGraphsError,
            )
        label = "item" if target is operator.getitem else str(target)
        foreign = Foreign(target, label, args, kwargs)
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return foreign
        if _is_dynamic(value):
            return foreign
        dtype = _dtype_name(value.dtype)
        if dtype not in DTYPES:
            return foreign
        call, terms = close(foreign)
        result = opaque(call, terms, tuple(map(int, value.shape)), dtype)
        self.opaque[repr(call)] = call
        return result


def by_entry(
    entry: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], value: Any
) -> Any:
    """Call an entry of the table on an operator's arguments.

    Args:
        value: the operator's result according to torch: tensors with shapes and dtypes.

    Returns:
        The entry's result; None if the entry refuses the arguments, or if the result's shapes and
        dtypes aren't those of ``value``.
    """
    kept = {k: v for k, v in kwargs.items() if k not in aten.STORAGE_ARGUMENTS}
    args, kept = tree_map_only(torch.dtype, _dtype_name, (args, kept))
    try:
        result = entry(*args, **kept)
    except (EqsynthError, TypeError):
        return None
    return result if result is not None and _as_exported(result, value) else None


def _is_dynamic(value: Any) -> bool:
    """Whether the value, or an extent of its shape, isn't known at capture."""
    if isinstance(value, torch.Tensor):
        return any(isinstance(extent, torch.SymInt) for extent in value.shape)
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def _as_exported(result: Any, value: Any) -> bool:
    """Whether the result has the shapes and dtypes of ``value``, torch's own result."""
    if isinstance(result, Expr):
        return (
            isinstance(value, torch.Tensor)
            and result.shape == tuple(value.shape)
            and result.dtype == _dtype_name(value.dtype)
        )
    if not isinstance(value, Sequence) or len(result) != len(value):
        return False
    return all(r is None or _as_exported(r, v) for r, v in zip(result, value, strict=True))
