"""A compiled program: straight-line Python over kernels, as a ``torch.nn.Module``.

Not here: the steps and the code that runs them (``steps.py``), how a user's arguments become inputs
(``calling.py``), files (``bundle.py``), how constants are made (``weights.py``).
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
    """A program that was lowered. Call it as the module that it was made from.

    Constants are buffers that don't appear in ``state_dict``; there are no parameters, no
    gradients (``backward`` through a result raises), and no difference between training and
    evaluation. Constants are the program's own, so that changes of the module don't reach it
    before ``refresh``; with ``own_constants=False`` those that are weights as they stand are
    shared with the module, and a call after a weight has changed raises. Where the original was
    kept, it is called as it is, and such a call raises too. Buffers that the module changes when it
    is called stay the module's: the program changes them.

    A result that is an argument, or the same tensor as another result, is so here too. Other
    results share no memory with arguments, weights or each other, though a view of an argument
    would do so where the module is called.

    Calls may run at once in several threads, but for programs that change buffers of the user's
    module, as for such modules. ``copy`` and ``pickle`` (``torch.save``) work where ``save`` does.
    Autocast has no influence. What traces or transforms a call (``torch.export``,
    ``torch.jit.trace``, ``torch.func``) is refused.

    Attributes:
        report: what the optimizer has to tell.
        inputs: with the layouts in which they are read.
        steps: in order of execution.
        original: what is called instead of steps, where nothing faster was found.
        examples: makes arguments for the original, of zeros; None if they aren't known.
        place, device: where it runs, and what holds its tensors.
        opens: objects that hold tensors are among its arguments or results (``holders.py``).
        recipe: how the constants are made from the module's weights.
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
            outputs: names of the values that come out.
            constants: values by name; the kernels hold what they need of them, packed.
            mutations: position of an output -> the buffer that its value is copied to after a run.
            explanation: what ``explain()`` gives: an object, or a function that makes it.
            place: where it runs; None for the CPU.
            recipe: how the constants are made; without it they can't be made anew.
            backends: those that built the kernels.
            watch: of the weights with which constants are shared; None if none are.
            loaded: it comes from a file, so that its first call may show that this is damaged.

        Raises:
            LoweringError: a step reads what isn't computed before it.
        """
        super().__init__()
        self.inputs, self.steps, self.outputs = tuple(inputs), tuple(steps), tuple(outputs)
        self.calling, self._calls = calling, Calls(calling)
        self.report, self._explanation = report, explanation
        self.place = place or Place()
        self.device = self.place.device
        self.original: Callable[..., Any] | None = None
        self._owned = frozenset[int]()
        self.examples: Callable[[], Any] | None = None
        self.opens = False
        self._untried, self._plain = loaded, cast("Callable[[], CompiledProgram] | None", None)
        self.recipe, self._backends, self._watch = recipe, tuple(backends), watch
        self.mutations = dict(mutations or {})
        self._hold(constants or {})
        self._compile()
        super().train(False)

    def _hold(self, constants: Mapping[str, torch.Tensor]) -> None:
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
    ) -> CompiledProgram:
        """The original itself, where nothing faster was found: called as it is.

        Args:
            examples: arguments that it takes, by position and by name; of tensors no more than
                shapes and dtypes is kept. Without them the program can't be saved.
            plain: makes the same program of the operators that it was captured as.
        """
        program = cls((), (), (), AsItIs(), report=report, explanation=explanation, loaded=loaded)
        program.examples = None if examples is None else torch_modes.zeros_like(examples)
        program._call_as_it_is(original)
        program._plain = plain
        return program

    def _call_as_it_is(self, original: Callable[..., Any]) -> None:
        # Not a submodule: neither its parameters nor its mode are the program's business.
        self.__dict__["original"] = original
        if isinstance(original, torch.nn.Module):
            # Once: a walk over a large module takes longer than a small one takes to run.
            self._owned = storages((*original.parameters(), *original.buffers()))
            # The programs of several graphs look at the weights themselves, and take new ones.
            several = isinstance(original, Graphs)
            self._watch = None if several else Watch.of_parameters(original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._alike is not None and not hooked(self):
            result = self._alike.call(args, kwargs)
            if result is not UNLIKE:
                return result
        return super().__call__(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs for these arguments, computed without gradients.

        Raises:
            ShapeError, DtypeError: an argument isn't what the program was compiled for.
            WeightError: a weight that isn't the program's own has changed.
            LoweringError: torch traces or transforms the call.
        """
        if not self._untried:
            return self._call(args, kwargs)
        try:
            result = self._call(args, kwargs)
        except EqsynthError:
            raise
        except Exception as error:  # what a damaged file leads to can be anything
            raise LoweringError(
                what="a program that was loaded from a file can't be run",
                got=f"{type(error).__name__}: {error}"[:500],
                expected="inputs that the original takes, and a file that eqsynth wrote",
                hint="if the inputs are right, save the program again",
            ) from error
        self._untried = False
        return result

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
        """A buffer that the program changes is no argument: when it is read would matter."""
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
        """Takes new weights of the same shapes, as after a step of training. Constants are folded
        and packed again by the plan as it is, without a search: in the time of copying them.

        Weights are found by their names in the module; a weight that was tied when the program was
        made has to be so still, or to have one value under all its names. Buffers that the program
        changes are those of the given module from now on.

        Args:
            state: the module, another one of its class, or tensors by name such as its
                ``state_dict()``.

        Raises:
            WeightError: a weight is missing, or has another shape or dtype, or holds NaN or
                infinity (and didn't); weights aren't tied any more; or something has changed that
                the plan relies on (``Recipe.fixed`` and ``settings``). The program is as it was.
        """
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
        if type(state) is not type(self.original) or not isinstance(state, torch.nn.Module):
            raise WeightError(
                "this program is the original module, and can only become another such module",
                got=type(state).__name__,
                expected=type(self.original).__name__,
                hint="give the module, not its state_dict",
            )
        self._call_as_it_is(state)
        self._plain = None  # which has the old weights

    def state(self) -> tuple[torch.Tensor, ...]:
        """The buffers that are read after the arguments of a call, and written back."""
        return getattr(self.calling, "buffers", ())

    def _bind_state(self, buffers: Sequence[torch.Tensor]) -> None:
        old = {id(x): n for n, x in enumerate(self.state())}
        calling: Any = self.calling
        if buffers:
            self.calling = replace(calling, buffers=tuple(buffers))
            self._calls = Calls(self.calling)
            self.mutations = {k: buffers[old[id(x)]] for k, x in self.mutations.items()}

    def constant_bytes(self) -> int:
        """Bytes of the constants that the program holds for itself, packed copies among them."""
        shared = self._watch.storages() if self._watch is not None else frozenset()
        distinct: dict[int, int] = {}
        packed = (x for step in self.steps for x in held(step.runner))
        for x in (*self.constants.values(), *packed):
            if x.layout == torch.strided:
                memory = x.untyped_storage()
                if memory.data_ptr() not in shared:
                    distinct[memory.data_ptr()] = memory.nbytes()
            else:  # packed by oneDNN
                distinct[id(x)] = x.numel() * x.element_size()
        return sum(distinct.values())

    # ---- copies -----------------------------------------------------------------------------

    def __copy__(self) -> CompiledProgram:
        made = type(self).__new__(type(self))
        made.__dict__ = dict(self.__dict__)
        made._buffers = dict(self._buffers)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledProgram:
        """With buffers, report and original of its own. Constants and kernels, which nobody
        changes, are shared."""
        made = self.__copy__()
        memo[id(self)] = made
        made.report = copy.deepcopy(self.report, memo)
        if self.original is not None:
            made._call_as_it_is(copy.deepcopy(self.original, memo))
        made._bind_state([copy.deepcopy(x, memo) for x in self.state()])
        return made

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """A pickle of a program is the file that ``save`` would write."""
        from eqsynth.lower import bundle

        return bundle.loads, (bundle.dumps(self),)

    def _compile(self) -> None:
        given = self.inputs, self.steps, self.outputs, self.constants, self.device
        run, self.source = straight_line(*given)
        self._run, self._alike = self.place.recorded(run), cast("Alike | None", None)
        alone, result = self._calls.result()
        # Weights that are watched, buffers and devices are looked at in each call.
        if alone and not self.mutations and self._watch is None and self.device == HOST:
            self._alike = Alike(run, list(map(as_read, self.inputs)), result)

    @host_by_default
    def to_onnx(self, path: str | os.PathLike[str]) -> None:
        """Writes the program, as it was chosen, to an ONNX file (opset 20) that passes its checker.

        Inputs have their names here, outputs are ``output0``, ``output1``, … Where the original
        stayed it is written operator by operator. Where torch raises (x // 0, a position out of
        range) the file gives 0, or what its runtime does.

        Raises:
            UnsupportedOperatorError: ONNX has no such operator; it is named, with its place.
            LoweringError: the program changes buffers, or is an original that wasn't captured.
            EqsynthError: the package ``onnx`` isn't installed.
        """
        from eqsynth.lower.onnx_out.program import write

        write(self._steps(), path)

    @host_by_default
    def to_exported(self) -> torch.export.ExportedProgram:
        """The program, as it was chosen, by operators of torch: an ``ExportedProgram`` that needs
        torch alone and is called as the module was. It is held against this one on random inputs.
        How fast it is is torch's business: generated kernels don't go with it.

        Raises:
            LoweringError: the program changes buffers, or takes objects that hold tensors, or is
                an original that wasn't captured, or torch can't trace it.
            EquivalenceError: what torch makes of it differs.
        """
        from eqsynth.lower.exported import exported

        return exported(self._steps())

    def _steps(self) -> CompiledProgram:
        """The program of steps: where the original stayed, that of its operators, if known."""
        if self._watch is not None:
            self._watch.check()
        return self if self.original is None or self._plain is None else self._plain()

    def explain(self, form: str = "summary") -> Any:
        """Why the program is equal to the original.

        Args:
            form: ``summary``: a headline for each region that was changed, and what its steps
                changed. ``full``: every step, with the whole of what it was applied to, as text.

        Raises:
            EqsynthError: no such form.
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
        """Nothing: the program is what was optimized, in evaluation mode."""
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> CompiledProgram:
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
