"""A worker whose jobs note their runs in the collection `runs`: `python -m support.programs.worker URI OPTIONS`."""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from typing import Any

from pymongo import MongoClient

from gangline import Context, Gangline, RetryPolicy

uri, options = sys.argv[1], json.loads(sys.argv[2])
app = Gangline(uri, partitions=4)
client: MongoClient[dict[str, Any]] = MongoClient(uri)
runs = client.get_default_database()["runs"]


def note(ctx: Context) -> None:
    runs.insert_one({"job": ctx.name, "tries": ctx.tries, "stale": ctx.was_stale, "pid": os.getpid()})


@app.event(lease="2s")
async def hang_twice(ctx: Context) -> None:
    note(ctx)
    if ctx.tries < 3:
        await asyncio.Event().wait()


@app.event(lease="30m")
async def hang(ctx: Context) -> None:
    note(ctx)
    await asyncio.Event().wait()


@app.event(lease="2s", max_tries=3, retry=RetryPolicy.fixed("1ms"))
async def kill_itself(ctx: Context) -> None:
    note(ctx)
    os.kill(os.getpid(), signal.SIGKILL)


@app.event(lease="1s")
async def block(ctx: Context, seconds: float) -> None:
    note(ctx)
    time.sleep(seconds)  # noqa: ASYNC251 - the very mistake that is looked at


@app.event()
async def nap(ctx: Context) -> None:
    note(ctx)
    await asyncio.sleep(0.03)


async def main() -> None:
    worker = app.worker(**options)
    await worker.start()
    runs.insert_one({"started": os.getpid()})
    await asyncio.Event().wait()


logging.basicConfig(level=logging.INFO)
asyncio.run(main())
