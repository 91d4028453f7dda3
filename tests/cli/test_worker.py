"""`gangline worker` as a process: what it runs, how signals end it, and what its exit code tells."""

import asyncio
import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline import Gangline
from support.apps import Raw
from support.cli import Command, Run, gangline, in_process, running, scheduled_id

JOBS = """
import asyncio, sys, threading, time
from pathlib import Path
from gangline import Context, Gangline

app = Gangline()
other = 5

@app.event(name="async")
async def wait_async(ctx: Context) -> str:
    print("running", flush=True)
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    ctx.logger.info("went")
    return "went"

@app.event(name="thread")
def wait_in_thread() -> str:
    print("running", flush=True)
    while not Path("go").exists():
        time.sleep(0.01)
    return "went"

@app.event(name="for ever")
def block_for_ever() -> None:
    print("running", flush=True)
    threading.Event().wait()

@app.event(name="blocks the loop")
async def block_the_loop() -> None:
    print("running", flush=True)
    time.sleep(3600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the command is run; it holds `shop.py`."""
    (tmp_path / "shop.py").write_text(JOBS)
    return tmp_path


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line in this process, in `folder`; no worker may come to run."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    for module in ("shop", "broken"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return in_process


@pytest.fixture
def raw(uri: str) -> Iterator[Raw]:
    with Raw(uri) as found:
        yield found


def schedule(uri: str, name: str) -> str:
    async def ask() -> str:
        async with Gangline(uri) as app:
            return scheduled_id(await app.schedule_by_name(name, {}))

    return asyncio.run(ask())


def is_free(raw: Raw, job_id: str) -> bool:
    """Whether nothing of the claim is left, the try included."""
    record = raw.record(_id=job_id)
    return record["tries"] == 0 and not {"lockId", "lockedUntil", "claimWasStale", "lockedBy"} & record.keys()


def stop(worker: Command, number: signal.Signals = signal.SIGTERM) -> None:
    worker.send(number)
    worker.says("stopping; running jobs: 1")


