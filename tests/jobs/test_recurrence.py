from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangline.jobs.recurrence import Cron, Every, NextRun, Recurrence
from support.properties import on_a_busy_machine

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

BERLIN = ZoneInfo("Europe/Berlin")  # 2024: 02:00 -> 03:00 on 31 March, 03:00 -> 02:00 on 27 October
SANTIAGO = ZoneInfo("America/Santiago")  # 2024: 00:00 -> 23:00 on 7 April, 00:00 -> 01:00 on 8 September
LORD_HOWE = ZoneInfo("Australia/Lord_Howe")  # 2024: 02:00 -> 01:30 on 7 April, 02:00 -> 02:30 on 6 October

# The instants at which the clocks move.
NIGHTS = [
    pytest.param(BERLIN, datetime(2024, 3, 31, 1, tzinfo=UTC), id="Berlin-spring"),
    pytest.param(BERLIN, datetime(2024, 10, 27, 1, tzinfo=UTC), id="Berlin-autumn"),
    pytest.param(SANTIAGO, datetime(2024, 9, 8, 4, tzinfo=UTC), id="Santiago-spring"),
    pytest.param(SANTIAGO, datetime(2024, 4, 7, 3, tzinfo=UTC), id="Santiago-autumn"),
    pytest.param(LORD_HOWE, datetime(2024, 10, 5, 15, 30, tzinfo=UTC), id="Lord_Howe-spring"),
    pytest.param(LORD_HOWE, datetime(2024, 4, 6, 15, tzinfo=UTC), id="Lord_Howe-autumn"),
]

EXPRESSIONS = [
    "*/30 * * * *",
    "0 */2 * * *",
    "*/7 * * * * *",
    "30 2 * * *",
    "30 1,2,3 * * *",
    "*/20 0-3 * * *",
    "0 0 * * *",
    "0 0 * * 0",
    "* 0 * * SUN",
    "15 23 L * *",
    "0 12 29 2 *",
    "0 9 * * 1#1",
    "30 30 2 * * *",
]


def _between(rule: Recurrence, start: datetime, end: datetime, *, anchor: datetime | None = None) -> list[datetime]:
    """Return what the rule gives after `start` up to `end`, asked again and again as a worker does."""
    found = []
    while (start := rule.next_after(start, anchor=anchor or start)) <= end:
        found.append(start)
    return found


def _on_the_clock(rule: Recurrence, zone: ZoneInfo, *, first: datetime, days: int) -> list[str]:
    """Return what the rule gives from midnight of `first` on, as clocks in `zone` show it, with the offset."""
    start = first.replace(tzinfo=zone).astimezone(UTC)
    found = _between(rule, start - SECOND, (first + days * DAY).replace(tzinfo=zone).astimezone(UTC) - SECOND)
    return [instant.astimezone(zone).strftime("%d %H:%M%z") for instant in found]


# Intervals


def test_an_interval_counts_from_its_anchor() -> None:
    anchor = datetime(2024, 1, 1, 0, 0, 20, tzinfo=UTC)
    assert Every(MINUTE).next_after(anchor + 90 * SECOND, anchor=anchor) == anchor + 2 * MINUTE


def test_an_instant_of_the_interval_is_followed_by_the_next_one() -> None:
    anchor = datetime(2024, 1, 1, tzinfo=UTC)
    assert Every(MINUTE).next_after(anchor, anchor=anchor) == anchor + MINUTE
    assert Every(MINUTE).next_after(anchor + MINUTE, anchor=anchor) == anchor + 2 * MINUTE


def test_an_interval_reaches_back_before_its_anchor() -> None:
    """A clock that stepped back may ask for an instant before the anchor."""
    anchor = datetime(2024, 1, 1, tzinfo=UTC)
    assert Every(MINUTE).next_after(anchor - SECOND, anchor=anchor) == anchor


