"""The throughput of a pre-loaded queue: every job runs once, and what is missing is told. Never how fast."""

from dataclasses import replace

import pytest

from gangline.bench import throughput
from gangline.bench.queue import due_records, fill, opened, start_over
from gangline.bench.report import quantile
from gangline.bench.throughput import Load
from gangline.jobs.errors import ConfigurationError
from support.progress import Recorded

LOAD = Load(
    strategy="gangline",
    kind="async",
    history=True,
    jobs=90,
    partitions=3,
    processes=2,
    concurrency=8,
    max_batch=8,
    seconds=60.0,
)


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize(
    ("strategy", "kind"),
    [("gangline", "async"), ("gangline", "thread"), ("gangline", "sleep"), ("dogs", "thread"), ("limit", "async")],
)
def test_every_job_runs_once(uri: str, strategy: str, kind: str, history: bool) -> None:
    progress = Recorded()
    row = throughput.measure(uri, replace(LOAD, strategy=strategy, kind=kind, history=history), progress)
    assert row.verified, row.problems
    assert (row.jobs, row.cut, row.strategy, row.kind, row.history) == (90, False, strategy, kind, history)
    assert row.jobs_per_second == pytest.approx(90 / row.seconds)
    assert 0 < row.p50_ms <= row.p95_ms <= row.p99_ms
    assert (row.scheduled_per_second > 0) is (strategy == "gangline")
    assert row.client_cpu_ms_per_1000 > 0
    assert progress.reached[-1] == 90


async def test_what_is_left_or_not_in_the_history_is_told(uri: str) -> None:
    row = throughput.ThroughputRow(
        strategy="gangline",
        kind="async",
        history=True,
        processes=1,
        concurrency=1,
        batch=1,
        partitions=1,
        jobs=3,
        seconds=1.0,
        jobs_per_second=3.0,
        scheduled_per_second=1.0,
        p50_ms=1.0,
        p95_ms=1.0,
        p99_ms=1.0,
        client_cpu_ms_per_1000=1.0,
        server_cpu_ms_per_1000=1.0,
        conflicts=0,
        cut=False,
    )
    async with opened(uri) as connection:
        await start_over(connection, plain=False)
        await fill(connection, due_records(1, 1))
    found = await throughput._verified(uri, replace(LOAD, jobs=3), row)
    assert found.problems == [
        "3 jobs were scheduled, 3 started, 1 are left",
        "the history has 0 executions, 2 ended",
    ]


@pytest.mark.parametrize(("setting", "value"), [("strategy", "oban"), ("kind", "process")])
def test_what_cannot_be_measured_is_refused(setting: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=setting):
        throughput.check(replace(LOAD, **{setting: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, 0.0), ([5.0], 0.99, 5.0), ([3.0, 1.0, 2.0, 4.0], 0.5, 2.0), ([1.0, 2.0, 3.0], 0.5, 2.0)],
)
def test_quantiles_are_values_that_occurred(values: list[float], share: float, expected: float) -> None:
    assert quantile(values, share) == expected


def test_the_99th_of_a_hundred_leaves_one_above() -> None:
    assert quantile([float(value) for value in range(1, 101)], 0.99) == 99.0
