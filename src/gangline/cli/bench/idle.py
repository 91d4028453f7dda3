"""``gangline bench idle``."""

from __future__ import annotations

import itertools
from typing import Annotated

import typer

from gangline.bench.idle import Rest, measure
from gangline.cli.bench.measured import measured
from gangline.cli.bench.options import JsonFile, PartitionCounts, PollInterval, numbers
from gangline.cli.bench.output import conclude
from gangline.cli.options import Mongod, Uri
from gangline.jobs.settings import MAX_PARTITIONS

_MAX_SCHEDULERS = 256


def idle(
    partitions: PartitionCounts = "1,16,128",
    schedulers: Annotated[str, typer.Option(metavar="LIST", help="Numbers of workers, all in one process.")] = "1,8,64",
    poll_interval: PollInterval = 1.0,
    polls: Annotated[int, typer.Option(min=1, max=1_000, help="How many poll intervals are measured.")] = 10,
    uri: Uri = None,
    mongod: Mongod = None,
    json_file: JsonFile = None,
) -> None:
    """Let workers rest on an empty queue, and tell what that costs.

    Commands are counted by the server's profiler, which the user of --uri must be allowed to switch on for the
    benchmark's own database. Exit codes: 0 all rows are right; 1 one is not.
    """
    rests = [
        Rest(partitions=count, schedulers=workers, poll_interval=poll_interval, polls=polls)
        for count, workers in itertools.product(
            numbers("partitions", partitions, at_most=MAX_PARTITIONS),
            numbers("schedulers", schedulers, at_most=_MAX_SCHEDULERS),
        )
    ]
    with measured(uri, mongod) as bench:
        rows = bench.rows(measure, rests)
    conclude("idle", rows, bench.server, file=json_file)
