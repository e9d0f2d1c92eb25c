"""Which failures are worth another attempt, and what is said of it. Whole runs that are injured: test_faults.py."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import RunResult, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from rankwise.errors import CheckpointError, DataError, MisuseError, PeerError, UsageError
from rankwise.launcher import layout, streams
from rankwise.launcher.agent import run_target
from rankwise.launcher.errorfiles import ErrorFiles
from rankwise.launcher.failure import Failure
from rankwise.launcher.restarts import Agent
from rankwise.launcher.target import resolve
from rankwise.settings import Settings

THREE = ("given", "truth", "remedy")


@pytest.mark.parametrize(("error", "is_final"), [
    (UsageError(*THREE), True), (MisuseError(*THREE), True), (CheckpointError(*THREE), True), (SystemExit(3), True),
    (DataError(*THREE), False), (PeerError(*THREE), False), (ValueError("nan"), False), (MemoryError(), False)])
def test_what_would_fail_again_is_final(error: BaseException, is_final: bool) -> None:
    assert Failure.of(error).is_final == is_final


class Line:
    """What the ranks tell beside their training."""

    def read(self, name: str) -> str | None:
        return {"step/1": "1203"}.get(name)


def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: dict[str, Any], *, may_restart: bool = True,
           exit_code: int = -9) -> int:
    """The restarts that an agent has left after rank 1 of 2 has failed; it had three."""
    process = SimpleNamespace(exitcode=exit_code, error_file_data=left, timestamp=time.time())
    result = RunResult(state=WorkerState.FAILED, failures={1: process})   # type: ignore[dict-item]
    monkeypatch.setattr(LocalElasticAgent, "_monitor_workers", lambda self, group: result)
    agent = Agent.__new__(Agent)
    vars(agent).update(_remaining_restarts=3, _run_folder=lambda: tmp_path, _line=Line, _has_told=False,
                       _may_restart=lambda: may_restart)
    workers = [SimpleNamespace(global_rank=rank, world_size=2) for rank in range(2)]
    agent._monitor_workers(SimpleNamespace(workers=workers, spec=SimpleNamespace(max_restarts=3)))  # type: ignore
    left_over: int = agent._remaining_restarts
    return left_over


def test_a_restart_is_told_on_the_console_and_in_every_log(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Who failed, after which step, why, and from where the ranks go on."""
    for rank in range(2):
        streams.log_file(tmp_path, rank).parent.mkdir(exist_ok=True)
        streams.log_file(tmp_path, rank).write_text("last line\n")
    for name in ("step-000800", "step-001200", ".step-001300.part"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert failed(tmp_path, monkeypatch, {}) == 3
    told = ["rankwise: rank 1 of 2 failed at about step 1203: It was killed by signal SIGKILL. "
            "The system may have run out of memory.", "  Restart 1 of 3, from step 1200."]
    assert capsys.readouterr().err.splitlines() == told
    for rank in range(2):
        lines = streams.log_file(tmp_path, rank).read_text().splitlines()
        assert lines[0] == "last line"
        assert lines[-2:] == [f"--- {told[0]}", told[1]]


def test_there_is_no_restart_where_it_would_not_help(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """After a usage error, of rankwise's or of a plain script's, and when the run was asked to end."""
    assert failed(tmp_path, monkeypatch, {}, exit_code=2) == 0
    assert failed(tmp_path, monkeypatch, {}, may_restart=False) == 0
    assert capsys.readouterr().err == ""


def test_one_rank_that_may_be_started_again_has_a_launcher() -> None:
    """Otherwise it runs in the launcher's own process, which nobody is left to start again."""
    assert layout.is_one_process(Settings(devices=1, accelerator="cpu"))
    assert not layout.is_one_process(Settings(devices=1, accelerator="cpu", max_restarts=1))


def test_each_attempt_has_error_files_of_its_own(tmp_path: Path) -> None:
    """The word of an earlier attempt is not taken for one of this."""
    files = ErrorFiles(tmp_path, dict)
    for attempt in range(2):
        variables: dict[int, dict[str, str]] = {0: {}}
        files.reify(variables)
        assert not files.has_word_of(0)
        assert not files.has_preempted()
        Path(variables[0]["TORCHELASTIC_ERROR_FILE"]).write_text("{}")
        assert files.has_word_of(0)
        if attempt == 1:
            Path(variables[0]["TORCHELASTIC_ERROR_FILE"]).with_suffix(".preempted").touch()
            assert files.has_preempted()


@pytest.mark.timeout(300)
def test_what_fails_each_time_fails_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                               capfd: pytest.CaptureFixture[str]) -> None:
    """The run is tried as often as was asked for, and ends with the failure of the last attempt."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import os\n"
                                "print('attempt', os.environ['RANKWISE_ATTEMPT'])\n"
                                "raise ValueError('rank ' + os.environ['RANK'])\n")
    settings = Settings(devices=2, accelerator="cpu", threads=1, name="it", max_restarts=1)
    assert run_target(resolve("train.py"), [], settings) == 1
    shown = capfd.readouterr()
    assert "Restart 1 of 1, from the beginning: there is no checkpoint yet." in shown.err
    assert "of 2 failed: ValueError: rank" in shown.err.splitlines()[-2]
    lines = [line for log in Path("runs/it/logs").iterdir() for line in log.read_text().splitlines()]
    assert {line for line in lines if line.startswith("attempt")} == {"attempt 0", "attempt 1"}
