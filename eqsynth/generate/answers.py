"""Questions about two graphs, which workers answer, and the answers in the cache directory.

    "does saturation derive it?", (matmul(x, y), ...)  ->  ("derived", ...), from a file or a worker

An answer is kept as soon as it is there, so a run that was ended goes on with the questions that
were never answered. The name of an answer's file is a digest of everything that the answer depends
on: the graphs, the texts of the rule files, eqsynth's code, and the versions of the engines. Not
here: what is asked, and of which graphs (``deriving.py``, ``writing.py``); how a file is written
(``kept.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from eqsynth import kept
from eqsynth.egraph.remembered import CODE
from eqsynth.ir.tensor import Tensor
from eqsynth.rules import DEFAULT_FILES
from eqsynth.rules.forms import read_text
from eqsynth.rules.location import rule_path
from eqsynth.serving import WorkerError
from eqsynth.tasks import Executor, LocalExecutor

Side = tuple[Tensor, ...]
Answer = TypeVar("Answer")

_MEMORY: Final = 4 << 30
_MAX_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Question(Generic[Answer]):
    """A question that is asked about many pairs of graphs.

    Attributes:
        task: answers it in a worker, as ``task(left, right, *args)``, by a tuple of plain values.
        kind: the directory of its answers.
        key: a digest of what an answer depends on besides the graphs (:func:`key_of`).
        is_final: whether an answer is kept: not if it would be another one with more time.
        lost: the answer if the worker died or took too long; it isn't kept.
        timeout_s: the seconds that the worker has.
    """

    task: Callable[..., Answer]
    args: tuple[Any, ...]
    kind: str
    key: str
    is_final: Callable[[Answer], bool]
    lost: Callable[[WorkerError], Answer]
    timeout_s: float

    def file(self, left: Side, right: Side) -> Path:
        """Return the file of the answer about two graphs."""
        name = blake2b(f"{self.key} {len(left)}".encode(), digest_size=16)
        for term in (*left, *right):
            name.update(term.digest)
        return kept.directory(self.kind) / name.hexdigest()

    def keep(self, file: Path, answer: Answer) -> None:
        if self.is_final(answer):
            kept.keep(file, answer, _MAX_BYTES)


def key_of(files: Sequence[str | Path], layers: Sequence[str], *further: object) -> str:
    """Return a digest of eqsynth's rules and those of ``files``, and of the code that uses them.

    Args:
        layers: the subpackages that the answers depend on, besides those of a saturation.
        further: what else they depend on.
    """
    texts = [read_text(rule_path(file)) for file in (*DEFAULT_FILES, *files)]
    code = kept.code_of(*CODE, *layers)
    text = repr((texts, code, metadata.version("egglog"), further))
    return blake2b(text.encode(), digest_size=16).hexdigest()


def answers(
    question: Question[Answer],
    graphs: Iterable[tuple[Side, Side]],
    executor: Executor | None = None,
) -> Iterator[Answer]:
    """Ask a question about each pair of graphs; yield the answers in the order of the pairs.

    Args:
        executor: runs the tasks; by default one process on this machine.
    """
    waiting: deque[tuple[Path, Answer | Future[Answer]]] = deque()

    def first() -> Answer:
        file, there = waiting[0]
        try:
            answer = there.result() if isinstance(there, Future) else there
            if isinstance(there, Future):
                question.keep(file, answer)
        except WorkerError as error:
            answer = question.lost(error)
        waiting.popleft()
        return answer

    try:
        with nullcontext(executor) if executor else LocalExecutor() as tasks:
            for left, right in graphs:
                file = question.file(left, right)
                found = kept.load(file, {})
                if found is None:
                    found = tasks.submit(
                        question.task, left, right, *question.args,
                        memory_limit=_MEMORY, timeout_s=question.timeout_s,
                    )  # fmt: skip
                waiting.append((file, found))
                while len(waiting) > 2 * tasks.processes:
                    yield first()
            while waiting:
                yield first()
    finally:
        # A run that is ended keeps the answers that are there, also those that nobody has taken.
        for file, there in waiting:
            if isinstance(there, Future) and there.done() and not there.cancelled():
                if there.exception() is None:
                    question.keep(file, there.result())
