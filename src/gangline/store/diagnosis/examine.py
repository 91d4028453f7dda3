"""Making the checks, one after another, each with a bound on its time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import pymongo
from pymongo.errors import AutoReconnect

from gangline.jobs.errors import ServerUnsuitable
from gangline.jobs.hint import Shape
from gangline.store.connection import Connection
from gangline.store.diagnosis import queue, server
from gangline.store.diagnosis.check import Check, Expected, Scene, Verdict, broken, running_workers, warning
from gangline.store.diagnosis.waiting import WaitingNames
from gangline.store.errors import StoreError, is_refused_hint, summary

CHECK_SECONDS = 5.0

CHECKS: Mapping[str, Callable[[Scene], Awaitable[Verdict]]] = {
    "server": server.version,
    "topology": server.topology,
    "clock": server.clock,
    "workers": server.workers,
    "indexes": server.indexes,
    "claim-by-name": lambda scene: server.claim(scene, Shape.BY_NAME),
    "claim-by-priority": lambda scene: server.claim(scene, Shape.BY_PRIORITY),
    "partition-balance": queue.partition_balance,
    "partition-range": queue.partition_range,
    "unserved-jobs": queue.unserved_jobs,
    "orphaned-recurrent": queue.orphaned_recurrent,
    "job-types": queue.job_types,
    "dead-jobs": queue.dead_jobs,
    "oldest-due": queue.oldest_due,
    "expired-leases": queue.expired_leases,
}


async def examine(connection: Connection, expected: Expected) -> list[Check]:
    """Return all checks; only that of the server if it cannot be asked."""
    try:
        scene = await _scene(connection, expected)
    except ServerUnsuitable as error:
        return [Check.of("server", broken(str(error), "Upgrade the server, or give the URI of another one"))]
    except StoreError as error:
        remedy = "Look whether it runs, and mend the URI or the rights of its user"
        return [Check.of("server", broken(summary(error), remedy))]
    return [Check.of(name, await _verdict(check, scene)) for name, check in CHECKS.items()]


async def _scene(connection: Connection, expected: Expected) -> Scene:
    capabilities = await connection.capabilities()
    skew, now = connection.clock.skew, connection.clock.now()
    with pymongo.timeout(CHECK_SECONDS):
        workers = await running_workers(connection)
    return Scene(
        connection=connection,
        capabilities=capabilities,
        expected=expected,
        skew=skew,
        now=now,
        workers=workers,
        waiting=WaitingNames(connection.records),
    )


async def _verdict(check: Callable[[Scene], Awaitable[Verdict]], scene: Scene) -> Verdict:
    try:
        with pymongo.timeout(CHECK_SECONDS):
            return await check(scene)
    except AutoReconnect as error:
        return broken(summary(error), "Look whether the server runs")
    except StoreError as error:
        if is_refused_hint(error):
            return warning("it cannot be told while an index is missing", "Run `gangline indexes ensure`")
        return warning(f"it cannot be told: {summary(error)}", "Ask again when the server is less busy, or mend rights")
