"""Why two terms are equal: a proof forest over the ground equalities logged during saturation.

Here: congruence closure that remembers its edges (`ProofForest`), explanations as chains of whole
terms (`Step`), and their independent check (`ProofForest.replay`). Not here: the terms themselves
(`terms.py`), and what a head means. Terms are generic; adapters from the tensor IR live with the
encoder.

A term is a DAG. A position is a distinct subterm, and a step replaces it everywhere it occurs.
Read from left to right alone that cannot reach every equal term: from x = y and x = z follows
f(x, x) = f(y, z), and no replacement of x everywhere makes its two occurrences differ. Read from
right to left it can, f(y, x) -> f(x, x) being one. So a step is a replacement everywhere in one of
its two directions; `ProofForest.replay` accepts exactly these.

Everything is iterative: terms are deeper than Python's stack. Work is shared between equal pairs
of subterms, so a DAG costs its size, not that of its tree. A chain of whole terms can nevertheless
be exponentially longer than the proof behind it (rule instances that undo each other's arguments
at every level); `explain` then stops at `max_steps` with an error.

Source: Nieuwenhuis and Oliveras, Proof-Producing Congruence Closure (RTA 2005); Flatt et al.,
Small Proofs from Congruence Closure (FMCAD 2022), for shortest paths over all recorded edges.
"""

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from eqsynth.egraph.terms import Node, Term, TermBank
from eqsynth.errors import EquivalenceError

Pair = tuple[Term, Term]


@dataclass(frozen=True, slots=True)
class Justification:
    """What united two terms: a rule, a computed derivation, or a definition, by its name."""

    rule: str
    kind: Literal["rule", "computation", "definition"] = "rule"


@dataclass(frozen=True, slots=True)
class Step:
    """One rule instance between two whole terms.

    `position` is (from, to); `forward` says that the rule was logged as from = to, not to = from.
    Either `after` is `before` with from replaced everywhere by to, or `before` is `after` with to
    replaced everywhere by from.
    """

    before: Term
    after: Term
    rule: str
    forward: bool
    position: Pair


@dataclass(frozen=True, slots=True)
class _Edge:
    """A recorded equality, seen from one of its ends; by congruence where there is no rule."""

    weight: int
    justification: Justification | None
    forward: bool


@dataclass(frozen=True, slots=True)
class _Segment:
    """A piece of a path: one rule instance, or a congruence (perhaps of several edges) to `to`."""

    to: Term
    edge: _Edge


@dataclass(slots=True)
class _Frame:
    """Pairs of terms that are carried from left to right together, so shared work is done once.

    `inner`: pairs that differ only in their children, children before parents. `now`: how far each
    other pair has come; `todo`: what is left of its path. `goals`: what the next frame is doing for
    this one: the current term of a pair, and the congruent one it is to become.
    """

    inner: list[Pair]
    now: dict[Pair, Term]
    todo: dict[Pair, deque[_Segment]]
    goals: dict[Pair, Pair] = field(default_factory=dict)


