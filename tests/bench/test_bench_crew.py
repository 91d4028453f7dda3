"""Processes that start together: they wait for one another, and none is left behind, however they end."""

import os
import time

import pytest

from gangline.bench.crew import run_together, signals


def _square(number: int) -> tuple[int, float, float]:
    before = time.monotonic()
    signals().ready()
    signals().add(number)
    return number * number, before, time.monotonic()


def _fail_early(number: int) -> None:
    if number == 2:
        raise ValueError("no such number")
    signals().ready()


def _fail_late(number: int) -> None:
    signals().ready()
    if number == 2:
        raise ValueError("no such number")
    signals().wait_for_stop()


def _die(number: int) -> None:
    signals().ready()
    if number == 2:
        os._exit(7)
    signals().wait_for_stop()


def test_they_start_together_and_give_their_results_in_order() -> None:
    seen: list[int] = []

    def watch(done: int) -> bool:
        seen.append(done)
        return False

    results = run_together(_square, [1, 2, 3], watch=watch)
    assert [square for square, _, _ in results] == [1, 4, 9]
    assert max(before for _, before, _ in results) <= min(after for _, _, after in results)
    assert seen[-1] == 6


def test_they_are_told_to_stop() -> None:
    assert run_together(_wait, [1, 2], watch=lambda done: done == 2) == [None, None]


def _wait(_: int) -> None:
    signals().ready()
    signals().add(1)
    signals().wait_for_stop()


@pytest.mark.parametrize("fail", [_fail_early, _fail_late])
def test_one_that_fails_ends_all_and_says_why(fail: object) -> None:
    with pytest.raises(ValueError, match="no such number"):
        run_together(fail, [1, 2, 3], watch=lambda done: False)  # type: ignore[arg-type]


def test_one_that_dies_ends_all() -> None:
    with pytest.raises(RuntimeError, match="ended without an answer, exit code 7"):
        run_together(_die, [1, 2], watch=lambda done: False)
