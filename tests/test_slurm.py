"""A real Slurm with two nodes: trainings and the doctor as its jobs, their exit codes, requeue, arrays and Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts import hosts, needs_hosts
from launches import RANKWISE, run, wait_for
from slurm import Slurm, needs_slurm, slurm_on_hosts, slurm_on_one_machine
from test_preemption import TRAIN, weights

pytestmark = [needs_slurm, pytest.mark.timeout(300)]

SUBMIT = [*RANKWISE, "submit", "slurm"]
PLAIN = """
import sys, time
open("began", "w").close()
time.sleep(float(sys.argv[1]))
sys.exit(sys.argv[2])
"""


def job_in(folder: Path) -> str:
    """The number of the one job that was submitted from this folder."""
    output, = folder.glob("slurm-*.out")
    return output.stem.partition("-")[2]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm_on_one_machine(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.mark.parametrize(("words", "message"), [
    (["--partition", "mian"], "it has main, small"),
    (["--accelerator", "cpu", "--devices", "5"], "5 cores of 1 machine"),
    (["--devices", "3"], "3 GPUs of 1 machine"),
    (["--partition", "small", "--nodes", "2"], "has 1 machine"),
])
def test_what_the_cluster_has_not_is_refused(slurm: Slurm, words: list[str], message: str, tmp_path: Path) -> None:
    """With exit code 2; no job is submitted."""
    ended = slurm.run([*SUBMIT, "toy", *words], tmp_path)
    assert ended.code == 2, ended.text
    assert message in ended.err
    assert not list(tmp_path.iterdir())


def test_sbatch_reads_an_option_as_it_was_given(slurm: Slurm, tmp_path: Path) -> None:
    """Whatever is in it: in a line of a script, spaces part words and signs mean something."""
    comment = "".join(map(chr, range(32, 127)))
    submitted = slurm.run([*SUBMIT, "toy", "--accelerator", "cpu", "--no-follow", "--sbatch=--hold",
                           f"--sbatch=--comment={comment}"], tmp_path)
    assert submitted.code == 0, submitted.text
    job = submitted.err.rpartition(" ")[2].strip()
    assert f"Comment={comment}" in slurm.says("scontrol", "show", "job", job)
    slurm.says("scancel", job)


def test_what_sbatch_refuses_is_told(slurm: Slurm, tmp_path: Path) -> None:
    """In its own words; it could not be submitted as given."""
    refused = slurm.run([*SUBMIT, "toy", "--accelerator", "cpu", "--sbatch=--dependency=nonsense"], tmp_path)
    assert refused.code == 2, refused.text
    assert "sbatch says: Batch job submission failed: Job dependency problem" in refused.err


def test_a_script_that_fails_fails_the_job(slurm: Slurm, tmp_path: Path) -> None:
    """Its output is shown, and its exit code returned."""
    (tmp_path / "plain.py").write_text(PLAIN)
    ended = slurm.run([*SUBMIT, "plain.py", "--accelerator", "cpu", "--", "0", "it has failed"], tmp_path)
    assert ended.code == 1, ended.text
    assert "it has failed" in ended.out
    assert "is submitted" in ended.err


def test_ctrl_c_cancels_the_job(slurm: Slurm, tmp_path: Path) -> None:
    """And says so; nothing of it goes on."""
    (tmp_path / "plain.py").write_text(PLAIN)
    launch = slurm.start([*SUBMIT, "plain.py", "--accelerator", "cpu", "--", "200", "0"], tmp_path)
    wait_for([tmp_path / "began"])
    launch.process.send_signal(signal.SIGINT)
    ended = launch.ended(60)
    assert ended.code == 130, ended.text
    assert "is cancelled" in ended.err
    job = job_in(tmp_path)
    slurm.wait_for("JobState=CANCELLED", "scontrol", "show", "job", job)


@pytest.mark.environment
def test_a_job_that_is_asked_to_end_is_queued_again_and_goes_on(slurm: Slurm, tmp_path: Path) -> None:
    """On two nodes; it ends with the bits of a run that was left alone, and is followed all the way."""
    (tmp_path / "train.py").write_text(TRAIN)
    launch = slurm.start([*SUBMIT, "train.py", "--nodes", "2", "--accelerator", "cpu", "--name", "it", "--", "--steps",
                          "120", "--rests", "0.05"], tmp_path)
    wait_for([tmp_path / "step6"])
    job = job_in(tmp_path)
    slurm.says("scancel", "--batch", "--signal=USR1", job)
    slurm.wait_for("JobState=PENDING", "scontrol", "show", "job", job)
    slurm.start_now(job)
    ended = launch.ended(120)
    assert ended.code == 0, ended.text
    assert "asked to end: saved at step" in ended.out
    assert "resumed from runs/it" in ended.out
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "train.py").write_text(TRAIN)
    alone = run([*RANKWISE, "run", "train.py", "--devices", "2", "--accelerator", "cpu", "--", "--steps", "120",
                 "--last", "yes"], whole)
    assert alone.code == 0, alone.text
    assert weights(tmp_path) == weights(whole)


@pytest.mark.environment
def test_an_array_verifies_worlds(slurm: Slurm, tmp_path: Path) -> None:
    """An element for each number of devices; one that differs fails the command."""
    good = slurm.run([*SUBMIT, "toy", "--accelerator", "cpu", "--verify", "1,2,3"], tmp_path, 200)
    assert good.code == 0, good.text
    assert good.out.count("The same training") == 2
    broken = Path(__file__).parent / "broken" / "whole_batch_each.py"
    bad = slurm.run([*SUBMIT, str(broken), "--accelerator", "cpu", "--verify", "2"], tmp_path, 200)
    assert bad.code == 1, bad.text


@pytest.mark.environment
@pytest.mark.parametrize("tasks", [3, 4])
def test_tasks_of_srun_train_as_ranks(slurm: Slurm, tasks: int, tmp_path: Path) -> None:
    """`srun python train.py`, over both nodes and on one; with the weights of our own launcher's ranks."""
    (tmp_path / "train.py").write_text(TRAIN)
    options = ["--accelerator", "cpu", "--steps", "40", "--last", "yes"]
    ended = slurm.run(["srun", "-n", str(tasks), *(["-N1"] if tasks == 4 else ["-N2"]), sys.executable, "train.py",
                       *options], tmp_path, 100)
    assert ended.code == 0, ended.text
    assert f"{tasks} cpu devices" in ended.out
    assert "sendBytes" not in ended.err, "the store outlived the ranks"
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "train.py").write_text(TRAIN)
    assert run([*RANKWISE, "run", "train.py", "--devices", str(tasks), "--accelerator", "cpu", "--", *options[2:]],
               ours).code == 0
    assert weights(tmp_path) == weights(ours)


@pytest.mark.environment
@needs_hosts
def test_two_hosts_train_together_and_are_examined(tmp_path: Path) -> None:
    """Each node has a network, a name and an address of its own, and the job is submitted from a third host."""
    with hosts(3) as found, slurm_on_hosts(tmp_path / "slurm", found) as slurm:
        folder = tmp_path / "work"
        folder.mkdir()
        refused = slurm.run([*SUBMIT, "fashion", "--nodes", "2", "--accelerator", "cpu"], folder)
        assert refused.code == 2, refused.text
        assert "It lies on a disk of this machine" in refused.err
        job = [*SUBMIT, "fashion", "--nodes", "2", "--accelerator", "cpu", "--shared", "--", "--epochs", "1"]
        trained = slurm.run(job, folder, 150)
        assert trained.code == 0, trained.text
        assert "2 cpu devices" in trained.out
        doctor = slurm.run([*SUBMIT, "doctor", "--nodes", "2", "--accelerator", "cpu", "--shared"], folder, 150)
        assert doctor.code == 0, doctor.text
        assert "2 ranks with gloo came through" in " ".join(doctor.out.split())
