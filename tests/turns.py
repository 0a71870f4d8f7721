"""Parts of the suite that take turns: `make test` runs one of many, another every three hours."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import seed

PARTS: Final = 16
"""Of the tests marked `rotating`, `make test` runs every so-manyth."""

SELDOM: Final = 32
"""Of the rows of a test that has so many or more, every so-manyth: one each turn. Of those of a
test with fewer than `PARTS` rows too, which has none in some turns in any case."""

TURNS: Final = 8
"""So many numbers a test of random data has, each in another part: it runs in half of the turns."""

MOST: Final = 128
"""Of tests marked `rotating(parts=MOST)`, `make test` runs every so-manyth. `PARTS` and `SELDOM`
divide it, so that the number of a turn, modulo `MOST`, says all that is run in that turn."""

TURN_S: Final = 3 * 3600
"""The seconds of a turn. In a day of work `make test` runs several parts; when a turn was a day,
tests failed for weeks before their day came."""


def turn_of_now() -> int:
    """The number of the present turn."""
    return int(time.time()) // TURN_S


def by_turns(
    test: Callable[..., None], turns: int = TURNS, parts: int = PARTS
) -> Callable[..., None]:
    """A test that takes a number, ``turn``, at most one each time: ``@seed(turn)`` above its
    check draws other examples each time, and the test may count them."""
    by_turn = pytest.mark.parametrize("turn", range(turns))(test)
    return pytest.mark.rotating(parts=parts)(by_turn)


def by_rare_turns(test: Callable[..., None]) -> Callable[..., None]:
    """As :func:`by_turns`, in a quarter of the turns: for what takes some seconds in each turn."""
    return by_turns(test, parts=SELDOM)


def by_many_turns(test: Callable[..., None]) -> Callable[..., None]:
    """As :func:`by_turns`, with `MOST` turns: for a long table of which a part would take more
    than some seconds."""
    return by_turns(test, MOST, MOST)


def in_turns(check: Callable[[], None], parts: int = PARTS) -> Callable[[int], None]:
    """A test of random data as so many tests, each of which draws other examples.

    At most one of them runs in a turn, so what it draws may be little; together they draw more than
    one test would that draws the same each time. Above ``@settings`` and ``@given``; takes no
    fixtures.

    >>> @in_turns
    ... @settings(max_examples=5)
    ... @given(st.integers())
    ... def test_squares(number: int) -> None:
    ...     assert number * number >= 0
    """

    def test(turn: int) -> None:
        seed(turn)(check)()

    test.__name__, test.__qualname__ = check.__name__, check.__qualname__
    test.__doc__, test.__module__ = check.__doc__, check.__module__
    return by_turns(test, parts=parts)


def in_rare_turns(check: Callable[[], None]) -> Callable[[int], None]:
    """As :func:`in_turns`, in a quarter of the turns: for what takes some seconds in each turn."""
    return in_turns(check, SELDOM)
