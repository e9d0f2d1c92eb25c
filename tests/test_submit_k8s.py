"""Kubernetes jobs: manifests against the real schemas, offline; a stand-in for kubectl, for there is no cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubectl import Kubectl, condition, pod
from rankwise.errors import RankwiseError, UsageError
from rankwise.submit.k8s import yamltext
from rankwise.submit.k8s.cluster import Cluster
from rankwise.submit.k8s.follow import follow
from rankwise.submit.k8s.job import Claim, KubernetesJob, Script, dns_name, first_host
from rankwise.submit.k8s.manifest import manifest

yaml = pytest.importorskip("yaml")
kubernetes_validate = pytest.importorskip("kubernetes_validate")
models = pytest.importorskip("kubeflow_trainer_api.models")

VERSIONS = [f"1.{minor}" for minor in range(29, 38)]
CUSTOM = {"JobSet": "JobsetV1alpha2JobSet", "TrainJob": "TrainerV1alpha1TrainJob",
          "TrainingRuntime": "TrainerV1alpha1TrainingRuntime"}


def job(**changes: Any) -> KubernetesJob:
    """Three pods of two GPUs each, everything given."""
    kind = changes.get("kind", "job")
    values = {
        "name": "big-run", "kind": kind, "namespace": "team", "image": "registry.example.org/team/train:cu126",
        "nodes": 3, "devices": 2, "uses_gpus": True, "cpu": "9", "memory": "64Gi", "shared_memory": "8Gi",
        "command": ("rankwise", "run", "/script/train.py", "--node-rank", "$(JOB_COMPLETION_INDEX)",
                    "--endpoint", f"{first_host('big-run', kind)}:29500", "--", "--lr", "0.1"),
        "claim": Claim(name="training-data", folder="/data"), "script": Script(name="train.py", text="print(1)\n"),
        "run": "big.run", "runs": "runs", "restarts": 4, "grace_seconds": 45.5, "timeout_seconds": 600.0}
    return KubernetesJob(**{**values, **changes})


def documents(text: str) -> list[Any]:
    return list(yaml.safe_load_all(text))


def of_kind(text: str, kind: str) -> Any:
    found, = [document for document in documents(text) if document["kind"] == kind]
    return found


def pod_of(text: str, kind: str) -> Any:
    """The pod template of a job of this kind."""
    spec = of_kind(text, {"job": "Job", "jobset": "JobSet", "trainjob": "TrainingRuntime"}[kind])["spec"]
    spec = spec["template"]["spec"] if kind == "trainjob" else spec
    spec = spec["replicatedJobs"][0]["template"]["spec"] if kind != "job" else spec
    return spec["template"]["spec"]


def faults(document: Any, version: str = VERSIONS[-1]) -> list[str]:
    """What the real schema of this object finds wrong, fields that it does not know included."""
    if document["kind"] not in CUSTOM:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            return [error.message]
        return []
    try:
        read = getattr(models, CUSTOM[document["kind"]]).from_dict(document)
    except ValueError as error:
        return [str(error)]
    return list(lost(document, read.to_dict()))   # the models drop what they do not know


def lost(given: Any, kept: Any, path: str = "") -> Iterator[str]:
    """What of `given` is not in `kept`."""
    if isinstance(given, dict):
        for name, value in given.items():
            yield from lost(value, kept.get(name) if isinstance(kept, dict) else None, f"{path}/{name}")
    elif isinstance(given, list):
        for number, value in enumerate(given):
            yield from lost(value, kept[number] if kept and number < len(kept) else None, f"{path}/{number}")
    elif given != kept:
        yield path


SHAPES = [job(), job(kind="jobset"), job(kind="trainjob"), job(nodes=1, script=None), job(kind="jobset", nodes=1),
          job(uses_gpus=False, cpu=None, memory=None, claim=None, run=None, namespace=None)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.kind}-{shape.nodes}")
def test_manifests_are_valid(shape: KubernetesJob) -> None:
    """Each object fits its schema, strictly: that of every release from 1.29 on, and those of JobSet and Kubeflow."""
    for document in documents(manifest(shape)):
        for version in VERSIONS[:1] if document["kind"] in CUSTOM else VERSIONS:
            assert faults(document, version) == [], (document["kind"], version)


def test_planted_errors_are_found() -> None:
    """What checks the manifests sees a wrong type and a misspelt field, at any depth, in each kind of object."""
    for kind in ("job", "jobset", "trainjob"):
        for path, value in (("securityContext", {"runAsNonRoot": "yes please"}), ("restartPolice", "Never"),
                            ("terminationGracePeriodSeconds", "long")):
            text = manifest(job(kind=kind))
            read = documents(text)
            pod = next(filter(None, (_pod_in(document) for document in read)))
            pod[path] = value
            assert any(faults(document) for document in read), (kind, path)


def _pod_in(document: Any) -> Any:
    """The specification of the pods, wherever it lies in an object."""
    if isinstance(document, dict):
        if "containers" in document:
            return document
        return next(filter(None, map(_pod_in, document.values())), None)
    return next(filter(None, map(_pod_in, document)), None) if isinstance(document, list) else None


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_pods_can_do_no_harm(kind: str) -> None:
    """Non-root, a root file system that is read-only, no capability, no token; what must be written is a volume."""
    pod = pod_of(manifest(job(kind=kind)), kind)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert len(pod["containers"] + pod["initContainers"]) == 2
    for container in pod["containers"] + pod["initContainers"]:
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                "capabilities": {"drop": ["ALL"]}}
        assert container["resources"]["limits"] == container["resources"]["requests"] == {
            "cpu": "9", "memory": "64Gi", "nvidia.com/gpu": "2"}
    mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}  # noqa: S108
    assert volumes[mounts["/data"]]["persistentVolumeClaim"] == {"claimName": "training-data"}
    assert {"/tmp", "/home/rankwise", "/script"} < mounts.keys()  # noqa: S108 - a folder in the pod


@pytest.mark.parametrize("kind", ["job", "jobset", "trainjob"])
def test_what_becomes_of_a_pod_that_ends(kind: str) -> None:
    """Preempted is no failure, an unusable option is final, and anything else is tried again as often as asked for."""
    text = manifest(job(kind=kind))
    pod = pod_of(text, kind)
    assert pod["restartPolicy"] == "Never"   # the API refuses podFailurePolicy with any other
    assert pod["terminationGracePeriodSeconds"] > 45.5
    spec = next(filter(None, (_spec_with(document, "podFailurePolicy") for document in documents(text))))
    actions = {rule["onExitCodes"]["values"][0]: rule["action"] for rule in spec["podFailurePolicy"]["rules"]
               if "onExitCodes" in rule}
    assert actions == {75: "Ignore", 2: "FailJob"}
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (3, 3, "Indexed")
    if kind == "job":
        assert spec["backoffLimit"] == 3 * 4
    else:
        restarts = next(filter(None, (_spec_with(document, "failurePolicy") for document in documents(text))))
        assert (spec["backoffLimit"], restarts["failurePolicy"]["maxRestarts"]) == (0, 4)


def _spec_with(document: Any, field: str) -> Any:
    """The part of an object that has this field."""
    if isinstance(document, dict):
        return document if field in document else next(
            filter(None, (_spec_with(value, field) for value in document.values())), None)
    return next(filter(None, (_spec_with(value, field) for value in document)), None) if isinstance(
        document, list) else None


def test_the_pods_find_pod_0() -> None:
    """Its name is the one that the Job, or the JobSet, gives it behind the headless service."""
    text = manifest(job())
    service, pod = of_kind(text, "Service"), pod_of(text, "job")
    assert service["metadata"]["name"] == pod["subdomain"] == "big-run"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == of_kind(text, "Job")["spec"]["template"]["metadata"]["labels"]
    assert "big-run-0.big-run:29500" in pod["containers"][0]["command"]
    assert "big-run-0.big-run;" in pod["initContainers"][0]["command"][-1]
    pod = pod_of(manifest(job(kind="jobset")), "jobset")
    assert "big-run-node-0-0.big-run;" in pod["initContainers"][0]["command"][-1]
    assert "initContainers" not in pod_of(manifest(job(nodes=1)), "job")


def test_the_threads_of_a_rank_follow_the_cores_of_its_pod() -> None:
    """--cpu over the ranks, at least one; without --cpu it is left to the machine."""
    for cpu, threads in (("9", "4"), ("500m", "1"), ("7.9", "3")):
        container, = pod_of(manifest(job(cpu=cpu)), "job")["containers"]
        assert {"name": "OMP_NUM_THREADS", "value": threads} in container["env"]
    assert "OMP_NUM_THREADS" not in manifest(job(cpu=None))


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text("ab \n\t#:-é😀"),
       st.text("ynotrue-~.019eE+_=|>&*!%@`{}[],?:#'\" /"))
def test_texts_come_through_yaml_unchanged(some: str, lines: str, signs: str) -> None:
    """As a word, as a word of a list, and as a block, whatever stands in them."""
    text = (f"word: {yamltext.scalar(signs)}\nlist:\n  - {yamltext.scalar(some)}\ndata:\n"
            f"  one: {yamltext.block(some, 4)}\n  two: {yamltext.block(lines, 4)}\nend: 1\n")
    assert yaml.safe_load(text) == {"word": signs, "list": [some], "data": {"one": some, "two": lines}, "end": 1}


@pytest.mark.parametrize(("changes", "says"), [
    ({"name": "a" * 61, "nodes": 100}, "at most 60 characters"),
    ({"name": "a" * 58, "nodes": 1, "kind": "jobset"}, "at most 54 characters"),
    ({"name": "1run"}, "Kubernetes takes"),
    ({"namespace": "Team"}, "--namespace is 'Team'"),
    ({"image": "My Image"}, "--image is"),
    ({"memory": "64 GB"}, "--memory is '64 GB'"),
    ({"shared_memory": "lots"}, "--shared-memory is"),
])
def test_what_kubernetes_would_refuse_is_refused_here(changes: dict[str, Any], says: str) -> None:
    """Before anything is written or sent."""
    with pytest.raises(UsageError, match=says):
        job(**changes)


def test_names_that_kubernetes_takes() -> None:
    """A run's name becomes a DNS label."""
    assert dns_name("Big_Run.2+b") == "big-run-2-b"
    assert dns_name("2nd-") == "run-2nd"
    assert dns_name("é") == "run"


def test_claims() -> None:
    """A name, and where it is mounted."""
    assert Claim.of("data") == Claim(name="data", folder="/workspace")
    assert Claim.of("data:/mnt/x") == Claim(name="data", folder="/mnt/x")
    for bad in ("", "Data", "data:", "data:relative"):
        with pytest.raises(UsageError, match="--claim is"):
            Claim.of(bad)


def test_scripts_that_fit_a_config_map(tmp_path: Path) -> None:
    """They are text, and not large."""
    path = tmp_path / "train.py"
    path.write_text("print('ü')\n", encoding="utf-8")
    assert Script.of(path).text == "print('ü')\n"
    path.write_bytes(b"#" * 1_000_001)
    with pytest.raises(UsageError, match="1,000,001 bytes"):
        Script.of(path)
    path.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        Script.of(path)


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
    with pytest.raises(RankwiseError, match="not found"):
        followed(kubectl)


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
