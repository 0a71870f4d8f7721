"""Reads egglog's tables as plain data: e-nodes, rows of relations, values of functions.

A row or e-node that was read before is returned as the same object, so that callers can cache what
they know of it by ``id``. Not here: what constructors mean (``view.py``), running rules
(``engine.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from eqsynth.egraph.snapshot import EClass, ENode, Handle
from eqsynth.rules.bindings import egg
from eqsynth.rules.sorts import Declarations

Classes = tuple[dict[EClass, list[ENode]], dict[Handle, EClass]]
Functions = Mapping[str, Any]


class Reader:
    """Decodes the rows of one e-graph."""

    def __init__(self, egraph: egg.EGraph, known: Declarations) -> None:
        self._egraph, self._known = egraph, known
        self._decoders: dict[str, Callable[[Any], Any]] = {}
        self._vectors: list[dict[Any, tuple[Any, ...]]] = []
        # Relations and functions, by name.
        self.tables = tuple(n for n, s in known.signatures.items() if s.kind != "constructor")
        # Table -> (the engine's values of a row -> the decoded row).
        self._rows: defaultdict[str, dict[Any, tuple[Any, ...]]] = defaultdict(dict)
        self._enodes: defaultdict[str, dict[Any, ENode]] = defaultdict(dict)

    def changed(self) -> None:
        """Forget decoded vectors: after a union of e-classes they may hold other ones."""
        for vectors in self._vectors:
            vectors.clear()

    def classes(self, functions: Functions) -> Classes:
        """Return the e-nodes of every e-class, and the e-classes of the handles."""
        classes: dict[EClass, list[ENode]] = {}
        handles: dict[Handle, EClass] = {}
        for name, signature in self._known.signatures.items():
            if signature.kind != "constructor":
                continue
            to_class = self.decoder(signature.output)
            if name == "Tok":
                for row in functions[name].rows:
                    number_of_handle = self._egraph.value_to_i64(row.inputs[0])
                    if number_of_handle >= 0:  # a negative number is a name of ``commands.py``
                        handles[Handle(number_of_handle)] = to_class(row.output)
                        classes.setdefault(to_class(row.output), [])
                continue
            decoders = [self.decoder(sort) for sort in signature.inputs]
            vectors = self._vectors_of_classes(signature.inputs)
            enodes = self._enodes[name]
            for row in functions[name].rows:
                values = tuple(row.inputs)
                enode = enodes.get(values)
                if enode is None or not all(
                    [enode.args[at] is decoders[at](values[at]) for at in vectors]
                ):
                    args = [decode(v) for decode, v in zip(decoders, values, strict=True)]
                    enode = enodes[values] = ENode(name, tuple(args))
                classes.setdefault(to_class(row.output), []).append(enode)
        return classes, handles

    def rows(self, name: str, functions: Functions) -> list[tuple[Any, ...]]:
        """Return the rows of one relation, or of one function with its values."""
        signature = self._known.signatures[name]
        sorts = signature.inputs
        if signature.kind == "function":
            sorts = (*sorts, signature.output)
        decoders = [self.decoder(sort) for sort in sorts]
        if signature.kind == "function":
            return [
                tuple([d(v) for d, v in zip(decoders, (*row.inputs, row.output), strict=True)])
                for row in functions[name].rows
            ]
        known, result = self._rows[name], []
        vectors = self._vectors_of_classes(sorts)
        # 0.0 and -0.0 are equal in Python, but are different rows.
        floats = [at for at, sort in enumerate(sorts) if sort == "f64"]
        for row in functions[name].rows:
            values = tuple(row.inputs)
            decoded = None if vectors else known.get(values)
            if decoded is None:
                decoded = tuple([d(value) for d, value in zip(decoders, values, strict=True)])
                key = (decoded, *(values[at] for at in floats)) if vectors else values
                decoded = known.setdefault(key, decoded)
            result.append(decoded)
        return result

    def _vectors_of_classes(self, sorts: Sequence[str]) -> list[int]:
        """Return the columns with vectors of e-classes: the e-classes may get other numbers while
        the vector keeps its number."""
        known = self._known
        return [at for at, sort in enumerate(sorts) if known.vecs.get(sort) in known.eq_sorts]

    def decoder(self, sort: str) -> Callable[[Any], Any]:
        """Return the decoder of a sort's values. A decoded e-class is cached for good, a decoded
        vector of e-classes until ``changed``."""
        if sort not in self._decoders:
            self._decoders[sort] = self._new_decoder(sort)
        return self._decoders[sort]

    def _new_decoder(self, sort: str) -> Callable[[Any], Any]:
        egraph, known = self._egraph, self._known
        if sort in known.vecs:
            element = self.decoder(known.vecs[sort])
            seen: dict[Any, tuple[Any, ...]] = {}
            last: dict[Any, tuple[Any, ...]] = {}
            if known.vecs[sort] in known.eq_sorts:
                self._vectors.append(seen)

            def decode(value: Any) -> tuple[Any, ...]:
                found = seen.get(value)
                if found is None:
                    found = tuple(map(element, egraph.value_to_vec(value)))
                    # A vector whose elements haven't changed stays the same object.
                    if last.get(value) == found:
                        found = last[value]
                    seen[value] = last[value] = found
                return found

            return decode
        if sort in known.eq_sorts:
            classes: dict[Any, EClass] = {}

            def to_class(value: Any) -> EClass:
                found = classes.get(value)
                if found is None:
                    found = classes[value] = EClass(sort, number(value))
                return found

            return to_class
        return {
            "i64": egraph.value_to_i64,
            "f64": egraph.value_to_f64,
            "String": egraph.value_to_string,
            "bool": egraph.value_to_bool,
        }[sort]


class Rows(Mapping[str, list[tuple[Any, ...]]]):
    """The rows of one frozen e-graph, decoded on first access, since most tables are never read."""

    def __init__(self, reader: Reader, functions: Functions) -> None:
        self._reader, self._functions = reader, functions
        self._names = reader.tables
        self._done: dict[str, list[tuple[Any, ...]]] = {}

    def __getitem__(self, name: str) -> list[tuple[Any, ...]]:
        if name not in self._done:
            if name not in self._names:
                raise KeyError(name)
            self._done[name] = self._reader.rows(name, self._functions)
        return self._done[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __reduce__(self) -> tuple[Any, ...]:
        return (dict, (dict(self),))


def number(value: Any) -> int:
    """Return the number of an egglog value, which only its text, `Value(17)`, contains."""
    return int(str(value)[6:-1])
