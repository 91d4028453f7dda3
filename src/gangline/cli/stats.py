"""``gangline stats``: how many records there are, in which states."""

from __future__ import annotations

import dataclasses
from datetime import datetime

from rich.table import Table
from rich.text import Text

from gangline.cli.options import Json, Prefix, Uri
from gangline.cli.output import console, moment, print_json, table, text
from gangline.cli.questions import ask
from gangline.store.insights import Insights, JobCounts, State
from gangline.store.schema import DEFAULT_PREFIX

_STYLES = {State.READY: "cyan", State.RUNNING: "green", State.STALE: "yellow", State.DEAD: "red"}


def stats(uri: Uri = None, prefix: Prefix = DEFAULT_PREFIX, as_json: Json = False) -> None:
    """Count the queue's records by job and state. Reads every record once."""
    counts, now = ask(uri, prefix, _counts)
    if as_json:
        print_json({"jobs": [dataclasses.asdict(job) for job in counts], "total": _total(counts)})
    elif counts:
        console().print(_table(counts, now))
    else:
        console().print("The queue is empty.")


async def _counts(insights: Insights) -> tuple[list[JobCounts], datetime]:
    return await insights.counts(), await insights.now()


def _table(counts: list[JobCounts], now: datetime) -> Table:
    states = [state.value for state in State]
    found = table("Job", "Type", *(state.title() for state in states), "Oldest due", right=_titles(states))
    for job in counts:
        numbers = [_number(getattr(job, state), state) for state in State]
        found.add_row(text(job.name), text(job.type), *numbers, moment(job.oldest_due, now))
    if len(counts) > 1:
        total = _total(counts)
        found.add_section()
        found.add_row("Total", "", *(_number(total[state], state) for state in State))
    return found


def _titles(states: list[str]) -> frozenset[str]:
    return frozenset(state.title() for state in states)


def _number(count: int, state: State) -> Text:
    return text(f"{count:,}", _STYLES.get(state, "") if count else "dim")


def _total(counts: list[JobCounts]) -> dict[str, int]:
    return {state.value: sum(getattr(job, state) for job in counts) for state in State}
