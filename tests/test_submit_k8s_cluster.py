"""A Kubernetes job handed over and followed, by a stand-in for kubectl: there is no cluster here."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from k8sjobs import job
from kubectl import Kubectl, condition, pod
from launches import RANKWISE, Launch, wait_for
from rankwise.errors import RankwiseError, UsageError
from rankwise.submit.k8s.cluster import Cluster
from rankwise.submit.k8s.follow import follow
from rankwise.submit.k8s.manifest import manifest
from rankwise.submit.k8s.submission import submit


@pytest.fixture
def kubectl(tmp_path: Path) -> Kubectl:
    return Kubectl(tmp_path)


def followed(kubectl: Kubectl) -> tuple[int, list[str]]:
    """A job followed to its end: its exit code, and what was told besides the log."""
    told: list[str] = []
    cluster = Cluster(kubectl=str(kubectl.program), namespace="team")
    return follow(cluster, "job", "big-run", told.append, look_seconds=0.01), told


def test_a_job_that_ends_well(kubectl: Kubectl, capfd: pytest.CaptureFixture[str]) -> None:
    """Why it waits is told once, the log of pod 0 shown once, whatever the other pods write."""
    waits = [pod("p0", 0, "Pending", unscheduled="0/3 nodes are available"), pod("p1", 1, "Pending")]
    kubectl.lives(([], []), ([], waits), ([], waits), ([], [pod("p0", 0, "Pending", waiting="ContainerCreating")]),
                  ([], [pod("p0", 0, "Running"), pod("p1", 1, "Running")]),
                  ([condition("Complete")], [pod("p0", 0, "Succeeded", code=0), pod("p1", 1, "Succeeded", code=0)]),
                  logs={"p0": "epoch 1\n"})
    assert followed(kubectl) == (0, ["The cluster has not made the pods yet.", "p0: 0/3 nodes are available",
                                     "p0: ContainerCreating"])
    assert capfd.readouterr().out == "epoch 1\n"
    assert all(words[0] == "--namespace=team" for words, _ in kubectl.calls())


@pytest.mark.parametrize(("codes", "expected"), [((1, 1), 1), ((1, 2), 2), ((137, 1), 1)])
def test_a_job_that_fails(kubectl: Kubectl, codes: tuple[int, int], expected: int) -> None:
    """Exit code 2 where a pod could not use its options, else 1."""
    kubectl.lives(([condition("Failed", "backoff limit reached")],
                   [pod("p0", 0, "Failed", code=codes[0]), pod("p1", 1, "Failed", code=codes[1])]), logs={"p0": "no\n"})
    assert followed(kubectl) == (expected, ["The job has failed: backoff limit reached"])


def test_a_pod_that_takes_the_place_of_another(kubectl: Kubectl, capfd: pytest.CaptureFixture[str]) -> None:
    """Its log is shown after that of the one that was preempted; the code of that one does not count."""
    kubectl.lives(([], [pod("p0", 0, "Running")]), ([], [pod("p0", 0, "Failed", code=75)]),
                  ([], [pod("p0b", 0, "Running", began=9), pod("p0", 0, "Failed", code=75)]),
                  ([condition("Complete")],
                   [pod("p0", 0, "Failed", code=75), pod("p0b", 0, "Succeeded", began=9, code=0)]),
                  logs={"p0": "first\n", "p0b": "second\n"})
    assert followed(kubectl)[0] == 0
    assert capfd.readouterr().out == "first\nsecond\n"


def test_a_log_that_breaks_off_goes_on_where_it_was(kubectl: Kubectl) -> None:
    """The connection may end before the pod does."""
    kubectl.lives(([], [pod("p0", 0, "Running")]), ([], [pod("p0", 0, "Running")]),
                  ([condition("Complete")], [pod("p0", 0, "Succeeded", code=0)]), logs={"p0": ""})
    assert followed(kubectl)[0] == 0
    logs = [words for words, _ in kubectl.calls() if "logs" in words]
    assert [any(word.startswith("--since-time=20") for word in words) for words in logs] == [False, True]


def test_a_job_that_is_gone(kubectl: Kubectl) -> None:
    """Somebody else has removed it."""
    kubectl.lives(answers={"get jobs.batch big-run --output=json": {
        "code": 1, "err": 'Error from server (NotFound): jobs.batch "big-run" not found\n'}})
    with pytest.raises(RankwiseError, match="is gone"):
        followed(kubectl)


def test_a_cluster_that_does_not_answer_is_asked_again(kubectl: Kubectl) -> None:
    """Some times; then that is said."""
    kubectl.lives(answers={"get jobs.batch big-run --output=json": {"code": 1, "err": "i/o timeout\n"}})
    with pytest.raises(RankwiseError, match="i/o timeout"):
        followed(kubectl)
    assert len(kubectl.calls()) == 10


def test_no_cluster_and_no_kubectl(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each is said before anything is handed over."""
    kubectl.lives(answers={"version --output=json": {"code": 1, "err": "x\nThe connection was refused\n"}})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"No Kubernetes cluster answers(.|\n)*connection was refused"):
        Cluster.reached(None)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UsageError, match="no command `kubectl`"):
        Cluster.reached(None)


