"""Where a night skips a time, the run is due at the very second at which the clock jumps: case 14."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from gangline.jobs.recurrence import Cron


@pytest.mark.parametrize(
    ("zone", "minutes", "hour", "jump"),
    [
        ("Europe/Berlin", (0, 1, 17, 30, 59), 2, datetime(2025, 3, 30, 1, tzinfo=UTC)),
        ("America/Santiago", (0, 1, 17, 30, 59), 0, datetime(2025, 9, 7, 4, tzinfo=UTC)),
        ("Australia/Lord_Howe", (0, 1, 17, 29), 2, datetime(2025, 10, 4, 15, 30, tzinfo=UTC)),
    ],
)
def test_a_skipped_time_is_due_at_the_second_of_the_jump(
    zone: str, minutes: tuple[int, ...], hour: int, jump: datetime
) -> None:
    """Case 14."""
    before = jump - timedelta(hours=1)
    for minute in minutes:
        rule = Cron(f"{minute} {hour} * * *", ZoneInfo(zone))
        assert rule.next_after(before, anchor=before) == jump
