"""A job to be scheduled, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, TypedDict, cast, get_args

from gangline.jobs import settings
from gangline.jobs.durations import Duration, aware_utc
from gangline.jobs.errors import ConfigurationError, SchedulingError
from gangline.jobs.record import DEFAULT_PRIORITY

OnConflict = Literal["skip", "replace", "raise"]


class ScheduleOptions(TypedDict, total=False):
    """What may be said when a job is scheduled; meanings are those of :class:`JobCall`."""

    run_in: Duration
    run_at: datetime
    priority: float
    unique: str
    on_conflict: OnConflict


@dataclass(frozen=True, kw_only=True)
class JobCall:
    """A job that may be scheduled: alone, or with others by :meth:`Gangline.schedule_many`.

    Attributes:
        name: the job's name.
        params: gives the params document, or raises :class:`InvalidParams`. It is asked when the job is scheduled, so
            that one invalid job of many has an outcome of its own.
        priority: higher runs first.
        run_in: how long after now it becomes due; ``None`` is now. Not together with ``run_at``.
        run_at: the instant at which it becomes due.
        unique: at most one waiting or running record has this identifier, whatever its job name.
        on_conflict: what happens when the identifier is taken. ``skip`` leaves the first alone; ``replace`` puts this
            job in its place if it is waiting, and leaves it alone if it is running; ``raise`` raises
            :class:`AlreadyScheduled`.
    """

    name: str
    params: Callable[[], Any]
    priority: float = DEFAULT_PRIORITY
    run_in: timedelta | None = None
    run_at: datetime | None = None
    unique: str | None = None
    on_conflict: OnConflict = "skip"

    @classmethod
    def checked(
        cls, name: str, params: Callable[[], Any], options: ScheduleOptions, *, priority: float = DEFAULT_PRIORITY
    ) -> JobCall:
        """Return a call with checked ``options``; ``priority`` is the job's own.

        Raises:
            ConfigurationError: an option is unknown or wrong; it names the option and the remedy.
        """
        settings.known(options, ScheduleOptions.__annotations__, of="scheduling")
        if "run_in" in options and "run_at" in options:
            raise ConfigurationError("run_in, run_at", "both were given", "Give one of them")
        return cls(
            name=settings.job_name(name),
            params=params,
            priority=settings.priority(options.get("priority", priority)),
            run_in=settings.duration("run_in", options["run_in"]) if "run_in" in options else None,
            run_at=_instant("run_at", options["run_at"]) if "run_at" in options else None,
            unique=_identifier(options.get("unique")),
            on_conflict=_on_conflict(options.get("on_conflict", "skip")),
        )


class ScheduleStatus(StrEnum):
    """What came of a job that was to be scheduled."""

    CREATED = "created"
    EXISTING = "existing"
    REPLACED = "replaced"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """The outcome of scheduling one job.

    Attributes:
        id: the id of the record that now stands for the job; of the first one if it was there already; ``None`` if
            the job was refused.
        status: whether it was created, there already, replaced, or (in bulk only) refused.
        error: why it was refused.
    """

    id: str | None
    status: ScheduleStatus
    error: SchedulingError | None = None

    @property
    def created(self) -> bool:
        """Whether a new record was made."""
        return self.status is ScheduleStatus.CREATED


def _instant(setting: str, value: datetime) -> datetime:
    try:
        return aware_utc(value)
    except ValueError as error:
        raise ConfigurationError(setting, str(error), "Give an aware datetime") from error


def _identifier(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigurationError("unique", f"{value!r} is no identifier", "Give a text that is not empty")
    return value


def _on_conflict(value: Any) -> OnConflict:
    if value not in get_args(OnConflict):
        raise ConfigurationError("on_conflict", f"{value!r} is unknown", f"Use one of {get_args(OnConflict)}")
    return cast("OnConflict", value)
