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
        # Half a millisecond more would be cut off on storage, and an instant that was run would come again.
        if not self.interval or self.interval % timedelta(milliseconds=1):
            raise ValueError(f"{self.interval!r} is not in whole milliseconds, in which the server keeps time")

    @property
    def text(self) -> str:
        """For example ``every 1m``."""
        return f"every {describe(self.interval)}"

    def next_after(self, after: datetime, *, anchor: datetime) -> datetime:
        """Return ``anchor`` plus the smallest whole number of intervals that lies after ``after``.

        What lies beyond the calendar is its last instant.
        """
        passed = (after - anchor) // self.interval
        try:
            return anchor + (passed + 1) * self.interval
        except OverflowError:
            return datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Cron:
    """A cron expression of five fields, or of six with the seconds in front, in a time zone.

    Daylight saving follows Debian's cron. An expression is a fixed time if none of its fields for the time of day
    begins with ``*``: a fixed time that a night skips runs once, right after the gap, however many of its instants lie
    in it; one that a night has twice runs the first time only. All others follow the clock on the wall: what a night
    skips is left out, and what it has twice runs twice.
    """

    expression: str
    zone: ZoneInfo = field(default_factory=lambda: ZoneInfo("UTC"))

    def __post_init__(self) -> None:
        try:
            next(CronSim(self.expression, datetime(2024, 1, 1)))  # noqa: DTZ001 - the clock on the wall
        except (CronSimError, AttributeError) as error:
            raise ValueError(f"{self.expression!r} is not a cron expression ({error})") from error
        except StopIteration:
            raise ValueError(f"{self.expression!r} names a day that never comes") from None

    @property
    def text(self) -> str:
        """For example ``cron 0 3 * * * America/Santiago``."""
        return f"cron {self.expression} {self.zone.key}"

    def next_after(self, after: datetime, *, anchor: datetime) -> datetime:
        """Return the first instant of the expression after ``after``; the anchor plays no part."""
        wall = after.astimezone(self.zone)
        found = self._first(wall, after, fold=0)
        repeated = _offset(wall, fold=0) - _offset(wall, fold=1)
        if not repeated or self._is_fixed:
            return found
        return min(found, self._first(wall - repeated, after, fold=1))

    @property
    def _is_fixed(self) -> bool:
        *time_of_day, _day, _month, _weekday = self.expression.split()
        return not any(part.startswith("*") for part in time_of_day)

    def _first(self, wall: datetime, after: datetime, *, fold: int) -> datetime:
        """Return the first instant after ``after``, of those later on the clock than ``wall``.

        ``fold`` says which one is meant where the clock shows a time twice. CronSim counts on the clock alone: its own
        rules for time zones lose instants in the hours after a midnight that was skipped (2.8, America/Santiago).
        """
        for time in CronSim(self.expression, wall.replace(tzinfo=None)):
            instant = time.replace(tzinfo=self.zone, fold=fold).astimezone(UTC)
            if instant.astimezone(self.zone).replace(tzinfo=None) != time:
                if not self._is_fixed:
                    continue
                instant = _end_of_gap(time, self.zone)
            if instant > after:
                return instant
        raise ValueError(f"{self.expression!r} has no instant after {after.isoformat()}")


def _offset(wall: datetime, *, fold: int) -> timedelta:
    return wall.replace(fold=fold).utcoffset() or timedelta(0)


def _end_of_gap(skipped: datetime, zone: ZoneInfo) -> datetime:
    """Return the instant at which the clock jumped over ``skipped``."""
    wall = skipped.replace(tzinfo=zone)
    before, beyond = (wall.replace(fold=fold).astimezone(UTC) for fold in (1, 0))
    offset = beyond.astimezone(zone).utcoffset()
    while beyond - before > timedelta(seconds=1):
        middle = before + (beyond - before) // timedelta(seconds=2) * timedelta(seconds=1)
        if middle.astimezone(zone).utcoffset() == offset:
            beyond = middle
        else:
            before = middle
    return beyond


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
