"""A wrong setting of a worker, an app or the scheduling of a job is refused with its name and the remedy."""

import math
from datetime import timedelta
from typing import Any, cast

import pytest

from gangline import ConfigurationError, Gangline
from gangline.jobs.scheduling import JobCall
from gangline.jobs.settings import WorkerOptions, WorkerSettings

URI = "mongodb://localhost/never_reached"

NO_DURATIONS: list[Any] = ["x", "", "-5s", "5", "1e3", "1y", None, True, [], math.nan, math.inf]
WRONG_WORKER_OPTIONS: dict[str, list[Any]] = {
    "concurrency": [0, -1, "x", "4", None, True, 1.5, math.nan, 10_001],
    "poll_interval": [0, -5, "0s", "9ms", timedelta(0), timedelta(seconds=-1), *NO_DURATIONS],
    "lease": [-1, 0, 0.1, "199ms", timedelta(microseconds=1), *NO_DURATIONS],
    "renew": [None, 0, 1, "yes"],
    "grace": [-1, timedelta(seconds=-1), *NO_DURATIONS],
    "keep_history": [-1, timedelta(seconds=-1), *NO_DURATIONS],
    "claim": ["x", "Batch", "", None, 1, []],
    "max_batch": [0, -1, "x", None, True, 1.5, 1_001],
    "change_stream": [None, 0, 1, "yes"],
}


def each(wrong: dict[str, list[Any]]) -> list[Any]:
    """One parameter set for each setting and wrong value."""
    return [pytest.param(name, value, id=f"{name}={value!r}") for name, values in wrong.items() for value in values]


@pytest.fixture
def app() -> Gangline:
    """An app with a job, defined before there is an event loop, as Pydantic reads files at its first use."""
    app = Gangline(URI)
    app.event(name="job")(lambda: None)
    return app


def test_every_option_of_a_worker_is_tried_below() -> None:
    assert set(WRONG_WORKER_OPTIONS) == set(WorkerOptions.__annotations__)


@pytest.mark.parametrize(("setting", "value"), each(WRONG_WORKER_OPTIONS))
def test_a_wrong_setting_of_a_worker_is_refused_by_name(setting: str, value: Any) -> None:
    """Case 61."""
    with pytest.raises(ConfigurationError, match=rf"^{setting}: .+\. (Give|Use) .+") as caught:
        WorkerSettings.checked(cast("WorkerOptions", {setting: value}))
    assert caught.value.setting == setting


async def test_the_app_refuses_a_wrong_setting_before_it_makes_a_worker(app: Gangline) -> None:
    """Case 61."""
    async with app:
        for options in ({"concurrency": 0}, {"poll_interval": -5}, {"lease": -1}, {"concurrenci": 1}):
            with pytest.raises(ConfigurationError, match=f"^{next(iter(options))}: "):
                app.worker(**cast("WorkerOptions", options))


def test_the_limits_themselves_are_accepted() -> None:
    smallest = WorkerSettings.checked(
        {"concurrency": 1, "poll_interval": "10ms", "lease": "200ms", "grace": 0, "keep_history": 0, "max_batch": 1}
    )
    assert (smallest.concurrency, smallest.max_batch) == (1, 1)
    assert (smallest.poll_interval, smallest.lease) == (timedelta(milliseconds=10), timedelta(milliseconds=200))
    assert smallest.grace == smallest.keep_history == timedelta(0)
    largest = WorkerSettings.checked({"concurrency": 10_000, "max_batch": 1_000, "lease": timedelta(weeks=52)})
    assert (largest.concurrency, largest.max_batch) == (10_000, 1_000)


def test_what_is_not_given_has_its_default() -> None:
    """Case 61: a missing setting is none that does nothing."""
    assert WorkerSettings.checked({}) == WorkerSettings()
    assert WorkerSettings.checked({"lease": "1m30s"}) == WorkerSettings(lease=timedelta(seconds=90))


