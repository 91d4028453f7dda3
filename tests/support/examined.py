"""A queue to be examined: its indexes made, and workers that say they run."""

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gangline.store.indexes import ensure_indexes
from gangline.store.registry import Registry, WorkerEntry
from support.cli import in_process
from support.records import open_connection

WORKER = WorkerEntry(
    name="host:1:one",
    host="host",
    pid=1,
    version="1",
    partitions=4,
    concurrency=8,
    jobs={"resizeImage": "event", "cleanUp": "recurrent"},
    claim_protocol="batch",
    shape="by-name",
    started_at=datetime(2026, 1, 1, tzinfo=UTC),
)


def set_up(uri: str, *workers: WorkerEntry) -> None:
    """Make the indexes, and let `workers` be seen now."""

    async def act() -> None:
        async with open_connection(uri) as connection:
            await ensure_indexes(connection)
            for worker in workers:
                await Registry(connection).publish(worker)

    asyncio.run(act())


@dataclass(frozen=True)
class Examined:
    """What `gangline doctor` said."""

    code: int
    checks: dict[str, dict[str, str]]

    def status(self, name: str) -> str:
        return self.checks[name]["status"]

    def detail(self, name: str) -> str:
        return self.checks[name]["detail"]

    def not_well(self) -> set[str]:
        """The names of the checks that are not well."""
        return {name for name, check in self.checks.items() if check["status"] != "ok"}


def doctor(uri: str, *arguments: str) -> Examined:
    """Run `gangline doctor --json`."""
    result = in_process("doctor", "--uri", uri, "--json", *arguments)
    assert isinstance(result.exception, SystemExit | None), result.exception
    answer: Any = json.loads(result.stdout)
    for check in answer["checks"]:
        assert set(check) == {"name", "status", "detail", "remedy"}
        assert bool(check["remedy"]) == (check["status"] != "ok"), check
    return Examined(result.exit_code, {check["name"]: check for check in answer["checks"]})
