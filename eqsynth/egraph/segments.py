"""Cutting a program into segments, saturating equal ones once, stitching the e-graphs together.

A cut goes where one non-constant tensor is live, and where no rule would have looked
across: the tensor comes out of a function that isn't linear (a contraction keeps it as a read,
whatever is done on either side) and a contraction takes it (so it is materialized in any case,
unless the contraction's result is averaged: the average may be taken before it). A tensor that
contractions read through layer normalizations alone is another such place. What is lost: a bias
before a max-pooling could go past it into the next layer, an addition that a kernel fuses anyway.

What is live beside it doesn't count if several layers read it and no contraction made it (masks,
positions): it is materialized once in any case. Nor do results of the program that nothing reads
any more (the keys and values of a layer). A segment that makes such values has them as outputs.

Where the program reads only a part of its last layer, the layers before a cut need only compute
a part, too. So a segment whose e-graph can do with a slice of what it is given has that slice asked
for: it becomes a second root of the segment before, and its class is one class of both e-graphs.

    relu(q @ k') | (r @ v)[0:1]   ->   r and r[0:1] | r[0:1] @ v
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from eqsynth.egraph.graph import EGraph
from eqsynth.ir.program import Program
from eqsynth.ir.scalar import digest_of
from eqsynth.ir.tensor import (
    ClassRef,
    Input,
    Op,
    Region,
    Tensor,
    Weight,
    args_of,
    over,
    topological,
)

# Linear in their arguments, so that contractions are pushed through them.
_LINEAR = frozenset({"Add", "Sub", "Mul", "Neg", "Cast", "Div"})
# Sums over axes and windows, which contractions let through.
_AVERAGES = frozenset({"ReduceSum", "ReduceMean", "AvgPool2d"})


@dataclass(frozen=True)
class Segment:
    """A part of a program in its own names.

    Attributes:
        roots: outputs over ``Input("x0")…`` and ``Weight("w0")…``.
        names: what each of these names stands for in the program: an input, a weight, or the term
            on the other side of a cut.
        outputs: the program's terms that the roots stand for.
        part: the last root is a part of the first, and is all that is wanted of it.
    """

    roots: tuple[Tensor, ...]
    names: Mapping[Tensor, Tensor]
    outputs: tuple[Tensor, ...]
    part: bool = False

    @property
    def key(self) -> bytes:
        """Equal for segments that saturate alike: operators, attributes, shapes, sharing."""
        return digest_of(*(root.digest for root in self.roots))


def cut(program: Program) -> list[Segment]:
    """The segments of a program, in order; a program that can't be cut is one segment."""
    order = [term for term in program.terms() if not term.constant]
    place = {term: position for position, term in enumerate(order)}
    last_use: dict[Tensor, int] = {}
    users: dict[Tensor, list[Tensor]] = {}
    for position, term in enumerate(order):
        for arg in args_of(term):
            last_use[arg] = position
            users.setdefault(arg, []).append(term)
    beside = _beside(order, users)
    results = set(program.outputs)
    segments, made = [], list[Tensor]()
    done: set[Tensor] = set()
    live: set[Tensor] = set()
    for position, term in enumerate(order):
        live.add(term)
        live = {t for t in live if last_use.get(t, -1) > position}
        if args_of(term):
            made.append(term)
        if (
            term in live - results
            and live - beside == {term}
            and (_separates(term, users) or _is_normalized(term, users, order, place))
        ):
            kept = (t for t in made if t != term and (t in results or t in live))
            segments.append(_segment((term, *kept), done))
            done.update(segments[-1].outputs)
            made.clear()
    segments.append(_segment(tuple(t for t in program.outputs if t not in done), done))
    return segments


def _beside(order: Sequence[Tensor], users: Mapping[Tensor, Sequence[Tensor]]) -> set[Tensor]:
    """What may be live beside the tensor at a cut: what several terms read, and contractions have
    neither made nor take, if only as views (steps of a loop, whose products may be one)."""
    made: set[Tensor] = set()
    taken: set[Tensor] = set()
    for term in order:
        if _is_contraction(term) or any(arg in made for arg in args_of(term)):
            made.add(term)
    for term in reversed(order):
        if any(
            _is_contraction(user)
            or (user in taken and isinstance(user, Op) and user.row.kind == "view")
            for user in users.get(term, ())
        ):
            taken.add(term)
    several = {term for term, readers in users.items() if len(readers) > 1}
    return several - made - taken


def _is_contraction(term: Tensor) -> bool:
    return isinstance(term, Op) and term.row.kind == "contraction"


def _separates(term: Tensor, users: Mapping[Tensor, Sequence[Tensor]]) -> bool:
    if not isinstance(term, Op) or term.name in _LINEAR:
        return False
    row = term.row
    if row.kind not in ("elementwise", "reduction") or term.name.startswith("Reduce"):
        return False
    if term.name in ("AvgPool2d", "LayerNorm"):
        return False
    taken = [u for u in users.get(term, []) if isinstance(u, Op)]
    contractions = [u for u in taken if u.row.kind == "contraction"]
    return bool(contractions) and not any(_is_averaged(u, users) for u in contractions)