def test_a_manifest_that_the_cluster_refuses_leaves_nothing(kubectl: Kubectl) -> None:
    """What was made before the refusal is removed."""
    kubectl.lives(answers={"create --filename=-": {"code": 1, "err": "jobs is forbidden\n"}})
    with pytest.raises(RankwiseError, match="jobs is forbidden"):
        Cluster(kubectl=str(kubectl.program), namespace=None).create("kind: Job")
    (create, given), (delete, removed) = kubectl.calls()
    assert (create[0], delete[0], given, removed) == ("create", "delete", "kind: Job", "kind: Job")


def test_kinds_that_a_cluster_does_not_know(kubectl: Kubectl) -> None:
    """JobSet and TrainJob have to be installed."""
    kubectl.lives(answers={"get jobsets.jobset.x-k8s.io --ignore-not-found --output=name": {
        "code": 1, "err": 'error: the server doesn\'t have a resource type "jobsets"\n'}})
    with pytest.raises(UsageError, match="--kind job"):
        Cluster(kubectl=str(kubectl.program), namespace=None).names("jobset")


def test_a_job_is_handed_over_and_followed(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch,
                                           capfd: pytest.CaptureFixture[str]) -> None:
    """The cluster gets the manifest that --dry-run prints, after all that can be known to be wrong was looked at."""
    monkeypatch.setenv("PATH", str(kubectl.program.parent))
    kubectl.lives(([condition("Failed", "no more tries")], [pod("p0", 0, "Failed", code=1)]), logs={"p0": "a log\n"},
                  answers={"get persistentvolumeclaims --output=name": {"out": "persistentvolumeclaim/training-data\n"},
                           "get nodes --output=json": {"out": '{"items": [{"status": {"allocatable": {}}}, {"status": '
                                                              '{"allocatable": {"nvidia.com/gpu": "2"}}}]}'}})
    told: list[str] = []
    assert submit(job(), told.append, follows=True) == 1
    assert capfd.readouterr().out == "a log\n"
    assert [handed for words, handed in kubectl.calls() if "create" in words] == [manifest(job())]
    assert not [words for words, _ in kubectl.calls() if "delete" in words]
    assert "kubectl delete job,service,configmap --selector=" in told[-1]
    assert submit(job(), told.append, follows=False) == 0


@pytest.mark.parametrize(("asked", "answer", "says"), [
    ("get jobs.batch big-run --ignore-not-found --output=name", {"out": "job.batch/big-run\n"}, "has a job big-run"),
    ("get persistentvolumeclaims --output=name", {"out": "persistentvolumeclaim/other\n"}, "The namespace has other"),
    ("get nodes --output=json", {"out": '{"items": [{"status": {"allocatable": {"nvidia.com/gpu": "1"}}}]}'},
     "has 1 GPUs now"),
])
def test_what_this_cluster_cannot_take(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch, asked: str,
                                       answer: dict[str, Any], says: str) -> None:
    """A name that is taken, a claim that is not there, machines that are too small: nothing is handed over."""
    forbidden = {"code": 1, "err": "forbidden\n"}   # who may run pods need not be allowed to look at all else
    kubectl.lives(answers={"get persistentvolumeclaims --output=name": forbidden,
                           "get nodes --output=json": forbidden, asked: answer})
    monkeypatch.setenv("PATH", str(kubectl.program.parent))
    with pytest.raises(UsageError, match=says):
        submit(job(), print, follows=True)
    assert not [words for words, _ in kubectl.calls() if "create" in words]


def test_ctrl_c_removes_the_job(kubectl: Kubectl, tmp_path: Path) -> None:
    """130, with a word of what was done, and nothing of it left in the cluster or here."""
    kubectl.lives(([], [pod("p0", 0, "Running")]), logs={"p0": None})
    launch = Launch([*RANKWISE, "submit", "k8s", "toy", "--image", "r/x:1", "--accelerator", "cpu"], tmp_path,
                    PATH=str(tmp_path))
    wait_for([tmp_path / "look"])
    launch.process.send_signal(signal.SIGINT)
    ended = launch.ended(30)
    assert ended.code == 130, ended.text
    assert "is removed" in ended.err
    handed = {word: given for words, given in kubectl.calls() for word in ("create", "delete") if word in words}
    assert handed["create"] == handed["delete"] != ""
