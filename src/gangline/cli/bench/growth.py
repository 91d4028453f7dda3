"""``gangline bench growth``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated

import typer

from gangline.bench.growth import STRATEGIES, Backlog, Endurance, check, measure, measure_memory, with_ratios
from gangline.cli.bench.measured import measured
from gangline.cli.bench.options import Batch, Claimers, JsonFile, Partitions, TimeLimit, numbers, switches, words
from gangline.cli.bench.output import conclude
from gangline.cli.options import Mongod, Uri
from gangline.jobs.settings import WorkerSettings

_CONCURRENCY = WorkerSettings().concurrency


def growth(
    waiting: Annotated[str, typer.Option(metavar="LIST", help="Numbers of records that can be claimed.")] = (
        "1000,10000,100000,1000000"
    ),
    locked: Annotated[int, typer.Option(min=0, help="Locked records in front, in a row of their own.")] = 10_000,
    dead: Annotated[int, typer.Option(min=0, help="Dead records in front, in a row of their own.")] = 100_000,
    future: Annotated[int, typer.Option(min=0, help="Records that are not due in front, likewise.")] = 100_000,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help=f"Some of {', '.join(STRATEGIES)}.", show_default="what a worker would use for a batch"
        ),
    ] = None,
    claims: Annotated[int, typer.Option(min=1, help="How many claims are timed in each row.")] = 20_000,
    claimers: Claimers = 8,
    batch: Batch = 32,
    partitions: Partitions = 32,
    memory_jobs: Annotated[int, typer.Option(min=0, help="Jobs of the worker whose memory is watched; 0 for none.")] = (
        1_000_000
    ),
    history: Annotated[str, typer.Option(metavar="LIST", help="Of the watched worker: some of on, off.")] = "on",
    time_limit: TimeLimit = 600.0,
    uri: Uri = None,
    mongod: Mongod = None,
    json_file: JsonFile = None,
) -> None:
    """Tell whether claims slow down as the queue grows, and whether a worker grows as it works.

    What is claimed is set free again between the rounds, so that every row claims from a queue of one size. A row has
    its claims per second in parts of the first row's. Exit codes: 0 all rows are right; 1 one is not.
    """
    sizes = numbers("waiting", waiting)
    obstacles: Sequence[dict[str, int]] = [{"locked": locked}, {"dead": dead}, {"future": future}]
    queues = [{"waiting": size} for size in sizes]
    queues += [{"waiting": sizes[0], **front} for front in obstacles if any(front.values())]
    kept = switches("history", history) if memory_jobs else []
    endurances = [
        Endurance(jobs=memory_jobs, history=each, concurrency=_CONCURRENCY, partitions=partitions, seconds=time_limit)
        for each in kept
    ]
    with measured(uri, mongod) as bench:
        wanted = words(strategy) if strategy else ["sorted-update" if bench.sorted_updates else "batch"]
        backlogs = [
            Backlog(
                strategy=name,
                claims=claims,
                claimers=claimers,
                batch=batch,
                partitions=partitions,
                seconds=time_limit,
                **queue,
            )
            for name, queue in itertools.product(wanted, queues)
        ]
        for backlog in backlogs:
            check(backlog, sorted_updates=bench.sorted_updates)
        rows = with_ratios(bench.rows(measure, backlogs))
        memory = bench.rows(measure_memory, endurances)
    conclude("growth", [*rows, *memory], bench.server, file=json_file)
