"""``gangline bench throughput``."""

from __future__ import annotations

import itertools
from typing import Annotated

import typer

from gangline.bench.throughput import KINDS, STRATEGIES, Load, check, measure
from gangline.cli.bench.measured import measured
from gangline.cli.bench.options import (
    Batch,
    Concurrency,
    Jobs,
    JsonFile,
    Partitions,
    Processes,
    TimeLimit,
    switches,
    words,
)
from gangline.cli.bench.output import conclude
from gangline.cli.options import Mongod, Uri
from gangline.jobs.settings import WorkerSettings

_DEFAULTS = WorkerSettings()


def throughput(
    jobs: Jobs = 20_000,
    strategy: Annotated[str, typer.Option(metavar="LIST", help=f"Some of {', '.join(STRATEGIES)}.")] = (
        ",".join(STRATEGIES)
    ),
    kind: Annotated[str, typer.Option(metavar="LIST", help=f"What a job does: some of {', '.join(KINDS)}.")] = (
        ",".join(KINDS)
    ),
    history: Annotated[str, typer.Option(metavar="LIST", help="Some of on, off.")] = "on,off",
    processes: Processes = 2,
    concurrency: Concurrency = _DEFAULTS.concurrency,
    max_batch: Batch = _DEFAULTS.max_batch,
    partitions: Partitions = 16,
    time_limit: TimeLimit = 60.0,
    uri: Uri = None,
    mongod: Mongod = None,
    json_file: JsonFile = None,
) -> None:
    """Work a pre-loaded queue off, end to end.

    The strategy dogs is the reference: one claim, one history write and one settle a job, one after another, in as
    many lanes as --concurrency says. The strategy limit is the bare writes of the same jobs in batches, without any
    queue. Each row checks that every job ran once and that the history is complete. Exit codes: 0 all rows are right;
    1 one is not.
    """
    loads = [
        Load(
            strategy=name,
            kind=each,
            history=kept,
            jobs=jobs,
            partitions=partitions,
            processes=processes,
            concurrency=concurrency,
            max_batch=max_batch,
            seconds=time_limit,
        )
        for name, each, kept in itertools.product(words(strategy), words(kind), switches("history", history))
        if name != "limit" or each == words(kind)[0]  # a bare write does not depend on what a job would do
    ]
    for load in loads:
        check(load)
    with measured(uri, mongod) as bench:
        rows = bench.rows(measure, loads)
    conclude("throughput", rows, bench.server, file=json_file)
