"""The helpers themselves: a watch that sees nothing would let every other test pass."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from blockbuster import BlockingError
from pymongo import AsyncMongoClient

import gangline
from support.processes import children, left_behind
from support.servers import with_database


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("mongodb://a:1", "mongodb://a:1/x"),
        ("mongodb://a:1,b:2/?replicaSet=r", "mongodb://a:1,b:2/x?replicaSet=r"),
        ("mongodb://u:p%40@a:1/users?w=majority", "mongodb://u:p%40@a:1/x?w=majority&authSource=users"),
        ("mongodb+srv://u:p@a", "mongodb+srv://u:p@a/x?authSource=admin"),
        ("mongodb://u:p@a/?authSource=other", "mongodb://u:p@a/x?authSource=other"),
    ],
)
def test_a_database_is_put_into_a_uri(given: str, expected: str) -> None:
    assert with_database(given, "x") == expected


def test_a_child_left_behind_is_reported_and_ended() -> None:
    before = children()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"x")
        assert child.stdout.read(1) == b"x"  # it runs: just after its start the system does not tell its command yet
        assert left_behind(before, patience=0) == [f"{child.pid}: cat"]
        assert child.wait(10) < 0
    assert left_behind(before, patience=0) == []


def in_gangline(body: str) -> dict[str, object]:
    """Run `body` as if it stood in a module of Gangline."""
    names: dict[str, object] = {"time": time, "subprocess": subprocess, "sys": sys}
    exec(compile(body, str(Path(gangline.__file__).with_name("pretended.py")), "exec"), names)  # noqa: S102
    return names


async def test_gangline_may_not_block_the_loop() -> None:
    with pytest.raises(BlockingError, match=r"time\.sleep"):
        in_gangline("time.sleep(0)")


async def test_a_test_may_block_the_loop_and_gangline_may_start_a_process() -> None:
    time.sleep(0)  # noqa: ASYNC251
    in_gangline("subprocess.Popen([sys.executable, '-c', '']).wait()")


def test_gangline_may_block_outside_a_loop() -> None:
    in_gangline("time.sleep(0)")


async def test_each_test_has_a_database_of_its_own(uri: str) -> None:
    async with AsyncMongoClient[dict[str, object]](uri) as client:
        await client.get_default_database().items.insert_one({"_id": 1})
        assert client.get_default_database().name.startswith("gl_")


async def test_the_sorted_server_sorts_updates(sorted_uri: str) -> None:
    async with AsyncMongoClient[dict[str, object]](sorted_uri) as client:
        items = client.get_default_database().items
        await items.insert_many([{"_id": 1, "rank": 2}, {"_id": 2, "rank": 1}])
        await items.update_one({}, {"$set": {"taken": True}}, sort={"rank": 1})
        assert await items.find_one({"taken": True}, {"rank": 0}) == {"_id": 2, "taken": True}
