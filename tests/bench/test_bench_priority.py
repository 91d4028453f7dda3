"""The order of starts against that of the priorities: the figures are counted right, and a wrong order is told."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gangline.bench import priority
from gangline.bench.priority import Mix
from support.progress import Recorded

MIX = Mix(jobs=120, priorities=5, partitions=4, concurrency=16, max_batch=8, seconds=60.0)


@pytest.mark.parametrize("bound", [1, 16])
def test_every_job_runs_once(uri: str, bound: int) -> None:
    progress = Recorded()
    row = priority.measure(uri, replace(MIX, max_batch=bound), progress)
    assert row.verified, row.problems
    assert (row.jobs, row.max_batch, row.priorities, row.partitions, row.concurrency) == (120, bound, 5, 4, 16)
    assert not row.cut
    assert row.jobs_per_second == pytest.approx(120 / row.seconds)
    assert row.overtaken_share == row.overtakings / 120
    assert progress.stages == [(f"batches of {bound}", 120)]
    assert progress.reached[-1] == 120


def test_nothing_is_overtaken_in_a_single_partition(uri: str) -> None:
    row = priority.measure(uri, replace(MIX, partitions=1), Recorded())
    assert row.verified, row.problems
    assert (row.overtakings, row.mean_rank_error, row.worst_overtaken) == (0, 0.0, 0)


def test_a_row_that_takes_too_long_is_cut(uri: str) -> None:
    row = priority.measure(uri, replace(MIX, jobs=5_000, seconds=0.0), Recorded())
    assert row.cut
    assert row.verified, row.problems


@pytest.mark.parametrize(
    ("starts", "overtakings", "errors", "worst"),
    [
        ([3, 3, 2, 2, 1], 0, [0, 0, 0, 0, 0], 0),
        ([2, 3, 3, 2, 1], 1, [2, 0, 1, 0, 0], 1),
        ([1, 2, 2, 3, 3], 3, [4, 1, 0, 2, 3], 3),
        ([3, 2, 3, 1, 2], 2, [0, 1, 1, 1, 1], 1),
    ],
)
def test_figures_of_an_order(starts: Sequence[int], overtakings: int, errors: Sequence[int], worst: int) -> None:
    assert sum(priority._overtakings(starts, Counter(starts))) == overtakings
    assert list(priority._rank_errors(starts, Counter(starts))) == errors
    assert priority._worst(starts, 3) == worst


def test_what_never_started_counts_as_waiting() -> None:
    assert list(priority._overtakings([1], Counter([1, 2]))) == [True]


def test_all_rows_have_the_same_queue_with_as_many_jobs_of_each_priority() -> None:
    assert priority._ranks(MIX) == priority._ranks(replace(MIX, max_batch=1))
    assert Counter(priority._ranks(MIX)) == dict.fromkeys(range(5), 24)


def test_what_is_wrong_is_told() -> None:
    ranks = priority._ranks(MIX)
    right = sorted(range(120), key=lambda number: -ranks[number])
    assert priority._problems(MIX, right, 0, cut=False) == []
    assert priority._problems(MIX, [*right[1:], right[0]], 0, cut=False) == [
        "within 1 partitions a job overtook one of higher priority"
    ]
    assert priority._problems(MIX, [*right, right[-1]], 1, cut=False) == [
        "1 jobs started twice",
        "120 jobs were inserted, 121 started, 1 are left",
    ]
