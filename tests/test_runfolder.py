"""The folder of a run: chosen once, never taken over, and found again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rankwise import runfolder
from rankwise.errors import UsageError
from rankwise.settings import Settings


def settings(tmp_path: Path, **changes: str) -> Settings:
    return Settings(runs=str(tmp_path / "runs"), **changes)


def with_checkpoint(run: Path, *, saved_at: float) -> Path:
    (run / "checkpoints" / "step-000010").mkdir(parents=True)
    os.utime(run / "checkpoints", (saved_at, saved_at))
    return run


def test_a_run_is_named_after_its_target_and_the_time_and_no_two_share_a_folder(tmp_path: Path) -> None:
    first = runfolder.choose(settings(tmp_path), "examples/my train.py")
    second = runfolder.choose(settings(tmp_path), "examples/my train.py")
    assert first != second
    assert first.is_dir()
    assert second.is_dir()
    assert first.parent == tmp_path / "runs"
    assert first.name.startswith("my-train-20")


def test_settings_json_has_the_target_and_every_setting(tmp_path: Path) -> None:
    folder = runfolder.choose(settings(tmp_path, name="a"), "cifar10")
    content = json.loads((folder / "settings.json").read_text())
    assert content["target"] == "cifar10"
    assert content["settings"]["name"] == "a"
    assert content["settings"]["seed"] == 0
    assert runfolder.target_of(folder) == "cifar10"


def test_a_folder_without_settings_has_no_target(tmp_path: Path) -> None:
    assert runfolder.target_of(tmp_path) is None
    (tmp_path / "settings.json").write_text("{")
    assert runfolder.target_of(tmp_path) is None


def test_the_name_of_an_earlier_run_is_refused(tmp_path: Path) -> None:
    runfolder.choose(settings(tmp_path, name="a"), "toy")
    with pytest.raises(UsageError, match=r"holds an earlier run(.|\n)*--resume a"):
        runfolder.choose(settings(tmp_path, name="a"), "toy")


@pytest.mark.parametrize("name", ["latest", "auto", "a/b", "..", "", ".hidden", "-x", "a b"])
def test_a_name_that_is_no_folder_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="--name is"):
        runfolder.choose(settings(tmp_path, name=name), "toy")


def test_a_resumed_run_continues_in_its_own_folder(tmp_path: Path) -> None:
    folder = runfolder.choose(settings(tmp_path, name="a"), "toy")
    for resume in ("a", str(folder)):
        again = settings(tmp_path, resume=resume)
        assert runfolder.resume_from(again) == folder
        assert runfolder.choose(again, "toy") == folder


def test_a_new_name_or_a_single_checkpoint_begins_a_new_run(tmp_path: Path) -> None:
    folder = with_checkpoint(runfolder.choose(settings(tmp_path, name="a"), "toy"), saved_at=1e9)
    renamed = settings(tmp_path, resume="a", name="b")
    assert runfolder.resume_from(renamed) == folder
    assert runfolder.choose(renamed, "toy").name == "b"
    single = settings(tmp_path, resume=str(folder / "checkpoints" / "step-000010"))
    assert runfolder.resume_from(single) == folder / "checkpoints" / "step-000010"
    assert runfolder.choose(single, "toy") not in (folder, tmp_path / "runs" / "b")


def test_auto_begins_the_run_of_a_name_and_takes_it_up_again(tmp_path: Path) -> None:
    """The same command each time: the folder is made once, and nothing else is resumed from."""
    again = settings(tmp_path, resume="auto", name="a")
    assert runfolder.choose(again, "toy") == runfolder.choose(again, "toy") == tmp_path / "runs" / "a"
    assert runfolder.resume_from(again) is None
    with pytest.raises(UsageError, match="--name is not given"):
        runfolder.choose(settings(tmp_path, resume="auto"), "toy")


def test_latest_is_the_run_that_saved_last(tmp_path: Path) -> None:
    old = with_checkpoint(runfolder.choose(settings(tmp_path, name="z-old"), "toy"), saved_at=1e9)
    new = with_checkpoint(runfolder.choose(settings(tmp_path, name="a-new"), "toy"), saved_at=2e9)
    runfolder.choose(settings(tmp_path, name="never-saved"), "toy")
    assert runfolder.resume_from(settings(tmp_path, resume="latest")) == new
    os.utime(old / "checkpoints", (3e9, 3e9))
    assert runfolder.resume_from(settings(tmp_path, resume="latest")) == old


def test_resuming_what_is_not_there_names_what_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"No run in .* has a checkpoint"):
        runfolder.resume_from(settings(tmp_path, resume="latest"))
    with pytest.raises(UsageError, match="no run of that name"):
        runfolder.resume_from(settings(tmp_path, resume="fashion"))
    with_checkpoint(runfolder.choose(settings(tmp_path, name="fashion-1"), "toy"), saved_at=1e9)
    with pytest.raises(UsageError, match=r"Did you mean --resume fashion-1\?"):
        runfolder.resume_from(settings(tmp_path, resume="fashion1"))
    with pytest.raises(UsageError, match="Runs with a checkpoint are: fashion-1"):
        runfolder.resume_from(settings(tmp_path, resume="x"))


def test_without_resume_there_is_nothing_to_resume_from(tmp_path: Path) -> None:
    assert runfolder.resume_from(settings(tmp_path)) is None


def test_a_folder_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    for changes in ({}, {"name": "a"}):
        with pytest.raises(UsageError, match="cannot be written"):
            runfolder.choose(settings(tmp_path, **changes), "toy")