class ProofForest:
    """Congruence closure over logged ground equalities, with explanations.

    >>> forest = ProofForest()
    >>> x, y = forest.add("x"), forest.add("y")
    >>> forest.union(x, y, Justification("x-is-y"))
    >>> [step.rule for step in forest.explain(forest.add("f", (x, x)), forest.add("f", (y, y)))]
    ['x-is-y']
    """

    def __init__(self, bank: TermBank | None = None) -> None:
        self.bank = TermBank() if bank is None else bank
        self._log: dict[tuple[Term, Term, str], Justification] = {}
        self._class: dict[Term, Term] = {}  # union-find
        self._size: dict[Term, int] = {}
        self._uses: dict[Term, list[Term]] = {}
        self._signatures: dict[Node, Term] = {}
        # The proof forest: a spanning tree a class, by parents. All edges, the forest's among them.
        self._tree: dict[Term, Term] = {}
        self._edges: dict[Term, dict[Term, _Edge]] = {}
        self._paths: dict[Pair, tuple[_Segment, ...]] = {}

    # ---- congruence closure -------------------------------------------------------------------

    def add(self, head: Hashable, children: Iterable[Term] = ()) -> Term:
        term = self.bank.add(head, children)
        self._register(term)
        return term

    def union(self, a: Term, b: Term, justification: Justification) -> None:
        """Log a = b and close under congruence. The log keeps equalities that say nothing new."""
        self._register(a)
        self._register(b)
        self._log.setdefault((a, b, justification.rule), justification)
        self._merge([(a, b, justification)])

    def equal(self, a: Term, b: Term) -> bool:
        self._register(a)
        self._register(b)
        return self._find(a) == self._find(b)

    def _register(self, term: Term) -> None:
        # A bank also holds terms that no one asked about, such as the middle of an explanation, so
        # more than the term itself may be new; below a registered term nothing is.
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
            # The newest term stands for the signature: its arguments are near the last union, so
            # the edges stay short and tell a chain of unions apart from a detour to the first one.
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
        # A congruence weighs more than the paths between its arguments that exist already. Later
        # edges only shorten those, so explaining goes to ever lighter pairs and never in a circle.
        weight = 1
        if justification is None:
            pairs = set(zip(self.bank[a].children, self.bank[b].children, strict=True))
            weight += sum(self._tree_distance(c, d) for c, d in pairs)
        self._edges[a][b] = _Edge(weight, justification, True)
        self._edges[b][a] = _Edge(weight, justification, False)
        self._paths.clear()

    def _hang(self, a: Term, b: Term) -> None:
        """Turn a's tree over so that `a` is its root, and hang it under b."""
        above: Term | None = b
        term: Term | None = a
        while term is not None and above is not None:
            following = self._tree.get(term)
            self._tree[term] = above
            above, term = term, following

    def _tree_distance(self, a: Term, b: Term) -> int:
        """The weight of the only path in the proof forest between two terms of one class."""
        # Both ends climb in turn, so the cost is the distance, not the depth of the tree.
        here, there = {a: 0}, {b: 0}
        while a not in there:
            above = self._tree.get(a)
            if above is not None:
                here[above] = here[a] + self._edges[a][above].weight
                a = above
            a, b, here, there = b, a, there, here
        return here[a] + there[a]

    # ---- explanations -------------------------------------------------------------------------

    def explain(self, a: Term, b: Term, *, max_steps: int = 20_000) -> list[Step]:
        """The steps from `a` to `b`, short if not shortest; none if they are one term.

        Raises: EquivalenceError if the log does not make them equal, or if the explanation takes
        more than `max_steps`.
        """
        if not self.equal(a, b):
            raise EquivalenceError(
                what="the terms are not equal by the logged equalities",
                where="explain",
                got=f"terms {a} and {b}, in different e-classes",
                expected="two terms of one e-class",
                hint="saturate further, or check that logging was on for every ruleset",
            )
        if a == b:
            return []
        steps: list[Step] = []
        whole = a
        frames = [_Frame([], {(a, b): a}, {(a, b): deque(self._path(a, b))})]
        while frames:
            frame = frames[-1]
            pair = next((p for p, rest in frame.todo.items() if rest[0].edge.justification), None)
            if pair is not None:
                segment = self._advance(frame, pair)
                old, frame.now[pair] = frame.now[pair], segment.to
                after = self._assemble(frames)
                steps += self._everywhere(whole, after, (old, segment.to), segment.edge)
                whole = after
                if len(steps) > max_steps:
                    raise EquivalenceError(
                        what="the explanation is too long",
                        where="explain",
                        got=f"more than {max_steps} steps",
                        expected=f"at most max_steps={max_steps}",
                        hint="explain two terms nearer to each other, or raise max_steps",
                    )
            elif frame.todo:
                # Only now, when every pair waits for a congruence, are the arguments rewritten:
                # all pairs' arguments together, so that a shared one is rewritten once.
                frame.goals = {p: (frame.now[p], rest[0].to) for p, rest in frame.todo.items()}
                frames.append(self._frame(frame.goals.values()))
            else:
                frames.pop()
                if frames:
                    for p, goal in frames[-1].goals.items():
                        frames[-1].now[p] = goal[1]
                        self._advance(frames[-1], p)
        return _without_detours(a, steps)

    @staticmethod
    def _advance(frame: _Frame, pair: Pair) -> _Segment:
        segment = frame.todo[pair].popleft()
        if not frame.todo[pair]:
            del frame.todo[pair]
        return segment

    def _path(self, a: Term, b: Term) -> tuple[_Segment, ...]:
        """A lightest path over all recorded edges; neighbouring congruences become one."""
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
        path: list[_Segment] = []
        term = b
        while term != a:
            edge = self._edges[before[term]][term]
            # Walking backwards: a congruence before a congruence is covered by the later one's end.
            if not (path and path[-1].edge.justification is edge.justification is None):
                path.append(_Segment(term, edge))
            term = before[term]
        self._paths[a, b] = tuple(reversed(path))
        return self._paths[a, b]

    def _frame(self, goals: Iterable[Pair]) -> _Frame:
        """Split congruent pairs down to the pairs that need a rule at their own root."""
        frame = _Frame([], {}, {})
        seen: set[Pair] = set()
        stack = [(goal, False) for goal in goals]
        while stack:
            pair, done = stack.pop()
            if done:
                frame.inner.append(pair)
                continue
            if pair in seen:
                continue
            seen.add(pair)
            path = self._path(*pair)
            if len(path) != 1 or path[0].edge.justification is not None:
                frame.now[pair] = pair[0]
                if path:
                    frame.todo[pair] = deque(path)
                continue
            stack.append((pair, True))
            stack += [(p, False) for p in self._arguments(pair)]
        return frame

    def _arguments(self, pair: Pair) -> list[Pair]:
        left, right = self.bank[pair[0]], self.bank[pair[1]]
        return list(zip(left.children, right.children, strict=True))

    def _assemble(self, frames: Sequence[_Frame]) -> Term:
        """The whole term as it now stands, rebuilt from the innermost frame outwards."""
        for outer, frame in zip(reversed(frames[:-1]), reversed(frames[1:]), strict=True):
            value = dict(frame.now)
            for pair in frame.inner:
                children = [value[argument] for argument in self._arguments(pair)]
                value[pair] = self.bank.add(self.bank[pair[0]].head, children)
            for pair, goal in outer.goals.items():
                outer.now[pair] = value[goal]
        return next(iter(frames[0].now.values()))

    def _everywhere(self, before: Term, after: Term, position: Pair, edge: _Edge) -> list[Step]:
        """Replacements everywhere that lead to `after`, where perhaps some occurrences stay.

        Where some occurrences stay, both ends are rewritten everywhere until they meet. The larger
        term is replaced by the smaller, which does not contain it; what then still differs is
        strictly nearer to the root, so this ends.
        """
        assert edge.justification is not None
        rule, (old, new) = edge.justification.rule, position
        head: list[Step] = []
        tail: list[Step] = []
        shrinks = old not in self.bank.subterms(new)
        while before != after:
            if after == self.bank.replace(before, old, new) or before == self.bank.replace(
                after, new, old
            ):
                head.append(Step(before, after, rule, edge.forward, position))
                break
            gone, kept = (old, new) if shrinks else (new, old)
            forward = edge.forward if shrinks else not edge.forward
            left = self.bank.replace(before, gone, kept)
            right = self.bank.replace(after, gone, kept)
            if left != before:
                head.append(Step(before, left, rule, forward, (gone, kept)))
            if right != after:
                tail.append(Step(right, after, rule, not forward, (kept, gone)))
            before, after = left, right
        return head + tail[::-1]

    def replay(self, steps: Sequence[Step], check: Callable[[Step], bool] | None = None) -> None:
        """Check an explanation against the log alone, and each step by `check`, if given.

        The ends are the caller's to compare: steps[0].before and steps[-1].after.

        Raises: EquivalenceError naming the first step that does not hold.
        """
        for i, step in enumerate(steps):
            old, new = step.position
            logged = (old, new, step.rule) if step.forward else (new, old, step.rule)
            if i and steps[i - 1].after != step.before:
                problem = "does not start where the one before it ends"
            elif logged not in self._log:
                problem = "is not an equality of the log"
            elif step.after == step.before:
                problem = "changes nothing"
            elif step.after != self.bank.replace(
                step.before, old, new
            ) and step.before != self.bank.replace(step.after, new, old):
                problem = "does not replace its position everywhere"
            elif check is not None and not check(step):
                problem = "is refused by the check"
            else:
                continue
            raise EquivalenceError(
                what=f"step {i} of an explanation {problem}",
                where=f"step {i}, rule {step.rule!r}",
                got=str(step),
                expected="one logged equality, applied everywhere to the term before it",
                hint="the log or the explanation is damaged: please report it",
            )


def _without_detours(start: Term, steps: Sequence[Step]) -> list[Step]:
    """Cut what lies between two visits of the same whole term."""
    kept: list[Step] = []
    visited = {start: 0}
    for step in steps:
        kept.append(step)
        known = visited.get(step.after)
        if known is None:
            visited[step.after] = len(kept)
            continue
        for dropped in kept[known:]:
            if dropped.after != step.after:
                visited.pop(dropped.after, None)
        del kept[known:]
    return kept
