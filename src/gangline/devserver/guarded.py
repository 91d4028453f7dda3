"""A server process under a watchdog, seen from its owner."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gangline.devserver import watchdog
from gangline.devserver.errors import DevServerError, ServerEndedError

_STEP = 0.01  # seconds between two looks at the log
_LOG_LINES = 12


class GuardedProcess:
    """One server process that cannot outlive this process, however this process ends.

    The watchdog and the server live in a session of their own, so a Ctrl-C in the terminal reaches neither. A forked
    child of this process must leave the object alone; use from one thread at a time.
    """

    def __init__(self, command: Sequence[str], *, folder: Path, temporary: bool) -> None:
        """Start the watchdog for `command`; it makes `folder`, and deletes it at the end if `temporary`."""
        self.folder = folder
        self.pid: int | None = None
        self._temporary = temporary
        lasting = "temporary" if temporary else "kept"
        self._watchdog = subprocess.Popen(  # noqa: S603 - our own script
            [sys.executable, "-I", "-S", watchdog.__file__, str(os.getpid()), str(folder), lasting, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )

    @property
    def guard_pid(self) -> int:
        """The process id of the watchdog, the server's parent."""
        return self._watchdog.pid

    @property
    def running(self) -> bool:
        """Whether the server process is alive; a paused one is."""
        return self._exit_code() is None

    def start(self, ready: str, *, timeout: float = 30.0) -> None:
        """Start the server and wait until its log says `ready` (any case), `timeout` seconds at most.

        Raises ServerEndedError if the process ends first, DevServerError if it cannot be run or takes too long.
        """
        answer = self._ask("start")
        if not answer.isdigit():
            raise DevServerError(f"The server could not be run: {answer}")
        self.pid = int(answer)
        self._wait_until_logged(ready.lower(), timeout)

    def kill(self) -> None:
        """SIGKILL the server and wait until it is gone. The folder stays, and `start` may follow."""
        self._ask("kill")
        self.pid = None

    def pause(self) -> None:
        """SIGSTOP the server: it keeps its connections and answers nothing."""
        self._ask("pause")

    def resume(self) -> None:
        """SIGCONT the server."""
        self._ask("resume")

    def stop(self) -> None:
        """End the server and its watchdog: a temporary one by SIGKILL, a kept one cleanly if it can."""
        self.pid = None
        self._hang_up()
        try:
            self._watchdog.wait(watchdog.GRACE + 5)
        except subprocess.TimeoutExpired:
            self._watchdog.kill()  # the kernel then ends the server
            self._watchdog.wait()
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)  # the watchdog has done it, unless it was killed

    def log_tail(self) -> str:
        """The last lines of the server's log."""
        return "\n".join(self._log().splitlines()[-_LOG_LINES:])

    def _hang_up(self) -> None:
        for pipe in (self._watchdog.stdin, self._watchdog.stdout):
            if pipe:
                pipe.close()

    def _ask(self, request: str) -> str:
        stdin, stdout = self._watchdog.stdin, self._watchdog.stdout
        if stdin is None or stdout is None or stdin.closed:
            raise DevServerError("The server was stopped.")
        try:
            stdin.write(f"{request}\n".encode())
            stdin.flush()
        except BrokenPipeError:
            return self._watchdog_is_gone()
        return stdout.readline().decode().strip() or self._watchdog_is_gone()

    def _watchdog_is_gone(self) -> str:
        raise DevServerError(f"The watchdog of the server in {self.folder} has ended, and with it the server.")

    def _exit_code(self) -> int | None:
        answer = self._ask("poll")
        return None if answer == "running" else int(answer)

    def _wait_until_logged(self, text: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while text not in self._log().lower():
            self._check_alive()
            if time.monotonic() > deadline:
                raise DevServerError(f"The server was not ready after {timeout:g} s. Its log ends:\n{self.log_tail()}")
            time.sleep(_STEP)

    def _check_alive(self) -> None:
        code = self._exit_code()
        if code is not None:
            message = f"The server ended with exit code {code} while starting. Its log ends:\n{self.log_tail()}"
            raise ServerEndedError(message, exit_code=code)

    def _log(self) -> str:
        return (self.folder / watchdog.LOG_NAME).read_text(errors="replace")