@on_a_busy_machine
@given(
    st.integers(1, 10**10).map(lambda count: timedelta(milliseconds=count)),
    st.datetimes(datetime(1990, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    st.datetimes(datetime(1990, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)
def test_the_next_instant_of_an_interval_is_the_first_one_after(
    interval: timedelta, anchor: datetime, after: datetime
) -> None:
    found = Every(interval).next_after(after, anchor=anchor)
    assert after < found <= after + interval
    assert (found - anchor) % interval == timedelta(0)


@pytest.mark.parametrize("interval", [30 * MINUTE, 2 * HOUR, 7 * SECOND])
@pytest.mark.parametrize("moved", [datetime(2024, 3, 31, 1, tzinfo=UTC), datetime(2024, 10, 27, 1, tzinfo=UTC)])
def test_an_interval_does_not_notice_that_clocks_move(moved: datetime, interval: timedelta) -> None:
    """Case 16."""
    start = moved - 3 * HOUR
    found = _between(Every(interval), start, moved + 3 * HOUR, anchor=start)
    assert {later - earlier for earlier, later in pairwise(found)} == {interval}
    assert len(found) == 6 * HOUR // interval


@pytest.mark.parametrize("interval", [timedelta(0), timedelta(microseconds=999), timedelta(microseconds=1500)])
def test_an_interval_that_storage_would_cut_is_refused(interval: timedelta) -> None:
    with pytest.raises(ValueError, match="millisecond"):
        Every(interval)


@pytest.mark.parametrize("interval", [timedelta(days=36_525), timedelta(days=4_000_000)])
def test_an_interval_beyond_the_calendar_waits_until_its_end(interval: timedelta) -> None:
    """Case 22."""
    late = datetime(9999, 12, 1, tzinfo=UTC)
    assert Every(interval).next_after(late, anchor=late) == datetime.max.replace(tzinfo=UTC)


def test_different_intervals_have_different_texts() -> None:
    """A changed rule is noticed by its text."""
    assert Every(90 * MINUTE).text == "every 1h30m"
    assert Every(timedelta(milliseconds=1)).text != Every(timedelta(milliseconds=2)).text


# Cron


def test_a_cron_expression_means_the_clock_of_its_zone() -> None:
    found = Cron("0 3 * * *", SANTIAGO).next_after(datetime(2024, 7, 1, tzinfo=UTC), anchor=datetime.now(UTC))
    assert found == datetime(2024, 7, 1, 7, tzinfo=UTC)
    assert found.tzinfo is UTC


def test_a_slot_is_followed_by_the_next_one_to_the_millisecond() -> None:
    slot = datetime(2024, 7, 1, 3, tzinfo=UTC)
    assert Cron("0 3 * * *").next_after(slot, anchor=slot) == slot + DAY
    assert Cron("0 3 * * *").next_after(slot - timedelta(milliseconds=1), anchor=slot) == slot
    assert Cron("0 3 * * *").next_after(slot + timedelta(milliseconds=1), anchor=slot) == slot + DAY


def test_a_fixed_time_that_a_night_skips_runs_once_right_after_the_gap() -> None:
    """Case 14."""
    found = _on_the_clock(Cron("30 2 * * *", BERLIN), BERLIN, first=datetime(2024, 3, 30), days=3)  # noqa: DTZ001
    assert found == ["30 02:30+0100", "31 03:00+0200", "01 02:30+0200"]


def test_a_midnight_that_a_night_skips_runs_once_right_after_the_gap() -> None:
    """Case 14."""
    found = _on_the_clock(Cron("0 0 * * *", SANTIAGO), SANTIAGO, first=datetime(2024, 9, 7), days=3)  # noqa: DTZ001
    assert found == ["07 00:00-0400", "08 01:00-0300", "09 00:00-0300"]


def test_a_gap_of_half_an_hour_ends_on_the_half_hour() -> None:
    """Case 14."""
    rule = Cron("15 2 * * *", LORD_HOWE)
    found = _on_the_clock(rule, LORD_HOWE, first=datetime(2024, 10, 5), days=3)  # noqa: DTZ001
    assert found == ["05 02:15+1030", "06 02:30+1100", "07 02:15+1100"]


def test_several_fixed_times_in_one_gap_run_once_between_them() -> None:
    """Case 14."""
    rule = Cron("0,20,40 2,3 * * *", BERLIN)
    found = _on_the_clock(rule, BERLIN, first=datetime(2024, 3, 31), days=1)  # noqa: DTZ001
    assert found == ["31 03:00+0200", "31 03:20+0200", "31 03:40+0200"]


def test_a_fixed_time_that_a_night_has_twice_runs_the_first_time_only() -> None:
    """Case 15."""
    found = _on_the_clock(Cron("30 2 * * *", BERLIN), BERLIN, first=datetime(2024, 10, 26), days=3)  # noqa: DTZ001
    assert found == ["26 02:30+0200", "27 02:30+0200", "28 02:30+0100"]


def test_a_time_before_midnight_that_comes_twice_runs_the_first_time_only() -> None:
    """Case 15."""
    found = _on_the_clock(Cron("30 23 * * *", SANTIAGO), SANTIAGO, first=datetime(2024, 4, 5), days=3)  # noqa: DTZ001
    assert found == ["05 23:30-0300", "06 23:30-0300", "07 23:30-0400"]


def test_half_an_hour_that_comes_twice_runs_the_first_time_only() -> None:
    """Case 15."""
    rule = Cron("45 1 * * *", LORD_HOWE)
    found = _on_the_clock(rule, LORD_HOWE, first=datetime(2024, 4, 6), days=3)  # noqa: DTZ001
    assert found == ["06 01:45+1100", "07 01:45+1100", "08 01:45+1030"]


def test_a_worker_that_asks_within_the_second_pass_does_not_run_the_slot_again() -> None:
    """Case 15: the doubled hour is over for a fixed time once it ran, from whichever instant one asks."""
    second_pass = datetime(2024, 10, 27, 2, 10, fold=1, tzinfo=BERLIN).astimezone(UTC)
    found = Cron("30 2 * * *", BERLIN).next_after(second_pass, anchor=second_pass)
    assert found == datetime(2024, 10, 28, 2, 30, tzinfo=BERLIN)


def test_a_fixed_time_with_seconds_follows_the_same_rule() -> None:
    """Cases 14 and 15."""
    rule = Cron("15 30 2 * * *", BERLIN)
    spring = _on_the_clock(rule, BERLIN, first=datetime(2024, 3, 31), days=2)  # noqa: DTZ001
    autumn = _on_the_clock(rule, BERLIN, first=datetime(2024, 10, 27), days=1)  # noqa: DTZ001
    assert (spring, autumn) == (["31 03:00+0200", "01 02:30+0200"], ["27 02:30+0200"])


def test_with_a_wildcard_what_a_night_skips_is_left_out() -> None:
    found = _on_the_clock(Cron("*/30 2 * * *", BERLIN), BERLIN, first=datetime(2024, 3, 31), days=2)  # noqa: DTZ001
    assert found == ["01 02:00+0200", "01 02:30+0200"]


def test_with_a_wildcard_what_a_night_has_twice_runs_twice() -> None:
    found = _on_the_clock(Cron("*/30 2 * * *", BERLIN), BERLIN, first=datetime(2024, 10, 27), days=1)  # noqa: DTZ001
    assert found == ["27 02:00+0200", "27 02:30+0200", "27 02:00+0100", "27 02:30+0100"]


def test_with_a_wildcard_and_a_weekday_a_skipped_midnight_is_left_out() -> None:
    rule = Cron("*/30 0 * * SUN", SANTIAGO)
    found = _on_the_clock(rule, SANTIAGO, first=datetime(2024, 9, 7), days=9)  # noqa: DTZ001
    assert found == ["15 00:00-0300", "15 00:30-0300"]


@pytest.mark.parametrize(("zone", "moved"), NIGHTS)
@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ("*/30 * * * *", lambda wall: wall.minute % 30 == 0),
        ("0 */2 * * *", lambda wall: wall.minute == 0 and wall.hour % 2 == 0),
        ("*/15 1-3 * * *", lambda wall: wall.minute % 15 == 0 and 1 <= wall.hour <= 3),
        ("20 * * * *", lambda wall: wall.minute == 20),
        ("*/20 0 * * SUN", lambda wall: wall.minute % 20 == 0 and wall.hour == 0 and wall.isoweekday() == 7),
        ("0 */15 3 * * *", lambda wall: wall.minute % 15 == 0 and wall.hour == 3),
    ],
)
def test_with_a_wildcard_every_match_on_the_clock_runs(
    zone: ZoneInfo, moved: datetime, expression: str, matches: Callable[[datetime], bool]
) -> None:
    """Case 16: compared with a look at the clock at every single minute of two days."""
    start = moved - DAY
    minutes = [start + number * MINUTE for number in range(1, 2 * DAY // MINUTE + 1)]
    expected = [minute for minute in minutes if matches(minute.astimezone(zone))]
    assert _between(Cron(expression, zone), start, moved + DAY) == expected


@pytest.mark.parametrize(("zone", "moved"), NIGHTS)
def test_every_half_hour_has_no_silent_hour(zone: ZoneInfo, moved: datetime) -> None:
    """Case 16."""
    found = _between(Cron("*/30 * * * *", zone), moved - 6 * HOUR, moved + 6 * HOUR)
    assert {later - earlier for earlier, later in pairwise(found)} == {30 * MINUTE}


@pytest.mark.parametrize(("zone", "moved"), NIGHTS)
def test_every_two_hours_stays_near_two_hours(zone: ZoneInfo, moved: datetime) -> None:
    """Case 16: the clock decides which hours are even; at most the one that a night skips is missing."""
    found = _between(Cron("0 */2 * * *", zone), moved - 12 * HOUR, moved + 12 * HOUR)
    assert all(HOUR <= later - earlier < 4 * HOUR for earlier, later in pairwise(found))


@pytest.mark.parametrize(("zone", "moved"), NIGHTS)
def test_every_seven_seconds_goes_on_while_clocks_move(zone: ZoneInfo, moved: datetime) -> None:
    """Case 16: from second 56 the next minute is 4 s away."""
    found = _between(Cron("*/7 * * * * *", zone), moved - 3 * MINUTE, moved + 3 * MINUTE)
    assert {later - earlier for earlier, later in pairwise(found)} == {7 * SECOND, 4 * SECOND}
    assert len(found) == 6 * 9


@on_a_busy_machine
@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from([ZoneInfo("UTC"), BERLIN, SANTIAGO, LORD_HOWE]),
    st.datetimes(datetime(2000, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)
def test_instants_of_an_expression_strictly_increase(expression: str, zone: ZoneInfo, after: datetime) -> None:
    rule = Cron(expression, zone)
    for _ in range(5):
        found = rule.next_after(after, anchor=after)
        assert found > after
        after = found


@on_a_busy_machine
@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(NIGHTS).map(lambda night: night.values),
    st.timedeltas(-6 * HOUR, 6 * HOUR),
    st.floats(0, 1, exclude_max=True),
)
def test_asking_later_before_the_next_instant_changes_nothing(
    expression: str, night: tuple[ZoneInfo, datetime], offset: timedelta, share: float
) -> None:
    """Whoever asks between two instants, and whenever, gets the second one: no instant is lost or made up."""
    zone, moved = night
    rule, after = Cron(expression, zone), moved + offset
    found = rule.next_after(after, anchor=after)
    assert rule.next_after(after + (found - after - SECOND) * share, anchor=after) == found


@pytest.mark.parametrize("year", [2100, 2400, 9998])
def test_far_years_are_no_special_case(year: int) -> None:
    """Case 22."""
    after = datetime(year, 6, 1, 12, tzinfo=UTC)
    assert Cron("0 3 * * *").next_after(after, anchor=after) == datetime(year, 6, 2, 3, tzinfo=UTC)


@pytest.mark.parametrize("expression", ["0 0 30 2 *", "0 0 31 4,6 *", "0 0 */31 * 1#5"])
def test_a_day_that_never_comes_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match=r"never comes|not a cron expression"):
        Cron(expression)


@pytest.mark.parametrize("expression", ["", "* * * *", "60 * * * *", "soon", "* * * * * * *", "@daily", "0 24 * * *"])
def test_what_is_no_cron_expression_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="not a cron expression"):
        Cron(expression)


def test_the_text_of_an_expression_names_its_zone() -> None:
    assert Cron("0 3 * * *", SANTIAGO).text == "cron 0 3 * * * America/Santiago"
    assert Cron("0 3 * * *").text == "cron 0 3 * * * UTC"


# Functions


def _tomorrow(after: datetime) -> datetime:
    return after + DAY


def test_a_function_gives_the_next_instant_in_utc() -> None:
    after = datetime(2024, 1, 1, tzinfo=UTC)
    found = NextRun(lambda instant: _tomorrow(instant).astimezone(BERLIN)).next_after(after, anchor=after)
    assert found == after + DAY
    assert found.tzinfo is UTC


@pytest.mark.parametrize("step", [timedelta(0), -SECOND, -DAY])
def test_a_function_that_does_not_go_forward_is_refused(step: timedelta) -> None:
    after = datetime(2024, 1, 1, tzinfo=UTC)
    with pytest.raises(ValueError, match="which is not after 2024-01-01"):
        NextRun(lambda instant: instant + step).next_after(after, anchor=after)


def test_a_function_that_gives_a_naive_datetime_is_refused() -> None:
    """Case 24."""
    after = datetime(2024, 1, 1, tzinfo=UTC)
    with pytest.raises(ValueError, match="no time zone"):
        NextRun(lambda instant: _tomorrow(instant).replace(tzinfo=None)).next_after(after, anchor=after)


def test_a_function_may_name_the_end_of_time() -> None:
    """Case 22."""
    after = datetime(2024, 1, 1, tzinfo=UTC)
    last = datetime.max.replace(tzinfo=SANTIAGO)
    assert NextRun(lambda _: last).next_after(after, anchor=after) == datetime.max.replace(tzinfo=UTC)


def test_the_text_of_a_function_is_its_name() -> None:
    assert NextRun(_tomorrow).text.endswith("test_recurrence._tomorrow")
