"""Segments of a program: cutting it, recognizing equal segments, and joining their e-graphs.

If a program uses only a part of its last layer, the layers before need only compute a part too. So
if a segment can be computed from a slice of its input, or from the rows of it that ids pick, the
part becomes a second root of the segment before. Its e-class then belongs to both e-graphs.

    relu(q @ k') | (r @ v)[0:1]   ->   r and r[0:1] | r[0:1] @ v
    relu(q @ k') | (r @ v)[ids]   ->   r and r[ids] | r[ids] @ v

The ids have to be computed from the program's inputs and weights alone, since the earlier segment
computes them, too. In the joined e-graph they are one e-class.

Not here: where the cuts are (``cutting.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from eqsynth.calculus.conditions import is_view
from eqsynth.egraph.cutting import MOST_TERMS, cuts
from eqsynth.egraph.graph import EGraph
from eqsynth.ir.program import Program
from eqsynth.ir.scalar import digest_of
from eqsynth.ir.tensor import (
    ClassRef,
    Input,
    Op,
    Region,
    Scope,
    Tensor,
    Weight,
    args_of,
    over,
    topological,
)


@dataclass(frozen=True)
class Segment:
    """A part of a program, with its own names of inputs and weights.

    Attributes:
        roots: the segment's outputs, terms over ``Input("x0")…`` and ``Weight("w0")…``.
        names: each of these inputs and weights -> the program's term that it stands for: an input,
            a weight, or a term of an earlier segment.
        outputs: the program's terms that the roots stand for.
        part: whether the last root is a part of the first root, and later segments need only the
            part.
    """

    roots: tuple[Tensor, ...]
    names: Mapping[Tensor, Tensor]
    outputs: tuple[Tensor, ...]
    part: bool = False

    @property
    def key(self) -> bytes:
        """The digest of operators, attributes, shapes and sharing. Segments with equal keys
        saturate to the same e-graph."""
        return digest_of(*(root.digest for root in self.roots))


def cut(program: Program, most: int = MOST_TERMS) -> list[Segment]:
    """Return the segments of a program, in order; a program that can't be cut is one segment.

    Args:
        most: a segment with more non-constant terms is cut also where a rewrite may be lost.
    """
    segments: list[Segment] = []
    done: set[Tensor] = set()
    for outputs in cuts(program, most):
        segments.append(_segment(outputs, done))
        done.update(outputs)
    return [*segments, _segment(tuple(t for t in program.outputs if t not in done), done)]


def _segment(outputs: tuple[Tensor, ...], done: set[Tensor]) -> Segment:
    """Return the segment that computes ``outputs`` from the terms of ``done``."""
    names: dict[Tensor, Tensor] = {}
    return Segment(_renamed(outputs, done, {}, names), names, outputs)


def _renamed(
    terms: Sequence[Tensor],
    done: Container[Tensor],
    renamed: dict[Tensor, Tensor],
    names: dict[Tensor, Tensor],
) -> tuple[Tensor, ...]:
    """Return the program's terms over a segment's names of the terms of ``done``, of inputs and of
    weights; new names are added to ``names``.

    Args:
        renamed: program's term -> the segment's term, for those that the segment has.
    """
    counts = Counter("w" if isinstance(term, Weight) else "x" for term in names.values())
    stack: list[tuple[Tensor, bool]] = [(term, False) for term in reversed(terms)]
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
    return tuple(renamed[term] for term in terms)


def with_part(segment: Segment, part: Op) -> Segment:
    """Return a segment of one output with a part of the output as its second root."""
    names = dict(segment.names)
    renamed = {term: name for name, term in names.items()}
    renamed[segment.outputs[0]] = segment.roots[0]
    roots = (segment.roots[0], *_renamed((part,), (), renamed, names))
    return Segment(roots, names, (segment.outputs[0], part), part=True)


def demanded(segment: Segment, graph: EGraph) -> dict[Tensor, Op]:
    """Return input of the segment -> the smallest part of it that suffices to compute the outputs:
    a slice, or rows that ids pick.

    A part has at most half of the input's elements. An input of which the segment needs all, or
    several parts, isn't in the result."""
    wanted = graph.roots[-1:] if segment.part else graph.roots
    outer, free = _outer(segment, graph), _free(segment, graph)
    parts: dict[ClassRef, list[tuple[ClassRef, Op]]] = {}
    for other, ref, part in _parts(graph, outer, free):
        if 2 * other.type.size <= ref.type.size:
            parts.setdefault(ref, []).append((other, part))
    found: dict[Tensor, Op] = {}
    for ref, small in parts.items():
        for other, part in sorted(small, key=lambda way: way[0].type.size):
            if _reached(graph, segment, ref, other, wanted):
                found[outer[ref]] = part
                break
    return found


def _outer(segment: Segment, graph: EGraph) -> dict[ClassRef, Tensor]:
    """Return e-class -> the term of an earlier segment that is the segment's input."""
    return {
        ref: segment.names[member]
        for ref, members in graph.classes.items()
        for member in members
        if member in segment.names and not isinstance(segment.names[member], Input | Weight)
    }