def _is_averaged(contraction: Op, users: Mapping[Tensor, Sequence[Tensor]]) -> bool:
    """Whether its results are summed over, if only after views, biases and scales."""
    stack: list[Tensor] = [contraction]
    while stack:
        for user in users.get(stack.pop(), []):
            if not isinstance(user, Op):
                continue
            if user.name in _AVERAGES:
                return True
            varying = [arg for arg in user.args if not arg.constant]
            if user.row.kind == "view" or (user.name in _LINEAR and len(varying) == 1):
                stack.append(user)
    return False


def _is_normalized(
    term: Tensor,
    users: Mapping[Tensor, Sequence[Tensor]],
    order: Sequence[Tensor],
    place: Mapping[Tensor, int],
) -> bool:
    """Whether contractions read the term through normalizations alone (a layer normalization, or
    the same written out: ``x * rsqrt(mean(x * x) + eps)``); a residual sum may take it too. Not
    what only a bias, a scale or another shape takes: that is the normalized tensor then."""
    readers = users.get(term, ())
    if len(readers) == 1 and isinstance(reader := readers[0], Op):
        varying = [arg for arg in reader.args if not arg.constant]
        if reader.row.kind == "view" or (reader.name in _LINEAR and len(varying) == 1):
            return False
    functions: dict[Tensor, _Function] = {term: _Function()}
    # Users in the order of the program, so that what they read has been looked at.
    work = [place[user] for user in readers]
    heapq.heapify(work)
    seen, read = set(work), False
    while work:
        user = order[heapq.heappop(work)]
        if not isinstance(user, Op):
            return False
        known = [functions[arg] for arg in user.args if arg in functions]
        if user.row.kind == "contraction":
            if not all(function.scaled for function in known):
                return False
            read = True
        elif not all(arg.constant or arg in functions for arg in user.args):
            if user.name != "Add":
                return False
        elif user.row.kind == "view" and user.name != "Reshape":
            return False
        else:
            functions[user] = _Function.of(user, known)
            for other in (place[u] for u in users.get(user, ())):
                if other not in seen:
                    seen.add(other)
                    heapq.heappush(work, other)
    return read


@dataclass(frozen=True)
class _Function:
    """A function of one tensor alone: whether a sum or mean of the tensor is in it, whether it is
    more than linear in that, and whether the tensor is scaled by such a function."""

    reduced: bool = False
    bent: bool = False
    scaled: bool = False

    @staticmethod
    def of(user: Op, args: Sequence[_Function]) -> _Function:
        """The function that an operator makes of functions."""
        if user.name == "LayerNorm":
            return _Function(True, True, True)
        reduces = user.name.startswith("Reduce")
        linear = reduces or user.name in _LINEAR or user.row.kind == "view"
        factors = user.name in ("Mul", "Div") and len(args) > 1
        reduced = reduces or any(arg.reduced for arg in args)
        return _Function(
            reduced,
            (reduced and not linear) or any(arg.bent for arg in args),
            any(arg.scaled for arg in args) or (factors and any(arg.bent for arg in args)),
        )


def _segment(outputs: tuple[Tensor, ...], done: set[Tensor]) -> Segment:
    """The part of the program between what is done and the outputs."""
    renamed: dict[Tensor, Tensor] = {}
    names: dict[Tensor, Tensor] = {}
    counts = {"x": 0, "w": 0}
    stack: list[tuple[Tensor, bool]] = [(term, False) for term in reversed(outputs)]
    while stack:
        term, visited = stack.pop()
        if term in renamed:
            continue
        leaf = term in done or isinstance(term, Input | Weight)
        if leaf:
            kind = "w" if isinstance(term, Weight) else "x"
            make: Callable[..., Tensor] = Weight if kind == "w" else Input
            renamed[term] = make(f"{kind}{counts[kind]}", term.type)
            counts[kind] += 1
            names[renamed[term]] = term
        elif visited:
            renamed[term] = over(term, renamed)
        else:
            stack.append((term, True))
            stack.extend((arg, False) for arg in reversed(args_of(term)))
    return Segment(tuple(renamed[t] for t in outputs), names, outputs)


def with_part(segment: Segment, part: Op) -> Segment:
    """The segment, which has one output, asked for a slice of it as well: the slice is wanted."""
    images = {segment.outputs[0]: segment.roots[0]}
    roots = (segment.roots[0], over(part, images))
    return Segment(roots, segment.names, (segment.outputs[0], part), part=True)


def demanded(segment: Segment, graph: EGraph) -> dict[Tensor, Op]:
    """What is given across a cut -> the smallest slice of it, of half of it at most, with which
    the segment can do. Nothing for what it needs whole, or several parts of."""
    wanted = graph.roots[-1:] if segment.part else graph.roots
    found: dict[Tensor, Op] = {}
    for ref, members in graph.classes.items():
        outer = next((segment.names[m] for m in members if m in segment.names), None)
        if outer is None or isinstance(outer, Input | Weight):
            continue
        slices = {
            other: member
            for other, own in graph.classes.items()
            for member in own
            if isinstance(member, Op) and member.name == "Slice" and member.args == (ref,)
        }
        small = [other for other in slices if 2 * other.type.size <= ref.type.size]
        for other in sorted(small, key=lambda other: other.type.size):
            if _reached(graph, segment, ref, other, wanted):
                found[outer] = Op("Slice", (outer,), slices[other].attrs)
                break
    return found


