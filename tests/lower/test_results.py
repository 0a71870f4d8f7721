"""Memory of results: who holds a result keeps it, and what nobody holds is used again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from eqsynth.lower.results import Results

SHAPE = (4, 8)
HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "itself": lambda x: x,
    "view": lambda x: x[1, 2:],
    "array": lambda x: x.numpy(),
    "memoryview": lambda x: memoryview(x.numpy()),
    "capsule": lambda x: x.__dlpack__(),
    "storage": lambda x: x.untyped_storage(),
    "typed storage": lambda x: x.storage(),
    "detached": lambda x: x.detach(),
    "parameter": lambda x: torch.nn.Parameter(x),
    "graph": lambda x: torch.ones(SHAPE, requires_grad=True) * x,
}


def _results(shape: tuple[int, ...] = SHAPE) -> Results:
    return Results(shape, torch.empty(shape).stride(), torch.float32)


def test_what_nobody_holds_is_used_again() -> None:
    results = _results()
    places = set()
    for _ in range(5):
        result = results.take()
        assert result.shape == SHAPE and result.is_contiguous() and result.dtype is torch.float32
        places.add(result.data_ptr())
        del result
    assert len(places) == 1


def test_a_loop_takes_two() -> None:
    results = _results()
    places, result = [], results.take()
    for _ in range(6):
        result = results.take()
        places.append(result.data_ptr())
    assert len(set(places)) == 2
    assert all(one != next_ for one, next_ in zip(places, places[1:], strict=False))


@pytest.mark.parametrize("name", HOLDERS)
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_who_holds_a_result_keeps_it(name: str) -> None:
    results = _results()
    for _ in range(3):  # the first that is taken is new, those after it may be used again
        result = results.take().fill_(7)
        held, at = HOLDERS[name](result), result.data_ptr()
        del result
        others = [results.take().fill_(0) for _ in range(3)]
        assert all(other.data_ptr() != at and other.shape == SHAPE for other in others)
        del held, others


def test_memory_that_another_process_reads() -> None:
    """Torch doesn't count these, so the storage that was moved there isn't used again."""
    results = _results()
    result = results.take().fill_(7)
    fd, size = result.untyped_storage()._share_fd_cpu_()
    there = torch.UntypedStorage._new_shared_fd_cpu(fd, size)
    del result
    results.take().fill_(0)
    seen = torch.empty(0).set_(there, 0, SHAPE)
    assert torch.equal(seen, torch.full(SHAPE, 7.0))


@pytest.mark.parametrize("size", [0, 8, 4096])
def test_a_storage_that_was_resized(size: int) -> None:
    results = _results()
    results.take().untyped_storage().resize_(size)
    assert torch.equal(results.take().fill_(3), torch.full(SHAPE, 3.0))


def test_who_keeps_all_of_them_has_memory_for_each() -> None:
    results = _results()
    kept = [results.take().fill_(n) for n in range(20)]
    assert [float(x[0, 0]) for x in kept] == list(range(20))
    assert len(results._kept) == 2


def test_calls_at_once() -> None:
    results, rounds = _results((64,)), 300
    meeting = threading.Barrier(4)

    def call(n: int) -> bool:
        meeting.wait()
        right = True
        for k in range(rounds):
            mine = results.take().fill_(1000 * n + k)
            other = results.take().fill_(-1)
            right &= bool((mine == 1000 * n + k).all()) and bool((other == -1).all())
        return right

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(call, range(4)))


def test_modes_of_calls_do_not_matter() -> None:
    results = _results()
    with torch.inference_mode():
        results.take()
    result = results.take().fill_(2)
    weight = torch.ones(SHAPE, requires_grad=True)
    (weight * result).sum().backward()
    assert weight.grad is not None and torch.equal(weight.grad, torch.full(SHAPE, 2.0))
    assert not result.requires_grad and result.is_leaf


def test_no_elements() -> None:
    results = _results((0, 3))
    assert [results.take().shape for _ in range(3)] == [(0, 3)] * 3
