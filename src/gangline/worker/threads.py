"""Threads for plain handlers."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any


class HandlerThreads:
    """Runs functions in daemon threads, which are kept for the next one.

    The standard pool joins its threads when the interpreter exits, and anyio's threads are no daemons either: one
    handler that never returns would keep a stopped worker alive for ever.
    """

    def __init__(self) -> None:
        self._idle: deque[_HandlerThread] = deque()
        self._closed = False
        self._lock = threading.Lock()

    async def run(self, function: Callable[[], Any]) -> Any:
        """Return what ``function`` returns or raise what it raises. Cancelling abandons it: it goes on, unheard."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_End] = loop.create_future()
        context = contextvars.copy_context()
        self._thread().start_job(lambda: context.run(function), _Reply(loop, future))
        # A value and not an exception crosses over: a future refuses StopIteration, and the loop SystemExit.
        value, error = await future
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """End the idle threads; busy ones end with their function."""
        with self._lock:
            self._closed = True
            while self._idle:
                self._idle.pop().end()

    def give_back(self, thread: _HandlerThread) -> bool:
        """Take ``thread`` for the next function, unless there will be none."""
        with self._lock:
            if not self._closed:
                self._idle.append(thread)
            return not self._closed

    def _thread(self) -> _HandlerThread:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        thread = _HandlerThread(self)
        thread.start()
        return thread


_End = tuple[Any, BaseException | None]


class _Reply:
    """Carries the end of a function back to the loop that waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[_End]) -> None:
        self._loop = loop
        self._future = future

    def send(self, value: Any, error: BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._set, value, error)
        except RuntimeError:
            return  # the loop is closed, and nobody waits

    def _set(self, value: Any, error: BaseException | None) -> None:
        if not self._future.done():
            self._future.set_result((value, error))


class _HandlerThread(threading.Thread):
    def __init__(self, pool: HandlerThreads) -> None:
        super().__init__(name="gangline-handler", daemon=True)
        self._pool = pool
        self._wake = threading.Semaphore(0)
        self._job: tuple[Callable[[], Any], _Reply] | None = None

    def start_job(self, function: Callable[[], Any], reply: _Reply) -> None:
        self._job = (function, reply)
        self._wake.release()

    def end(self) -> None:
        self._job = None
        self._wake.release()

    def run(self) -> None:
        while True:
            self._wake.acquire()
            if self._job is None:
                return
            (function, reply), self._job = self._job, None
            value, error = _call(function)
            kept = self._pool.give_back(self)
            reply.send(value, error)
            del function, reply, value, error  # nothing of a job may live on in an idle thread
            if not kept:
                return


def _call(function: Callable[[], Any]) -> _End:
    try:
        return function(), None
    except BaseException as error:  # SystemExit too must end the job and not the thread
        return None, error
