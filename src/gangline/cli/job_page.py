"""The page about one job, for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from gangline.cli.output import moment, printable, text
from gangline.jobs.durations import describe

Document = dict[str, Any]
Row = tuple[str, RenderableType]


def job_page(job_id: str, job: Document | None, executions: list[Document], now: datetime) -> RenderableType:
    """Return what is known of a job: its record, unless it has ended, and its executions, the newest first."""
    rows = _record(job, now) if job is not None else _ended(executions[0])
    parts: list[RenderableType] = [_grid([("ID", text(job_id, "bold")), *rows])]
    for execution in executions:
        parts += [
            "",
            text(_title(execution, now), "bold"),
            Padding(_grid(_execution(execution)), (0, 0, 0, 2), expand=False),
        ]
    return Group(*parts)


def _record(job: Document, now: datetime) -> Iterator[Row]:
    yield "Job", text(job.get("jobName"))
    yield "Type", text(job.get("type"))
    yield "State", text(job["state"])
    yield from _optional("Schedule", _rule(job))
    yield "Due", _instant(job.get("nextRunAt"), now)
    yield "Tries", text(job.get("tries", 0))
    yield "Priority", text(job.get("priority"))
    yield "Partition", text(job.get("partition", "none yet"))
    yield from _optional("Unique", job.get("uniqueIdentifier", job.get("freedUniqueIdentifier")))
    for title, field in (("Scheduled", "createdAt"), ("Last claim", "lastRunAt"), ("Dead since", "maxTriesReachedAt")):
        if job.get(field) is not None:
            yield title, _instant(job[field], now)
    yield from _lease(job, now)
    yield "Params", text(_json(job.get("params")))
    yield from _last_error(job.get("lastError"), now)


def _ended(last: Document) -> Iterator[Row]:
    """The record is gone: the last execution tells what the job was."""
    yield "Job", text(last.get("jobName"))
    yield "Type", text(last.get("type"))
    yield "State", text("ended; only the history knows it")
    yield from _optional("Unique", last.get("uniqueIdentifier"))
    yield "Params", text(_json(last.get("params")))


def _lease(job: Document, now: datetime) -> Iterator[Row]:
    if job.get("lockedUntil") is not None:
        yield "Lease", text(f"ends {_told(job['lockedUntil'], now)}")
        yield "Lock", text(job.get("lockId"))
        yield "Worker", text(job.get("lockedBy", "unknown"))


def _last_error(error: Any, now: datetime) -> Iterator[Row]:
    if isinstance(error, dict):
        yield "Last error", text(f"{error.get('type')}: {error.get('message')}", "red")
        yield "", _instant(error.get("at"), now)
        yield from _optional("Trace", error.get("trace"))


def _title(execution: Document, now: datetime) -> str:
    status, tries = execution.get("status"), execution.get("tries")
    return f"Execution {execution.get('executionId')}: {status}, try {tries}, {moment(execution.get('endedAt'), now)}"


def _execution(execution: Document) -> Iterator[Row]:
    yield "Started", text(_iso(execution.get("startedAt")))
    yield "Took", text(_duration(execution.get("duration")))
    yield from _optional("Worker", execution.get("worker"))
    if "dismissed" in execution:
        yield "Dismissed", text(execution["dismissed"] or "without a reason")
    if "result" in execution:
        yield "Result", text(_json(execution["result"]))
    if "errorMessage" in execution:
        yield "Error", text(f"{execution.get('errorType', 'error')}: {execution['errorMessage']}", "red")
    yield from _optional("Trace", execution.get("errorTrace"))


def _grid(rows: Iterator[Row] | list[Row]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for title, value in rows:
        grid.add_row(title, value)
    return grid


def _optional(title: str, value: Any) -> Iterator[Row]:
    if value is not None:
        yield title, text(str(value).rstrip())


def _rule(job: Document) -> Any:
    schedule = job.get("schedule")
    return schedule.get("rule") if isinstance(schedule, dict) else None


def _instant(value: Any, now: datetime) -> RenderableType:
    return text(_told(value, now))


def _told(value: Any, now: datetime) -> str:
    return f"{moment(value, now)} ({_iso(value)})" if isinstance(value, datetime) else moment(value, now)


def _iso(value: Any) -> str:
    return value.isoformat(timespec="milliseconds") if isinstance(value, datetime) else str(value)


def _duration(milliseconds: Any) -> str:
    return describe(timedelta(milliseconds=int(milliseconds))) if isinstance(milliseconds, int | float) else ""


def _json(value: Any) -> str:
    return json.dumps(printable(value), indent=2, ensure_ascii=False)
