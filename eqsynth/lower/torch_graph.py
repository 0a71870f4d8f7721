"""A module as the operators of torch that it calls: the form in which an original is saved.

``torch.export`` finds the operators; they are kept as plain data, and run one after the other. Not
here: capturing a module to optimize it (``frontend/``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils._pytree import tree_flatten, tree_map_only

from eqsynth.errors import DtypeError, LoweringError, ShapeError
from eqsynth.lower.calling import Fixed, Given, SavedCalling, bound, signature_of
from eqsynth.lower.functional import exported_functions, is_assertion
from eqsynth.lower.memory_reads import Memory, memory_reads, misplaced
from eqsynth.lower.torch_calls import Argument, Named, TorchCall


@dataclass(frozen=True)
class Kind:
    """The shape and dtype of an input, and how it has to lie in memory, if that matters."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    memory: Memory | None = None


class TorchGraph:
    """A module as a list of calls. It is called like the module that it was made from.

    Attributes:
        inputs: the user's inputs, then one for each of ``calling.buffers``.
        tensors: weights and constants.
        calls: the calls. Their arguments are numbered: inputs, tensors, results of earlier calls.
        outputs: the numbers of the outputs.
        mutations: position of an output -> position of the buffer that its value is copied to.
    """

    def __init__(
        self,
        inputs: Sequence[Kind],
        tensors: Sequence[torch.Tensor],
        calls: Sequence[TorchCall],
        outputs: Sequence[int],
        calling: SavedCalling,
        mutations: Mapping[int, int],
    ) -> None:
        self.inputs, self.tensors, self.calls = tuple(inputs), tuple(tensors), tuple(calls)
        self.outputs, self.calling, self.mutations = tuple(outputs), calling, dict(mutations)
        self._run = self._compiled()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        values = self.calling.bind(*args, **kwargs)
        for value, kind in zip(values, self.inputs, strict=True):
            _check(value, kind)
        results = self._run(*values)
        for position, buffer in self.mutations.items():
            self.calling.buffers[buffer].copy_(results[position])
        return self.calling.unflatten(results, values)

    def _compiled(self) -> Callable[..., list[torch.Tensor]]:
        """The calls as one Python function, with a line for each call; values are deleted after
        their last use."""
        count = len(self.inputs)
        scope: dict[str, Any] = {
            f"v{count + n}": tensor.detach() for n, tensor in enumerate(self.tensors)
        }
        first = count + len(self.tensors)
        last = {n: -1 for n in range(first)}
        rows = []
        for n, call in enumerate(self.calls):
            text = _Text(scope, f"k{n}")
            line = f"v{first + n} = {text.of_call(call)}"
            last |= dict.fromkeys([first + n, *text.read], n)
            rows.append(line)
        dying: dict[int, list[int]] = {}
        for value, n in last.items():
            if value >= first and value not in self.outputs:
                dying.setdefault(n, []).append(value)
        for n, values in dying.items():
            rows[n] += f"\n    del {', '.join(f'v{value}' for value in values)}"
        head = f"def run({', '.join(f'v{n}' for n in range(count))}):"
        end = f"return [{', '.join(f'v{n}' for n in self.outputs)}]"
        exec(compile("\n    ".join([head, *rows, end]), "<eqsynth original>", "exec"), scope)
        run: Callable[..., list[torch.Tensor]] = scope["run"]
        return run


class _Text:
    """A call as Python source. Values that have no text get a name in the function's scope."""

    def __init__(self, scope: dict[str, Any], prefix: str) -> None:
        self.read: set[int] = set()
        self._scope, self._prefix, self._count = scope, prefix, 0

    def of_call(self, call: TorchCall) -> str:
        parts = [self.of(arg) for arg in call.args]
        named = f"**{{{', '.join(f'{name!r}: {self.of(v)}' for name, v in call.kwargs.items())}}}"
        return f"{self._name(call.target)}({', '.join([*parts, named] if call.kwargs else parts)})"

    def of(self, value: Any) -> str:
        if isinstance(value, Argument):
            self.read.add(value.position)
            return f"v{value.position}"
        if isinstance(value, TorchCall):
            return self.of_call(value)
        if isinstance(value, list):
            return f"[{', '.join(map(self.of, value))}]"
        if isinstance(value, tuple):
            return f"({''.join(f'{self.of(part)}, ' for part in value)})"
        return self._name(value.value if isinstance(value, Named) else value)

    def _name(self, value: Any) -> str:
        self._count += 1
        name = f"{self._prefix}_{self._count}"
        self._scope[name] = value
        return name


def _check(value: Any, kind: Kind) -> None:
    """Check the shape, dtype and device of an input."""
    if tuple(value.shape) != kind.shape:
        raise ShapeError(
            what="an input has another shape than the program was saved for",
            where=f"input {kind.name!r}",
            got=str(tuple(value.shape)),
            expected=str(kind.shape),
            hint="shapes are fixed: optimize once more for this one",
        )
    if value.dtype is not kind.dtype or value.device.type != "cpu":
        raise DtypeError(
            what="an input has another dtype or device than the program was saved for",
            where=f"input {kind.name!r}",
            got=f"{value.dtype} on {value.device}",
            expected=f"{kind.dtype} on cpu",
            hint="cast or move it, or optimize once more for it",
        )
    if kind.memory is not None and not kind.memory.holds(value):
        raise misplaced(value, f"input {kind.name!r}", kind.memory)


# ---- from a module --------------------------------------------------------------------------


