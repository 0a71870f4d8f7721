"""How the constants of a program are computed from the weights of the user's module.

Example: the constant ``constant0`` is the term ``Permute(weight, (1, 0))``, and ``weight`` is
``layers.0.weight`` of the module. With this recipe a program takes new weights
(``CompiledProgram.refresh``), and ``Watch`` notices that a weight which the program shares with the
module has changed.

Not here: evaluating terms (``constant_values.py``), sampling memory (``samples.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from eqsynth.errors import WeightError
from eqsynth.ir.tensor import Tensor, Weight, topological
from eqsynth.ir.types import TensorType
from eqsynth.lower.constant_values import evaluate_constant
from eqsynth.lower.samples import Samples, is_in_memory
from eqsynth.lower.torch_scalars import as_bytes

State = torch.nn.Module | Mapping[str, torch.Tensor]
"""New weights: a module, or tensors by name as ``state_dict`` gives them."""

# Attributes that every module has and that don't change what it computes in evaluation mode.
_OF_ANY_MODULE = frozenset(torch.nn.Module().__dict__)


@dataclass(frozen=True)
class Recipe:
    """How the constants of a program are computed.

    Attributes:
        terms: for each constant, a term over weights.
        paths: for each weight, the names under which the module holds it; several if it is tied. A
            tensor that was made while the module was captured has no name, and is in ``kept``.
        kept: the values of the weights without a name.
        fixed: digests, by name in the module, of tensors whose values the plan relies on: new
            weights must have the same ones.
        settings: other values that the module computes with (``settings_of``) and that must stay.
        buffers: names of the tensors that the program changes, in the order of its inputs.
        opaque: for each ``Opaque`` operator in ``terms``, the function that runs it.
    """

    terms: Mapping[str, Tensor] = field(default_factory=dict)
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    kept: Mapping[str, torch.Tensor] = field(default_factory=dict)
    fixed: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    buffers: tuple[str, ...] = ()
    opaque: Mapping[str, Callable[..., torch.Tensor]] = field(default_factory=dict)

    def weights(self) -> dict[str, TensorType]:
        """The weights that the constants are computed from, with their types."""
        leaves = topological(list(self.terms.values()))
        return {leaf.name: leaf.type for leaf in leaves if isinstance(leaf, Weight)}

    def read(self, state: State) -> dict[str, torch.Tensor]:
        """The values of the weights in another state.

        Raises:
            WeightError: a weight is missing or has another type, tied weights differ, a weight
                holds NaN or infinity, or a value that the plan relies on has changed.
        """
        self._unchanged(state)
        values = {}
        for name, kind in self.weights().items():
            paths = self.paths.get(name, ())
            if not paths:
                values[name] = self.kept[name]
                continue
            first, *tied = [_found(state, path, kind) for path in paths]
            for path, other in zip(paths[1:], tied, strict=True):
                if not _same_values(first, other):
                    raise WeightError(
                        "weights that were tied when the program was made have different values",
                        where=f"{paths[0]}, {path}",
                        got="two weights",
                        expected="one weight under both names",
                        hint="optimize the module once more",
                    )
            values[name] = first
        for name, value in values.items():
            self._refuse_odd(name, value)
        return values

    def read_buffers(self, state: State, kinds: Sequence[TensorType]) -> list[torch.Tensor]:
        """The buffers of another state that the program is to change; an empty list for a
        ``state_dict``.

        Raises:
            WeightError: a buffer is missing, or has another type than in ``kinds``.
        """
        if not isinstance(state, torch.nn.Module):
            return []
        pairs = zip(self.buffers, kinds, strict=True)
        return [_found(state, path, kind) for path, kind in pairs]

    def _unchanged(self, state: State) -> None:
        """Check that the values which the plan relies on are the same in this state."""
        for path, expected in self.fixed.items():
            # A state_dict has no buffers that aren't persistent; these are as they were.
            if isinstance(state, torch.nn.Module) or tensor_at(state, path) is not None:
                _same(path, digest(_found(state, path, None)), expected)
        if isinstance(state, torch.nn.Module):  # a state_dict has weights only
            found = settings_of(state, self.paths)
            for path in {**self.settings, **found}:
                _same(path, found.get(path, "nothing"), self.settings.get(path, "nothing"))

    def _refuse_odd(self, name: str, value: torch.Tensor) -> None:
        """Refuse NaN and infinity in a weight, unless the weight's values are fixed."""
        paths = self.paths.get(name, ())
        if not value.is_floating_point() or any(path in self.fixed for path in paths):
            return
        if paths and not bool(value.isfinite().all()):
            raise WeightError(
                "a weight holds NaN or infinity",
                where=paths[0],
                got="NaN" if bool(value.isnan().any()) else "infinity",
                expected="numbers, as when the program was made",
                hint="look for the step of training that made it, or optimize the module once more",
            )

    def constants(
        self,
        weights: Mapping[str, torch.Tensor],
        own: bool = True,
        device: torch.device | None = None,
    ) -> dict[str, torch.Tensor]:
        """Compute the values of the constants.

        Args:
            own: whether a constant that shares memory with a weight is copied.
            device: the device that holds them in the end. They are computed on the CPU, where the
                opaque operators among them were captured.
        """
        values = {name: value.cpu() for name, value in weights.items()}
        taken = storages(values.values())
        made = {
            name: owned(evaluate_constant(term, values, self.opaque), taken, own)
            for name, term in self.terms.items()
        }
        return made if device is None else {name: x.to(device) for name, x in made.items()}


