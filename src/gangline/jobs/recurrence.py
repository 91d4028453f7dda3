"""When a recurrent job runs next: an interval, a cron expression with a time zone, or a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from gangline.jobs.durations import aware_utc, describe


class Recurrence(Protocol):
    """A rule that gives the instants of a recurrent job."""

    @property
    def text(self) -> str:
        """The rule in words. It is stored with the record, so that a changed rule is noticed at the next start."""

    def next_after(self, after: datetime, *, anchor: datetime) -> datetime:
        """Return the first instant of the rule that lies after ``after``; intervals count from ``anchor``."""


@dataclass(frozen=True)
class Every:
    """Every ``interval``, counted from the anchor, so that late or long runs never move the later ones."""

    interval: timedelta

    def __post_init__(self) -> None:
        if self.interval < timedelta(milliseconds=1):
            raise ValueError(f"{self.interval!r} is too short: the server keeps time in milliseconds")

    @property
    def text(self) -> str:
        """For example ``every 1m``."""
        return f"every {describe(self.interval)}"

    def next_after(self, after: datetime, *, anchor: datetime) -> datetime:
        """Return ``anchor`` plus the smallest whole number of intervals that lies after ``after``."""
        passed = (after - anchor) // self.interval
        return anchor + (passed + 1) * self.interval


@dataclass(frozen=True)
class Cron:
    """A cron expression in a time zone.

    Daylight saving follows Debian's cron: a fixed time that a night skips runs once, right after the gap; a fixed
    time that a night has twice runs once; expressions with a wildcard hour follow the clock on the wall.
    """

    expression: str
    zone: ZoneInfo = field(default_factory=lambda: ZoneInfo("UTC"))

    def __post_init__(self) -> None:
        try:
            next(CronSim(self.expression, datetime(2024, 1, 1, tzinfo=self.zone)))
        except CronSimError as error:
            raise ValueError(f"{self.expression!r} is not a cron expression ({error})") from error
        except StopIteration:
            raise ValueError(f"{self.expression!r} names a day that never comes") from None

    @property
    def text(self) -> str:
        """For example ``cron 0 3 * * * America/Santiago``."""
        return f"cron {self.expression} {self.zone.key}"

    def next_after(self, after: datetime, *, anchor: datetime) -> datetime:
        """Return the first instant of the expression after ``after``; the anchor plays no part."""
        for instant in CronSim(self.expression, after.astimezone(self.zone)):
            if (found := instant.astimezone(UTC)) > after:
                return found
        raise ValueError(f"{self.expression!r} has no instant after {after.isoformat()}")


@dataclass(frozen=True)
class NextRun:
    """Instants from a function of the user's: it gets an instant and returns a later one, with a time zone."""

    function: Callable[[datetime], datetime]

    @property
    def text(self) -> str:
        """For example ``next_run shop.jobs.next_working_day``."""
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return f"next_run {getattr(self.function, '__module__', '?')}.{name}"

    def next_after(self, after: datetime, *, anchor: datetime) -> datetime:
        """Return what the function gives for ``after``.

        Raises:
            ValueError: it gave no aware datetime, or one that is not later; a loop without a pause would follow.
        """
        instant = aware_utc(self.function(after))
        if instant <= after:
            raise ValueError(f"{self.text} returned {instant.isoformat()}, which is not after {after.isoformat()}")
        return instant
