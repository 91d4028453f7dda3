"""A program that ends while its worker runs a job, without stopping it: `python -m support.programs.forgetful URI`."""

import asyncio
import sys

from gangline import Gangline


async def main(uri: str) -> None:
    app = Gangline(uri)
    started = asyncio.Event()

    @app.event()
    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    worker = app.worker(poll_interval="30ms")
    await worker.start()
    await work.schedule()
    await started.wait()
    print("running")


asyncio.run(main(sys.argv[1]))
