"""A snapshot decoded into IR, for derivations: ``(Relu %3)`` is ``Op("Relu", (ClassRef(3, …),))``.

E-classes of tensors are leaves (:class:`ClassRef`). An e-class of indices or scalars is decoded as
its smallest member. The type of every decoded operator is inferred and compared with the type of
its e-class; if they differ, some rule is unsound.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

from eqsynth.egraph.encode import (
    NONE_DEFINED,
    decode_index,
    decode_scalar,
    decode_tensor,
    scope_as,
)
from eqsynth.egraph.snapshot import EClass, ENode, Snapshot
from eqsynth.errors import SaturationError
from eqsynth.ir.index import Index
from eqsynth.ir.operators import Operator
from eqsynth.ir.outline import Outline, Places, outline
from eqsynth.ir.printing import render_alone
from eqsynth.ir.scalar import Scalar
from eqsynth.ir.tensor import ClassRef, Op, Scope, Tensor, args_of, over
from eqsynth.rules.definitions import Case

Members = dict[ClassRef, tuple[Tensor, ...]]
State = tuple[bytes, int, int]


class Decoded:
    """The cache of decoded e-nodes for the views of one session.

    A cached term is still right if the terms of the e-classes among the e-node's arguments are the
    same as before, since an e-class may change while its number stays. The engine returns the same
    object for an e-node as long as the e-node exists, so the cache is keyed by ``id``.
    """

    def __init__(self) -> None:
        self.terms: dict[int, tuple[list[Any], Any]] = {}
        self._parts: dict[int, tuple[ENode, tuple[EClass, ...]]] = {}

    def parts(self, node: ENode) -> tuple[EClass, ...]:
        """Return the e-classes among the arguments, also inside of vectors."""
        known = self._parts.get(id(node))
        if known is None or known[0] is not node:
            known = self._parts[id(node)] = node, tuple(_classes_in(node.args))
        return known[1]


def _classes_in(args: tuple[Any, ...]) -> Iterator[EClass]:
    for arg in args:
        if isinstance(arg, EClass):
            yield arg
        elif isinstance(arg, tuple):
            yield from _classes_in(arg)


class View:
    """Read access to a snapshot in which every Tensor e-class has a handle and a type.

    Attributes:
        meanings: built-in operator -> the cases of its definition in a rule file.
    """

    def __init__(
        self, snapshot: Snapshot, refs: Mapping[EClass, ClassRef], decoded: Decoded,
        defined: Mapping[str, Operator] = NONE_DEFINED,
        meanings: Mapping[str, tuple[Case, ...]] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.snapshot = snapshot
        self.meanings = meanings
        self._decode_tensor = partial(decode_tensor, defined=defined)
        self.refs = refs
        self._decoded = decoded
        self._states: dict[int, State] = {}
        self._by_handle = {handle.n: eclass for handle, eclass in snapshot.handles.items()}
        self._scalars: dict[EClass, Scalar] = {}
        self._indices: dict[EClass, Index] = {}
        self._members: dict[EClass, tuple[Tensor, ...]] = {}
        self._found: dict[tuple[Any, Scope], Any] = {}

    def eclass(self, ref: ClassRef) -> EClass:
        return self._by_handle[ref.handle]

    def by_handle(self, handle: int) -> EClass:
        return self._by_handle[handle]

    def renew(self, rows: Mapping[str, list[tuple[Any, ...]]]) -> None:
        """Replace the rows by the current ones. Only requests may have been added to the e-graph
        since the snapshot, so that its e-classes are unchanged."""
        self.snapshot = replace(self.snapshot, rows=rows)

    def state(self, handle: int) -> State:
        """Return the state of a handle's e-class: its sort key, its number of e-nodes, and the sum
        of the sizes of its scopes' bodies. The state differs if the e-class has new members, or
        members whose bodies are smaller now."""
        if handle not in self._states:
            eclass = self._by_handle[handle]
            nodes = self.snapshot.classes[eclass]
            bodies = sum(self._sizes[node.args[-1]] for node in nodes if node.function == "Scope")
            self._states[handle] = self.refs[eclass].order, len(nodes), bodies
        return self._states[handle]

    def body_size(self, row: tuple[Any, ...]) -> int:
        """Return the current size of a request's body, which rules of indices may have made
        smaller; 0 for a request without a body."""
        body = row[-1]
        if not isinstance(body, EClass) or body.sort == "Tensor":
            return 0
        return self._sizes[body]

    def size_of(self, body: EClass) -> int | None:
        """Return the size of an index or scalar e-class; None if the number is no longer valid."""
        return self._sizes.get(body)

    def current(self, ref: ClassRef) -> ClassRef:
        """Return this view's reference to an e-class of an earlier view."""
        return self.refs[self.eclass(ref)]

    def members(self, ref: ClassRef) -> tuple[Tensor, ...]:
        """Return the e-nodes of an e-class, as terms over references.

        Raises:
            SaturationError: a member has another type than its e-class.
        """
        eclass = self.eclass(ref)
        if eclass not in self._members:
            terms = dict.fromkeys(self.term(node) for node in self.snapshot.classes[eclass])
            known = self.refs[eclass]
            for term in terms:
                if term.type != known.type:
                    raise SaturationError(
                        "a class has members of two types: some rule is unsound",
                        got=render_alone(term),
                        expected=str(known.type),
                    )
            self._members[eclass] = tuple(terms)
        return self._members[eclass]

    def classes(self, terms: Mapping[Tensor, int]) -> tuple[Members, Members]:
        """Return the members of every e-class, and the members that are one of ``terms``.

        Args:
            terms: added terms and their subterms, arguments first -> their handles.
        """
        refs: dict[Tensor, ClassRef] = {}
        original: Members = {}
        for term, handle in terms.items():
            refs[term] = self.refs[self.by_handle(handle)]
            # The term as it was added; a decoded member has the smallest body of its e-class.
            own = (*original.get(refs[term], ()), over(term, refs))
            original[refs[term]] = tuple(dict.fromkeys(own))
        # A class that has become constant equals its reference from before, so terms that are kept
        # by equality may still hold that one: %12[i - 1] with %12 not constant.
        now: dict[Tensor, ClassRef] = {ref: ref for ref in self.refs.values()}

        def of_now(term: Tensor) -> Tensor:
            args = args_of(term)
            stale = any(isinstance(a, ClassRef) and a.constant != now[a].constant for a in args)
            return over(term, now) if stale else term

        everything = {
            ref: tuple(dict.fromkeys(map(of_now, (*self.members(ref), *original.get(ref, ())))))
            for ref in self.refs.values()
        }
        return everything, original

    def scopes(self, ref: ClassRef) -> list[Scope]:
        return [term for term in self.members(ref) if isinstance(term, Scope)]

    def operators(self, ref: ClassRef) -> list[Op]:
        return [term for term in self.members(ref) if isinstance(term, Op)]

    def products_of(self, ref: ClassRef) -> list[Op]:
        """Return the contractions with this e-class as first and a constant as second operand."""
        return self._products.get(ref, [])

    @cached_property
    def _products(self) -> dict[Tensor, list[Op]]:
        found: dict[Tensor, list[Op]] = {}
        for eclass, nodes in self.snapshot.classes.items():
            if any(node.function in ("Matmul", "Conv2d") for node in nodes):
                for op in self.operators(self.refs[eclass]):
                    if op.name in ("Matmul", "Conv2d") and op.args[1].constant:
                        found.setdefault(op.args[0], []).append(op)
        return found

    def places_of(self, outlined: Outline) -> Collection[Places]:
        """Return the places of the sums of products with this outline, without derived scopes."""
        return self._places.get(outlined, ())

    @cached_property
    def _places(self) -> dict[Outline, set[Places]]:
        found: dict[Outline, set[Places]] = {}
        for ref in self.refs.values():
            for scope in () if ref.constant else self.scopes(ref):
                if scope.reduction and scope.reducer == "sum" and scope not in self.derived:
                    outlined, places = outline(scope)
                    found.setdefault(outlined, set()).add(places)
        return found

    @cached_property
    def derived(self) -> frozenset[Scope]:
        """The scopes that are marked as results of a derivation."""
        rows = self.snapshot.rows.get("derived", [])
        return frozenset(scope_as(t, s, self.scalar(b), r) for t, s, r, b in rows)

    @cached_property
    def instantiated(self) -> frozenset[EClass]:
        """The e-classes of terms that are marked as instantiated."""
        return frozenset(row[0] for row in self.snapshot.rows.get("instantiated", []))

    def once(self, law: Callable[[View, Scope], Any], scope: Scope) -> Any:
        """Return ``law(view, scope)``, computed once for this view."""
        key = law, scope
        if key not in self._found:
            self._found[key] = law(self, scope)
        return self._found[key]

    # ---- decoding ----------------------------------------------------------

    def value(self, value: Any) -> Any:
        """Decode any value of a row; e-classes become terms."""
        if isinstance(value, EClass):
            if value.sort == "Tensor":
                return self.refs[value]
            return self.scalar(value) if value.sort == "Scalar" else self.index(value)
        if not isinstance(value, tuple) or not value or not isinstance(value[0], tuple):
            return value
        return tuple([self.value(part) for part in value])

    def term(self, node: ENode) -> Tensor:
        return self._as_before(node, self._decode_tensor)  # type: ignore[no-any-return]

    def scalar(self, eclass: EClass) -> Scalar:
        if eclass not in self._scalars:
            self._scalars[eclass] = self._as_before(self._best[eclass], decode_scalar)
        return self._scalars[eclass]

    def _as_before(self, node: ENode, decode: Callable[[str, Sequence[Any]], Any]) -> Any:
        """Return the term of an e-node: the term object of an earlier view if the decoded arguments
        are the same, so that terms can be compared by identity."""
        now = [self.value(part) for part in self._decoded.parts(node)]
        known = self._decoded.terms.get(id(node))
        if known is not None and all(map(operator.is_, now, known[0])):
            return known[1]
        term = decode(node.function, list(map(self.value, node.args)))
        self._decoded.terms[id(node)] = now, term
        return term

    def index(self, eclass: EClass) -> Index:
        if eclass not in self._indices:
            node = self._best[eclass]
            self._indices[eclass] = self._as_before(node, decode_index)
        return self._indices[eclass]

    @property
    def _best(self) -> dict[EClass, ENode]:
        return self._smallest[0]

    @property
    def _sizes(self) -> dict[EClass, int]:
        return self._smallest[1]

    @cached_property
    def _smallest(self) -> tuple[dict[EClass, ENode], dict[EClass, int]]:
        """Return the smallest member of each index and scalar e-class (ties are broken by the
        member's structure), and its size."""
        parts_of = self._decoded.parts
        work: list[tuple[EClass, ENode, list[EClass]]] = []
        users: defaultdict[EClass, list[tuple[EClass, ENode, list[EClass]]]] = defaultdict(list)
        for eclass, nodes in self.snapshot.classes.items():
            if eclass.sort == "Tensor":
                continue
            for node in nodes:
                parts = [part for part in parts_of(node) if part.sort != "Tensor"]
                entry = eclass, node, parts
                work.append(entry)
                for part in parts:
                    users[part].append(entry)
        cost: dict[EClass, tuple[int, str]] = {}
        best: dict[EClass, ENode] = {}
        while work:
            again: list[tuple[EClass, ENode, list[EClass]]] = []
            for eclass, node, parts in work:
                size = 1
                for part in parts:
                    known = cost.get(part)
                    if known is None:
                        break
                    size += known[0]
                else:
                    key = size, node.function
                    if eclass not in cost or key < cost[eclass]:
                        cost[eclass], best[eclass] = key, node
                        again.extend(users.get(eclass, ()))
            work = again
        return best, {eclass: key[0] for eclass, key in cost.items()}