def _reached(
    graph: EGraph, segment: Segment, whole: ClassRef, part: ClassRef, wanted: Sequence[ClassRef]
) -> bool:
    """Whether the wanted classes can be computed of the part and the other inputs."""
    done = {
        ref
        for ref, members in graph.classes.items()
        if ref != whole and (ref.constant or any(member in segment.names for member in members))
    } | {part}
    left = {
        ref: [set(args_of(member)) for member in members if args_of(member)]
        for ref, members in graph.classes.items()
        if ref not in done and ref != whole
    }
    news = True
    while news and not done.issuperset(wanted):
        ready = [ref for ref, needs in left.items() if any(args <= done for args in needs)]
        done.update(ready)
        news = bool(ready)
        for ref in ready:
            del left[ref]
    return done.issuperset(wanted)


def inlined(region: Region, args: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs of a region as terms over other arguments."""
    images: dict[Tensor, Tensor] = {Input(str(n), a.type): a for n, a in enumerate(args)}
    for term in topological(region.outputs):
        if term not in images:
            images[term] = over(term, images)
    return tuple(images[term] for term in region.outputs)


def _given(
    segment: Segment, graph: EGraph, of_term: Mapping[Tensor, ClassRef]
) -> dict[ClassRef, ClassRef]:
    """Classes of a segment that earlier ones have: what is given, and the slices asked for."""
    outer = {
        ref: segment.names[member]
        for ref, members in graph.classes.items()
        for member in members
        if member in segment.names
    }
    found = {ref: of_term[term] for ref, term in outer.items() if term in of_term}
    for ref, members in graph.classes.items():
        for member in members:
            if isinstance(member, Op) and member.name == "Slice" and member.args[0] in found:
                source = member.args[0]
                assert isinstance(source, ClassRef)
                part = of_term.get(Op("Slice", (outer[source],), member.attrs))
                if part is not None:
                    found.setdefault(ref, part)
    return found


def stitch(program: Program, segments: Sequence[Segment], graphs: Sequence[EGraph]) -> EGraph:
    """One e-graph of the whole program from those of its segments.

    Extraction is global over it, so layouts cross the cuts.
    """
    classes: dict[ClassRef, tuple[Tensor, ...]] = {}
    original: dict[ClassRef, tuple[Tensor, ...]] = {}
    of_term: dict[Tensor, ClassRef] = {}
    for number, (segment, graph) in enumerate(zip(segments, graphs, strict=True)):
        images: dict[Tensor, ClassRef] = {}
        given = _given(segment, graph, of_term)
        for ref, members in graph.classes.items():
            outer = next((segment.names[m] for m in members if m in segment.names), None)
            if ref in given:
                images[ref] = given[ref]
                continue
            digest = digest_of("segment", number, ref.digest, ref.handle)
            new = ClassRef(len(of_term) + len(classes), ref.type, ref.constant, digest)
            images[ref] = new
            classes[new] = ()
            if outer is not None:
                of_term[outer] = new
        for ref, members in graph.classes.items():
            new = images[ref]
            if classes[new] == ():
                classes[new] = tuple(over(segment.names.get(m, m), images) for m in members)
            else:
                own = [over(m, images) for m in members if m not in segment.names]
                classes[new] = tuple(dict.fromkeys((*classes[new], *own)))
        for ref, members in graph.original.items():
            # What lies across a cut is the original of the segment that made it.
            whole = [segment.names.get(m, m) for m in members]
            own = [over(m, images) for m in whole if all(arg in images for arg in args_of(m))]
            known = original.get(images[ref], ())
            original[images[ref]] = tuple(dict.fromkeys((*known, *own)))
        for term, root in zip(segment.outputs, graph.roots, strict=True):
            of_term[term] = images[root]
    matches: dict[str, int] = {}
    for graph in {id(g): g for g in graphs}.values():
        for rule, count in graph.matches.items():
            matches[rule] = matches.get(rule, 0) + count
    stops = [g.stop for g in graphs if g.stop != "saturated"]
    distinct = list({id(g): g for g in graphs}.values())
    return EGraph(
        classes=classes,
        roots=tuple(of_term[term] for term in program.outputs),
        enodes=sum(g.enodes for g in distinct),
        eclasses=sum(g.eclasses for g in distinct),
        matches=matches,
        stop=", ".join(dict.fromkeys(stops)) or "saturated",
        seconds=sum(g.seconds for g in distinct),
        log=None,
        over_budget={rule: n for g in distinct for rule, n in g.over_budget.items()},
        faults={law: why for g in distinct for law, why in g.faults.items()},
        growth=dict(sum((Counter(g.growth) for g in distinct), Counter())),
        original=original,
    )


