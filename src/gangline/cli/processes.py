"""``gangline worker --processes N``: each worker is this same command in an interpreter of its own."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from gangline.cli.exits import ExitCode
from gangline.worker.supervisor import Supervisor

_STOPPING = (signal.SIGINT, signal.SIGTERM)


async def supervise(arguments: Sequence[str], environment: Mapping[str, str], processes: int) -> ExitCode:
    """Run ``gangline`` with ``arguments`` in so many processes until a signal, and return what they came to.

    ``environment`` is added to this process's own: what is given there is seen by no other user of the host.
    """

    async def start() -> WorkerProcess:
        return await WorkerProcess.start(arguments, {**os.environ, **environment})

    supervisor = Supervisor(start, processes, random.Random())
    loop = asyncio.get_running_loop()
    for number in _STOPPING:
        loop.add_signal_handler(number, supervisor.signal, number)
    return worst(await supervisor.run())


def as_arguments(options: Mapping[str, object]) -> list[str]:
    """Write options as they stand on a command line.

    >>> as_arguments({"max_batch": 8, "renew": False})
    ['--max-batch=8', '--no-renew']
    """
    return [_as_argument(name.replace("_", "-"), value) for name, value in options.items()]


def _as_argument(name: str, value: object) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name}={value}"


def worst(codes: Sequence[int]) -> ExitCode:
    """Return the exit code that tells of the worst among ``codes``; a process that was killed counts as an error.

    >>> worst([0, 3, 0]).name
    'UNFINISHED'
    """
    if ExitCode.USAGE in codes:
        return ExitCode.USAGE
    if any(code not in (ExitCode.DONE, ExitCode.UNFINISHED) for code in codes):
        return ExitCode.ERROR
    return ExitCode.UNFINISHED if ExitCode.UNFINISHED in codes else ExitCode.DONE


class WorkerProcess:
    """A worker in a session of its own, so that a Ctrl-C in the terminal reaches it through its supervisor only.

    Its standard input is a pipe that nothing is ever written to: it closes with this process, and ends the worker.
    """

    def __init__(self, process: asyncio.subprocess.Process, told: asyncio.StreamReader) -> None:
        self._process = process
        self._told = told

    @classmethod
    async def start(cls, arguments: Sequence[str], environment: Mapping[str, str]) -> WorkerProcess:
        """Start a process; it tells through a pipe of its own when it is ready."""
        reading, writing = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gangline.cli", *arguments),
                *("--until-stdin-closes", f"--ready-fd={writing}"),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=[writing],
                env=environment,
                start_new_session=True,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        told = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(told), os.fdopen(reading, "rb", buffering=0)
        )
        return cls(process, told)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def ready(self) -> bool:
        """Wait until it claims jobs; whether it came to that. The end of the pipe tells that it did not."""
        return bool(await self._told.read(1))

    async def wait(self) -> int:
        """Wait until it ended, and return its exit code."""
        return await self._process.wait()

    def send_signal(self, number: int) -> None:
        """Send it a signal; nothing if it has ended."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)
