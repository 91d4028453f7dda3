"""A length of time that, counted from now, no date can hold is refused at start not when it is written."""

from datetime import timedelta
from typing import Any, cast

import pytest

from gangline import ConfigurationError
from gangline.jobs.definition import EventOptions, define_event
from gangline.jobs.settings import A_CENTURY, WorkerOptions, WorkerSettings

TOO_LONG: list[Any] = [timedelta.max, "10000w", A_CENTURY + timedelta(microseconds=1)]


@pytest.mark.parametrize("value", TOO_LONG, ids=str)
@pytest.mark.parametrize("option", ["lease", "keep_dead"])
def test_a_length_of_a_job_is_at_most_a_century(option: str, value: Any) -> None:
    """Cases 22 and 61."""
    with pytest.raises(ConfigurationError, match=rf"^{option}: .* is too long. Give at most 3155760000.0 s"):
        define_event(lambda: None, cast("EventOptions", {"name": "job", option: value}))
    define_event(lambda: None, cast("EventOptions", {"name": "job", option: A_CENTURY}))


@pytest.mark.parametrize("value", TOO_LONG, ids=str)
@pytest.mark.parametrize("setting", ["poll_interval", "lease", "grace", "keep_history"])
def test_a_length_of_a_worker_is_at_most_a_century(setting: str, value: Any) -> None:
    """Cases 22 and 61."""
    with pytest.raises(ConfigurationError, match=rf"^{setting}: .* is too long. Give at most 3155760000.0 s"):
        WorkerSettings.checked(cast("WorkerOptions", {setting: value}))
    WorkerSettings.checked(cast("WorkerOptions", {setting: A_CENTURY}))
