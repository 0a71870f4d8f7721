"""Why two terms are equal: a proof forest over the ground equalities logged during saturation.

From the logged equality x = y it proves f(x) = f(y). Here: congruence closure that records its
edges (`ProofForest`), proofs as lemmas (`Lemma`), and their independent check
(`ProofForest.verify`). Not here: a proof as a chain of whole terms (`chains.py`), the terms
themselves (`terms.py`), terms of the tensor IR (`explanation.py`). No function is recursive, since
terms may be deeper than Python's stack.

Source: Nieuwenhuis and Oliveras, Proof-Producing Congruence Closure (RTA 2005); Flatt et al.,
Small Proofs from Congruence Closure (FMCAD 2022), for shortest paths over all recorded edges.
"""

import heapq
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from eqsynth.egraph.terms import Node, Term, TermBank
from eqsynth.errors import EquivalenceError

Pair = tuple[Term, Term]


@dataclass(frozen=True, slots=True)
class Justification:
    """The reason of a logged equality, by name: a rule, a computed derivation, or a definition."""

    rule: str
    kind: Literal["rule", "computation", "definition"] = "rule"


@dataclass(frozen=True, slots=True)
class Edge:
    """A recorded equality, seen from one of its ends; a congruence if it has no justification."""

    weight: int
    justification: Justification | None
    forward: bool


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a path, which leads to the term `to`: one rule instance, or some congruences."""

    to: Term
    edge: Edge


@dataclass(frozen=True, slots=True)
class Lemma:
    """The proof that two terms are equal: a path from one to the other. A congruence in the path
    changes arguments; earlier lemmas prove that the arguments are equal."""

    pair: Pair
    path: tuple[Segment, ...]


class ProofForest:
    """Congruence closure over logged ground equalities, with explanations.

    >>> forest = ProofForest()
    >>> x, y = forest.add("x"), forest.add("y")
    >>> forest.union(x, y, Justification("x-is-y"))
    >>> before, after = forest.add("f", (x,)), forest.add("f", (y,))
    >>> [lemma.pair in ((x, y), (before, after)) for lemma in forest.lemmas(before, after)]
    [True, True]
    """

    def __init__(self, bank: TermBank | None = None) -> None:
        self.bank = TermBank() if bank is None else bank
        self.log: dict[tuple[Term, Term, str], Justification] = {}
        self._class: dict[Term, Term] = {}  # union-find
        self._size: dict[Term, int] = {}
        self._uses: dict[Term, list[Term]] = {}
        self._signatures: dict[Node, Term] = {}
        # Term -> its parent in the spanning tree of its class; then all edges, of trees and others.
        self._tree: dict[Term, Term] = {}
        self._edges: dict[Term, dict[Term, Edge]] = {}
        self._paths: dict[Pair, tuple[Segment, ...]] = {}

    # ---- congruence closure -------------------------------------------------------------------

    def add(self, head: Hashable, children: Iterable[Term] = ()) -> Term:
        term = self.bank.add(head, children)
        self._register(term)
        return term

    def union(self, a: Term, b: Term, justification: Justification) -> None:
        """Log a = b and close under congruence. An equality that is known already is logged too."""
        self._register(a)
        self._register(b)
        self.log.setdefault((a, b, justification.rule), justification)
        self._merge([(a, b, justification)])

    def terms(self) -> list[Term]:
        """Every term that was added, with its subterms."""
        return list(self._class)

    def class_of(self, term: Term) -> Term:
        """Return the representative of the terms equal to this one; a union may change it."""
        self._register(term)
        return self._find(term)

    def equal(self, a: Term, b: Term) -> bool:
        self._register(a)
        self._register(b)
        return self._find(a) == self._find(b)

    def _register(self, term: Term) -> None:
        # The bank also holds terms that weren't added here, such as intermediate terms of chains,
        # so subterms may be new as well. The subterms of a registered term are registered.
        new, stack = set[Term](), [term]
        while stack:
            sub = stack.pop()
            if sub not in self._class and sub not in new:
                new.add(sub)
                stack += self.bank[sub].children
        for sub in sorted(new):
            self._class[sub], self._size[sub] = sub, 1
            self._uses[sub], self._edges[sub] = [], {}
            for child in dict.fromkeys(map(self._find, self.bank[sub].children)):
                self._uses[child].append(sub)
            self._merge(self._congruences([sub]))

    def _find(self, term: Term) -> Term:
        parent = self._class
        while parent[term] != term:
            parent[term] = parent[parent[term]]
            term = parent[term]
        return term

    def _congruences(self, terms: Iterable[Term]) -> list[tuple[Term, Term, None]]:
        found: list[tuple[Term, Term, None]] = []
        for term in terms:
            node = self.bank[term]
            signature = Node(node.head, tuple(map(self._find, node.children)))
            other = self._signatures.get(signature, term)
            # The newest term represents the signature. Its arguments are near the last union, so
            # edges stay short, and paths don't make a detour to the first term of the signature.
            self._signatures[signature] = term
            if other != term:
                found.append((term, other, None))
        return found

    def _merge(self, found: Sequence[tuple[Term, Term, Justification | None]]) -> None:
        agenda = deque(found)
        while agenda:
            a, b, justification = agenda.popleft()
            if a == b:
                continue
            self._record(a, b, justification)
            root_a, root_b = self._find(a), self._find(b)
            if root_a == root_b:
                continue
            if self._size[root_a] > self._size[root_b]:
                a, b, root_a, root_b = b, a, root_b, root_a
            self._hang(a, b)
            self._class[root_a] = root_b
            self._size[root_b] += self._size.pop(root_a)
            moved = self._uses.pop(root_a)
            self._uses[root_b] += moved
            agenda.extend(self._congruences(moved))

    def _record(self, a: Term, b: Term, justification: Justification | None) -> None:
        known = self._edges[a].get(b)
        if known is not None and (known.justification is not None or justification is None):
            return
        # A congruence weighs more than the existing paths between its arguments. Later edges can
        # only shorten these paths, so an explanation goes to ever lighter pairs and can't loop.
        weight = 1
        if justification is None:
            pairs = set(zip(self.bank[a].children, self.bank[b].children, strict=True))
            weight += sum(self._tree_distance(c, d) for c, d in pairs)
        self._edges[a][b] = Edge(weight, justification, True)
        self._edges[b][a] = Edge(weight, justification, False)
        self._paths.clear()

    def _hang(self, a: Term, b: Term) -> None:
        """Make `a` the root of its tree, and make `b` its parent."""
        above: Term | None = b
        term: Term | None = a
        while term is not None and above is not None:
            following = self._tree.get(term)
            self._tree[term] = above
            above, term = term, following

    def _tree_distance(self, a: Term, b: Term) -> int:
        """Return the weight of the path between two terms of one class in their spanning tree."""
        # Both ends climb in turn, so the cost grows with the distance, not the tree's depth.
        here, there = {a: 0}, {b: 0}
        while a not in there:
            above = self._tree.get(a)
            if above is not None:
                here[above] = here[a] + self._edges[a][above].weight
                a = above
            a, b, here, there = b, a, there, here
        return here[a] + there[a]

    # ---- proofs -------------------------------------------------------------------------------

    def check_equal(self, a: Term, b: Term) -> None:
        """Raises: EquivalenceError if the log does not make them equal."""
        if not self.equal(a, b):
            raise EquivalenceError(
                what="the terms are not equal by the logged equalities",
                where="explain",
                got=f"terms {a} and {b}, in different e-classes",
                expected="two terms of one e-class",
                hint="saturate further, or check that logging was on for every ruleset",
            )

    def lemmas(self, a: Term, b: Term) -> list[Lemma]:
        """Return the proof that two terms are equal; its last lemma states it. No lemmas if they
        are one term.

        A pair of subterms is proved once, however often it is used. So a proof has at most as many
        lemmas as there are pairs of equal terms, while a chain of whole terms may be exponential.

        Raises: EquivalenceError if the log does not make them equal.
        """
        self.check_equal(a, b)
        proved: dict[Pair, Lemma] = {}
        stack = [((a, b), False)]
        while stack:
            pair, ready = stack.pop()
            if ready:
                proved[pair] = Lemma(pair, self.path(*pair))
            elif pair not in proved and pair[0] != pair[1]:
                here, needed = pair[0], list[Pair]()
                for segment in self.path(*pair):
                    if segment.edge.justification is None:
                        needed += self.arguments((here, segment.to))
                    here = segment.to
                stack += [(pair, True), *((p, False) for p in reversed(needed))]
        return list(proved.values())

    def verify(self, lemmas: Sequence[Lemma]) -> None:
        """Check lemmas against the log alone, without the closure.

        Raises: EquivalenceError naming the first lemma that does not hold.
        """
        proved: set[Pair] = set()
        for number, lemma in enumerate(lemmas):
            here, end = lemma.pair
            for segment in lemma.path:
                there, why = segment.to, segment.edge.justification
                if why is None:
                    holds = self.bank[here].head == self.bank[there].head and all(
                        old == new or (old, new) in proved
                        for old, new in self.arguments((here, there))
                    )
                else:
                    old, new = (here, there) if segment.edge.forward else (there, here)
                    holds = (old, new, why.rule) in self.log
                if not holds:
                    break
                here = there
            if here != end:
                raise EquivalenceError(
                    what=f"lemma {number} of a proof does not hold",
                    where=f"lemma {number}",
                    got=str(lemma),
                    expected="a path of logged equalities, and of congruences by earlier lemmas",
                    hint="the log or the proof is damaged: please report it",
                )
            proved.add(lemma.pair)

    def path(self, a: Term, b: Term) -> tuple[Segment, ...]:
        """Return a lightest path over all recorded edges, with adjacent congruences merged."""
        known = self._paths.get((a, b))
        if known is not None:
            return known
        best: dict[Term, int] = {a: 0}
        before: dict[Term, Term] = {}
        heap, settled = [(0, a)], set[Term]()
        while b not in settled:
            weight, term = heapq.heappop(heap)
            if term in settled:
                continue
            settled.add(term)
            for other, edge in self._edges[term].items():
                if other not in best or weight + edge.weight < best[other]:
                    best[other], before[other] = weight + edge.weight, term
                    heapq.heappush(heap, (best[other], other))
        path: list[Segment] = []
        term = b
        while term != a:
            edge = self._edges[before[term]][term]
            # The walk is backwards: of adjacent congruences only the last one's end is kept.
            if not (path and path[-1].edge.justification is edge.justification is None):
                path.append(Segment(term, edge))
            term = before[term]
        self._paths[a, b] = tuple(reversed(path))
        return self._paths[a, b]

    def arguments(self, pair: Pair) -> list[Pair]:
        left, right = self.bank[pair[0]], self.bank[pair[1]]
        return list(zip(left.children, right.children, strict=True))