@pytest.mark.parametrize("name", ["async", "thread"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_job_that_ends_within_the_grace_time_is_finished(
    uri: str, raw: Raw, folder: Path, name: str, number: signal.Signals
) -> None:
    """Case 51."""
    schedule(uri, name)
    with gangline("worker", "shop:app", "--uri", uri, "--grace", "30s", cwd=folder) as worker:
        worker.says("running")
        stop(worker, number)
        (folder / "go").touch()
        assert worker.ends() == 0
        assert "all jobs finished" in worker.output
    assert raw.empty()
    [entry] = raw.entries()
    assert (entry["status"], entry["result"]) == ("success", "went")


@pytest.mark.parametrize("name", ["async", "thread", "for ever"])
def test_a_job_that_outlives_the_grace_time_is_handed_back_without_a_charge(
    uri: str, raw: Raw, folder: Path, name: str
) -> None:
    """Case 51."""
    job_id = schedule(uri, name)
    with gangline("worker", "shop:app", "--uri", uri, "--grace", "0.1", cwd=folder) as worker:
        worker.says("running")
        stop(worker)
        assert worker.ends() == 3
        assert "jobs handed back unfinished: 1" in worker.output
    assert is_free(raw, job_id)


def test_a_second_signal_ends_the_grace_time(uri: str, raw: Raw, folder: Path) -> None:
    job_id = schedule(uri, "for ever")
    with gangline("worker", "shop:app", "--uri", uri, "--grace", "1h", cwd=folder) as worker:
        worker.says("running")
        stop(worker, signal.SIGINT)
        worker.send(signal.SIGTERM)
        assert worker.ends() == 3
    assert is_free(raw, job_id)


def test_a_third_signal_ends_a_worker_whose_loop_is_blocked(uri: str, folder: Path) -> None:
    schedule(uri, "blocks the loop")
    with gangline("worker", "shop:app", "--uri", uri, cwd=folder) as worker:
        worker.says("running")
        code = None
        for _ in range(3):  # a second one of a kind is dropped while the first one waits to be seen
            worker.send(signal.SIGTERM)
            code = worker.ends_within(0.3)
        assert (code if code is not None else worker.ends()) == -signal.SIGTERM


def test_a_worker_that_waits_for_its_server_stops_at_the_first_signal(folder: Path) -> None:
    with gangline(
        "worker", "shop:app", "--uri", "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=50", cwd=folder
    ) as worker:
        worker.says("the server does not answer yet")
        worker.send(signal.SIGTERM)
        assert worker.ends() == 0


def test_a_worker_may_end_with_the_process_that_started_it(uri: str, raw: Raw, folder: Path) -> None:
    job_id = schedule(uri, "async")
    with gangline("worker", "shop:app", "--uri", uri, "--until-stdin-closes", cwd=folder) as worker:
        worker.says("running")
        worker.close_stdin()
        assert worker.ends() == 3
    assert is_free(raw, job_id)


def test_nothing_that_a_handler_left_behind_keeps_the_process() -> None:
    script = "import threading; from gangline.cli.stopping import leave_within; leave_within(0.05, 3)"
    with running(sys.executable, "-c", f"{script}; threading.Event().wait()") as process:
        assert process.ends() == 3


def test_a_worker_whose_loop_is_blocked_ends_as_well_with_the_process_that_started_it() -> None:
    script = """
import asyncio, time
from gangline.cli import stopping
stopping._ALONE_SECONDS = 0.05
async def block() -> None:
    stopping.Stopping(None).when_stdin_closes()
    print("blocked", flush=True)
    time.sleep(3600)
asyncio.run(block())
"""
    with running(sys.executable, "-c", script) as process:
        process.says("blocked")
        process.close_stdin()
        assert process.ends() == 1


def test_the_log_names_the_job(uri: str, folder: Path) -> None:
    job_id = schedule(uri, "async")
    (folder / "go").touch()
    with gangline("worker", "shop:app", "--uri", uri, cwd=folder) as worker:
        assert f"job=async id={job_id}" in worker.says("went")


def test_the_log_can_be_json(uri: str, folder: Path) -> None:
    job_id = schedule(uri, "async")
    (folder / "go").touch()
    with gangline("worker", "shop:app", "--uri", uri, "--log-json", cwd=folder) as worker:
        line = json.loads(worker.says("went"))
    assert line["message"] == "went"
    assert (line["level"], line["job_name"], line["job_id"], line["tries"]) == ("info", "async", job_id, 1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["shpo:app"], "there is no module 'shpo'"),
        (["shop.app"], "'shop.app' is not module:attribute"),
        (["./shop.py:app"], "Write it like shop.jobs:app"),
        (["shop:ap"], "the module 'shop' has no 'ap'. Did you mean shop:app?"),
        (["shop:other"], "'shop:other' is a int and no Gangline app. Did you mean shop:app?"),
        (["json:dumps"], "Nor does it hold any app"),
        (["shop:app"], "give the command line --uri or GANGLINE_URI"),
        (["shop:app", "--uri", "http://x"], "uri: it cannot be read"),
        (["shop:app", "--uri", "mongodb://h/d", "--concurrency", "0"], "concurrency: 0 is not a whole number >= 1"),
        (["shop:app", "--uri", "mongodb://h/d", "--concurrency", "x"], "--concurrency"),
        (["shop:app", "--uri", "mongodb://h/d", "--poll-interval", "-5"], "poll_interval: -5.0 is negative"),
        (["shop:app", "--uri", "mongodb://h/d", "--lease", "soon"], "lease: 'soon' is not a duration"),
        (["shop:app", "--uri", "mongodb://h/d", "--grace", "nan"], "grace: "),
        (["shop:app", "--uri", "mongodb://h/d", "--keep-history", "inf"], "keep_history: inf is not a duration"),
        (["shop:app", "--uri", "mongodb://h/d", "--claim", "bulk"], "claim: 'bulk' is no claim protocol"),
        (["shop:app", "--uri", "mongodb://h/d", "--max-batch", "0"], "max_batch: 0 is not a whole number"),
        (["shop:app", "--uri", "mongodb://h/d", "--frobnicate"], "No such option: --frobnicate"),
    ],
)
def test_a_mistake_is_told_in_words(run: Run, arguments: list[str], told: str) -> None:
    """Case 61, at the command line."""
    result = run("worker", *arguments)
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_a_module_that_cannot_be_imported_shows_where_it_failed(run: Run, folder: Path) -> None:
    (folder / "broken.py").write_text("def build():\n    return {}['key']\n\nbuild()\n")
    result = run("worker", "broken:app")
    assert result.exit_code == 1
    assert "the module 'broken' could not be imported: KeyError: 'key'" in result.stderr
    assert result.stderr.splitlines()[1].endswith('broken.py", line 4, in <module>')


def test_a_module_that_imports_a_missing_one_is_not_called_missing_itself(run: Run, folder: Path) -> None:
    (folder / "broken.py").write_text("import no_such_module\n")
    result = run("worker", "broken:app")
    assert result.exit_code == 1
    assert "the module 'broken' could not be imported" in result.stderr
    assert "No module named 'no_such_module'" in result.stderr


def test_the_exit_codes_are_in_the_help(run: Run) -> None:
    words = " ".join(run("worker", "--help").stdout.split())
    assert "0 all jobs finished; 1 an error; 2 a wrong option, setting or app; 3 jobs were handed back" in words
