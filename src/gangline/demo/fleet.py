"""Worker processes that are gone when the demo is."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

_STOP_SECONDS = 20.0
_TAIL_BYTES = 4_000


class WorkerEnded(Exception):
    """A worker process ended by itself, or badly when it was told to end; the message shows what it said last."""


class Fleet:
    """Some processes of one command. Each has a pipe as standard input, which closes when this process is gone."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], count: int) -> None:
        self._command = command
        self._environment = environment
        self._count = count
        self._members: list[_Member] = []

    async def __aenter__(self) -> Self:
        """Start them."""
        try:
            for _ in range(self._count):
                self._members.append(await self._start())
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them, and raise :class:`WorkerEnded` if one of them did not end well."""
        await self._end()
        if error is None:
            self._report([member for member in self._members if member.process.returncode != 0])

    def check(self) -> None:
        """Raise :class:`WorkerEnded` if a process has ended by itself."""
        self._report([member for member in self._members if member.process.returncode is not None])

    def _report(self, ended: list[_Member]) -> None:
        if ended:
            raise WorkerEnded(ended[0].obituary())

    async def _start(self) -> _Member:
        # A session of its own: a Ctrl-C in the terminal reaches the demo alone, which ends them in order.
        return _Member(
            await asyncio.create_subprocess_exec(
                *self._command,
                stdin=PIPE,
                stdout=DEVNULL,
                stderr=PIPE,
                env=self._environment,
                start_new_session=True,
            )
        )

    async def _end(self) -> None:
        running = [member for member in self._members if member.process.returncode is None]
        for member in running:
            member.process.terminate()
        ends = [asyncio.ensure_future(member.process.wait()) for member in running]
        if ends:
            await asyncio.wait(ends, timeout=_STOP_SECONDS)
        for member in running:
            if member.process.returncode is None:
                member.process.kill()
        await asyncio.gather(*ends, *(member.listening for member in self._members))


class _Member:
    def __init__(self, process: Process) -> None:
        self.process = process
        self.listening = asyncio.create_task(self._listen())
        self._tail = b""

    def obituary(self) -> str:
        said = self._tail.decode(errors="replace").strip()
        text = f"worker process {self.process.pid} ended with exit code {self.process.returncode}"
        return f"{text}. It said last:\n{said}" if said else text

    async def _listen(self) -> None:
        assert self.process.stderr is not None  # noqa: S101 - it is a pipe
        while chunk := await self.process.stderr.read(_TAIL_BYTES):
            self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
