"""An exported program without writes in place.

    y = x + 1; y.relu_(); return y * 2      y = x + 1; z = relu(y); return z * 2
    y = x.to(torch.float32); return y + 1   return x + 1, if x has this dtype

The graph is rewritten. torch's own way, ``run_decompositions({})``, traces the program once more,
which takes longer than the export did; it is used where the rewriting doesn't know a node. Not
here: decomposing operators into others (``frontend/exporting.py``).
"""

from __future__ import annotations

import dataclasses
import io
import logging
import operator
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, suppress
from typing import Any, Final

import torch
from torch._C import _functorch as functorch
from torch.autograd import forward_ad
from torch.export.graph_signature import TensorArgument
from torch.fx import Graph, Node
from torch.utils._pytree import tree_leaves

Exported = torch.export.ExportedProgram


def exported_functions(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Exported:
    """Export a module, and make its graph functional. Raises whatever ``torch.export`` raises."""
    with tracing(), quiet():
        with torch.no_grad(), _kept_transforms():
            exported = torch.export.export(module, args, dict(kwargs))
        return functional(exported)


@contextmanager
def tracing() -> Iterator[None]:
    """Only one thread of the process is inside of such a block, or compiles for ``torch.compile``.

    While torch traces a module (``torch.export``, ``make_fx``, Inductor), it replaces
    ``nn.Module.__getattr__`` and further functions of the whole process, and puts the old ones back
    at the end. Two threads that trace at the same time refuse each other's modules, and whichever
    ends last puts back what the other had put in place. Dynamo has a lock for that reason; this is
    the same one, since a thread that Dynamo calls already holds it.
    """
    from torch._dynamo.convert_frame import compile_lock

    with compile_lock:
        yield


@contextmanager
def specs_copied() -> Iterator[None]:
    """Hide a warning that torch gives of its own code, when it copies or reads the structure of a
    program's arguments: loading, exporting, and copying the module of an exported program do."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec", FutureWarning)
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Hold back text that is written to stderr, and write it at the end unless an error is raised.

    Where torch refuses a module, it prints the graphs that it has traced so far, and the error says
    why it refuses. Torch's loggers of ``_LOUD`` are quiet, too: they tell of an operator that fails
    while it is traced, and either the error says the same, or the module catches the failure.
    """
    loggers = [logging.getLogger(name) for name in _LOUD]
    levels, written = [logger.level for logger in loggers], io.StringIO()
    for logger, level in zip(loggers, _LOUD.values(), strict=True):
        logger.setLevel(level)
    try:
        with redirect_stderr(written):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    sys.stderr.write(written.getvalue())


# Loggers of torch -> the level that they have during an export.
_LOUD: Final = {
    "torch.fx.experimental.symbolic_shapes": logging.ERROR,
    "torch._subclasses.fake_tensor": logging.CRITICAL,
}


def functional(exported: Exported) -> Exported:
    """The program with a graph that writes nothing in place; the program itself if its graph is
    like that already.

    A write in place becomes the operator that returns a new tensor, if no other tensor that shares
    memory with the written one is read later. Operators that return their argument
    (``x.to(x.dtype)``, dropout outside of training) are left out, so that a module which returns
    its input still returns that input.
    """
    try:
        rewriting = _Rewriting(exported.graph)
    except _UnknownNodeError:
        # Of some operators (``upsample_bilinear2d``, ``softshrink``) torch has a decomposition as
        # their autograd kernel. It would be traced whatever the table says, and
        # ``upsample_bilinear2d`` would become ``a + (b - a) * weight``, which loses the digits of b
        # beside an a of 1e6. In inference mode autograd kernels aren't used.
        with torch.inference_mode(), _kept_transforms():
            return exported.run_decompositions({})  # type: ignore[no-any-return]
    if not rewriting.changed:
        return exported
    return with_graph(exported, rewriting.graph, rewriting.renamed)


@contextmanager
def _kept_transforms() -> Iterator[None]:
    """End the function transforms (``torch.func.jvp``, ``grad``, ``vmap``) that the block has begun
    and not ended.

    The exported program of a module that calls ``torch.func.jvp`` holds the calls that begin and
    end the transform, and so does the graph that Dynamo makes of ``torch.func.jacfwd``. If torch
    fails between the two while it traces them (again), the
    transform would go on in the user's process, where tensors then have no memory to read. A
    transform restores the modes that it began in, so this block is inside of ``inference_mode``.
    """
    depth, level = functorch.get_dynamic_layer_stack_depth(), forward_ad._current_level
    try:
        yield
    finally:
        functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        with suppress(RuntimeError):  # no level of ``jvp`` is open beside the caller's
            torch._C._exit_dual_level(level=level + 1)


def with_graph(exported: Exported, graph: Graph, renamed: Mapping[str, str]) -> Exported:
    """The program with another graph.

    Args:
        renamed: name of a result in the old graph -> its name in the new one, where they differ.
    """

    def named(argument: Any) -> Any:
        if isinstance(argument, TensorArgument) and argument.name in renamed:
            return TensorArgument(renamed[argument.name])
        return argument

    signature = dataclasses.replace(
        exported.graph_signature,
        output_specs=[
            dataclasses.replace(spec, arg=named(spec.arg))
            for spec in exported.graph_signature.output_specs
        ],
    )
    module = torch.fx.GraphModule(exported.graph_module, graph)
    with specs_copied():
        return exported._update(module, signature)


# Operators that only assert shapes and dtypes, which are fixed in a captured program.
_ASSERTIONS: Final = frozenset(
    f"aten::{name}"
    for name in (
        "_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range",
        "sym_constrain_range_for_size",
    )
)  # fmt: skip


def is_assertion(node: Node) -> bool:
    """Whether a node only asserts shapes or dtypes, and gives no result."""
    return _is_aten(node.target) and _schema(node).name in _ASSERTIONS


def copied(node: Node, graph: Graph, value: Callable[[Node], Node]) -> Node:
    """A copy of the node at the end of a graph, with other nodes in the place of its arguments."""
    new = graph.node_copy(node, value)
    if node.op == "placeholder":
        new.name = node.name  # torch would rename what has the name of a Python function: ``input``
    return new


class _UnknownNodeError(Exception):
    """A node that the rewriting doesn't know, or a write that another tensor may see."""


class _Rewriting:
    """One pass over a graph that makes the new graph.

    Attributes:
        graph: the new graph.
        changed: whether it differs from the old graph.
        renamed: name of a result in the old graph -> its name in the new one, where they differ.
    """

    def __init__(self, old: Graph) -> None:
        self.graph, self.changed, self.renamed = Graph(), False, dict[str, str]()
        self._place = {node: n for n, node in enumerate(old.nodes)}
        self._new: dict[Node, Node] = {}
        # Old nodes that are one tensor, as the argument and the result of ``relu_``, have one
        # leader, whose new node is the tensor's current value.
        self._leader: dict[Node, Node] = {}
        # Old node -> the nodes whose memory it may share. Memory of the module or of an input is
        # never written, so only memory that a function has made is looked at.
        self._memory: dict[Node, frozenset[Node]] = {}
        for node in old.nodes:
            self._leader[node] = node
            self._memory[node] = frozenset()
            if node.op == "call_function":
                self._call(node)
            else:
                self._copy(node)
                if node.op == "output":
                    self._name_results(node)
                else:
                    self._memory[node] = frozenset([node])

    def _copy(self, node: Node) -> None:
        self._new[node] = copied(node, self.graph, self._value)

    def _value(self, node: Node) -> Node:
        return self._new[self._leader[node]]

    def _name_results(self, output: Node) -> None:
        for node in output.all_input_nodes:
            if self._value(node).name != node.name:
                self.renamed[node.name] = self._value(node).name

    # ---- calls ------------------------------------------------------------------------------

    def _call(self, node: Node) -> None:
        known = node.target is operator.getitem or _is_aten(node.target)
        if not known or any(map(_is_dynamic, tree_leaves(node.meta.get("val")))):
            raise _UnknownNodeError
        if _is_aten(node.target) and _schema(node).is_mutable:
            self._write(node)
        elif not node.users and (is_assertion(node) or not node.is_impure()):
            self.changed = True
        elif _is_its_argument(node):
            self._stand_for(node, node.args[0])
        elif _is_conversion(node):
            dtype = node.meta["val"].dtype
            given = (self._value(node.args[0]),)  # type: ignore[arg-type]
            new = self.graph.call_function(torch.ops.aten._to_copy.default, given, {"dtype": dtype})
            new.meta = dict(node.meta)
            self._new[node], self._memory[node] = new, frozenset([node])
            self.changed = True
        else:
            if not _is_function(node):
                raise _UnknownNodeError
            self._copy(node)
            shared = [self._memory[x] for x in node.all_input_nodes if _shares(node, x)]
            self._memory[node] = frozenset([node]).union(*shared)

    def _stand_for(self, node: Node, other: Any) -> None:
        """The node is the same tensor as another node."""
        self._leader[node] = self._leader[other]
        self._memory[node] = self._memory[other]
        self.changed = True

    def _write(self, node: Node) -> None:
        """Replace an operator that writes its first argument by the one that returns a new
        tensor."""
        written = node.args[0] if node.args else None
        if not isinstance(written, Node):
            raise _UnknownNodeError
        if node.target is torch.ops.aten.detach_.default:
            self._stand_for(node, written)
            return
        function = _without_write(node)
        if function is None:
            raise _UnknownNodeError
        here, memory = self._place[node], self._memory[written]
        if any(root.op != "call_function" for root in memory):
            raise _UnknownNodeError
        for other, shared in self._memory.items():
            if self._leader[other] is not self._leader[written] and shared & memory:
                # A view of the written tensor, or the tensor that it is a view of.
                if any(self._place[user] > here for user in other.users):
                    raise _UnknownNodeError
        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), self._value)
        new = self.graph.call_function(function, args, kwargs)
        new.meta = dict(node.meta)
        self._new[self._leader[written]] = new
        self._stand_for(node, written)


