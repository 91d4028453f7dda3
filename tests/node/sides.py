"""The two kinds of process on one queue: `python -m node.sides gangline|node URI`.

Each notes every run and everything that goes wrong in the collection `runs`, and works until it is killed. A job whose
params say so fails at its first try, so that its second may be the other side's.
"""

import asyncio
import logging
import random
import sys
import time
from typing import Any

from pymongo import MongoClient
from pymongo.errors import DuplicateKeyError, PyMongoError

from gangline import Context, Gangline, RetryPolicy
from support.node_side import JobToRun, NodeSide
from support.queues import NODE_PREFIX

NAMES = ("resizeImage", "sendMail")
PARTITIONS = 4

side, uri = sys.argv[1:]
client: MongoClient[dict[str, Any]] = MongoClient(uri)
runs = client.get_default_database()["runs"]


class Refused(logging.Handler):
    """Notes warnings: a claim that the server refuses is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Note it."""
        runs.insert_one({"wrong": record.getMessage(), "side": side})


def note(job_id: str, tries: int, fails: bool) -> None:
    """Note a run; one that is there already is a double. Fail if the job wants it."""
    try:
        runs.insert_one({"_id": f"{job_id} {tries}", "job": job_id, "side": side})
    except DuplicateKeyError:
        runs.insert_one({"wrong": f"{job_id} ran twice at try {tries}", "side": side})
    if fails and tries == 1:
        raise RuntimeError("at the first try")


async def gangline() -> None:
    """Run a Gangline worker."""
    app = Gangline(uri, prefix=NODE_PREFIX, partitions=PARTITIONS)
    for name in NAMES:

        @app.event(name=name, retry=RetryPolicy.fixed("1ms"))
        async def work(ctx: Context, fails: bool = False) -> None:
            await asyncio.sleep(0.005)
            note(ctx.id, ctx.tries, fails)

    worker = app.worker(concurrency=4, poll_interval="50ms")
    await worker.start()
    runs.insert_one({"started": side})
    await asyncio.Event().wait()


def node() -> None:
    """Run a Node worker, one job at a time."""
    with NodeSide(uri, PARTITIONS) as program:
        program.start()
        runs.insert_one({"started": side})
        while True:
            if not work_once(program):
                time.sleep(random.uniform(0.005, 0.01))


def work_once(program: NodeSide) -> bool:
    """Claim and run one job; what the server refuses is noted."""

    def run(job: JobToRun) -> None:
        note(job.id, job.tries, bool((job.params or {}).get("fails")))

    try:
        return program.work_once(NAMES, run)
    except PyMongoError as error:
        runs.insert_one({"wrong": str(error), "side": side})
        return False


if __name__ == "__main__":
    if side == "node":
        node()
    else:
        logging.basicConfig(level=logging.WARNING, handlers=[Refused()])
        asyncio.run(gangline())
