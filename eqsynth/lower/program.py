"""A compiled program: kernels that are called one after the other, as a ``torch.nn.Module``.

Example: ``program = CompiledProgram(inputs, steps, outputs, calling)``; then ``program(x)`` binds
the arguments, checks them, runs the steps and rebuilds the result's structure. Where nothing faster
was found, ``CompiledProgram.from_module(original)`` calls the original module.

Not here: the steps and the code that runs them (``steps.py``), how a user's arguments become the
program's inputs (``calling.py``), saving and loading (``bundle.py``), how constants are computed
from weights (``weights.py``).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from eqsynth import notebook
from eqsynth.errors import EqsynthError, LoweringError, ShapeError, WeightError
from eqsynth.extract.kernel import Backend, held
from eqsynth.lower import torch_modes
from eqsynth.lower.alike import UNLIKE, Alike, hooked
from eqsynth.lower.call_trees import Calls
from eqsynth.lower.calling import AsItIs, Calling
from eqsynth.lower.graphs import Graphs
from eqsynth.lower.kept_original import called
from eqsynth.lower.loop_nest import scratch_bytes
from eqsynth.lower.places import HOST, Place, host_by_default
from eqsynth.lower.steps import (
    Parameter,
    Step,
    as_read,
    build_kernels,
    listing,
    packed,
    straight_line,
)
from eqsynth.lower.weights import Recipe, State, Watch, storages


class CompiledProgram(torch.nn.Module):
    """A program that was lowered. It is called as the module that it was made from.

    Constants are buffers that don't appear in ``state_dict``. There are no parameters and no
    gradients (``backward`` through a result raises), and training and evaluation mode are the same.
    The program owns its constants, so that a change of the module's weights reaches it only through
    ``refresh``. With ``own_constants=False`` a constant that is a weight without any change shares
    the module's memory, and a call after such a weight has changed raises ``WeightError``. Where
    the original was kept, it is called with its own weights, and a call after one has changed
    raises, too. Buffers that the module changes when it is called stay the module's: the program
    writes into the same tensors.

    If a result of the module is one of its arguments, or the same tensor as another result, so it
    is here. All other results have memory of their own, also where the module would return a view
    of an argument.

    Several threads may call a program at once, unless it changes buffers of the module. ``copy``
    and ``pickle`` (``torch.save``) work where ``save`` does. Autocast has no influence. Calls that
    are traced or transformed (``torch.export``, ``torch.jit.trace``, ``torch.func``) are refused.

    Attributes:
        report: the optimizer's report.
        inputs: the inputs, with the layouts in which the kernels read them.
        steps: the steps, in the order of execution.
        original: the module or function that is called instead of steps, where nothing faster was
            found.
        examples: a function that makes arguments for the original, filled with zeros; None if no
            example arguments are known.
        place, device: where the program runs, and the device that holds its tensors.
        opens: whether objects that hold tensors are among the arguments or results
            (``holders.py``).
        recipe: how the constants are computed from the module's weights.
    """

    def __init__(
        self,
        inputs: Sequence[Parameter],
        steps: Sequence[Step],
        outputs: Sequence[str],
        calling: Calling,
        constants: Mapping[str, torch.Tensor] | None = None,
        mutations: Mapping[int, torch.Tensor] | None = None,
        report: Any = None,
        explanation: object = "",
        place: Place | None = None,
        recipe: Recipe | None = None,
        backends: Sequence[Backend] = (),
        watch: Watch | None = None,
        loaded: bool = False,
    ) -> None:
        """
        Args:
            outputs: the names of the values that the program returns.
            constants: the constants' values by name; kernels hold their own packed copies.
            mutations: position of an output -> the buffer that the output is copied to after a run.
            explanation: the result of ``explain()``: an object, or a function that makes it.
            place: where the program runs; None for the CPU.
            recipe: how the constants are computed; without it ``refresh`` is refused.
            backends: the backends that built the kernels; ``refresh`` builds with them again.
            watch: the watch over weights that constants share memory with; None if none do.
            loaded: whether the program comes from a file, so that the first call may show that the
                file is damaged.

        Raises:
            LoweringError: a step reads a value that isn't computed before it.
        """
        super().__init__()
        self.inputs, self.steps, self.outputs = tuple(inputs), tuple(steps), tuple(outputs)
        self.calling, self._calls = calling, Calls(calling)
        self.report, self._explanation = report, explanation
        self.place = place or Place()
        self.device = self.place.device
        self.original: Callable[..., Any] | None = None
        self._owned, self._writes = frozenset[int](), False
        self.examples: Callable[[], Any] | None = None
        self.opens = False
        self._untried, self._plain = loaded, cast("Callable[[], CompiledProgram] | None", None)
        self.recipe, self._backends, self._watch = recipe, tuple(backends), watch
        self.mutations = dict(mutations or {})
        self._hold(constants or {})
        self._compile()
        super().train(False)

    def _hold(self, constants: Mapping[str, torch.Tensor]) -> None:
        """Take these constants, and register them as buffers."""
        self.constants = {name: value.detach() for name, value in constants.items()}
        for position, value in enumerate(self.constants.values()):
            self.register_buffer(f"constant_{position}", value, persistent=False)

    @classmethod
    def from_module(
        cls,
        original: Callable[..., Any],
        report: Any = None,
        explanation: object = "",
        examples: tuple[Any, Mapping[str, Any]] | None = None,
        loaded: bool = False,
        plain: Callable[[], CompiledProgram] | None = None,
        writes: bool = False,
    ) -> CompiledProgram:
        """Make a program that calls the original, for the case that nothing faster was found.

        Args:
            examples: arguments that the original takes, by position and by name; only shapes and
                dtypes of their tensors are kept. Without them the program can't be saved.
            plain: a function that makes the same program from the operators that it was captured
                as.
            writes: whether calls of the original write into its weights. Then a weight that has
                changed says nothing, and none is watched.
        """
        program = cls((), (), (), AsItIs(), report=report, explanation=explanation, loaded=loaded)
        program._writes = writes
        program.examples = None if examples is None else torch_modes.zeros_like(examples)
        program._call_as_it_is(original)
        program._plain = plain
        return program

    def _call_as_it_is(self, original: Callable[..., Any]) -> None:
        """Call this original from now on, in place of steps."""
        # Not a submodule: the program has no parameters, and must not switch the module's mode.
        self.__dict__["original"] = original
        if isinstance(original, torch.nn.Module):
            # Collected once: a walk over a large module's tensors takes longer than a call of a
            # small module.
            self._owned = storages((*original.parameters(), *original.buffers()))
            # The programs of several graphs watch their weights themselves, and refresh.
            own = isinstance(original, Graphs) or self._writes
            self._watch = None if own else Watch.of_parameters(original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._alike is not None and not hooked(self):
            result = self._alike.call(args, kwargs)
            if result is not UNLIKE:
                return result
        return super().__call__(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the outputs for these arguments, without gradients.

        Raises:
            ShapeError, DtypeError: an argument has another shape or dtype than the program was
                compiled for.
            WeightError: a weight that the program shares with the module has changed.
            LoweringError: torch traces or transforms the call.
        """
        if not self._untried:
            return self._call(args, kwargs)
        try:
            result = self._call(args, kwargs)
        except EqsynthError:
            raise
        except Exception as error:  # a damaged file may lead to any exception
            raise LoweringError(
                what="a program that was loaded from a file can't be run",
                got=f"{type(error).__name__}: {error}"[:500],
                expected="inputs that the original takes, and a file that eqsynth wrote",
                hint="if the inputs are right, save the program again",
            ) from error
        self._untried = False
        return result

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call: bind the arguments, compute, build the result, and record the call for the
        short way."""
        torch_modes.refuse_transforms()
        if self._watch is not None:
            self._watch.check()
        if self.original is not None:
            return called(self.original, self._owned, args, kwargs)
        values, finish = self._calls.begin(args, kwargs, self.opens)
        result = finish(self._computed(values))
        if self._alike is not None and not self.opens:
            self._alike.note(args, kwargs, values)
        return result

    def _computed(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The program's outputs for its inputs; buffers that the program changes are written
        afterwards."""
        if len(values) != len(self.inputs):
            raise ShapeError(
                what="the program is called with another number of inputs",
                got=str(len(values)),
                expected=", ".join(f"{p.input.name}: {p.input.type}" for p in self.inputs)
                or "none",
                hint="give one tensor an input",
            )
        if self.mutations:
            self._refuse_shared(values)
        with torch.no_grad():
            if torch_modes.AUTOCAST():
                with torch.autocast(self.device.type, enabled=False):
                    results = self._run(*values)
            else:
                results = self._run(*values)
            for position, buffer in self.mutations.items():
                buffer.copy_(results[position])
        return torch_modes.without_gradients(results, values)

    def _refuse_shared(self, values: Sequence[torch.Tensor]) -> None:
        """Refuse an argument that shares memory with a buffer that the program changes: the result
        would depend on whether the buffer is read before or after the change."""
        taken = storages(self.mutations.values())
        count = len(values) - len(self.state())
        for value, parameter in zip(values[:count], self.inputs, strict=False):
            if storages([value]) & taken:
                raise LoweringError(
                    what="an input shares memory with a buffer that the program changes",
                    where=f"input {parameter.input.name!r}",
                    got="the buffer itself, or a view of it",
                    expected="a tensor of its own",
                    hint="give a copy: x.clone()",
                )

    # ---- weights ----------------------------------------------------------------------------

    @host_by_default
    def refresh(self, state: State) -> None:
        """Take new weights of the same shapes, as after a step of training. The constants are
        computed and packed again for the same plan, without a search; this takes about as long as
        copying them.

        Weights are found by their names in the module. Names that were tied to one weight when the
        program was made must still be tied, or hold equal values. From now on the program changes
        the buffers of the given module.

        Args:
            state: the module, another module of its class, or tensors by name such as its
                ``state_dict()``.

        Raises:
            WeightError: a weight is missing, or has another shape or dtype, or holds NaN or
                infinity where it didn't before; tied weights differ; or a value that the plan
                relies on has changed (``Recipe.fixed`` and ``settings``). The program then stays
                as it was.
        """
        if not isinstance(state, torch.nn.Module | Mapping):
            raise EqsynthError(
                "refresh: new weights come from a module, or from tensors by name",
                got=type(state).__name__,
                expected="the module, another module of its class, or a state_dict",
                hint="program.refresh(module)",
            )
        if self.original is not None:
            self._refresh_original(state)
            return
        if self.recipe is None:
            raise WeightError(
                "this program doesn't know what its constants are made from",
                got="no recipe",
                expected="a program that optimize has made",
                hint="optimize the module",
            )
        weights = self.recipe.read(state)
        kinds = [p.input.type for p in self.inputs[len(self.inputs) - len(self.state()) :]]
        buffers = self.recipe.read_buffers(state, kinds)
        own = self._watch is None
        try:
            constants = self.recipe.constants(weights, own, self.place.home)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise WeightError(
                "the constants of the program can't be computed from these weights",
                got=f"{type(error).__name__}: {error}"[:300],
                expected="weights that the module can be called with",
                hint="call the module itself, and mend what torch says",
            ) from error
        jobs = [(step.kernel, packed(step, constants)) for step in self.steps]
        steps = [
            replace(step, runner=runner) if values else step
            for step, runner, (_, values) in zip(
                self.steps, build_kernels(jobs, self._backends), jobs, strict=True
            )
        ]
        # Nothing may fail from here on.
        self._hold(constants)
        self.steps = tuple(steps)
        if not own:
            module = state if isinstance(state, torch.nn.Module) else None
            self._watch = Watch.of(module, self.recipe, weights)
        self._bind_state(buffers)
        self._compile()

    def _refresh_original(self, state: State) -> None:
        """``refresh`` of a program that is its original: call the given module from now on."""
        if type(state) is not type(self.original) or not isinstance(state, torch.nn.Module):
            raise WeightError(
                "this program is the original module, and can only become another such module",
                got=type(state).__name__,
                expected=type(self.original).__name__,
                hint="give the module, not its state_dict",
            )
        self._call_as_it_is(state)
        self._plain = None  # that program would have the old weights

    def state(self) -> tuple[torch.Tensor, ...]:
        """The buffers of the module that the program reads as inputs after the call's arguments,
        and writes back."""
        return getattr(self.calling, "buffers", ())

    def _bind_state(self, buffers: Sequence[torch.Tensor]) -> None:
        """Read and write these buffers in place of the current ones; an empty sequence changes
        nothing."""
        old = {id(x): n for n, x in enumerate(self.state())}
        calling: Any = self.calling
        if buffers:
            self.calling = replace(calling, buffers=tuple(buffers))
            self._calls = Calls(self.calling)
            self.mutations = {k: buffers[old[id(x)]] for k, x in self.mutations.items()}

    def constant_bytes(self) -> int:
        """The bytes of the constants that the program holds for itself, packed copies included,
        memory shared with the module's weights excluded."""
        shared = self._watch.storages() if self._watch is not None else frozenset()
        distinct: dict[int, int] = {}
        packed = (x for step in self.steps for x in held(step.runner))
        for x in (*self.constants.values(), *packed):
            if x.layout == torch.strided:
                memory = x.untyped_storage()
                if memory.data_ptr() not in shared:
                    distinct[memory.data_ptr()] = memory.nbytes()
            else:  # a tensor in oneDNN's own layout
                distinct[id(x)] = x.numel() * x.element_size()
        return sum(distinct.values())

    def scratch_bytes(self) -> int:
        """The most bytes that a generated kernel of the program takes for itself while it runs."""
        return max(map(scratch_bytes, {step.kernel for step in self.steps}), default=0)

    # ---- copies -----------------------------------------------------------------------------

    def __copy__(self) -> CompiledProgram:
        made = type(self).__new__(type(self))
        made.__dict__ = dict(self.__dict__)
        made._buffers = dict(self._buffers)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledProgram:
        """A copy with its own buffers, report and original. Constants and kernels are shared, since
        nobody changes them."""
        made = self.__copy__()
        memo[id(self)] = made
        made.report = copy.deepcopy(self.report, memo)
        if self.original is not None:
            made._call_as_it_is(copy.deepcopy(self.original, memo))
        made._bind_state([copy.deepcopy(x, memo) for x in self.state()])
        return made

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle the program as the bytes of the file that ``save`` would write."""
        from eqsynth.lower import bundle

        return bundle.loads, (bundle.dumps(self),)

    def _compile(self) -> None:
        """Write and compile the code of the steps, and prepare the short way for calls like an
        earlier one (``alike.py``)."""
        given = self.inputs, self.steps, self.outputs, self.constants, self.device
        run, self.source = straight_line(*given)
        self._run, self._alike = self.place.recorded(run), cast("Alike | None", None)
        alone, result = self._calls.result()
        # The short way skips the checks of watched weights, of buffers, of devices and of inputs'
        # memory, so a program that needs one of these doesn't have it.
        checked = self.mutations or self._watch is not None or any(p.memory for p in self.inputs)
        if alone and not checked and self.device == HOST:
            self._alike = Alike(run, list(map(as_read, self.inputs)), result)

    @host_by_default
    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Write the program that was chosen to an ONNX file (opset 20) that passes ONNX's checker.

        Inputs have the names of the module's arguments, outputs are ``output0``, ``output1``, …; a
        program of an ONNX model has the names of that model. If the original was kept, the file
        holds the operators that it was captured as. Where torch raises (x // 0, a position out of
        range) the file gives 0, or whatever its runtime gives.

        Raises:
            UnsupportedOperatorError: ONNX has no such operator; the error names it and its place.
            LoweringError: the program changes buffers, or is an original that wasn't captured.
            EqsynthError: the package ``onnx`` isn't installed.
        """
        from eqsynth.lower.onnx_out.program import write

        write(self._steps(), path)

    @host_by_default
    def to_exported(self) -> torch.export.ExportedProgram:
        """The program that was chosen as an ``ExportedProgram``: operators of torch only, called as
        the module was. Its results are compared with this program's on random inputs. Generated
        kernels don't go with it, so its speed is torch's.

        Raises:
            LoweringError: the program changes buffers, or takes objects that hold tensors, or is an
                original that wasn't captured, or torch can't trace it.
            EquivalenceError: the results of the ``ExportedProgram`` differ.
        """
        from eqsynth.lower.exported import exported

        return exported(self._steps())

    def _steps(self) -> CompiledProgram:
        """The program as steps: this one, or, if the original was kept, the program of its captured
        operators where that is known."""
        if self._watch is not None:
            self._watch.check()
        return self if self.original is None or self._plain is None else self._plain()

    def explain(self, form: str = "summary") -> Any:
        """Why the program is equal to the original.

        Args:
            form: ``summary``: a headline for each region that was changed, and what each step
                changed in it. ``full``: every step with the whole program that it was applied to,
                as text.

        Raises:
            EqsynthError: there is no such form.
        """
        if form not in ("summary", "full"):
            raise EqsynthError(
                f"explain: there is no form {form!r}",
                got=repr(form),
                expected="'summary', 'full'",
                hint="explain() is the summary",
            )
        found = self._explanation() if callable(self._explanation) else self._explanation
        return getattr(found, "full", found) if form == "full" else found

    def train(self, mode: bool = True) -> CompiledProgram:
        """Do nothing, and return the program: it was optimized in evaluation mode and stays in
        it."""
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> CompiledProgram:
        """Refuse ``to``, ``half``, ``cuda`` and the like, unless the dtypes and the device stay the
        same."""
        probe = torch.zeros(1, device=self.device)
        result = fn(probe)
        if (result.device, result.dtype) != (probe.device, probe.dtype):
            raise LoweringError(
                what="a compiled program can't be moved or cast",
                got=f"{result.dtype} on {result.device}",
                expected=f"its own dtypes, on {self.device}",
                hint="move or cast the original module, and optimize that",
            )
        return self

    def __repr__(self) -> str:
        if self.original is not None:
            return f"{type(self).__name__}(original={type(self.original).__name__})"
        return listing(type(self).__name__, self.inputs, self.steps, self.outputs)

    def _repr_html_(self) -> str:
        told = str(self.report) if self.report is not None else ""
        return notebook.code(told) + notebook.folded("program", repr(self))