_BATCH_NORM: Final = torch.ops.aten.batch_norm.default
_CONVERSIONS: Final = frozenset(f"aten::to.{name}" for name in ("device", "dtype", "dtype_layout"))


def _is_aten(target: object) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"


def _is_dynamic(value: Any) -> bool:
    """Whether an extent of a value depends on the values of tensors."""
    return isinstance(value, torch.Tensor) and any(isinstance(n, torch.SymInt) for n in value.shape)


def _given(node: Node, name: str) -> Any:
    """The argument of this name in an operator's schema, or its default."""
    for n, argument in enumerate(_schema(node).arguments):
        if argument.name == name:
            default = argument.default_value if argument.has_default_value() else None
            return node.args[n] if n < len(node.args) else node.kwargs.get(name, default)
    return None


def _schema(node: Node) -> Any:
    target: Any = node.target
    return target._schema


def _tensor(node: Any) -> torch.Tensor | None:
    """The value of a node according to torch, if it is a tensor."""
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _is_its_argument(node: Node) -> bool:
    """Whether the operator returns its first argument itself."""
    before, after = _tensor(node.args[0] if node.args else None), _tensor(node)
    if before is None or after is None or not _is_aten(node.target):
        return False
    name = _schema(node).name
    if name == "aten::dropout":
        return _given(node, "train") is False
    if name == "aten::to":
        same = before.dtype == after.dtype and before.device == after.device
        return same and _is_conversion(node)
    if name == "aten::flatten":
        return before.shape == after.shape
    # For arguments of other strides ``contiguous`` copies, so it is left out only where the
    # module returns it.
    returned = any(user.op == "output" for user in node.users)
    return name == "aten::contiguous" and returned and before.is_contiguous()