def owned(value: torch.Tensor, taken: frozenset[int], own: bool) -> torch.Tensor:
    """The value, or a copy of it if its memory is in ``taken`` and mustn't be shared. A tensor of
    inference mode has no version counter, so nobody would notice a change: it is always copied."""
    if not (own or value.is_inference()) or not storages([value]) & taken:
        return value
    return value.clone(memory_format=torch.preserve_format)


def copied(value: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own, except that elements which ``expand`` repeats stay one element
    in memory: all elements of ``x.expand(1 << 36, 3)`` are more than a machine holds."""
    if value.layout != torch.strided or 0 not in value.stride():
        return value.clone()
    once = tuple(slice(0, 1) if step == 0 else slice(None) for step in value.stride())
    return value[once].clone().expand(value.shape)


def storages(values: Iterable[torch.Tensor]) -> frozenset[int]:
    """The addresses at which the memory of dense tensors begins; tensors without elements have
    none."""
    dense = (x for x in values if x.layout == torch.strided and x.numel())
    return frozenset(x.untyped_storage().data_ptr() for x in dense)


# ---- names in a module ----------------------------------------------------------------------


def settings_of(module: torch.nn.Module, paths: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """The values besides weights that a module computes with, as text: the classes of its
    submodules, and their attributes that are plain values, or tensors that aren't weights of the
    program."""
    weights = {path for known in paths.values() for path in known}
    own = storages([*module.parameters(), *module.buffers()])
    found = {}
    for place, part in module.named_modules():
        found[place or "forward"] = type(part).__qualname__
        for name, value in vars(part).items():
            path = f"{place}.{name}" if place else name
            if name not in _OF_ANY_MODULE and path not in weights:
                text = _text(value, own)
                if text is not None:
                    found[path] = text
    return found


def _text(value: Any, own: frozenset[int]) -> str | None:
    """A plain value as text, different for different values; None for any other object. For tensors
    that share memory with the module's own (as a list of its weights) the text doesn't tell their
    values."""
    if isinstance(value, torch.Tensor):
        return "a weight" if storages([value]) & own else digest(value)
    if value is None or isinstance(value, bool | int | float | complex | str | torch.dtype):
        return repr(value)
    if isinstance(value, list | tuple | dict):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        parts = [(_text(key, own), _text(part, own)) for key, part in pairs]
        return f"{type(value).__name__}{parts}"
    return None


def digest(value: torch.Tensor) -> str:
    """A text of a tensor's dtype, shape and bits."""
    plain = value.detach()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    plain = plain.cpu().resolve_conj().resolve_neg()
    bits = hashlib.blake2b(as_bytes(plain).numpy().tobytes(), digest_size=12)
    return f"{value.dtype}{list(value.shape)} {bits.hexdigest()}"


def place_of(module: torch.nn.Module, path: str) -> tuple[dict[str, Any], str] | None:
    """The dictionary in which a module keeps the tensor of this name, and the tensor's key
    there."""
    *parts, name = path.split(".")
    part: Any = module
    for step in parts:
        part = _at(getattr(part, "_modules", {}), step)
        if part is None:
            return None
    for where in (part._parameters, part._buffers, vars(part)):
        if isinstance(_at(where, name), torch.Tensor):
            return where, name
    return None


def _at(where: Any, key: str) -> Any:
    """The value at a key; None if there is none. The dictionaries of a TorchScript module have no
    ``get``."""
    return where[key] if key in where else None  # noqa: SIM401


def tensor_at(state: State, path: str) -> torch.Tensor | None:
    """The tensor of this name in a state; None if there is none."""
    if isinstance(state, torch.nn.Module):
        place = place_of(state, path)
        return None if place is None else place[0][place[1]]
    found = state.get(path)
    return found if isinstance(found, torch.Tensor) else None


def _found(state: State, path: str, kind: TensorType | None) -> torch.Tensor:
    """The tensor of this name and type; an error if there is none."""
    value = tensor_at(state, path)
    if value is None:
        raise WeightError(
            "a weight of the program is missing",
            where=path,
            got="nothing of this name",
            expected="a tensor" if kind is None else str(kind),
            hint="give the module itself: a state_dict has no buffers that aren't persistent",
        )
    if kind is not None and (
        tuple(value.shape) != kind.shape or str(value.dtype) != f"torch.{kind.dtype}"
    ):
        raise WeightError(
            "a weight has another shape or dtype than when the program was made",
            where=path,
            got=f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}",
            expected=str(kind),
            hint="the plan is for these shapes: optimize the module once more",
        )
    return value.detach()


