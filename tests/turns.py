"""Parts of the suite that take turns: `make test` runs one of so many, another each day."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import seed

PARTS: Final = 16
"""Of the tests marked `rotating`, `make test` runs every so-manyth."""

SELDOM: Final = 32
"""Of the rows of a test that has so many or more, every so-manyth: one each day. Of those of a test
with fewer than `PARTS` rows too, which has none on some days in any case."""

TURNS: Final = 8
"""So many turns a test of random data has, each in another part: it runs on half of the days."""

MOST: Final = 128
"""Of tests marked `rotating(parts=MOST)`, `make test` runs every so-manyth. `PARTS` and `SELDOM`
divide it, so that the number of a day, modulo `MOST`, says all that is run on that day."""


def by_turns(
    test: Callable[..., None], turns: int = TURNS, parts: int = PARTS
) -> Callable[..., None]:
    """A test that takes the number of its ``turn``, at most one in a day: ``@seed(turn)`` above its
    check draws other examples each time, and the test may count them."""
    by_turn = pytest.mark.parametrize("turn", range(turns))(test)
    return pytest.mark.rotating(parts=parts)(by_turn)


def by_rare_turns(test: Callable[..., None]) -> Callable[..., None]:
    """As :func:`by_turns`, on a quarter of the days: for what takes some seconds in each turn."""
    return by_turns(test, parts=SELDOM)


def by_many_turns(test: Callable[..., None]) -> Callable[..., None]:
    """As :func:`by_turns`, with `MOST` turns: for a long table that would take a day's part more
    than some seconds."""
    return by_turns(test, MOST, MOST)


def in_turns(check: Callable[[], None], parts: int = PARTS) -> Callable[[int], None]:
    """A test of random data as so many tests, each of which draws other examples.

    At most one of them runs in a day, so what it draws may be little; together they draw more than
    one test would that draws the same each day. Above ``@settings`` and ``@given``; takes no
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
    """As :func:`in_turns`, on a quarter of the days: for what takes some seconds in each turn."""
    return in_turns(check, SELDOM)
