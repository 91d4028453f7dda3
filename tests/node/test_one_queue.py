"""Several processes of both sides at work on one queue that Gangline set up."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pymongo.collection import Collection

from gangline import Gangline
from support.apps import Document, eventually
from support.node_side import NodeSide

TESTS = Path(__file__).parents[1]
ROUNDS = 10
FAILS = {"fails": True}


@contextmanager
def side(name: str, uri: str) -> Iterator[None]:
    """A process of one side, killed when the block is left."""
    command = [sys.executable, "-m", "node.sides", name, uri]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(TESTS)}) as process:
        try:
            yield
        finally:
            process.kill()


async def schedule_here(app: Gangline) -> list[str]:
    """Schedule 20 jobs by Gangline, every fifth with a first try that fails."""
    jobs: list[dict[str, Any]] = [FAILS if number % 5 == 0 else {} for number in range(20)]
    return [str((await app.schedule_by_name("resizeImage", params, priority=50)).id) for params in jobs]


def schedule_there(node: NodeSide) -> list[str]:
    """Schedule 20 jobs by Node, some with a failing first try, some in no partition, or in one that is none."""
    places: list[Document] = [{}, {}, {"partition": None}, {"partition": -1}, {"priority": 100.0}]
    return [node.schedule("sendMail", FAILS if number % 4 == 0 else None, **places[number % 5]) for number in range(20)]


async def test_four_processes_of_both_sides_lose_and_double_nothing(app: Gangline, node: NodeSide, uri: str) -> None:
    """400 jobs, half of them scheduled by either side while the workers run."""
    runs: Collection[Document] = node.client.get_default_database()["runs"]
    with ExitStack() as stack:
        for name in ("gangline", "gangline"):
            stack.enter_context(side(name, uri))
        await eventually(lambda: runs.count_documents({"started": "gangline"}) == 2)
        for name in ("node", "node"):
            stack.enter_context(side(name, uri))
        await eventually(lambda: runs.count_documents({"started": "node"}) == 2)
        ours: list[str] = []
        theirs: list[str] = []
        for _ in range(ROUNDS):
            ours += await schedule_here(app)
            theirs += schedule_there(node)
        await eventually(lambda: node.records.find_one({}, {"_id": 1}) is None, deadline=60)
        await eventually(lambda: node.history.count_documents({"status": "success"}) == len(ours + theirs))
    assert list(runs.find({"wrong": {"$ne": None}})) == []
    expected = {f"{job} 1" for job in ours + theirs}
    expected |= {f"{job} 2" for job in ours[::5]}
    expected |= {f"{job} 2" for number, job in enumerate(theirs) if number % 20 % 4 == 0}
    assert set(runs.distinct("_id", {"job": {"$ne": None}})) == expected
    assert set(node.history.distinct("jobId", {"status": "success"})) == {*ours, *theirs}
    assert {run["side"] for run in runs.find({"job": {"$in": ours}})} == {"gangline", "node"}
    assert {run["side"] for run in runs.find({"job": {"$in": theirs}})} == {"gangline", "node"}
    assert node.history.count_documents({"status": "error"}) == 4 * ROUNDS + 5 * ROUNDS
    assert node.history.count_documents({"status": "stale"}) == 0
