"""What people see of the demo's summary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from gangline.cli.output import console, text
from gangline.demo.run import Report

_SHOWN_PROBLEMS = 10


def report_fields(report: Report) -> dict[str, Any]:
    """Return the report as programs read it."""
    findings = report.findings
    return {
        "files": report.files,
        "bytes": report.size,
        "skipped": report.skipped,
        "runs": report.runs,
        "missing": len(findings.missing),
        "duplicates": len(findings.duplicates),
        "different": len(findings.different),
        "seconds": round(report.seconds, 3),
        "jobs_per_second": round(report.jobs_per_second, 1),
        "claims": report.claims,
        "write_conflicts_per_job": report.write_conflicts_per_job,
        "ticks": report.ticks,
        "processes": report.processes,
        "plain_seconds": round(report.plain_seconds, 3),
        "problems": findings.problems,
    }


def print_report(report: Report) -> None:
    """Print the summary for people."""
    out = console()
    grid = Table.grid(padding=(0, 2))
    for title, value in _rows(report):
        grid.add_row(Text(title, "dim"), value)
    out.print()
    out.print(grid)
    out.print()
    out.print(_comparison(report))
    out.print()
    out.print(_verdict(report))


def _rows(report: Report) -> Iterator[tuple[str, Text]]:
    findings = report.findings
    skipped = f"; links, special and unreadable files skipped: {report.skipped:,}" if report.skipped else ""
    workers = f"{report.processes} worker process{'es' if report.processes > 1 else ''}"
    yield "Files", Text(f"{report.files:,} ({report.size / 1e6:,.1f} MB){skipped}")
    yield "Jobs run", Text(f"{report.runs:,} by {workers}")
    yield "Missing", _count(len(findings.missing))
    yield "Duplicates", _count(len(findings.duplicates))
    yield "Different", _count(len(findings.different))
    yield "Time", Text(f"{report.seconds:.2f} s, {report.jobs_per_second:,.0f} jobs/s", "bold")
    yield "Claims", Text(f"{report.claims / report.files:.2f} per job")
    yield "Write conflicts", Text(_conflicts(report.write_conflicts_per_job))
    yield "Recurrent job", Text(f"ran {report.ticks} times beside, once a second")
    yield "Plain loop", Text(f"{report.plain_seconds:.2f} s, {_per_second(report):,.0f} files/s, one process")


def _count(number: int) -> Text:
    return Text(f"{number:,}", "bold red" if number else "green")


def _conflicts(per_job: float | None) -> str:
    return "not told by the server" if per_job is None else f"{per_job:.3f} per job"


def _per_second(report: Report) -> float:
    return report.files / report.plain_seconds if report.plain_seconds else 0.0


def _comparison(report: Report) -> str:
    faster = "faster" if report.plain_seconds < report.seconds else "slower"
    return (
        f"For files of this size a plain loop is {faster}. What the queue adds: each job survives the death of its "
        "worker, is retried when it fails, leaves its result behind, and may run on any number of hosts."
    )


def _verdict(report: Report) -> Text:
    if report.right:
        return Text("✓ Every file was processed exactly once, and rightly.", "bold green")
    problems = report.findings.problems
    shown = [text(f"\n  {problem}") for problem in problems[:_SHOWN_PROBLEMS]]
    return Text.assemble((f"✗ {len(problems):,} files are wrong:", "bold red"), *shown)
