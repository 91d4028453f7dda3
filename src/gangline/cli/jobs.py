"""``gangline jobs``: the queue's records, and what became of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from gangline.cli.exits import ExitCode, complain
from gangline.cli.job_page import job_page
from gangline.cli.options import Json, Prefix, Uri
from gangline.cli.output import console, moment, print_json, table, text
from gangline.cli.questions import ask
from gangline.store.insights import Insights, State
from gangline.store.schema import DEFAULT_PREFIX

jobs = typer.Typer(name="jobs", help="Look at the queue's jobs.", no_args_is_help=True)

_STYLES = {"ready": "cyan", "running": "green", "stale": "yellow", "dead": "red"}


@jobs.command("list")
def list_jobs(
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    name: Annotated[str | None, typer.Option(help="Only those of this job name.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    uri: Uri = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: Json = False,
) -> None:
    """List waiting, running and dead jobs, those that are due first in front."""

    async def question(insights: Insights) -> tuple[list[dict[str, Any]], datetime]:
        return await insights.jobs(state=state, name=name, limit=limit + 1), await insights.now()

    found, now = ask(uri, prefix, question)
    if as_json:
        print_json(found[:limit])
    else:
        _print_list(found[:limit], now, more=len(found) > limit)


@jobs.command("show")
def show_job(
    job_id: Annotated[str, typer.Argument(metavar="ID", help="As `gangline jobs list` shows it.")],
    uri: Uri = None,
    prefix: Prefix = DEFAULT_PREFIX,
    as_json: Json = False,
) -> None:
    """Show one job with its executions, also when it has ended and only the history knows it."""

    async def question(insights: Insights) -> tuple[dict[str, Any] | None, list[dict[str, Any]], datetime]:
        return await insights.job(job_id), await insights.executions(job_id), await insights.now()

    job, executions, now = ask(uri, prefix, question)
    if job is None and not executions:
        complain(f"there is no job {job_id!r}, and no execution of it in the history")
        raise typer.Exit(ExitCode.ERROR)
    if as_json:
        print_json({"job": job, "executions": executions})
    else:
        console().print(job_page(job_id, job, executions, now))


def _print_list(found: list[dict[str, Any]], now: datetime, *, more: bool) -> None:
    out = console()
    if not found:
        out.print("No such jobs.")
        return
    rows = table("ID", "Job", "State", "Due", "Tries", "Note", right=frozenset({"Tries"}))
    for column in rows.columns:
        column.no_wrap = column.header not in ("Job", "Note")  # an id must stay in one piece to be copied
    for job in found:
        rows.add_row(*_row(job, now))
    out.print(rows)
    if more:
        out.print("There are more; see --limit.", style="dim")


def _row(job: dict[str, Any], now: datetime) -> list[Any]:
    return [
        text(job["_id"]),
        text(job.get("jobName")),
        text(job["state"], _STYLES.get(job["state"], "")),
        moment(job.get("nextRunAt"), now),
        text(job.get("tries", 0)),
        text(_note(job, now), "dim"),
    ]


def _note(job: dict[str, Any], now: datetime) -> str:
    """What a person wants to know next: who runs it, or why it failed."""
    if job["state"] in (State.RUNNING, State.STALE):
        return f"lease ends {moment(job['lockedUntil'], now)}, {job.get('lockedBy', 'by an unknown worker')}"
    error = job.get("lastError")
    if not isinstance(error, dict):
        return ""
    first_line = str(error.get("message", "")).partition("\n")[0]
    return f"{error.get('type')}: {first_line[:80]}"