def _same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same values: they share memory, or their digests agree."""
    same = one.data_ptr() == other.data_ptr() and one.stride() == other.stride()
    return same or digest(one) == digest(other)


def _same(path: str, got: str, expected: str) -> None:
    if got != expected:
        raise WeightError(
            "a value that the program relies on has changed",
            where=path,
            got=got[:200],
            expected=expected[:200],
            hint="optimize the module once more",
        )


# ---- weights that are shared ----------------------------------------------------------------


class Watch:
    """Notices that a tensor was changed in place, or that its module holds another tensor
    instead."""

    def __init__(
        self, entries: Iterable[tuple[str, dict[str, Any], str]], sampled: bool = False
    ) -> None:
        """
        Args:
            entries: for each tensor a name for messages, and the dictionary and the key at which it
                stands.
            sampled: whether to look also for changes that torch doesn't count (``Samples``).
        """
        self._entries: list[tuple[str, dict[str, Any], str, torch.Tensor, int, int]] = []
        for name, where, key in entries:
            x = where[key]
            if not x.is_inference():
                self._entries.append((name, where, key, x, x._version, x.data_ptr()))
        self._sampled = [e for e in self._entries if sampled and is_in_memory(e[3])]
        self._samples = Samples(entry[3] for entry in self._sampled)

    @staticmethod
    def of(module: torch.nn.Module | None, recipe: Recipe, weights: Mapping[str, torch.Tensor]
           ) -> Watch:  # fmt: skip
        """A watch over the weights that a recipe reads: at their places in the module, or over the
        tensors themselves where the module has no place for them."""

        def entries() -> Iterator[tuple[str, dict[str, Any], str]]:
            for name in recipe.weights():
                found = False
                for path in recipe.paths.get(name, ()):
                    place = None if module is None else place_of(module, path)
                    if place is not None:
                        found = True
                        yield (path, *place)
                if not found:
                    yield name, {name: weights[name]}, name

        return Watch(entries(), sampled=True)

    @staticmethod
    def of_parameters(module: torch.nn.Module) -> Watch:
        """A watch over a module's own parameters. Its buffers aren't watched: the module may change
        them."""
        return Watch(
            (f"{place}.{name}" if place else name, part._parameters, name)
            for place, part in module.named_modules()
            for name, value in part._parameters.items()
            if value is not None
        )

    def storages(self) -> frozenset[int]:
        """The addresses at which the memory of the tensors begins."""
        return storages(entry[3] for entry in self._entries)

    def check(self) -> None:
        """Check that no tensor has changed.

        Raises:
            WeightError: a tensor has changed.
        """
        for name, where, key, x, version, pointer in self._entries:
            now = _at(where, key)
            if now is not x or x._version != version or x.data_ptr() != pointer:
                raise _changed(name, "another tensor" if now is not x else "a change in place")
        if self._samples.changed():
            name = self._sampled[self._samples.which()][0]
            raise _changed(name, "a change in place, through .data or NumPy")


def _changed(where: str, got: str) -> WeightError:
    return WeightError(
        "a weight has changed since the program was made",
        where=where,
        got=got,
        expected="the weights that the program was made from",
        hint="call program.refresh(module), or optimize with own_constants=True",
    )