@pytest.mark.parametrize(
    ("unknown", "remedy"),
    [
        ("concurency", "Did you mean 'concurrency'?"),
        ("poll_intervall", "Did you mean 'poll_interval'?"),
        ("pollInterval", "Did you mean 'poll_interval'?"),
        (
            "threads",
            "Known are: change_stream, claim, concurrency, grace, keep_history, lease, max_batch, poll_interval, renew",
        ),
    ],
)
def test_an_unknown_setting_of_a_worker_suggests_the_nearest(unknown: str, remedy: str) -> None:
    """Case 61."""
    with pytest.raises(ConfigurationError) as caught:
        WorkerSettings.checked(cast("WorkerOptions", {"concurrency": 1, unknown: 1}))
    assert str(caught.value) == f"{unknown}: unknown option of a worker. {remedy}"


@pytest.mark.parametrize("partitions", [0, -1, 1_025, "16", None, True, 2.0], ids=repr)
def test_a_wrong_number_of_partitions_is_refused(partitions: Any) -> None:
    """Case 61."""
    with pytest.raises(ConfigurationError, match=r"^partitions: .+ Give .+") as caught:
        Gangline(URI, partitions=partitions)
    assert caught.value.setting == "partitions"


@pytest.mark.parametrize("partitions", [1, 1_024])
def test_the_limits_of_partitions_are_accepted(partitions: int) -> None:
    assert Gangline(URI, partitions=partitions).partitions == partitions


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "localhost:27017",
        "http://user:s3cret@host/shop",
        "mongodb://",
        "mongodb://user:s3cret@",
        "mongodb://user:s3cr@t@host/shop",
        "mongodb://user:s3cret/@host/shop",
        "mongodb://user:%zzs3cret@host/shop",
        "mongodb://user:s3cret@host:port/shop",
        "mongodb://user:s3cret@host:99999/shop",
        "mongodb://user:s3cret@host,other:s3cret/shop",
        "mongodb://user:s3cret@host/a$b",
        "mongodb://user:s3cret@host/shop?authSource",
        "mongodb://user:s3cret@host/shop?connectTimeoutMS=s3cret",
        "mongodb+srv://user:s3cret@host:27017/shop",
        5,
        b"mongodb://user:s3cret@host/shop",
    ],
    ids=repr,
)
def test_a_uri_that_cannot_be_read_is_refused_and_not_shown(uri: Any) -> None:
    app = Gangline()
    for use in (Gangline, lambda given: app.configure(uri=given)):
        with pytest.raises(ConfigurationError, match=r"^uri: .+ Give one such as mongodb://localhost") as caught:
            use(uri)
        assert "s3cr" not in str(caught.value)
        assert "user:" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"run_in": -1}, "run_in: -1 is negative"),
        ({"run_in": "soon"}, "run_in: 'soon' is not a duration"),
        ({"run_at": "tomorrow"}, "run_at: 'tomorrow' is not a datetime"),
        ({"run_in": 1, "run_at": None}, "run_in, run_at: both were given"),
        ({"priority": "high"}, "priority: 'high' is not a finite number"),
        ({"priority": math.inf}, "priority: inf is not a finite number"),
        ({"priority": True}, "priority: True is not a finite number"),
        ({"priority": 2**63}, "priority: 9223372036854775808 is not a finite number"),
        ({"unique": ""}, "unique: '' is no identifier"),
        ({"unique": 5}, "unique: 5 is no identifier"),
        ({"on_conflict": "ignore"}, "on_conflict: 'ignore' is unknown"),
        ({"runin": 1}, r"runin: unknown option of scheduling. Did you mean 'run_in'\?"),
    ],
    ids=str,
)
def test_a_wrong_option_of_scheduling_is_refused_by_name(options: Any, told: str) -> None:
    """Case 61."""
    with pytest.raises(ConfigurationError, match=f"^{told}"):
        JobCall.checked("job", dict, options)


@pytest.mark.parametrize("name", ["", " \t", None, 5, b"job", "a\0b", "a\ud800", ["job"], ("job",)], ids=ascii)
def test_a_name_that_cannot_be_one_is_refused(name: Any) -> None:
    """Case 33."""
    with pytest.raises(ConfigurationError, match=r"^name: .+ cannot name a job"):
        JobCall.checked(name, dict, {})


@pytest.mark.parametrize("prefix", [None, 5, "a$", "a\0", "a..b", ".a", "system.a"], ids=repr)
def test_a_prefix_that_no_collection_can_have_is_refused(prefix: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^prefix: "):
        Gangline(URI, prefix=prefix)
