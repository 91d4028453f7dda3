"""Waits on an idle queue: each job is counted once, and one that never starts is told."""

from dataclasses import replace

import pytest

from gangline.bench import latency
from gangline.bench.latency import Wait
from gangline.jobs.errors import ConfigurationError
from support.progress import Recorded

WAIT = Wait(scene="other-process", change_stream=True, jobs=4, partitions=3, poll_interval=0.1, pause=0.01)


@pytest.mark.parametrize("scene", latency.SCENES)
def test_each_job_has_waited_once(uri: str, scene: str) -> None:
    progress = Recorded()
    row = latency.measure(uri, replace(WAIT, scene=scene), progress)
    assert row.verified, row.problems
    assert (row.scene, row.change_stream, row.jobs, row.partitions) == (scene, True, 4, 3)
    assert 0 < row.p50_ms <= row.p95_ms <= row.p99_ms <= row.max_ms
    assert progress.stages == [(f"{scene}, change stream", 4)]
    assert progress.reached[-1] == 4


def test_a_job_that_never_started_is_told() -> None:
    scheduling = latency._Seen(started={}, due={0: 1.0, 1: 1.5, 2: 9.0}, calls=[0.002, 0.004, 0.006])
    working = latency._Seen(started={0: 1.25, 1: 2.0}, due={}, calls=[])
    row = latency._row(replace(WAIT, jobs=3), [working, scheduling])
    assert (row.jobs, row.problems) == (2, ["1 jobs never started"])
    assert (row.p50_ms, row.max_ms, row.schedule_p50_ms) == (250.0, 500.0, 4.0)


def test_a_scene_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="same-process, other-process, delayed"):
        latency.check(replace(WAIT, scene="moon"))
