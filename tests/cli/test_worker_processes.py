"""`gangline worker --processes`: real workers under a real supervisor, and real signals."""

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from gangline import Gangline
from gangline.cli.processes import as_arguments, worst
from support.apps import Raw
from support.cli import Command, gangline

JOBS = """
import asyncio, os
from pathlib import Path
from gangline import Gangline

app = Gangline()

@app.event()
async def work(number: int) -> int:
    print(f"job {number} runs in {os.getpid()}.", flush=True)
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return number
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the command is run; it holds `shop.py`."""
    (tmp_path / "shop.py").write_text(JOBS)
    return tmp_path


@pytest.fixture
def raw(uri: str) -> Iterator[Raw]:
    with Raw(uri) as found:
        yield found


def schedule(uri: str, *numbers: int) -> None:
    async def ask() -> None:
        async with Gangline(uri) as app:
            for number in numbers:
                await app.schedule_by_name("work", {"number": number})

    asyncio.run(ask())


def pid_of(workers: Command, number: int) -> int:
    """The process that runs a job."""
    found = re.search(r"runs in (\d+)\.", workers.says(f"job {number} runs in"))
    assert found is not None
    return int(found[1])


def wait_until_gone(pid: int) -> None:
    """Wait for the end of a process that may be no child of this one."""
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(20)


def test_jobs_run_in_several_processes_and_all_end_at_the_signal(uri: str, raw: Raw, folder: Path) -> None:
    schedule(uri, 1, 2)
    with gangline("worker", "shop:app", "--processes=2", "--concurrency=1", "--uri", uri, cwd=folder) as workers:
        assert pid_of(workers, 1) != pid_of(workers, 2)
        assert not [child for child in psutil.Process(workers.pid).children() if "mongodb:" in str(child.cmdline())]
        workers.send(signal.SIGTERM)
        workers.says("stopping; running jobs: 1")
        (folder / "go").touch()
        assert workers.ends() == 0
        assert workers.output.count("all jobs finished") == 2
    assert sorted(entry["result"] for entry in raw.entries()) == [1, 2]


def test_a_process_that_is_killed_is_replaced_and_the_others_go_on(uri: str, raw: Raw, folder: Path) -> None:
    """Case 52."""
    schedule(uri, 1, 2)
    few = ["--processes=2", "--concurrency=1", "--lease=500ms", "--uri", uri]
    with gangline("worker", "shop:app", *few, cwd=folder) as workers:
        killed, other = pid_of(workers, 1), pid_of(workers, 2)
        os.kill(killed, signal.SIGKILL)
        workers.says(f"(pid {killed}) was killed by SIGKILL; another takes its place")
        schedule(uri, 3)
        (folder / "go").touch()
        assert pid_of(workers, 3) != killed
        workers.says("job 3 runs in")
        while len(raw.entries()) < 4:  # three successes, and the stale one
            assert psutil.pid_exists(other)
        workers.send(signal.SIGTERM)
        assert workers.ends() == 0
    assert raw.statuses().count("success") == 3
    assert raw.statuses().count("stale") == 1


def test_a_second_signal_goes_on_as_well(uri: str, raw: Raw, folder: Path) -> None:
    schedule(uri, 1)
    with gangline("worker", "shop:app", "--processes=2", "--grace=1h", "--uri", uri, cwd=folder) as workers:
        pid_of(workers, 1)
        workers.send(signal.SIGINT)
        workers.says("stopping; running jobs: 1")
        workers.send(signal.SIGINT)
        assert workers.ends() == 3
    assert raw.record()["tries"] == 0


@pytest.mark.parametrize("wrong", ["--concurrency=0", "--claim=bulk"])
def test_a_mistake_is_told_once_and_ends_all(uri: str, folder: Path, wrong: str) -> None:
    with gangline("worker", "shop:app", "--processes=3", wrong, "--uri", uri, cwd=folder) as workers:
        assert workers.ends() == 2
        assert workers.output.count("Error: ") == 1


def test_the_processes_hand_back_and_end_when_their_supervisor_is_killed(uri: str, raw: Raw, folder: Path) -> None:
    schedule(uri, 1)
    with gangline("worker", "shop:app", "--processes=2", "--grace=1h", "--uri", uri, cwd=folder) as workers:
        workers.says("job 1 runs in")
        pids = [child.pid for child in psutil.Process(workers.pid).children()]
        workers.send(signal.SIGKILL)
        for pid in pids:
            wait_until_gone(pid)
    assert raw.record()["tries"] == 0
    assert "lockId" not in raw.record()


def test_options_are_written_as_the_command_line_reads_them() -> None:
    given = {"poll_interval": "-1", "renew": True, "change_stream": False, "max_batch": 3}
    assert as_arguments(given) == ["--poll-interval=-1", "--renew", "--no-change-stream", "--max-batch=3"]


@pytest.mark.parametrize(
    ("codes", "code"),
    [([0, 0], 0), ([0, 3], 3), ([3, 1, 0], 1), ([3, -9], 1), ([1, 2, 3], 2), ([0, 77], 1)],
)
def test_the_exit_code_tells_of_the_worst(codes: list[int], code: int) -> None:
    assert worst(codes) == code
