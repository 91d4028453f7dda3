"""What the demo holds for right and wrong."""

import os
from pathlib import Path
from typing import Any

import pytest

from gangline.demo.app import Facts, digest
from gangline.demo.check import Findings, check
from gangline.demo.files import INSTALLED, find_files, standard_library

A, B = Path("/a"), Path("/b")
EXPECTED: dict[Path, Facts] = {A: {"sha256": "aa", "size": 1}, B: {"sha256": "bb", "size": 2}}


def run(path: Path, *, status: str = "success", **changed: Any) -> dict[str, Any]:
    """An execution in the history."""
    return {"params": {"path": str(path)}, "status": status, "result": {**EXPECTED[path], **changed}}


def unchanged(path: Path) -> Facts | None:
    """Read a file that is as it was."""
    return EXPECTED[path]


def test_each_file_once_with_the_right_result_is_right() -> None:
    assert check(EXPECTED, [run(A), run(B)], unchanged).problems == []


def test_a_failed_run_before_the_good_one_is_no_duplicate() -> None:
    assert check(EXPECTED, [run(A), run(B, status="error"), run(B)], unchanged).problems == []


def test_a_file_without_a_good_run_is_missing() -> None:
    assert check(EXPECTED, [run(A), run(B, status="stale")], unchanged) == Findings(missing=[B])


def test_a_file_with_two_good_runs_is_a_duplicate() -> None:
    assert check(EXPECTED, [run(A), run(B), run(B)], unchanged) == Findings(duplicates=[B])


@pytest.mark.parametrize("changed", [{"sha256": "tampered"}, {"size": 3}, {"more": 1}])
def test_a_result_that_was_tampered_with_is_different(changed: dict[str, Any]) -> None:
    assert check(EXPECTED, [run(A), run(B, **changed)], unchanged) == Findings(different=[B])


def test_one_wrong_result_of_two_is_different() -> None:
    findings = check(EXPECTED, [run(A), run(B, size=3), run(B)], unchanged)
    assert findings == Findings(duplicates=[B], different=[B])


def test_a_run_without_a_result_is_different() -> None:
    assert check(EXPECTED, [run(A), {**run(B), "result": None}], unchanged) == Findings(different=[B])


def test_a_file_that_changed_meanwhile_is_no_mistake() -> None:
    assert check(EXPECTED, [run(A), run(B, size=3)], lambda _: None).problems == []


def test_a_result_that_is_right_when_the_file_is_read_again_is_no_mistake() -> None:
    again: Facts = {"sha256": "bb", "size": 3}
    assert check(EXPECTED, [run(A), run(B, size=3)], lambda _: again).problems == []


def test_a_file_that_is_gone_is_no_mistake() -> None:
    assert check({A: EXPECTED[A]}, [run(A), run(B)], unchanged).problems == []


def test_problems_name_the_file() -> None:
    assert check(EXPECTED, [run(B), run(B)], unchanged).problems == ["missing: /a", "duplicate: /b"]


def test_only_regular_files_with_a_name_that_is_text_are_found(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_text("x")
    (tmp_path / "[b]é").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "file")
    os.mkfifo(tmp_path / "pipe")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).touch()
    files = find_files(tmp_path)
    assert list(files.stamps) == [tmp_path / "[b]é", tmp_path / "deep" / "file"]
    assert files.skipped == 3


def test_a_directory_may_be_left_out(tmp_path: Path) -> None:
    for name in ("own", "site-packages"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    assert list(find_files(tmp_path, without=INSTALLED).stamps) == [tmp_path / "own" / "file"]


def test_a_file_that_was_written_or_removed_has_changed(tmp_path: Path) -> None:
    kept, written, removed = (tmp_path / name for name in ("kept", "written", "removed"))
    for path in (kept, written, removed):
        path.write_text("x")
    files = find_files(tmp_path)
    written.write_text("xx")
    removed.unlink()
    assert [files.changed(path) for path in (kept, written, removed)] == [False, True, True]


def test_the_standard_library_is_the_default() -> None:
    assert (standard_library() / "asyncio" / "__init__.py").is_file()


def test_the_job_is_still_a_function(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    assert digest(tmp_path / "abc") == {
        "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        "size": 3,
    }
