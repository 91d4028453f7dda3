"""`gangline demo` from the outside: on files of its own, with workers that die, and interrupted."""

import asyncio
import json
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from gangline.demo.check import Findings
from gangline.demo.files import find_files
from gangline.demo.fleet import Fleet, WorkerEnded
from gangline.demo.run import Report, run_demo
from gangline.store.database import drop_database, in_database
from support.apps import Raw, eventually
from support.cli import gangline, in_process

FIELDS = {
    "files": 5,
    "bytes": 10,
    "skipped": 1,
    "runs": 5,
    "missing": 0,
    "duplicates": 0,
    "different": 0,
    "claims": 5,
    "processes": 2,
    "problems": [],
}


class Silent:
    """Progress that nobody watches."""

    def begin(self, stage: str, total: int) -> None: ...

    def reach(self, done: int) -> None: ...


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five files of 0 to 4 bytes, and a link."""
    folder = tmp_path / "files"
    folder.mkdir()
    for size in range(5):
        (folder / f"file{size}").write_bytes(b"x" * size)
    (folder / "link").symlink_to("file1")
    return folder


def databases(uri: str) -> set[str]:
    client: MongoClient[dict[str, Any]]
    with MongoClient(uri) as client:
        return {name for name in client.list_database_names() if name.startswith("gangline_demo_")}


def test_the_demo_tells_what_it_did_and_leaves_nothing(mongo_uri: str, folder: Path) -> None:
    before = databases(mongo_uri)
    with gangline("demo", "--json", "--path", str(folder), "--uri", mongo_uri) as demo:
        assert demo.ends() == 0, demo.output
        told = json.loads(demo.output.partition("\n")[2])  # behind the line on standard error
    assert {name: told.pop(name) for name in FIELDS} == FIELDS
    assert told.keys() == {"seconds", "jobs_per_second", "write_conflicts_per_job", "ticks", "plain_seconds"}
    assert told["seconds"] > 0
    assert told["jobs_per_second"] == pytest.approx(5 / told["seconds"], rel=0.1)
    assert told["ticks"] >= 1
    assert databases(mongo_uri) == before


def test_the_demo_brings_its_own_server_and_people_get_a_summary(mongod: object, folder: Path) -> None:
    with gangline("demo", "--path", str(folder), "--processes", "1") as demo:
        assert demo.ends() == 0, demo.output
        words = " ".join(demo.output.split())
    assert mongod, "only to be skipped where there is no server"
    assert "Files 5 (0.0 MB); links, special and unreadable files skipped: 1 Jobs run 5 by 1 worker process M" in words
    assert "Missing 0 Duplicates 0 Different 0" in words
    assert "What the queue adds:" in words
    assert "Every file was processed exactly once, and rightly." in words


def test_a_worker_that_dies_ends_the_demo(uri: str, folder: Path) -> None:
    dies = [sys.executable, "-c", "import sys; sys.exit('no more')"]
    with pytest.raises(WorkerEnded, match=r"worker process \d+ ended with exit code 1. It said last:\nno more"):
        run_demo(find_files(folder), uri=uri, command=dies, environment=os.environ, processes=2, progress=Silent())


async def test_a_worker_that_ends_badly_is_told_although_all_is_done() -> None:
    stops = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); print(1, file=sys.stderr)"
    fleet = Fleet([sys.executable, "-c", f"{stops}; sys.stdin.read()"], os.environ, 1)

    async def run_until_it_listens() -> None:
        async with fleet:
            [member] = fleet._members
            await eventually(lambda: member.obituary().endswith("1"))
            fleet.check()

    with pytest.raises(WorkerEnded, match="exit code 3"):
        await run_until_it_listens()


def test_ctrl_c_ends_the_workers_and_drops_the_database(mongo_uri: str, tmp_path: Path) -> None:
    """That no process is left is checked after every test."""
    endless = tmp_path / "endless"
    endless.touch()
    os.truncate(endless, 2**42)  # sparse: takes no room, and an hour to read
    before = databases(mongo_uri)
    with gangline("demo", "--path", str(tmp_path), "--uri", mongo_uri) as demo:
        name = asyncio.run(eventually(lambda: databases(mongo_uri) - before, deadline=20)).pop()
        with Raw(in_database(mongo_uri, name)) as raw:
            locked = {"jobName": "digest", "lockedUntil": {"$exists": True}}
            asyncio.run(eventually(lambda: raw.records.find_one(locked), deadline=20))
        demo.send(signal.SIGINT)
        assert demo.ends() == 130
        assert "Traceback" not in demo.output
    assert databases(mongo_uri) == before


@pytest.mark.parametrize("as_json", [True, False])
def test_a_wrong_file_is_told_and_is_the_exit_code(
    uri: str, folder: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    missing, doubled, wrong = (folder / f"file{size}" for size in range(3))
    findings = Findings(missing=[missing], duplicates=[doubled], different=[wrong])
    report = Report(
        files=5,
        size=10,
        skipped=0,
        runs=5,
        findings=findings,
        claims=5,
        seconds=1.0,
        write_conflicts_per_job=None,
        ticks=1,
        processes=2,
        plain_seconds=0.1,
    )
    monkeypatch.setattr("gangline.cli.demo.run_demo", lambda *_, **__: report)
    result = in_process("demo", "--path", str(folder), "--uri", uri, *(["--json"] if as_json else []))
    assert result.exit_code == 1
    if as_json:
        told = json.loads(result.stdout)
        assert (told["missing"], told["duplicates"], told["different"]) == (1, 1, 1)
        assert told["problems"] == [f"missing: {missing}", f"duplicate: {doubled}", f"different: {wrong}"]
    else:
        assert "3 files are wrong" in result.stdout
        assert f"missing: {missing}" in result.stdout


def test_a_directory_without_files_is_refused(tmp_path: Path) -> None:
    result = in_process("demo", "--path", str(tmp_path), "--uri", "mongodb://127.0.0.1:1/")
    assert result.exit_code == 2
    assert "path: no file in" in result.stderr


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("mongodb://a:1", "mongodb://a:1/x"),
        ("mongodb://a:1,b:2/y?replicaSet=r", "mongodb://a:1,b:2/x?replicaSet=r"),
        ("mongodb://u:p%40@a:1/users?w=majority", "mongodb://u:p%40@a:1/x?w=majority&authSource=users"),
        ("mongodb+srv://u:p@a", "mongodb+srv://u:p@a/x?authSource=admin"),
        ("mongodb://u:p@a/?authsource=other", "mongodb://u:p@a/x?authsource=other"),
    ],
)
def test_the_demo_has_a_database_of_its_own_on_a_given_server(given: str, expected: str) -> None:
    assert in_database(given, "x") == expected


async def test_only_the_named_database_is_dropped(uri: str, mongo_uri: str) -> None:
    own = in_database(mongo_uri, f"gangline_demo_{secrets.token_hex(4)}")
    with Raw(uri) as kept, Raw(own) as dropped:
        kept.runs.insert_one({})
        dropped.runs.insert_one({})
        await drop_database(own)
        assert kept.runs.count_documents({}) == 1
        assert dropped.runs.count_documents({}) == 0
