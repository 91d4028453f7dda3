"""Workers that are real processes, and die."""

import signal
from contextlib import ExitStack
from pathlib import Path

from gangline import Gangline
from support.apps import Document, Raw, eventually
from support.programs import worker_process


async def started(raw: Raw, *pids: int) -> None:
    """Wait until the worker processes have started."""
    await eventually(lambda: raw.runs.count_documents({"started": {"$in": list(pids)}}) == len(pids))


async def run_of(raw: Raw, job: str, tries: int) -> Document:
    """The note of the run of `job` with this number."""
    return await eventually(lambda: raw.runs.find_one({"job": job, "tries": tries}))


async def test_a_job_outlives_its_killed_worker_and_the_killed_rescuer(
    app: Gangline, raw: Raw, uri: str, tmp_path: Path
) -> None:
    """Cases 3, 4 and 5: each after its own lease, by whoever is left, though no other job is there to wake anyone."""
    short = await app.schedule_by_name("hang_twice")
    long = await app.schedule_by_name("hang")
    with ExitStack() as stack:
        processes = [
            stack.enter_context(worker_process(uri, tmp_path / str(number), poll_interval="50ms"))
            for number in range(3)
        ]
        await started(raw, *(process.pid for process in processes))
        await run_of(raw, "hang", 1)
        killed = []
        for tries in (1, 2):
            run = await run_of(raw, "hang_twice", tries)
            [process] = [process for process in processes if process.pid == run["pid"]]
            process.kill()
            killed.append(run["pid"])
        last = await run_of(raw, "hang_twice", 3)
        await eventually(lambda: raw.statuses(jobId=short.id) == ["stale", "stale", "success"])
        assert last["stale"]
        assert len({*killed, last["pid"]}) == 3
        assert raw.runs.count_documents({"job": "hang"}) == 1
        await eventually(lambda: raw.records.count_documents({}) == 1)
        assert raw.record()["_id"] == long.id
        assert raw.record()["tries"] == 1


async def test_a_job_that_kills_its_process_runs_out_of_tries(
    app: Gangline, raw: Raw, uri: str, tmp_path: Path
) -> None:
    """Case 2."""
    await app.schedule_by_name("kill_itself")
    with ExitStack() as stack:
        processes = [
            stack.enter_context(worker_process(uri, tmp_path / str(number), poll_interval="50ms"))
            for number in range(4)
        ]
        dead = await eventually(lambda: raw.records.find_one({"status": "maxTriesReached"}))
        assert sorted(process.poll() or 0 for process in processes) == [-signal.SIGKILL] * 3 + [0]
    assert raw.runs.count_documents({"job": "kill_itself"}) == 3
    assert dead["lastError"]["type"] == "OutOfTries"
    assert {"lockId", "lockedUntil"}.isdisjoint(dead)
    assert raw.statuses() == ["stale"] * 3 + ["error"]


async def test_a_handler_that_blocks_the_loop_keeps_its_lease_and_is_reported(
    app: Gangline, raw: Raw, uri: str, tmp_path: Path
) -> None:
    """Case 7: three lease lengths of `time.sleep`."""
    logs = [tmp_path / "one", tmp_path / "two"]
    with ExitStack() as stack:
        processes = [stack.enter_context(worker_process(uri, log, poll_interval="50ms")) for log in logs]
        await started(raw, *(process.pid for process in processes))
        await app.schedule_by_name("block", {"seconds": 3})
        await eventually(raw.empty)
    assert raw.statuses() == ["success"]
    assert raw.runs.count_documents({"job": "block"}) == 1
    text = "".join(log.read_text() for log in logs)
    assert "the event loop has been blocked for" in text
    assert "running: block" in text


async def test_all_of_four_processes_work(app: Gangline, raw: Raw, uri: str, tmp_path: Path) -> None:
    """Case 10."""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(worker_process(uri, tmp_path / str(number), concurrency=1, poll_interval="50ms"))
            for number in range(4)
        ]
        await started(raw, *(process.pid for process in processes))
        for _ in range(40):
            await app.schedule_by_name("nap")
        await eventually(raw.empty)
        pids = [run["pid"] for run in raw.runs.find({"job": "nap"})]
    assert len(pids) == 40
    assert set(pids) == {process.pid for process in processes}