def as_graph(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> TorchGraph:
    """The operators that a module calls for arguments like these.

    Raises:
        LoweringError: ``torch.export`` refuses the module, or a part of it is no operator.
    """
    parameters = signature_of(module)
    bound_args, bound_kwargs = bound(parameters, args, kwargs, kwargs)
    try:
        with memory_reads(module, views=False) as reads:
            exported = exported_functions(module, bound_args, bound_kwargs)
    except Exception as error:  # torch.export raises whatever went wrong anywhere below it
        raise _refused(f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}") from error
    given = (bound_args, bound_kwargs)
    return _Reading(exported, reads.memories(given)).graph(parameters, tree_flatten(given)[1])


def _refused(got: str) -> LoweringError:
    return LoweringError(
        what="this program is the original module, and torch.export refuses that",
        got=got[:300],
        expected="a module that calls operators of torch, whatever the values of its inputs",
        hint="save the module's state_dict instead, and optimize the module where it is loaded",
    )


class _Reading:
    """Reads an exported graph in one pass."""

    def __init__(
        self, exported: torch.export.ExportedProgram, memories: Mapping[int, Memory]
    ) -> None:
        self.exported, self.memories = exported, memories
        self.signature = exported.graph_signature
        self.places: dict[torch.fx.Node, Any] = {}

    def graph(self, parameters: inspect.Signature, spec: Any) -> TorchGraph:
        nodes = list(self.exported.graph.nodes)
        holders = [node for node in nodes if node.op == "placeholder"]
        specs = list(zip(holders, self.signature.input_specs, strict=True))
        mutated = {s.target for s in self.signature.output_specs if s.target is not None}
        users = [pair for pair in specs if pair[1].kind == InputKind.USER_INPUT]
        given = [pair for pair in users if isinstance(pair[0].meta["val"], torch.Tensor)]
        state = [pair for pair in specs if pair not in users]
        changed = [pair for pair in state if pair[1].target in mutated]
        rest = [pair for pair in state if pair not in changed]
        rest += [(node, None) for node in nodes if node.op == "get_attr"]
        for n, (node, _) in enumerate((*given, *changed, *rest)):
            self.places[node] = Argument(n)
        for node, holder in users:
            self.places.setdefault(node, getattr(holder.arg, "value", None))
        calls: list[TorchCall] = []
        first = len(given) + len(changed) + len(rest)
        outputs: list[Any] = []
        for node in nodes:
            if node.op == "call_function" and not is_assertion(node):
                args, kwargs = self._of((tuple(node.args), dict(node.kwargs)))
                calls.append(TorchCall(node.target, node.name, args, kwargs))
                self.places[node] = Argument(first + len(calls) - 1)
            elif node.op == "output":
                outputs = list(self._of(tuple(node.args[0])))
        placed = {node: self.memories.get(leaf) for leaf, (node, _) in enumerate(users)}
        inputs = [_kind(node, placed.get(node)) for node, _ in (*given, *changed)]
        position = {node.name: n for n, (node, _) in enumerate(given)}
        arguments = tuple(
            position[s.arg.name] if s.arg.name in position else Fixed(s.arg.value) for _, s in users
        )
        results, distinct, written = self._results(outputs, position)
        targets = {s.target: n for n, (_, s) in enumerate(changed)}
        calling = SavedCalling(
            arguments,
            tuple(results),
            parameters,
            spec,
            self.exported.call_spec.out_spec,
            buffers=tuple(self._tensor(node, s) for node, s in changed),
        )
        return TorchGraph(
            inputs,
            [self._tensor(node, s) for node, s in rest],
            calls,
            distinct,
            calling,
            {distinct.index(place): targets[target] for place, target in written},
        )

    def _of(self, tree: Any) -> Any:
        """Arguments with nodes replaced by the values that they stand for."""
        return tree_map_only(torch.fx.Node, lambda node: self.places[node], tree)

    def _results(
        self, outputs: Sequence[Any], position: Mapping[str, int]
    ) -> tuple[list[int | Fixed | Given], list[int], list[tuple[int, str]]]:
        """The source of each leaf of the result, the distinct outputs, and which output is written
        to which buffer."""
        results: list[int | Fixed | Given] = []
        distinct: list[int] = []
        written = []
        for value, spec in zip(outputs, self.signature.output_specs, strict=True):
            if isinstance(value, Argument) and value.position not in distinct:
                distinct.append(value.position)
            if spec.kind == OutputKind.BUFFER_MUTATION:
                written.append((value.position, str(spec.target)))
            elif spec.kind != OutputKind.USER_OUTPUT:
                raise _refused(f"{spec.kind}: the module changes one of its inputs")
            elif spec.arg.name in position:
                results.append(Given(position[spec.arg.name]))
            elif isinstance(value, Argument):
                results.append(distinct.index(value.position))
            else:
                results.append(Fixed(value))
        return results, distinct, written

    def _tensor(self, node: torch.fx.Node, spec: Any) -> torch.Tensor:
        """The value of a weight, buffer or constant."""
        if spec is None:
            value = getattr(self.exported.graph_module, str(node.target), None)
        else:
            value = self.exported.state_dict.get(spec.target)
            value = self.exported.constants.get(spec.target) if value is None else value
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            raise _refused(f"{node.target}: no operators, but {type(value).__name__}")
        return value.detach()


def _kind(node: torch.fx.Node, memory: Memory | None) -> Kind:
    value = node.meta["val"]
    return Kind(node.name, tuple(map(int, value.shape)), value.dtype, memory)