def _is_conversion(node: Node) -> bool:
    """Whether the operator is ``to`` with another dtype at most."""
    target: Any = node.target
    before, after = _tensor(node.args[0] if node.args else None), _tensor(node)
    return (
        _is_aten(target)
        and target.name() in _CONVERSIONS
        and before is not None
        and after is not None
        and before.device == after.device
        and not _given(node, "copy")
        and _given(node, "memory_format") in (None, torch.preserve_format)
    )


def _is_function(node: Node) -> bool:
    """Whether the operator may stay as it is: it writes nothing, and its result isn't an argument
    that the module returns."""
    target: Any = node.target
    if target is operator.getitem:
        return True
    if not node.users or not isinstance(node.meta.get("val"), torch.Tensor | tuple | list):
        return False
    if target is _BATCH_NORM:
        return _given(node, "training") is False
    if torch.Tag.maybe_aliasing_or_mutating in target.tags:
        return False
    # What is composed of other operators may return its argument itself. If the module returns
    # this, only torch's trace tells which of its inputs it is.
    returned = any(user.op == "output" for user in node.users)
    before, after = _tensor(node.args[0] if node.args else None), _tensor(node)
    alike = before is None or after is None or before.shape == after.shape
    return not (returned and alike and is_composed(target) and _has_aliases(target))


def is_composed(target: Any) -> bool:
    """Whether torch computes an operator by others."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return bool(target.has_kernel_for_dispatch_key(key))


def _has_aliases(target: Any) -> bool:
    return any(argument.alias_info is not None for argument in target._schema.arguments)


def _shares(node: Node, argument: Node) -> bool:
    """Whether the result may share memory with an argument.

    Operators that are composed of others don't declare all of it: ``x.type_as(y)`` may be x. There
    torch's values without data tell, which are made by the same code, and share memory where it
    makes a view or returns its argument.
    """
    target: Any = node.target
    if target is operator.getitem or _has_aliases(target):
        return True
    if not is_composed(target):
        return False
    one, other = _tensor(node), _tensor(argument)
    if one is None or other is None:
        return True
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


def _without_write(node: Node) -> Any:
    """The operator that returns what this one writes into its first argument, if it gives the same
    shape, strides and dtype; None if there is none.

        x.add_(y) -> x + y        x.eq_(y): None, since ``x == y`` has another dtype
    """
    schema, target = _schema(node), node.target
    writes = [argument.alias_info and argument.alias_info.is_write for argument in schema.arguments]
    tags = target.tags  # type: ignore[union-attr]
    name = schema.name.removeprefix("aten::")
    if not name.endswith("_") or not writes[0] or any(writes[1:]):
        return None
    if torch.Tag.nondeterministic_seeded in tags or torch.Tag.inplace_view in tags:
        return None
    function = getattr(
        getattr(torch.ops.aten, name[:-1], None), schema.overload_name or "default", None
    )
    value = _tensor(node)
    if function is None or value is None:
        return None
    args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda arg: arg.meta.get("val"))
    try:
        with torch.no_grad():
            made = function(*args, **kwargs)
    except Exception:  # whatever torch finds wrong with the arguments
        return None
    same = isinstance(made, torch.Tensor) and (made.dtype, made.shape, made.stride()) == (
        value.dtype, value.shape, value.stride()
    )  # fmt: skip
    return function if same else None
