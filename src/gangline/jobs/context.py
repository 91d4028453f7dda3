"""What a handler may know and do about its own execution."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Protocol

from gangline.jobs.durations import Duration, parse_duration
from gangline.jobs.lease import Lease
from gangline.jobs.record import ClaimedRecord


class LeaseHolder(Protocol):
    """The worker's side of a context: it keeps the lease and knows whether the handler should end."""

    @property
    def lost(self) -> bool:
        """Whether the lease is known to be lost."""

    @property
    def should_end(self) -> bool:
        """Whether the worker asked the handler to end."""

    def ask_to_end(self) -> None:
        """Ask the handler to end."""

    async def extend(self, by: timedelta) -> None:
        """Let the lease end ``by`` from now, if that is later."""

    def extend_sync(self, by: timedelta) -> None:
        """Do the same from a thread."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Context:
    """Handed to a handler whose first parameter is annotated with it.

    Attributes:
        record: the claimed record as it was read.
        max_tries: how often the job may be tried; ``None`` is without end.
    """

    record: ClaimedRecord
    max_tries: int | None
    holder: LeaseHolder

    @cached_property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Logs with the job's identity in every record: ``job_id``, ``job_name``, ``execution_id``, ``tries``."""
        identity = {
            "job_id": self.record.id,
            "job_name": self.record.name,
            "execution_id": self.record.lease.lock_id,
            "tries": self.record.tries,
        }
        return JobLogger(logging.getLogger("gangline.job"), identity)

    @property
    def id(self) -> str:
        """The job's id."""
        return self.record.id

    @property
    def name(self) -> str:
        """The job's name."""
        return self.record.name

    @property
    def tries(self) -> int:
        """The number of this try; the first is 1."""
        return self.record.tries

    @property
    def priority(self) -> float:
        """The record's priority; higher runs first."""
        return self.record.priority

    @property
    def unique(self) -> str | None:
        """The unique identifier it was scheduled with."""
        return self.record.unique

    @property
    def was_stale(self) -> bool:
        """Whether an earlier execution lost its lease on this record, by a crash for example."""
        return self.record.was_stale

    @property
    def scheduled_for(self) -> datetime:
        """The instant this run was due."""
        return self.record.next_run_at

    @property
    def lease(self) -> Lease:
        """The lease token; its ``lock_id`` is the execution's id and the ``_id`` of its history document."""
        return self.record.lease

    @property
    def is_last_try(self) -> bool:
        """Whether a failure of this try ends the job."""
        return self.max_tries is not None and self.tries >= self.max_tries

    @property
    def lease_lost(self) -> bool:
        """Whether another execution may own the record now: what this one still does is for itself alone."""
        return self.holder.lost

    @property
    def should_end(self) -> bool:
        """Whether the handler should end soon: its time is over, its worker stops, or its lease is lost.

        An async handler is cancelled instead; a thread cannot be, so a long one looks here.
        """
        return self.holder.should_end

    async def extend_lease(self, by: Duration) -> None:
        """Let the lease end ``by`` from now, if that is later than it ends already.

        Only jobs with ``renew=False`` need it.

        Raises:
            LeaseLost: another execution may own the record; stop acting for it.
        """
        await self.holder.extend(parse_duration(by))

    def extend_lease_sync(self, by: Duration) -> None:
        """:meth:`extend_lease` for handlers that run in a thread."""
        self.holder.extend_sync(parse_duration(by))


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the identity of an execution to everything that is logged through it."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Merge the identity into ``extra``; what the caller gives there stays."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs
