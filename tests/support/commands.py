"""Counting the commands that Gangline sends.

PyMongo's global listeners apply to every client that is made later and cannot be taken away again, so there is one for
the whole test process, and it hands on to whoever records just now.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pymongo import monitoring


@dataclass
class Commands:
    """The commands that were sent for one database while it was watched, in their order."""

    database: str
    sent: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def named(self, *names: str) -> list[dict[str, Any]]:
        """The commands with one of these names."""
        return [command for name, command in self.sent if name in names]

    def clear(self) -> None:
        """Forget what was sent so far."""
        self.sent.clear()


class _Listener(monitoring.CommandListener):
    def __init__(self) -> None:
        self.recording: list[Commands] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        for commands in self.recording:
            if commands.database == event.database_name:
                commands.sent.append((event.command_name, dict(event.command)))

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass


_listener = _Listener()
monitoring.register(_listener)


@contextmanager
def recorded(database: str) -> Iterator[Commands]:
    """What clients that were made after the import of this module send for `database`."""
    commands = Commands(database)
    _listener.recording.append(commands)
    try:
        yield commands
    finally:
        _listener.recording.remove(commands)
