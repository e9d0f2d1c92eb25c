"""What a killed launcher leaves: its folder, until the next launch; and no rank, however early it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from rankwise.launcher.privatefolder import private_folder

KEEP = """
import sys
from rankwise.launcher.privatefolder import private_folder
with private_folder() as folder:
    (folder / "job.json").write_text("{}")
    print(folder, flush=True)
    sys.stdin.read()
"""
HOUR_SECONDS = 3600.0


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def aged(folder: Path) -> Path:
    then = time.time() - HOUR_SECONDS
    os.utime(folder, (then, then))
    return folder


def kept_by_a_process() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", KEEP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, aged(Path(process.stdout.readline().strip()))


def end(process: subprocess.Popen[str], *, kill: bool) -> None:
    if kill:
        process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)


def test_a_folder_goes_with_its_block(temporary: Path) -> None:
    with private_folder() as folder:
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o077 == 0
    assert not folder.exists()


def test_what_a_killed_launcher_left_goes_at_the_next_launch(temporary: Path) -> None:
    """That of one that lives stays, however old, and so does what is not ours."""
    (killed, left), (alive, used) = kept_by_a_process(), kept_by_a_process()
    other = aged(Path(tempfile.mkdtemp(prefix="rankwise-")))
    end(killed, kill=True)
    aged(left)
    try:
        with private_folder():
            assert not left.exists()
            assert (used / "job.json").exists()
            assert other.exists()
    finally:
        end(alive, kill=False)
    assert not used.exists()


def test_a_folder_that_is_new_is_left_alone(temporary: Path) -> None:
    """Its launcher may be about to take the lock."""
    killed, left = kept_by_a_process()
    end(killed, kill=True)
    os.utime(left)
    with private_folder():
        assert left.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a rank looks after its launcher once a second")
def test_a_rank_whose_launcher_is_gone_before_it_looks_ends(tmp_path: Path) -> None:
    """Killed while its ranks still load Python, a launcher cannot be seen to go: the ranks know who it was."""
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    gone.wait(timeout=20)
    code = f"from rankwise.launcher.worker import main; main({gone.pid})"
    rank = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    assert (rank.returncode, rank.stderr) == (1, "")
