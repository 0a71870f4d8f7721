"""Turns the log of a saturation into a proof forest over ground programs, and proofs back into IR.

A node of a ground term has a head, the constructor with its literals, and children, which are
terms. A literal is stored with its Python type, since 1, 1.0 and True are equal as dict keys. Not
here: proofs of generic terms (``proof.py``, ``chains.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from eqsynth.egraph.chains import Step, chain
from eqsynth.egraph.encode import (
    decode_index,
    decode_scalar,
    decode_tensor,
    encode_index,
    encode_tensor,
)
from eqsynth.egraph.graph import Log
from eqsynth.egraph.proof import Justification, Lemma, ProofForest
from eqsynth.egraph.snapshot import Handle, handles_in
from eqsynth.egraph.terms import Term
from eqsynth.ir.index import Index
from eqsynth.ir.operators import Operator
from eqsynth.ir.scalar import Scalar
from eqsynth.ir.tensor import Op, Tensor, args_of, topological

_INDICES = frozenset({"It", "INum", "IAdd", "IMul", "IDiv", "IMod", "IMin", "IMax"})
_SCALARS = frozenset({"Num", "Read", "Prod", "Sum", "Call", "Value", "Convert"})
_OUTPUTS = "Outputs"

AFFINE_FORM = "affine-form"
"""The rule name of the step from an index to its affine form, computed by ``ir/index.py``."""

Value = Tensor | Scalar | Index | tuple[Tensor, ...]


@dataclass(frozen=True)
class _Literal:
    """A literal with its type; a float is stored as text, so that -0.0 and 0.0 differ."""

    kind: str
    text: str

    @staticmethod
    def of(value: Any) -> _Literal:
        return _Literal(type(value).__name__, repr(value))

    def value(self) -> Any:
        if self.kind == "float":
            return float(self.text)
        return int(self.text) if self.kind == "int" else self.text[1:-1]


class Derivation:
    """A proof forest of programs, from IR terms and the equalities of saturation logs."""

    def __init__(self) -> None:
        self.forest = ProofForest()
        self._tensors: dict[Tensor, Term] = {}
        self._decoded: dict[Term, Any] = {}
        self._defined: dict[str, Operator] = {}

    # ---- putting in ------------------------------------------------------------

    def tensor(self, root: Tensor) -> Term:
        """Return the ground term of an IR term."""
        for term in topological([root]):
            if term not in self._tensors:
                parts = {arg: Handle(self._tensors[arg]) for arg in args_of(term)}
                ground = self._ground(encode_tensor(term, parts), None)
                self._tensors[term] = ground
                if isinstance(term, Op) and term.origin:
                    self._decoded.setdefault(ground, term)  # keeps ``origin``, which a log hasn't
        return self._tensors[root]

    def outputs(self, roots: tuple[Tensor, ...]) -> Term:
        """Return the ground term of a whole program."""
        return self.forest.add((_OUTPUTS, len(roots)), [self.tensor(root) for root in roots])

    def add_log(self, log: Log, leaves: Mapping[Tensor, Tensor]) -> None:
        """Add the equalities of a log.

        Args:
            leaves: input or weight of the logged program -> the term of this program that it
                stands for.
        """
        self._defined.update(log.defined)
        names = {_leaf_key(leaf): self.tensor(image) for leaf, image in leaves.items()}
        grounds: dict[int, Term] = {}

        def handle(number: int) -> Term:
            # Iterative: definitions form a DAG that may be deep.
            stack = [number]
            while stack:
                top = stack[-1]
                if top in grounds:
                    stack.pop()
                    continue
                definition = log.definitions[top]
                missing = [n for n in handles_in(definition) if n not in grounds]
                if missing:
                    stack.extend(missing)
                    continue
                key = _leaf_key_of(definition)
                grounds[top] = (
                    names[key] if key in names else self._ground(definition, grounds.__getitem__)
                )
                stack.pop()
            return grounds[number]

        for equality in log.equalities:
            for number in (*handles_in(equality.left), *handles_in(equality.right)):
                handle(number)
            left = self._ground(equality.left, handle)
            right = self._ground(equality.right, handle)
            if left != right:
                self.forest.union(left, right, Justification(equality.rule))

    def _ground(self, term: Any, handle: Any) -> Term:
        """Return a nested tuple as a term; ``handle`` returns the term of a handle."""
        done: dict[int, Term] = {}  # by object: bodies share their parts

        def ground(term: Any) -> Term:
            if isinstance(term, Handle):
                return term.n if handle is None else int(handle(term.n))
            if id(term) not in done:
                children: list[Term] = []
                head = (term[0], tuple(shape(value, children) for value in term[1:]))
                done[id(term)] = self.forest.add(head, children)
            return done[id(term)]

        def shape(value: Any, children: list[Term]) -> Any:
            if isinstance(value, Handle) or (
                isinstance(value, tuple) and value and isinstance(value[0], str)
            ):
                children.append(ground(value))
                return None
            if isinstance(value, list | tuple):
                return tuple(shape(part, children) for part in value)
            return _Literal.of(value)

        return ground(term)

    # ---- taking out --------------------------------------------------------------

    def chain(self, before: Term, after: Term, max_steps: int) -> list[Step]:
        """Return the steps from one whole program to the other.

        Raises:
            EquivalenceError: nothing in the logs makes them equal.
            ExplanationTooLong: there are more than ``max_steps``.
        """
        self._read_affine(before, after)
        return chain(self.forest, before, after, max_steps=max_steps)

    def lemmas(self, before: Term, after: Term) -> list[Lemma]:
        """Return the proof that two programs are equal; the last lemma states it.

        Raises:
            EquivalenceError: nothing in the logs makes them equal.
        """
        self._read_affine(before, after)
        return self.forest.lemmas(before, after)

    def _read_affine(self, before: Term, after: Term) -> None:
        """If the logs don't make two programs equal, add that indices equal their affine forms.

        Laws read and write indices in affine form, with the terms in a fixed order. The logged
        equalities of indices lead to the same sum in another order of terms. So each operation over
        the least forms of its arguments is set equal to its affine form here.
        """
        changed = not self.forest.equal(before, after)
        while changed:
            changed = False
            bank, least = self.forest.bank, dict[Term, Term]()
            indices = [t for t in self.forest.terms() if bank[t].head[0] in _INDICES]  # type: ignore[index]
            for term in sorted(indices, key=lambda term: len(str(self.decode(term)))):
                least.setdefault(self.forest.class_of(term), term)
            form = {term: least[self.forest.class_of(term)] for term in indices}
            for term in indices:
                same = self.forest.add(bank[term].head, [form[p] for p in bank[term].children])
                affine = self._ground(encode_index(self.decode(same)), None)
                if not self.forest.equal(same, affine):
                    self.forest.union(same, affine, Justification(AFFINE_FORM, "computation"))
                    changed = True

    def tensors(self, whole: Term) -> dict[Tensor, Term]:
        """Return the tensors in a ground term, each with its ground term."""
        self.decode(whole)
        found = {self._decoded[sub]: sub for sub in self.forest.bank.subterms(whole)
                 if isinstance(self._decoded[sub], Tensor)}  # fmt: skip
        return found

    def outputs_of(self, whole: Term) -> tuple[Tensor, ...]:
        """Return the outputs of a whole program; the inverse of :meth:`outputs`."""
        found = self.decode(whole)
        assert isinstance(found, tuple) and not isinstance(found, Index)
        return found

    def decode(self, term: Term) -> Value:
        """Return a ground term as IR: a tensor, scalar or index, or the outputs of a program."""
        bank = self.forest.bank
        for sub in bank.subterms(term):
            if sub in self._decoded:
                continue
            head: Any = bank[sub].head
            name, pattern = head
            parts = iter([self._decoded[child] for child in bank[sub].children])
            if name == _OUTPUTS:
                self._decoded[sub] = tuple(parts)
                continue

            def fill(shape: Any, parts: Any = parts) -> Any:
                if shape is None:
                    return next(parts)
                if isinstance(shape, tuple):
                    return tuple(fill(part) for part in shape)
                return shape.value()

            args = [fill(shape) for shape in pattern]
            decode: Any = partial(decode_tensor, defined=self._defined)
            if name in _INDICES:
                decode = decode_index
            elif name in _SCALARS:
                decode = decode_scalar
            self._decoded[sub] = decode(name, args)
        result: Value = self._decoded[term]
        return result


def _leaf_key(leaf: Tensor) -> tuple[str, str]:
    return (type(leaf).__name__, leaf.label)


def _leaf_key_of(definition: Any) -> tuple[str, str] | None:
    if isinstance(definition, tuple) and definition[0] in ("Input", "Weight"):
        return (definition[0], definition[1])
    return None
