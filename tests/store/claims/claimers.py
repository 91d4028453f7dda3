"""A process of claimers, for the tests with many of them.

It reads a task in JSON from a line, says `ready` once it is connected, starts at the next line, and answers with what
it won.
"""

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Any, TypedDict

from gangline.store.claims.protocol import ClaimProtocol
from store.claims.conftest import MAKERS
from support.records import Queue, open_queue


class Task(TypedDict):
    """Claim everything in partition 0 of the queue at `uri`, with so many `claimers`, each up to `limit` in one go."""

    uri: str
    protocol: str
    claimers: int
    limit: int


class Won(TypedDict):
    """A claimed record."""

    id: Any
    lock_id: str
    tries: int


@dataclass
class Claimer:
    """Claims until nothing is left."""

    queue: Queue
    protocol: ClaimProtocol
    limit: int

    async def run(self) -> list[Won]:
        won: list[Won] = []
        while await self._anything_left():
            claims = await self.protocol.claim(self.queue.request(limit=self.limit))
            won += [Won(id=item.id, lock_id=item.lease.lock_id, tries=item.tries) for item in claims.records]
        return won

    async def _anything_left(self) -> bool:
        return await self.queue.records.find_one({"lockId": None}, {"_id": 1}) is not None


async def perform(task: Task) -> list[Won]:
    """Let the claimers of `task` loose on the queue at the same time."""
    async with open_queue(task["uri"]) as queue:
        protocol = MAKERS[task["protocol"]](queue.records)
        say("ready")
        sys.stdin.readline()
        claimers = [Claimer(queue, protocol, task["limit"]) for _ in range(task["claimers"])]
        won = await asyncio.gather(*(claimer.run() for claimer in claimers))
    return [item for items in won for item in items]


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    """Serve until the input ends."""
    while line := sys.stdin.readline():
        say(json.dumps(asyncio.run(perform(json.loads(line)))))


if __name__ == "__main__":
    main()
