"""``gangline bench priority``."""

from __future__ import annotations

from typing import Annotated

import typer

from gangline.bench.priority import Mix, measure
from gangline.cli.bench.measured import measured
from gangline.cli.bench.options import Concurrency, Jobs, JsonFile, Partitions, TimeLimit, numbers
from gangline.cli.bench.output import conclude
from gangline.cli.options import Mongod, Uri
from gangline.jobs.settings import WorkerSettings


def priority(
    jobs: Jobs = 20_000,
    max_batch: Annotated[str, typer.Option(metavar="LIST", help="Bounds of a claim.")] = "1,2,4,8,16,32,64",
    priorities: Annotated[int, typer.Option(min=1, max=100, help="How many priorities the jobs have.")] = 10,
    partitions: Partitions = 32,
    concurrency: Concurrency = WorkerSettings().concurrency,
    time_limit: TimeLimit = 60.0,
    uri: Uri = None,
    mongod: Mongod = None,
    json_file: JsonFile = None,
) -> None:
    """Tell how often a job starts while one of higher priority waits, for each bound of a claim's batch.

    Priority is strict within a partition, which each row checks; the row of batches of one tells what partitions alone
    cost. Exit codes: 0 all rows are right; 1 one is not.
    """
    mixes = [
        Mix(
            jobs=jobs,
            priorities=priorities,
            partitions=partitions,
            concurrency=concurrency,
            max_batch=bound,
            seconds=time_limit,
        )
        for bound in numbers("max-batch", max_batch, at_most=1_000)
    ]
    with measured(uri, mongod) as bench:
        rows = bench.rows(measure, mixes)
    conclude("priority", rows, bench.server, file=json_file)
