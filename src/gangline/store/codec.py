"""From a stored document to the record that an execution sees. Lenient: another program may have written it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from bson.datetime_ms import DatetimeMS

from gangline.jobs.lease import Lease
from gangline.jobs.outcome import END_OF_TIME
from gangline.jobs.params import from_stored
from gangline.jobs.record import DEFAULT_PRIORITY, ClaimedRecord

BEGIN_OF_TIME = datetime(1, 1, 1, tzinfo=UTC)


def claimed_record(document: dict[str, Any], *, was_stale: bool = False) -> ClaimedRecord:
    """Return the claimed record that ``document`` holds, which was read after its claim."""
    claimed_at = instant(document["lastRunAt"])
    next_run_at = _instant_or(document.get("nextRunAt"), claimed_at)
    return ClaimedRecord(
        id=document["_id"],
        name=document["jobName"],
        type=_text(document.get("type")) or "",
        priority=_number(document.get("priority"), DEFAULT_PRIORITY),
        next_run_at=next_run_at,
        params=from_stored(document.get("params")),
        unique=_text(document.get("uniqueIdentifier")),
        tries=int(_number(document.get("tries"), 1)),
        was_stale=was_stale,
        claimed_at=claimed_at,
        lease=Lease(document["_id"], document["lockId"]),
        anchor=_anchor(document.get("schedule"), next_run_at),
    )


def instant(value: datetime | DatetimeMS) -> datetime:
    """Return ``value`` as a ``datetime``; BSON dates beyond Python's years are clamped to them."""
    if isinstance(value, datetime):
        return value
    return END_OF_TIME if int(value) > 0 else BEGIN_OF_TIME


def _instant_or(value: Any, default: datetime) -> datetime:
    return instant(value) if isinstance(value, datetime | DatetimeMS) else default


def _anchor(schedule: Any, default: datetime) -> datetime:
    anchor = schedule.get("anchor") if isinstance(schedule, dict) else None
    return anchor if isinstance(anchor, datetime) else default


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any, default: float) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else default
