"""What the server did meanwhile, by its own counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pymongo.asynchronous.database import AsyncDatabase

_MICROSECONDS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class ServerLoad:
    """Counters of the whole server; a figure that a server does not tell stays zero.

    Attributes:
        conflicts: write conflicts.
        examined: documents that queries and updates looked at.
        keys: index keys that they looked at.
        commands: operations that clients sent, but for heartbeats and the like.
        cpu_seconds: CPU time of the server's process, user and system.
    """

    conflicts: int = 0
    examined: int = 0
    keys: int = 0
    commands: int = 0
    cpu_seconds: float = 0.0

    def since(self, before: ServerLoad) -> ServerLoad:
        """Return what came on top of ``before``."""
        return ServerLoad(
            conflicts=self.conflicts - before.conflicts,
            examined=self.examined - before.examined,
            keys=self.keys - before.keys,
            commands=self.commands - before.commands,
            cpu_seconds=self.cpu_seconds - before.cpu_seconds,
        )


async def server_load(database: AsyncDatabase[dict[str, Any]]) -> ServerLoad:
    """Return the counters as they are now.

    Raises:
        pymongo.errors.PyMongoError: the server could not be asked, or the user may not ask.
    """
    status = await database.command("serverStatus")
    metrics, process = status.get("metrics", {}), status.get("extra_info", {})
    executed = metrics.get("queryExecutor", {})
    counts = status.get("opcounters", {})
    return ServerLoad(
        conflicts=int(metrics.get("operation", {}).get("writeConflicts", 0)),
        examined=int(executed.get("scannedObjects", 0)),
        keys=int(executed.get("scanned", 0)),
        commands=sum(
            int(counts.get(kind, 0)) for kind in ("query", "insert", "update", "delete", "getmore", "command")
        ),
        cpu_seconds=(process.get("user_time_us", 0) + process.get("system_time_us", 0)) / _MICROSECONDS,
    )