def _free(segment: Segment, graph: EGraph) -> dict[ClassRef, Tensor]:
    """Return e-class -> a term of the program, for terms of the segment that need no earlier
    segment."""
    classes = {member: ref for ref, members in graph.original.items() for member in members}
    refs: dict[Tensor, ClassRef] = {}
    terms: dict[Tensor, Tensor] = {}
    found: dict[ClassRef, Tensor] = {}
    for term in topological(segment.roots):
        name = segment.names.get(term)
        leaf = name is not None and isinstance(name, Input | Weight)
        if leaf or (args_of(term) or name is None) and all(arg in terms for arg in args_of(term)):
            terms[term] = name if name is not None else over(term, terms)
            refs[term] = classes[over(term, refs)]
            found.setdefault(refs[term], terms[term])
    return found


def _parts(
    graph: EGraph, outer: Mapping[ClassRef, Tensor], free: Mapping[ClassRef, Tensor]
) -> Iterator[tuple[ClassRef, ClassRef, Op]]:
    """Yield the slices of inputs, and rows that ids pick from inputs, also if these are reshaped or
    their axes permuted: the part's e-class, the input's, and the part as a term of the program."""
    tables: dict[Tensor, tuple[ClassRef, Tensor]] = {ref: (ref, t) for ref, t in outer.items()}
    for name in ("Permute", "Reshape"):
        for ref, members in graph.classes.items():
            for member in members:
                if isinstance(member, Op) and member.name == name and member.args[0] in tables:
                    whole, table = tables[member.args[0]]
                    tables.setdefault(ref, (whole, over(member, {member.args[0]: table})))
    for other, members in graph.classes.items():
        for member in members:
            if not isinstance(member, Op) or not member.args or member.args[0] not in tables:
                continue
            whole, table = tables[member.args[0]]
            if member.name == "Slice" and member.args[0] == whole:
                yield other, whole, Op("Slice", (table,), member.attrs)
            elif member.name in ("Embedding", "Gather"):
                ids = _view_of_free(graph, member.args[1], free)
                if ids is not None:
                    yield other, whole, Op(member.name, (table, ids), member.attrs)


def _view_of_free(
    graph: EGraph, ids: Tensor, free: Mapping[ClassRef, Tensor]
) -> Tensor | None:
    """Return a term of the program for an e-class that is a term of ``free`` or a view of one, as
    the ids of a gather are repeated along the axes that the gather keeps; or None."""
    assert isinstance(ids, ClassRef)
    if ids in free:
        return free[ids]
    for member in graph.classes[ids]:
        if isinstance(member, Scope) and is_view(member):
            (base,) = args_of(member)
            if isinstance(base, ClassRef) and base in free:
                return over(member, {base: free[base]})
    return None


def _reached(
    graph: EGraph, segment: Segment, whole: ClassRef, part: ClassRef, wanted: Sequence[ClassRef]
) -> bool:
    """Whether the e-classes ``wanted`` can be computed from ``part`` and the inputs other than
    ``whole``."""
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
    """Return the outputs of a region as terms over ``args``."""
    images: dict[Tensor, Tensor] = {Input(str(n), a.type): a for n, a in enumerate(args)}
    for term in topological(region.outputs):
        if term not in images:
            images[term] = over(term, images)
    return tuple(images[term] for term in region.outputs)


def _given(
    segment: Segment, graph: EGraph, of_term: Mapping[Tensor, ClassRef]
) -> dict[ClassRef, ClassRef]:
    """Return e-class of a segment -> e-class of the whole, for inputs, and for parts of inputs that
    earlier segments compute."""
    found = {
        ref: of_term[segment.names[member]]
        for ref, members in graph.classes.items()
        for member in members
        if member in segment.names and segment.names[member] in of_term
    }
    free = _free(segment, graph)
    found |= {ref: of_term[term] for ref, term in free.items() if term in of_term}
    for ref, _whole, part in _parts(graph, _outer(segment, graph), free):
        if part in of_term:
            found.setdefault(ref, of_term[part])
    return found


def stitch(program: Program, segments: Sequence[Segment], graphs: Sequence[EGraph]) -> EGraph:
    """Join the e-graphs of a program's segments into one e-graph.

    Extraction works on the joined e-graph, so that it can choose layouts across cuts.
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
            # An input from an earlier segment is replaced by the program's term.
            whole = [segment.names.get(m, m) for m in members]
            own = [over(m, images) for m in whole if all(arg in images for arg in args_of(m))]
            known = original.get(images[ref], ())
            original[images[ref]] = tuple(dict.fromkeys((*known, *own)))
        for term, root in zip(segment.outputs, graph.roots, strict=True):
            of_term[term] = images[root]
        if segment.part:  # the ids by which it picks are computed once
            ids = set(topological(args_of(segment.outputs[-1])[1:]))
            free = _free(segment, graph).items()
            of_term |= {term: images[ref] for ref, term in free if term in ids}
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
