"""`gangline bench` from the outside, at a tiny size: what it prints, writes and draws, and its exit code."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gangline.bench import claims
from support.cli import in_process

TINY = ["bench", "claims", "--jobs", "60", "--claimers", "4", "--partitions", "1,4"]


def rows(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
    return found


def test_claims_prints_a_table_and_writes_json_and_a_plot(mongo_uri: str, tmp_path: Path) -> None:
    file, plot = tmp_path / "claims.json", tmp_path / "claims.png"
    result = in_process(
        *TINY, "--strategy", "dogs,find-and-modify,limit", "--uri", mongo_uri, "--json", str(file), "--plot", str(plot)
    )
    assert result.exit_code == 0, result.output
    found = rows(file)
    assert [(row["strategy"], row["partitions"]) for row in found] == [
        ("dogs", 1),
        ("dogs", 4),
        ("find-and-modify", 1),
        ("find-and-modify", 4),
        ("limit", 1),
        ("limit", 4),
    ]
    figures = {"claims_per_second", "conflicts_per_claim", "docs_examined_per_claim", "seconds"}
    for row in found:
        assert figures <= row.keys()
        assert (row["claims"], row["claimers"], row["batch"]) == (60, 4, 1)
        assert (row["duplicates"], row["verified"], row["cut"]) == (0, True, False)
    document = json.loads(file.read_text())
    assert (document["benchmark"], document["machine"]["cpus"] > 0) == ("claims", True)
    assert document["server"]["version"].count(".") == 2
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "claims per second" in " ".join(result.stdout.split())
    assert "claimers 4, batch 1" in result.stdout


def test_a_wrong_result_fails(mongo_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = claims._verified

    async def wrong(uri: str, row: claims.ClaimsRow, won: claims.Won) -> claims.ClaimsRow:
        return replace(await right(uri, row, won), problems=["a record was left"])

    monkeypatch.setattr(claims, "_verified", wrong)
    result = in_process(*TINY, "--strategy", "batch", "--uri", mongo_uri)
    assert result.exit_code == 1
    assert "a record was left" in result.stderr


def test_throughput_tells_the_share_of_the_limit_in_one_table(mongo_uri: str, tmp_path: Path) -> None:
    file = tmp_path / "throughput.json"
    result = in_process(
        "bench", "throughput", "--jobs", "40", "--kind", "async,sleep", "--uri", mongo_uri, "--json", str(file)
    )
    assert result.exit_code == 0, result.output
    found = [(row["strategy"], row["kind"], row["history"], row["jobs"], row["verified"]) for row in rows(file)]
    assert sorted(found) == sorted(
        (strategy, kind, history, 40, True)
        for strategy in ("gangline", "dogs", "limit")
        for kind in ("async", "sleep")
        for history in (True, False)
        if (strategy, kind) != ("limit", "sleep")
    )


def test_latency_has_a_row_for_each_scene_with_and_without_the_stream(mongo_uri: str, tmp_path: Path) -> None:
    file = tmp_path / "latency.json"
    few = ["--jobs", "3", "--poll-interval", "0.1", "--pause", "0.01"]
    result = in_process("bench", "latency", *few, "--uri", mongo_uri, "--json", str(file))
    assert result.exit_code == 0, result.output
    assert [(row["scene"], row["change_stream"]) for row in rows(file)] == [
        (scene, stream) for scene in ("same-process", "other-process", "delayed") for stream in (True, False)
    ]
    for row in rows(file):
        assert (row["jobs"], row["verified"]) == (3, True)
        assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"] <= row["max_ms"]


def test_idle_has_a_row_for_each_number_of_partitions_and_schedulers(mongo_uri: str, tmp_path: Path) -> None:
    file = tmp_path / "idle.json"
    few = ["--partitions", "1,16", "--schedulers", "1,2", "--poll-interval", "0.1", "--polls", "3"]
    result = in_process("bench", "idle", *few, "--uri", mongo_uri, "--json", str(file))
    assert result.exit_code == 0, result.output
    assert [(row["partitions"], row["schedulers"]) for row in rows(file)] == [(1, 1), (1, 2), (16, 1), (16, 2)]
    assert all(row["verified"] and "commands_per_scheduler_and_poll" in row for row in rows(file))


def test_growth_has_a_row_for_each_size_and_obstacle_and_one_for_memory(mongo_uri: str, tmp_path: Path) -> None:
    file = tmp_path / "growth.json"
    few = ["--waiting", "40,80", "--locked", "10", "--dead", "20", "--future", "0", "--claims", "60", "--batch", "4"]
    few += ["--claimers", "2", "--memory-jobs", "200"]
    result = in_process("bench", "growth", *few, "--uri", mongo_uri, "--json", str(file))
    assert result.exit_code == 0, result.output
    *sizes, memory = rows(file)
    found = [(row["strategy"], row["waiting"], row["locked"], row["dead"], row["future"]) for row in sizes]
    assert found == [("batch", 40, 0, 0, 0), ("batch", 80, 0, 0, 0), ("batch", 40, 10, 0, 0), ("batch", 40, 0, 20, 0)]
    assert sizes[0]["ratio_to_first"] == 1.0
    assert (memory["jobs"], memory["verified"], len(memory["rss_after_tenths_mb"])) == (200, True, 10)
    assert {"ratio to first", "rss rest mb"} <= set(re.findall(r"\w+(?: \w+)*", " ".join(result.stdout.split("│"))))


def test_priority_has_a_row_for_each_bound(mongo_uri: str, tmp_path: Path) -> None:
    file = tmp_path / "priority.json"
    few = ["--jobs", "120", "--max-batch", "1,8", "--partitions", "4", "--concurrency", "4"]
    result = in_process("bench", "priority", *few, "--uri", mongo_uri, "--json", str(file))
    assert result.exit_code == 0, result.output
    assert [(row["max_batch"], row["jobs"], row["verified"]) for row in rows(file)] == [(1, 120, True), (8, 120, True)]
    assert all(0 <= row["overtaken_share"] <= 1 for row in rows(file))


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        (["claims", "--partitions", "1,x"], "partitions"),
        (["claims", "--partitions", "0"], "partitions"),
        (["claims", "--strategy", "fastest"], "strategy"),
        (["claims", "--strategy", "sorted-update"], "strategy"),
        (["throughput", "--kind", "process"], "kind"),
        (["throughput", "--history", "maybe"], "history"),
        (["latency", "--scene", "moon"], "scene"),
        (["latency", "--change-stream", "maybe"], "change-stream"),
        (["idle", "--schedulers", "1000"], "schedulers"),
        (["growth", "--waiting", "-1"], "waiting"),
        (["growth", "--strategy", "limit"], "strategy"),
        (["priority", "--max-batch", "0"], "max-batch"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(mongo_uri: str, arguments: list[str], setting: str) -> None:
    result = in_process("bench", *arguments, "--uri", mongo_uri)
    assert result.exit_code == 2
    assert setting in result.stderr


def test_the_database_is_gone_afterwards(mongo_uri: str, uri: str) -> None:
    from pymongo import MongoClient

    in_process(*TINY, "--strategy", "batch", "--uri", mongo_uri)
    with MongoClient[dict[str, Any]](mongo_uri) as client:
        assert not [name for name in client.list_database_names() if name.startswith("gangline_bench")]
