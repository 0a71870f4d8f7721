"""An equality as a chain of whole terms; each step from one term to the next is one rule instance.

`chain` writes out the proof of an equality in a `ProofForest`, and `replay` checks a chain
independently. Not here: why terms are equal (`proof.py`).

A term is a DAG, and a step replaces one subterm at all its occurrences. Replacements from left to
right alone can't reach every equal term: x = y and x = z imply f(x, x) = f(y, z), but replacing x
everywhere keeps its two occurrences equal. The reverse of a replacement can: f(y, x) -> f(x, x)
replaces y everywhere, so its reverse leads from f(x, x) to f(y, x). So a step is a replacement
everywhere, or the reverse of one, and `replay` accepts exactly these steps.

Equal pairs of subterms are handled once, so the cost grows with the size of the DAG, not of the
tree. A chain can still be exponentially longer than its proof (in an unrolled recurrent network, if
rule instances undo each other's arguments at every level). `chain` then raises an error at
`max_steps`; `ProofForest.lemmas` is the proof to read instead.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from eqsynth.egraph.proof import Edge, Pair, ProofForest, Segment
from eqsynth.egraph.terms import Term
from eqsynth.errors import EquivalenceError, ExplanationTooLong


@dataclass(frozen=True, slots=True)
class Step:
    """One rule instance that leads from one whole term to the next.

    `position` is a pair (old, new) of subterms. Either `after` is `before` with old replaced
    everywhere by new, or `before` is `after` with new replaced everywhere by old. `forward` is True
    if the log has the equality as old = new, False if it has new = old.
    """

    before: Term
    after: Term
    rule: str
    forward: bool
    position: Pair


@dataclass(slots=True)
class _Frame:
    """Pairs (left, right) of terms that are rewritten from left to right together.

    `inner`: pairs that differ in their children only, children before parents. `now`: the current
    term of each other pair. `todo`: the rest of the pair's path to its right term. `goals`: pairs
    that wait for the next frame, each with its current term and the congruent term to reach.
    """

    inner: list[Pair]
    now: dict[Pair, Term]
    todo: dict[Pair, deque[Segment]]
    goals: dict[Pair, Pair] = field(default_factory=dict)


def chain(forest: ProofForest, a: Term, b: Term, *, max_steps: int = 20_000) -> list[Step]:
    """Return the steps from `a` to `b`, a short chain but perhaps not the shortest; no steps if `a`
    and `b` are one term.

    >>> from eqsynth.egraph.proof import Justification
    >>> forest = ProofForest()
    >>> x, y = forest.add("x"), forest.add("y")
    >>> forest.union(x, y, Justification("x-is-y"))
    >>> before, after = forest.add("f", (x, x)), forest.add("f", (y, y))
    >>> [step.rule for step in chain(forest, before, after)]
    ['x-is-y']

    Raises: EquivalenceError if the log does not make them equal, or if the explanation takes
    more than `max_steps`.
    """
    forest.check_equal(a, b)
    if a == b:
        return []
    steps: list[Step] = []
    whole = a
    frames = [_Frame([], {(a, b): a}, {(a, b): deque(forest.path(a, b))})]
    while frames:
        frame = frames[-1]
        pair = next((p for p, rest in frame.todo.items() if rest[0].edge.justification), None)
        if pair is not None:
            segment = _advance(frame, pair)
            old, frame.now[pair] = frame.now[pair], segment.to
            after = _assemble(forest, frames)
            steps += _everywhere(forest, whole, after, (old, segment.to), segment.edge)
            whole = after
            if len(steps) > max_steps:
                raise ExplanationTooLong(
                    what="the derivation is too long to write out as a chain of whole programs",
                    where="chain",
                    got=f"more than {max_steps} steps",
                    expected=f"at most max_steps={max_steps}",
                    hint="read its lemmas instead, or raise max_steps",
                )
        elif frame.todo:
            # Every pair waits for a congruence now. Rewrite the arguments of all pairs together, so
            # that a shared argument is rewritten once.
            frame.goals = {p: (frame.now[p], rest[0].to) for p, rest in frame.todo.items()}
            frames.append(_frame(forest, frame.goals.values()))
        else:
            frames.pop()
            if frames:
                for p, goal in frames[-1].goals.items():
                    frames[-1].now[p] = goal[1]
                    _advance(frames[-1], p)
    return _without_detours(a, steps)


def _advance(frame: _Frame, pair: Pair) -> Segment:
    segment = frame.todo[pair].popleft()
    if not frame.todo[pair]:
        del frame.todo[pair]
    return segment


def _frame(forest: ProofForest, goals: Iterable[Pair]) -> _Frame:
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
        path = forest.path(*pair)
        if len(path) != 1 or path[0].edge.justification is not None:
            frame.now[pair] = pair[0]
            if path:
                frame.todo[pair] = deque(path)
            continue
        stack.append((pair, True))
        stack += [(p, False) for p in forest.arguments(pair)]
    return frame


def _assemble(forest: ProofForest, frames: Sequence[_Frame]) -> Term:
    """Return the current whole term, rebuilt from the innermost frame outwards."""
    for outer, frame in zip(reversed(frames[:-1]), reversed(frames[1:]), strict=True):
        value = dict(frame.now)
        for pair in frame.inner:
            children = [value[argument] for argument in forest.arguments(pair)]
            value[pair] = forest.bank.add(forest.bank[pair[0]].head, children)
        for pair, goal in outer.goals.items():
            outer.now[pair] = value[goal]
    return next(iter(frames[0].now.values()))


def _everywhere(
    forest: ProofForest, before: Term, after: Term, position: Pair, edge: Edge
) -> list[Step]:
    """Return steps, each a replacement everywhere, from `before` to `after`, in which perhaps only
    some occurrences are replaced.

    If some occurrences stay, both terms are rewritten everywhere until they are equal. The larger
    subterm is replaced by the smaller one, which doesn't contain it. After each replacement the
    remaining differences are strictly nearer to the root, so the loop ends.
    """
    assert edge.justification is not None
    rule, (old, new) = edge.justification.rule, position
    head: list[Step] = []
    tail: list[Step] = []
    shrinks = old not in forest.bank.subterms(new)
    while before != after:
        if after == forest.bank.replace(before, old, new) or before == forest.bank.replace(
            after, new, old
        ):
            head.append(Step(before, after, rule, edge.forward, position))
            break
        gone, kept = (old, new) if shrinks else (new, old)
        forward = edge.forward if shrinks else not edge.forward
        left = forest.bank.replace(before, gone, kept)
        right = forest.bank.replace(after, gone, kept)
        if left != before:
            head.append(Step(before, left, rule, forward, (gone, kept)))
        if right != after:
            tail.append(Step(right, after, rule, not forward, (kept, gone)))
        before, after = left, right
    return head + tail[::-1]


def replay(
    forest: ProofForest, steps: Sequence[Step], check: Callable[[Step], bool] | None = None
) -> None:
    """Check a chain against the log alone, and each step by `check`, if given.

    The caller must compare the ends, steps[0].before and steps[-1].after, with its two terms.

    Raises: EquivalenceError naming the first step that does not hold.
    """
    for i, step in enumerate(steps):
        old, new = step.position
        logged = (old, new, step.rule) if step.forward else (new, old, step.rule)
        if i and steps[i - 1].after != step.before:
            problem = "does not start where the one before it ends"
        elif logged not in forest.log:
            problem = "is not an equality of the log"
        elif step.after == step.before:
            problem = "changes nothing"
        elif step.after != forest.bank.replace(
            step.before, old, new
        ) and step.before != forest.bank.replace(step.after, new, old):
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
    """Remove the steps between two visits of the same whole term."""
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
