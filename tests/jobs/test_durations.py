from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.jobs.durations import aware_utc, describe, parse_duration
from support.properties import on_a_busy_machine

LAST = datetime.max.replace(tzinfo=UTC)
FIRST = datetime.min.replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("0s", timedelta(0)),
        ("250ms", timedelta(milliseconds=250)),
        ("90s", timedelta(seconds=90)),
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(minutes=90)),
        ("2d", timedelta(days=2)),
        ("1w", timedelta(weeks=1)),
        ("1.5h", timedelta(minutes=90)),
        ("0.5ms", timedelta(microseconds=500)),
        ("1w2d3h4m5s6ms", timedelta(weeks=1, days=2, hours=3, minutes=4, seconds=5, milliseconds=6)),
        (" 1 h  30 m ", timedelta(minutes=90)),
    ],
)
def test_text_is_read(text: str, length: timedelta) -> None:
    assert parse_duration(text) == length


def test_numbers_are_seconds() -> None:
    assert parse_duration(90) == timedelta(seconds=90)
    assert parse_duration(0.25) == timedelta(milliseconds=250)


def test_a_timedelta_is_taken_as_it_is() -> None:
    assert parse_duration(timedelta(days=3, microseconds=1)) == timedelta(days=3, microseconds=1)


@pytest.mark.parametrize(
    "value",
    ["", " ", "soon", "90", "s", "1x", "1h x", "h1", "1h-30m", "-1s", "+1s", "1.5.5s", ".5s", "1e3s", "1,5s", "10mss"],
)
def test_text_that_is_no_duration_is_refused_with_the_remedy(value: str) -> None:
    with pytest.raises(ValueError, match=r"not a duration; use .*'1h30m'"):
        parse_duration(value)


@pytest.mark.parametrize(
    "value",
    [None, True, False, b"1s", [1], {}, 1j, 10**400, float("inf"), float("nan"), "9" * 400 + "s", "9999999999w"],
)
def test_values_that_are_no_length_of_time_are_refused_with_the_remedy(value: Any) -> None:
    with pytest.raises(ValueError, match=r"not a duration; use .*'1h30m'"):
        parse_duration(value)


@pytest.mark.parametrize("value", [-1, -0.001, timedelta(microseconds=-1), timedelta.min])
def test_negative_lengths_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="negative"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(minutes=90), "1h30m"),
        (timedelta(days=10), "1w3d"),
        (timedelta(seconds=1, milliseconds=5), "1s5ms"),
        (timedelta(microseconds=1500), "1.5ms"),
    ],
)
def test_lengths_are_described_as_a_user_writes_them(length: timedelta, text: str) -> None:
    assert describe(length) == text


@on_a_busy_machine
@given(st.timedeltas(min_value=timedelta(0)))
def test_what_describe_writes_is_read_back(length: timedelta) -> None:
    assert parse_duration(describe(length)) == length


@on_a_busy_machine
@given(st.timedeltas(min_value=timedelta(0)), st.timedeltas(min_value=timedelta(0)))
def test_different_lengths_have_different_descriptions(one: timedelta, other: timedelta) -> None:
    """A changed interval is noticed by its text."""
    assert (describe(one) == describe(other)) == (one == other)


@on_a_busy_machine
@given(st.text())
def test_any_text_is_read_or_refused_as_a_value_error(text: str) -> None:
    try:
        length = parse_duration(text)
    except ValueError:
        return
    assert length >= timedelta(0)


def test_an_aware_instant_is_the_same_in_utc() -> None:
    noon = datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("America/Santiago"))
    assert aware_utc(noon) == noon
    assert aware_utc(noon).tzinfo is UTC


@pytest.mark.parametrize("fold", [0, 1])
def test_the_second_of_two_equal_wall_times_keeps_its_offset(fold: int) -> None:
    twice = datetime(2024, 10, 27, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Berlin"))
    assert aware_utc(twice) == datetime(2024, 10, 27, fold, 30, tzinfo=UTC)


def test_a_naive_datetime_is_refused_with_the_remedy() -> None:
    """Case 24."""
    naive = datetime(2024, 1, 1)  # noqa: DTZ001
    with pytest.raises(ValueError, match=r"no time zone.*datetime\.now\(UTC\).*ZoneInfo"):
        aware_utc(naive)


@pytest.mark.parametrize("value", [None, "2024-01-01", 0, date(2024, 1, 1)])
def test_what_is_no_datetime_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="not a datetime"):
        aware_utc(value)


@pytest.mark.parametrize("hours", [-12, -1, 0, 1, 14])
def test_the_ends_of_time_are_kept_in_any_zone(hours: int) -> None:
    """Case 22: an instant that UTC cannot write becomes the nearest one that it can, and never wraps around."""
    zone = timezone(timedelta(hours=hours))
    last, first = datetime.max.replace(tzinfo=zone), datetime.min.replace(tzinfo=zone)
    assert aware_utc(last) == LAST - timedelta(hours=max(hours, 0))
    assert aware_utc(first) == FIRST + timedelta(hours=max(-hours, 0))


@on_a_busy_machine
@given(st.datetimes(timezones=st.timezones(), allow_imaginary=False))
def test_any_aware_instant_is_the_same_in_utc(instant: datetime) -> None:
    near_the_ends = instant.year in (FIRST.year, LAST.year)
    assert aware_utc(instant).tzinfo is UTC
    assert near_the_ends or aware_utc(instant).timestamp() == instant.timestamp()
