"""``gangline stats``: how many records there are, in which states, and which workers run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gangline.cli.connected import connected
from gangline.cli.options import Json, Prefix, Uri
from gangline.cli.output import console, moment, print_json, table, text
from gangline.store.connection import Connection
from gangline.store.diagnosis import Misplacement, misplacement, running_workers
from gangline.store.insights import Insights, JobCounts, State
from gangline.store.registry import WorkerEntry
from gangline.store.schema import DEFAULT_PREFIX

_STYLES = {State.READY: "cyan", State.RUNNING: "green", State.STALE: "yellow", State.DEAD: "red"}


@dataclass(frozen=True, kw_only=True)
class _Stats:
    counts: Sequence[JobCounts]
    workers: Sequence[WorkerEntry]
    misplacement: Misplacement | None
    now: datetime


def stats(uri: Uri = None, prefix: Prefix = DEFAULT_PREFIX, as_json: Json = False) -> None:
    """Count the queue's records by job and state, and tell which workers run. Reads every record once.

    Records outside the partitions are counted up to 10,000; workers repair them, 500 at a time.
    """
    found = connected(uri, prefix, _stats)
    if as_json:
        print_json(_fields(found))
    else:
        _print(console(), found)


async def _stats(connection: Connection) -> _Stats:
    insights = Insights(connection)
    counts = await insights.counts()
    workers = await running_workers(connection)
    return _Stats(
        counts=counts,
        workers=workers,
        misplacement=await misplacement(connection.records, workers),
        now=await insights.now(),
    )


def _fields(found: _Stats) -> dict[str, Any]:
    return {
        "jobs": [dataclasses.asdict(job) for job in found.counts],
        "total": _total(found.counts),
        "workers": [dataclasses.asdict(worker) for worker in found.workers],
        "misplaced": None if found.misplacement is None else dataclasses.asdict(found.misplacement),
    }


def _print(out: Console, found: _Stats) -> None:
    out.print(_table(found.counts, found.now) if found.counts else "The queue is empty.")
    if found.workers:
        out.print()
        out.print(_workers(found.workers, found.now))
    if found.misplacement is not None and (found.workers or found.misplacement.records):
        out.print()
        out.print(text(found.misplacement.told, "yellow" if found.misplacement.records else ""))


def _table(counts: Sequence[JobCounts], now: datetime) -> Table:
    states = [state.value for state in State]
    found = table("Job", "Type", *(state.title() for state in states), "Oldest due", right=_titles(states))
    for job in counts:
        numbers = [_number(getattr(job, state), state) for state in State]
        found.add_row(text(job.name), text(job.type), *numbers, moment(job.oldest_due, now))
    if len(counts) > 1:
        total = _total(counts)
        found.add_section()
        found.add_row("Total", "", *(_number(total[state], state) for state in State))
    return found


def _workers(workers: Sequence[WorkerEntry], now: datetime) -> Table:
    numbers = ("Jobs", "Concurrency", "Partitions")
    found = table("Worker", *numbers, "Claims", "Shape", "Started", right=frozenset(numbers))
    for worker in workers:
        counts = (len(worker.jobs), worker.concurrency, worker.partitions)
        chosen = (text(worker.claim_protocol), text(worker.shape))
        found.add_row(text(worker.name), *map(text, counts), *chosen, moment(worker.started_at, now))
    return found


def _titles(states: list[str]) -> frozenset[str]:
    return frozenset(state.title() for state in states)


def _number(count: int, state: State) -> Text:
    return text(f"{count:,}", _STYLES.get(state, "") if count else "dim")


def _total(counts: Sequence[JobCounts]) -> dict[str, int]:
    return {state.value: sum(getattr(job, state) for job in counts) for state in State}
