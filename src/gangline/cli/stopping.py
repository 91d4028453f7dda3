"""How a worker process ends: signals become a stop, and nothing that a handler left behind keeps the process alive."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from types import FrameType

from gangline.cli.exits import ExitCode
from gangline.jobs.durations import describe
from gangline.worker.worker import Worker

logger = logging.getLogger("gangline.cli")

_ALONE_SECONDS = 30.0
"""How long a worker may take to hand its jobs back once the process that started it is gone."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopping:
    """Stops a worker on signals: the first ends claiming, the second the grace time, the third the process.

    The signals are caught by Python and not by the event loop, so that the third one works although a handler blocks
    the loop.
    """

    def __init__(self, worker: Worker) -> None:
        """Listen from now on; call it on the worker's event loop."""
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._signals = 0
        self._stop: asyncio.Task[None] | None = None
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def when_stdin_closes(self) -> None:
        """Stop at once when standard input closes: the process that started this one is gone."""
        threading.Thread(target=self._await_end_of_stdin, name="gangline-stdin", daemon=True).start()

    def tell(self) -> None:
        """Log how it ended."""
        left = self._worker.handed_back
        if left:
            logger.warning("stopped; jobs handed back unfinished: %d", left, extra={"event": "worker_stopped"})
        else:
            logger.info("stopped; all jobs finished", extra={"event": "worker_stopped"})

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            for each in _SIGNALS:
                signal.signal(each, signal.SIG_DFL)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending already
            self._loop.call_soon_threadsafe(self._ask)

    def _await_end_of_stdin(self) -> None:
        """In a thread of its own: nobody is left who could send a third signal to a worker whose loop is blocked."""
        while os.read(sys.stdin.fileno(), 1024):
            pass
        leave_within(_ALONE_SECONDS, ExitCode.ERROR)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._hurry)

    def _hurry(self) -> None:
        self._ask()
        self._worker.hurry()

    def _ask(self) -> None:
        if self._stop is not None:
            logger.warning("handing the running jobs back now", extra={"event": "worker_hurries"})
            self._worker.hurry()
            return
        logger.info(
            "stopping; running jobs: %d. They have %s to end; another signal hands them back now",
            len(self._worker.running_executions),
            describe(self._worker.settings.grace),
            extra={"event": "worker_stopping"},
        )
        self._stop = asyncio.create_task(self._worker.stop())


def leave_within(seconds: float, code: int) -> None:
    """End the process with ``code`` after ``seconds`` if it has not ended by itself.

    A coroutine that does not listen to its cancellation, or a thread that a handler started, would keep it for ever.
    """
    timer = threading.Timer(seconds, _leave, [code])
    timer.daemon = True
    timer.start()


def _leave(code: int) -> None:
    logger.warning("something that a handler started does not end; leaving without it", extra={"event": "worker_left"})
    logging.shutdown()
    os._exit(code)
