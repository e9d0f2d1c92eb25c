"""Slurm jobs: what they run, the script that does it, what is refused before, and a job followed to its end."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise import cli
from rankwise.errors import RankwiseError, UsageError
from rankwise.settings import Settings
from rankwise.submit.slurm import cluster, disks, room
from rankwise.submit.slurm.cluster import Machine, State, hosts_of, machines_of, states_of
from rankwise.submit.slurm.follow import follow
from rankwise.submit.slurm.job import SlurmJob
from rankwise.submit.slurm.script import script
from rankwise.submit.slurm.submission import job_of
from rankwise.submit.work import Work

PLAIN = {field.name: field.default for field in dataclasses.fields(Settings)
         if field.name not in ("node_rank", "endpoint")}
WORDS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=12)


def work(target: str = "toy", *arguments: str, is_module: bool = False, **changes: Any) -> Work:
    return Work.of(target, list(arguments), {**PLAIN, **changes}, is_module=is_module)


def job(**changes: Any) -> SlurmJob:
    return SlurmJob(**{"name": "it", "nodes": 2, "devices": 3, "command": ("python", "x"), "uses_gpus": True,
                       **changes})


def machine(name: str, partition: str = "main", *, cores: int = 8, gpus: int = 2, default: bool = True) -> Machine:
    return Machine(name=name, host=name, partition=partition, is_in_default=default, cores=cores, gpus=gpus)


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(["submit", "slurm", *words])
    assert isinstance(caught.value.code, int)
    return caught.value.code


# What a job runs

def test_only_what_differs_is_written() -> None:
    """The words read as a person would type them; the run goes on when they are used once more."""
    found = work("train.py", "--lr", "0.1", nodes="2", devices=4, name="big", grace_seconds=40.5, debug=True)
    assert found.words() == ("run", "train.py", "--devices", "4", "--name", "big", "--resume", "auto",
                             "--grace-seconds", "40.5", "--debug", "--nodes", "2", "--", "--lr", "0.1")
    assert found.can_go_on
    assert found.words(target="/script/train.py", node_rank="$I", endpoint="a:1")[1] == "/script/train.py"
    assert found.words(node_rank="$I", endpoint="a:1")[-7:-3] == ("--node-rank", "$I", "--endpoint", "a:1")


def test_a_run_without_a_name_gets_one() -> None:
    """A job that is queued again has to find it."""
    found = work("folder/my train.py")
    assert found.name.startswith("my-train-")
    assert found.settings.name == found.name
    assert work("package.main", is_module=True).name.startswith("main-")


@pytest.mark.parametrize(("changes", "goes_on"), [
    ({"resume": "earlier"}, True), ({"resume": "latest"}, False), ({"resume": "earlier", "name": "new"}, False),
    ({"resume": "auto", "name": "it"}, True)])
def test_which_runs_go_on_when_started_again(changes: dict[str, str], goes_on: bool) -> None:
    """One that begins anew from an earlier run, or from whichever is the latest then, does not."""
    assert work(**changes).can_go_on is goes_on


def test_the_doctor_is_a_target() -> None:
    assert work("doctor", nodes="3", devices=2).words() == ("doctor", "--devices", "2", "--nodes", "3")
    assert not work("doctor").can_go_on
    with pytest.raises(UsageError, match="--seed"):
        work("doctor", seed=3)


@pytest.mark.parametrize("changes", [{"max_restarts": 1}, {}])
def test_a_range_of_machines_is_refused(changes: dict[str, int]) -> None:
    """At once: it does not first ask for what a range would need."""
    with pytest.raises(UsageError, match="fixed number"):
        work(nodes="2:4", **changes)


@pytest.mark.parametrize("kind", ["slurm", "k8s", "ray"])
def test_the_help_says_what_a_job_of_a_cluster_can_have(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No range of machines, the settings that the doctor has, and no settings that the cluster decides."""
    with pytest.raises(SystemExit):
        cli.main(["submit", kind, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "MIN:MAX" not in said
    assert "`doctor`, which has --devices, --accelerator and --timeout" in said
    assert "--node-rank" not in said
    assert "--endpoint" not in said


def test_the_help_of_all_kinds_shows_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    """With the doctor, and what its exit codes mean."""
    with pytest.raises(SystemExit):
        cli.main(["submit", "--help"])
    said = capsys.readouterr().out
    for word in ("Examples:", "rankwise submit slurm doctor", "Exit code", "--dry-run"):
        assert word in said


# The script

def test_the_script_of_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines say what was asked for, and bash takes them."""
    text = script(job_of(work(nodes="2", devices=3), verify=None, partition="gpu", time="1-12", memory="64G",
                         account="a", cores_per_device=4, options=("--qos=long",)))
    lines = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH")]
    assert lines[1:] == ["--partition=gpu", "--account=a", "--time=1-12", "--nodes=2", "--ntasks-per-node=1",
                         "--cpus-per-task=12", "--gpus-per-node=3", "--mem=64G", "--output=slurm-%j.out",
                         "--open-mode=append", "--signal=B:USR1@60", "--requeue", "--qos=long"]
    assert subprocess.run(["/bin/bash", "-n"], input=text, text=True, timeout=10, check=False).returncode == 0


def test_a_plain_script_is_not_queued_again(tmp_path: Path) -> None:
    """It has nothing to go on from."""
    (tmp_path / "plain.py").write_text("print(1)\n")
    found = job_of(work(str(tmp_path / "plain.py"), accelerator="cpu"), verify=None)
    assert not found.goes_on
    assert "--no-requeue" in script(found)
    assert "gpus" not in script(found)


def test_an_array_verifies_each_world() -> None:
    """One device is the reference in each; what a verification does not have is refused."""
    found = job_of(work("toy", "--steps", "5", amp="bf16"), verify="1,4,2")
    assert (found.worlds, found.devices, found.goes_on) == ((2, 4), 4, False)
    assert '--worlds "$SLURM_ARRAY_TASK_ID" --amp bf16 -- --steps 5' in script(found)
    assert "#SBATCH --array=2,4\n" in script(found)
    for changes, worlds in (({"mode": "ddp"}, "2"), ({"nodes": "2"}, "2"), ({}, "1"), ({}, "x")):
        with pytest.raises(UsageError):
            job_of(work(**changes), verify=worlds)


@settings(max_examples=20, deadline=None)
@given(words=st.lists(WORDS, max_size=4))
def test_words_reach_the_command_as_they_are(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Through bash, whatever is in them; srun is a stand-in that writes down what it gets."""
    folder = tmp_path_factory.mktemp("words")
    (folder / "srun").write_text('#!/bin/bash\nshift 2\nprintf "%s\\0" "$@" > got\n')
    (folder / "srun").chmod(0o755)
    text = script(job(command=("python", *words), goes_on=True))
    subprocess.run(["/bin/bash"], input=text, text=True, timeout=20, check=True, cwd=folder,
                   env={"PATH": f"{folder}:{os.environ['PATH']}"})
    assert (folder / "got").read_bytes().decode().split("\0")[:-1] == ["python", *words]


@pytest.mark.parametrize(("code", "queued"), [(0, False), (1, False), (75, True)])
def test_the_script_returns_the_code_and_queues_75_again(code: int, queued: bool, tmp_path: Path) -> None:
    for name, text in (("srun", f"#!/bin/bash\nexit {code}\n"), ("scontrol", '#!/bin/bash\necho "$@" > queued\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    ended = subprocess.run(["/bin/bash"], input=script(job(goes_on=True)), text=True, timeout=20, cwd=tmp_path,
                           check=False, env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"})
    assert ended.returncode == code
    assert (tmp_path / "queued").exists() is queued


@pytest.mark.parametrize("changes", [{"time": "soon"}, {"memory": "much"}, {"partition": "a\nb"}, {"account": "a b"},
                                     {"options": ("qos",)}, {"options": ("--a\n#SBATCH --b",)},
                                     {"options": ("--qos long",)}, {"options": ("-x n1",)}])
def test_values_that_are_none(changes: dict[str, Any]) -> None:
    """Nothing gets into the script by a line of its own."""
    with pytest.raises(UsageError):
        job(**changes)


@pytest.mark.parametrize(("option", "instead"), [
    ("--nodes=7", "--nodes"), ("-N7", "--nodes"), ("--output=x", "current folder"), ("-o", "current folder"),
    ("--outp=x", "current folder"), ("--wrap=true", "TARGET"), ("--array=1", "--verify"), ("-a1", "--verify"),
    ("--ntasks=2", "--devices"), ("--gpus=2", "--devices"), ("--gres=gpu:2", "--devices"), ("-Jx", "--name"),
    ("--job-name=x", "--name"), ("--signal=USR1", "--grace-seconds"), ("--requeue", "queued again"),
    ("-c4", "--cores")])
def test_options_that_rankwise_gives_are_refused(option: str, instead: str) -> None:
    """With the option of rankwise that does it; they would contradict what the job is."""
    with pytest.raises(UsageError) as caught:
        job(options=(option,))
    assert instead in caught.value.remedy
    assert option in caught.value.given


def test_other_options_are_not() -> None:
    """Though they begin like one of those."""
    options = ("--nodelist=n1", "--time-min=1", "--gres=scratch:1", "--exclusive", "-xn1", "--mem-bind=local")
    assert [line for line in script(job(options=options)).splitlines()
            if line.removeprefix("#SBATCH ") in options] == [f"#SBATCH {option}" for option in options]


# What is refused before

def test_machines_are_read() -> None:
    """As Slurm 22.05.8 lists them."""
    found = machines_of("main*|n1|4|gpu:2\nsmall|n1|4|gpu:2\nmain*|n2|64|gpu:a100:8(S:0-1),shard:32\nmain*|n3|8|(null)",
                        hosts_of("NodeName=n1 Arch=x86_64 \n   NodeAddr=n1\nNodeName=n2 a=b NodeHostName=box Port=1\n"))
    assert [(each.name, each.host, each.partition, each.is_in_default, each.cores, each.gpus) for each in found] == [
        ("n1", "n1", "main", True, 4, 2), ("n1", "n1", "small", False, 4, 2), ("n2", "box", "main", True, 64, 8),
        ("n3", "n3", "main", True, 8, 0)]


def test_partitions() -> None:
    """The default one, one by its name; another is refused with those there are."""
    machines = [machine("a"), machine("b", "gpu", default=False)]
    assert room.of_partition(machines, None) == machines[:1]
    assert room.of_partition(machines, "gpu") == machines[1:]
    with pytest.raises(UsageError, match="gpu, main") as caught:
        room.of_partition(machines, "gpus")
    assert "--partition gpu" in caught.value.remedy
    with pytest.raises(UsageError, match="no default"):
        room.of_partition(machines[1:], None)


@pytest.mark.parametrize(("asked", "words"), [
    ({"nodes": 3}, "2 machines"), ({"devices": 5}, "2 machines with 2 GPUs or more"),
    ({"nodes": 1, "devices": 5}, "1 machine with 4 GPUs"), ({"cores": 9}, "2 machines with 8 cores"),
    ({"devices": 3}, "2 GPUs")])
def test_too_much_is_refused(asked: dict[str, int], words: str) -> None:
    """Each machine of the job must have it, not the partition in sum."""
    machines = [machine("a"), machine("b", gpus=4)]
    enough = {"nodes": 2, "devices": 2, "cores": 8, "uses_gpus": True}
    room.require(machines, **enough)   # type: ignore[arg-type]
    with pytest.raises(UsageError, match=words):
        room.require(machines, **{**enough, **asked})   # type: ignore[arg-type]


def test_cores_serve_where_there_is_no_gpu() -> None:
    room.require([machine("a", gpus=0)], nodes=1, devices=8, cores=8, uses_gpus=False)
    with pytest.raises(UsageError) as caught:
        room.require([machine("a", gpus=0)], nodes=1, devices=1, cores=1, uses_gpus=True)
    assert "--accelerator cpu" in caught.value.remedy


MOUNTS = r"""22 1 8:1 / / rw - ext4 /dev/root rw
30 22 0:40 / /home rw,relatime shared:1 - nfs4 server:/home rw
31 30 0:41 / /home/me/scratch\040here rw - xfs /dev/sdb rw
32 22 0:42 / /mnt rw - ext4 /dev/sdc rw
33 32 0:43 / /mnt rw - lustre mds:/fs rw
"""


@pytest.mark.parametrize(("path", "kind"), [
    ("/etc/x", "ext4"), ("/home/me/x", "nfs4"), ("/home/me/scratch here/x", "xfs"), ("/homely/x", "ext4"),
    ("/mnt/x", "lustre")])
def test_which_file_system_a_path_is_on(path: str, kind: str) -> None:
    """The longest mount that holds it, and of two at one place the later."""
    assert disks.file_system(MOUNTS, Path(path))[0] == kind


def test_a_file_of_this_machine_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(disks, "_MOUNTS", mounts)
    mounts.write_text("22 1 8:1 / / rw - ext4 /dev/root rw\n")
    with pytest.raises(UsageError, match=r"ext4.*n1, n2, n3 and 1 more"):
        disks.require_shared({"script": tmp_path / "x"}, ["n1", "n2", "n3", "n4"])
    mounts.write_text("22 1 8:1 / / rw - beegfs fs rw\n")
    disks.require_shared({"script": tmp_path / "x"}, ["n1"])


def test_without_slurm_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    """--dry-run needs none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert call("toy") == 2
    assert "no command `sbatch`" in capsys.readouterr().err
    assert call("toy", "--dry-run") == 0
    assert capsys.readouterr().out.startswith("#!/bin/bash\n")


@pytest.mark.parametrize(("said", "truth", "remedy"), [
    ("sinfo: error: resolve: Unknown host\nsinfo: error: a\nsinfo: fatal: Could not establish a configuration source\n",
     "sinfo says: Could not establish a configuration source (resolve: Unknown host)", "SLURM_CONF"),
    ("slurm_load_partitions: Unable to contact slurm controller (connect failure)\n",
     "sinfo says: Unable to contact slurm controller (connect failure)", "scontrol ping")])
def test_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, said: str, truth: str, remedy: str) -> None:
    """Nothing was submitted, and that is exit code 2; of many lines those are shown that say what happened, and why."""
    monkeypatch.setattr(cluster, "_asked", lambda *words, **more: subprocess.CompletedProcess(words, 1, "", said))
    with pytest.raises(UsageError) as caught:
        cluster.machines()
    assert caught.value.truth == truth
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("words", [["--name", "a/b"], ["--name", "n" * 256], ["--resume", "no-such-run"],
                                   ["--nodes", "0"]])
def test_a_run_that_cannot_be_is_refused(words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before anything is submitted, and before the cluster is asked."""
    monkeypatch.chdir(tmp_path)
    assert call("toy", "--dry-run", *words) == 2


def test_a_name_that_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    """Though the job itself will say --resume auto, the user has not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "it" / "checkpoints").mkdir(parents=True)
    assert call("toy", "--dry-run", "--name", "it") == 2
    assert "earlier run" in capsys.readouterr().err
    assert call("toy", "--dry-run", "--name", "it", "--resume", "auto") == 0


# A job followed

def state(word: str = "RUNNING", code: str = "0:0", *, element: str = "", restarts: int = 0, reason: str = "None",
          name: str = "it") -> str:
    array = f"ArrayJobId=7 ArrayTaskId={element} " if element else ""
    return (f"JobId=7 {array}JobName={name} UserId=me(1) JobState={word} Reason={reason} Dependency=(null) Requeue=1 "
            f"Restarts={restarts} ExitCode={code} WorkDir=/a JobState=LOST")


@pytest.mark.parametrize(("line", "code"), [
    (state(), None), (state("COMPLETED"), 0), (state("FAILED", "3:0"), 3), (state("TIMEOUT", "0:15"), 1),
    (state("CANCELLED"), 1), (state("NODE_FAIL"), 1), (state("COMPLETED", "0:9"), 1), (state("PENDING", "75:0"), None)])
def test_states_are_read(line: str, code: int | None) -> None:
    """The code is the job's; 1 where Slurm ended it."""
    found, = states_of(f"{line}\n")
    assert found.exit_code == code
    assert states_of(f"{state(element='4')}\n")[0].element == 4
    assert states_of(f"{state(element='2,4')}\n")[0].element is None


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes Slurm say these things, one after the other; a function is called in between."""
    def script_of(*answers: Any) -> None:
        left = iter(answers)

        def states(job_id: str) -> list[State] | None:
            answer = next(left)
            while callable(answer):
                answer()
                answer = next(left)
            return None if answer is None else states_of("\n".join(answer))

        monkeypatch.setattr(cluster, "states", states)
    return script_of


def followed(folder: Path, said: list[str], **changes: Any) -> int:
    return follow(job(**changes), "7", folder, said.append, look_seconds=0)


def test_a_job_is_followed_through_a_requeue(scripted: Callable[..., None], tmp_path: Path,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    """Its lines are shown once each, a script that ended with 75 is waited for, and so is a controller that is away."""
    file = tmp_path / "slurm-7.out"
    said: list[str] = []
    scripted([state("PENDING", reason="Resources")], None, [state()],
             lambda: file.write_text("one\n"), [state()], [state("FAILED", "75:0")],
             [state("PENDING", restarts=1, reason="BeginTime")], lambda: file.write_text("one\ntwo\n"),
             [state(restarts=1)], lambda: file.write_text("one\ntwo\nthree\n"), [state("COMPLETED", restarts=1)])
    assert followed(tmp_path, said, goes_on=True) == 0
    assert capsys.readouterr().out == "one\ntwo\nthree\n"
    assert said == ["Job 7 is pending (Resources).", "Job 7 is running.",
                    "Job 7 is pending (BeginTime), started again 1 x.", "Job 7 is running, started again 1 x."]


@pytest.mark.parametrize(("end", "code", "words"), [
    (state("FAILED", "2:0", reason="NonZeroExitCode"), 2, None),
    (state("TIMEOUT", "0:15", reason="TimeLimit"), 1, "Slurm has ended job 7: timeout (TimeLimit)."),
    (state("FAILED", "0:1", reason="BadConstraints"), 1, "Job 7 has failed: BadConstraints."),
    (state("FAILED", "75:0"), 75, None)])
def test_how_a_job_ends(end: str, code: int, words: str | None, scripted: Callable[..., None], tmp_path: Path) -> None:
    (tmp_path / "slurm-7.out").touch()
    said: list[str] = []
    scripted([end])
    assert followed(tmp_path, said) == code
    assert said == ([words] if words else [])


def test_an_array_ends_with_its_last_element(scripted: Callable[..., None], tmp_path: Path,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    """Each is shown when it has ended, and one that fails decides the code."""
    for element in (2, 4):
        (tmp_path / f"slurm-7_{element}.out").write_text(f"of {element}\n")
    scripted([state("PENDING", element="2,4")], [state("COMPLETED", element="4"), state(element="2")],
             [state("COMPLETED", element="4"), state("FAILED", "1:0", element="2", reason="NonZeroExitCode")])
    assert followed(tmp_path, [], worlds=(2, 4)) == 1
    assert capsys.readouterr().out == "\n--- 4 devices\nof 4\n\n--- 2 devices\nof 2\n"


def test_a_job_that_slurm_has_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """How it ended cannot be told, and that is said."""
    answer = subprocess.CompletedProcess((), 1, "", "slurm_load_jobs error: Invalid job id specified\n")
    monkeypatch.setattr(cluster, "_asked", lambda *words, **more: answer)
    with pytest.raises(RankwiseError, match="does not know job 7"):
        cluster.states("7")
    with pytest.raises(UsageError, match="sbatch says: slurm_load_jobs"):
        cluster.submit("")
    with pytest.raises(RankwiseError, match="Job 7 may still run"):
        cluster.cancel("7")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A silence that is waited out takes no time here."""
    monkeypatch.setattr("rankwise.submit.slurm.follow._LATE_SECONDS", 0.0)


def test_a_controller_that_stays_away(scripted: Callable[..., None], tmp_path: Path,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwise.submit.slurm.follow._SILENCE_SECONDS", 0.0)
    scripted(None, None)
    with pytest.raises(RankwiseError, match="has not answered"):
        followed(tmp_path, [])
