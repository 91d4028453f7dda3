"""The command line as a user meets it: processes with arguments, output, signals and exit codes."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from typer.testing import CliRunner, Result

from gangline import Scheduled
from gangline.cli.root import cli

_DEADLINE = 20.0
"""Seconds after which a test that waits gives up: safety only, nothing is measured by it."""


class Command:
    """A running command."""

    def __init__(self, *command: str, cwd: Path | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={name: value for name, value in os.environ.items() if not name.startswith("GANGLINE_")},
            text=True,
        )
        self._lines: list[str] = []
        self._said = threading.Condition()
        self._closed = False
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def output(self) -> str:
        """What it said so far, errors included."""
        with self._said:
            return "".join(self._lines)

    def says(self, text: str) -> str:
        """Wait until a line holds `text`, and return the line."""
        with self._said:
            self._said.wait_for(lambda: self._closed or self._line(text), timeout=_DEADLINE)
            line = self._line(text)
        assert line is not None, f"it never said {text!r}:\n{self.output}"
        return line

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def close_stdin(self) -> None:
        """Close its standard input, as the end of its parent would."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def ends_within(self, seconds: float) -> int | None:
        """Its exit code, if it ends within `seconds`."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def ends(self) -> int:
        """Wait until it ends, and return its exit code."""
        code = self._process.wait(_DEADLINE)
        self._listening.join(_DEADLINE)
        return code

    def clean_up(self) -> None:
        """End it whatever it does, and close the pipes."""
        self._process.kill()
        self._process.wait()
        self._listening.join(_DEADLINE)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _line(self, text: str) -> str | None:
        return next((line for line in self._lines if text in line), None)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._said:
                self._lines.append(line)
                self._said.notify_all()
        with self._said:
            self._closed = True
            self._said.notify_all()


@contextmanager
def running(*arguments: str, cwd: Path | None = None) -> Iterator[Command]:
    """Run a command; it is ended when the block is left."""
    command = Command(*arguments, cwd=cwd)
    try:
        yield command
    finally:
        command.clean_up()


def gangline(*arguments: str, cwd: Path | None = None) -> AbstractContextManager[Command]:
    """Run `gangline` with `arguments`; it is ended when the block is left."""
    return running(sys.executable, "-m", "gangline.cli", *arguments, cwd=cwd)


class Run(Protocol):
    """Runs the command line with some arguments and returns what came of it."""

    def __call__(self, *arguments: str, env: Mapping[str, str] | None = None) -> Result: ...


def in_process(*arguments: str, env: Mapping[str, str] | None = None) -> Result:
    """Run the command line in this process, with the environment `env` where it is Gangline's."""
    own: dict[str, str | None] = {name: None for name in os.environ if name.startswith("GANGLINE_")}
    return CliRunner().invoke(cli, list(arguments), env={**own, "COLUMNS": "120", **(env or {})})


def scheduled_id(outcome: Scheduled) -> str:
    """The id of a job that was not refused."""
    assert outcome.id is not None
    return outcome.id
