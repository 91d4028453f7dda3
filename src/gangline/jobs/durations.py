"""Durations and instants as users write them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

_ACCEPTED = "a timedelta, a number of seconds, or text such as '90s' or '1h30m'"

Duration = timedelta | float | int | str
"""A length of time: a ``timedelta``, seconds, or text made of ``ms``, ``s``, ``m``, ``h``, ``d`` and ``w``."""

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)\s*")


def parse_duration(value: Duration) -> timedelta:
    """Return ``value`` as a ``timedelta``; never negative.

    >>> parse_duration("1h30m")
    datetime.timedelta(seconds=5400)

    Raises:
        ValueError: not a duration, negative, not finite, or too large for a ``timedelta``.
    """
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(f"{value!r} is not a duration; use {_ACCEPTED}")
    try:
        length = _to_timedelta(value)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"{value!r} is not a duration; use {_ACCEPTED}") from error
    if length < timedelta(0):
        raise ValueError(f"{value!r} is negative")
    return length


def _to_timedelta(value: Duration) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        return _parse_text(value.strip())
    if isinstance(value, bool):
        raise TypeError("a truth value is no duration")
    return timedelta(seconds=value)


def _parse_text(text: str) -> timedelta:
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text):
        raise ValueError(f"{text!r} is not a duration; use {_ACCEPTED}")
    return sum((float(number) * _UNITS[unit] for number, unit in parts), timedelta())


def aware_utc(instant: datetime) -> datetime:
    """Return ``instant`` in UTC.

    Raises:
        ValueError: it has no time zone, so that it would mean another instant on another host.
    """
    if not isinstance(instant, datetime):
        raise ValueError(f"{instant!r} is not a datetime")
    if instant.utcoffset() is None:
        raise ValueError(
            f"{instant!r} has no time zone and would mean another instant on another host; "
            "use datetime.now(UTC) or attach a zone with .replace(tzinfo=ZoneInfo('…'))"
        )
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        # datetime.max in a zone west of UTC: the last instant that can be written is meant.
        return datetime.max.replace(tzinfo=UTC) if instant.year > 5000 else datetime.min.replace(tzinfo=UTC)


def describe(length: timedelta) -> str:
    """Return ``length`` as the shortest text that :func:`parse_duration` reads back.

    >>> describe(timedelta(minutes=90))
    '1h30m'
    """
    rest, text = length, ""
    for unit in ("w", "d", "h", "m", "s"):
        count, rest = divmod(rest, _UNITS[unit])
        text += f"{count}{unit}" if count else ""
    text += f"{rest / _UNITS['ms']:g}ms" if rest else ""
    return text or "0s"
