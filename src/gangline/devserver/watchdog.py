"""The process between an owner and its server, which ends the server for certain.

Run as a script, so it starts fast and imports nothing of Gangline. The owner speaks to it over the pipe on standard
input: one request, one answer on standard output. The pipe is the lifeline: however the owner ends, SIGKILL included,
the pipe closes, the server is ended, and a temporary folder is deleted.

The watchdog is the server's parent, so the number it signals can never belong to somebody else's process.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

LOG_NAME = "server.log"
"""What the server prints goes to this file in its folder; each start begins a new one."""

GRACE = 15.0
"""Seconds that a server with a kept folder has to shut down cleanly."""

_OWNER_CHECK = 0.5  # seconds; the pipe stays open without its owner if a forked child of the owner has inherited it
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class Watchdog:
    """Runs one server for the process `owner`, as often as asked, in one folder."""

    def __init__(self, *, owner: int, folder: Path, temporary: bool, command: Sequence[str]) -> None:
        """Take the server's `command` and its `folder`, deleted at the end if `temporary`."""
        self._owner = owner
        self._folder = folder
        self._temporary = temporary
        self._command = command
        self._server: subprocess.Popen[bytes] | None = None
        self._answers: dict[str, Callable[[], str]] = {
            "start": self._start,
            "poll": self._poll,
            "kill": self._kill,
            "pause": lambda: self._signal(signal.SIGSTOP),
            "resume": lambda: self._signal(signal.SIGCONT),
        }

    def serve(self) -> None:
        """Answer the owner's requests until the owner is gone, then end the server."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=not self._temporary)
            while request := self._next_request():
                os.write(sys.stdout.fileno(), f"{self._answer(request)}\n".encode())
        finally:
            self._end()

    def _next_request(self) -> str:
        stdin = sys.stdin.fileno()
        while os.getppid() == self._owner:
            if select.select([stdin], [], [], _OWNER_CHECK)[0]:
                return os.read(stdin, 64).decode().strip()
        return ""

    def _answer(self, request: str) -> str:
        try:
            return self._answers[request]()
        except OSError as error:
            return f"failed: {error}"

    def _start(self) -> str:
        with (self._folder / LOG_NAME).open("wb") as log:
            self._server = subprocess.Popen(  # noqa: S603 - the owner's own command
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,
            )
        return str(self._server.pid)

    def _poll(self) -> str:
        code = self._server.poll() if self._server else 0
        return "running" if code is None else str(code)

    def _kill(self) -> str:
        if self._server:
            self._server.kill()
            self._server.wait()
        return "done"

    def _signal(self, number: signal.Signals) -> str:
        if self._server:
            self._server.send_signal(number)
        return "done"

    def _end(self) -> None:
        if self._temporary:
            self._kill()
            shutil.rmtree(self._folder, ignore_errors=True)
        else:
            self._shut_down()

    def _shut_down(self) -> None:
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a paused server would sleep through the SIGTERM
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._server:
                self._server.wait(GRACE)
        self._kill()


def _die_with_parent() -> None:
    """Let the kernel end the server if the watchdog itself is killed. Safe here: the watchdog has one thread only."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main(arguments: Sequence[str]) -> None:
    """Serve as the watchdog: `owner pid, folder, "temporary" or "kept", command...`."""
    owner, folder, lasting, *command = arguments
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # a handler, not SIG_IGN, which the server would inherit
    Watchdog(owner=int(owner), folder=Path(folder), temporary=lasting == "temporary", command=command).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
