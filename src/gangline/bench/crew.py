"""Processes that start together, tell how far they are, and each give back a value.

They share plain memory and no locks: a process that is killed can leave none behind that the others wait for. Pools of
the standard library do, and hang then.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from ctypes import Array, c_int64
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_handles
from multiprocessing.context import SpawnProcess
from multiprocessing.sharedctypes import RawArray
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

START_SECONDS = 60.0
END_SECONDS = 10.0
_LOOK_EVERY = 0.05
_LISTEN_EVERY = 0.001

_WAIT, _GO, _STOP = range(3)


@dataclass(frozen=True, slots=True)
class _Shared:
    """The order for all, and for each process whether it is ready and how many steps it has done."""

    order: Array[c_int64]
    ready: Array[c_int64]
    done: Array[c_int64]


@dataclass(frozen=True, slots=True)
class Signals:
    """What a process of a crew hears and tells."""

    _shared: _Shared
    _number: int

    def ready(self) -> None:
        """Wait until every process is ready, and the one that measures."""
        self._shared.ready[self._number] = 1
        self._await(_GO, START_SECONDS)

    @property
    def stopping(self) -> bool:
        """Whether the processes should end."""
        return self._shared.order[0] == _STOP

    def wait_for_stop(self) -> None:
        """Wait until the processes should end."""
        self._await(_STOP, float("inf"))

    @property
    def done(self) -> int:
        """How many steps all of them have done."""
        return sum(self._shared.done)

    def add(self, steps: int) -> None:
        """Tell that so many more steps are done."""
        self._shared.done[self._number] += steps

    def _await(self, order: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._shared.order[0] < order:
            if time.monotonic() > deadline:
                raise TimeoutError("the other processes of the benchmark did not start in time")
            time.sleep(_LISTEN_EVERY)


@dataclass(frozen=True, slots=True)
class _Member:
    """One process as the one that measures sees it."""

    process: SpawnProcess
    answers: Connection

    @property
    def over(self) -> bool:
        """Whether it gave its answer or died without one."""
        return self.answers.poll()  # the end of the pipe counts as an answer

    def answer(self) -> Any:
        """Return what the function returned, or raise what it raised."""
        try:
            value, error = self.answers.recv()
        except EOFError:
            self.process.join()
            raise RuntimeError(
                f"a process of the benchmark ended without an answer, exit code {self.process.exitcode}"
            ) from None
        if error is not None:
            raise error
        return value

    def end(self) -> None:
        """Wait until it ended; one that does not listen is killed."""
        self.process.join(END_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()
        self.answers.close()


def run_together(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    begin: Callable[[], None] = lambda: None,
    watch: Callable[[int], bool],
) -> list[Result]:
    """Run ``function`` on each of ``tasks``, in a process for each, and return the results in their order.

    The function calls ``signals().ready()`` once it is set up; when all have, ``begin`` is called and they go on.
    ``watch`` is told how many steps are done, several times a second, and returns whether they should stop.

    Raises:
        RuntimeError: a process died.
        Exception: what the function raised; the other processes are told to stop.
    """
    shared = _Shared(RawArray(c_int64, 1), RawArray(c_int64, len(tasks)), RawArray(c_int64, len(tasks)))
    members: list[_Member] = []
    try:
        members += (_start(function, task, Signals(shared, number)) for number, task in enumerate(tasks))
        _await_all(shared, members)
        begin()
        shared.order[0] = _GO
        answers = dict[int, Result]()
        while len(answers) < len(members):
            if watch(sum(shared.done)):
                shared.order[0] = _STOP
            answers |= _answers(members, answers)
        watch(sum(shared.done))
        return [answers[number] for number in range(len(members))]
    finally:
        shared.order[0] = _STOP
        for member in members:
            member.end()


def _start(function: Callable[[Task], Result], task: Task, its_signals: Signals) -> _Member:
    context = multiprocessing.get_context("spawn")  # a fork would inherit sockets and threads of the driver's
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(there, function, task, its_signals), daemon=True)
    process.start()
    there.close()
    return _Member(process, here)


def _await_all(shared: _Shared, members: Sequence[_Member]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not all(shared.ready) and not any(member.over for member in members) and time.monotonic() < deadline:
        time.sleep(_LISTEN_EVERY)


def _answers(members: Sequence[_Member], known: Mapping[int, Any]) -> dict[int, Any]:
    """Wait a moment, and return the answers that came meanwhile, by the numbers of the members."""
    waiting = {member.answers: number for number, member in enumerate(members) if number not in known}
    come = [waiting[connection] for connection in wait_for_handles(list(waiting), _LOOK_EVERY) if connection in waiting]
    return {number: members[number].answer() for number in come}


# In a process of the crew

_signals: Signals | None = None


def signals() -> Signals:
    """Return the signals of the crew that this process belongs to."""
    assert _signals is not None, "this process belongs to no crew"  # noqa: S101 - a mistake in a benchmark
    return _signals


def _serve(answers: Connection, function: Callable[[Task], Result], task: Task, its_signals: Signals) -> None:
    global _signals
    _signals = its_signals
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answers.send((function(task), None))
    except Exception as error:
        error.add_note(traceback.format_exc())
        answers.send((None, _portable(error)))


def _portable(error: Exception) -> Exception:
    """Return ``error``, or its text if it cannot travel."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    except Exception:
        return RuntimeError(f"{type(error).__qualname__}: {error}")
    return error


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait_for_handles([parent.sentinel])
        os._exit(1)
