"""Kubernetes jobs: manifests against the real schemas, offline; a stand-in for kubectl, for there is no cluster."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k8sjobs import documents, job, of_kind, pod_of, yaml
from launches import RANKWISE, run
from rankwise.errors import UsageError
from rankwise.rankstatus import RankStatus
from rankwise.settings import Settings
from rankwise.submit.k8s import yamltext
from rankwise.submit.k8s.job import Claim, KubernetesJob, Script, dns_name
from rankwise.submit.k8s.manifest import manifest
from rankwise.submit.k8s.submission import job_of
from rankwise.submit.work import Work

kubernetes_validate = pytest.importorskip("kubernetes_validate")
models = pytest.importorskip("kubeflow_trainer_api.models")

VERSIONS = [f"1.{minor}" for minor in range(29, 38)]
CUSTOM = {"JobSet": "JobsetV1alpha2JobSet", "TrainJob": "TrainerV1alpha1TrainJob",
          "TrainingRuntime": "TrainerV1alpha1TrainingRuntime"}


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
    assert "big-run-0.big-run:29500" in pod["containers"][0]["args"]
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


def work(target: str = "toy", arguments: tuple[str, ...] = (), **settings: Any) -> Work:
    return Work.of(target, list(arguments), {**vars(Settings()), "name": "big", **settings}, is_module=False)


def planned(plan: Work, **asked: Any) -> KubernetesJob:
    values = {"kind": "job", "is_in_image": False, "image": "r/x:1", "namespace": None, "cpu": None, "memory": None,
              "shared_memory": "8Gi", "claim": None}
    return job_of(plan, **{**values, **asked})


def test_a_script_goes_along(tmp_path: Path) -> None:
    """In a ConfigMap, unless it is in the image already; a recipe comes with rankwise, and the doctor is no script."""
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    text = manifest(planned(work(str(script))))
    assert of_kind(text, "ConfigMap")["data"] == {"script.py": "import torch\n"}
    assert pod_of(text, "job")["containers"][0]["args"][1:3] == ["run", "/script/train.py"]
    for other in (planned(work("/data/a.py"), is_in_image=True), planned(work()), planned(work("doctor", name=None))):
        assert "ConfigMap" not in manifest(other)
    with pytest.raises(UsageError, match="no script and no recipe"):
        planned(work("nothing.py"))


@pytest.mark.parametrize("name", ["my script.py", "train.py", "ü,{}.py", ".hidden.py"])
def test_a_script_may_have_any_name(tmp_path: Path, name: str) -> None:
    """The keys of a ConfigMap may not; the volume gives the name back."""
    (tmp_path / name).write_text("import torch\n")
    text = manifest(planned(work(str(tmp_path / name))))
    data, pod = of_kind(text, "ConfigMap")["data"], pod_of(text, "job")
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key) for key in data)   # as the API has it
    volume, = (each["configMap"] for each in pod["volumes"] if "configMap" in each)
    assert {item["path"]: data[item["key"]] for item in volume["items"]} == {name: "import torch\n"}
    assert pod["containers"][0]["args"][2] == f"/script/{name}"


def test_a_script_that_no_volume_can_name(tmp_path: Path) -> None:
    (tmp_path / "..train.py").touch()
    with pytest.raises(UsageError, match="two dots"):
        planned(work(str(tmp_path / "..train.py")))


def test_a_pod_sees_names_as_they_are() -> None:
    """In its command, its probes and its variables Kubernetes reads `$(HOME)` as a variable, `$$` as a `$`."""
    plan = planned(work(runs="$(HOME)/$$"), claim=Claim(name="data", folder="/$(HOME)"))
    container, = pod_of(manifest(plan), "job")["containers"]

    def as_kubernetes_reads(text: str) -> str:
        return re.sub(r"\$(\$|\(HOME\))", lambda found: "$" if found[1] == "$" else "/home/rankwise", text)

    assert "$(HOME)/$$" in map(as_kubernetes_reads, container["args"])
    for probe in ("startupProbe", "livenessProbe"):
        assert "find '$(HOME)/$$/big/status'" in as_kubernetes_reads(container[probe]["exec"]["command"][-1])
    values = {variable["name"]: as_kubernetes_reads(variable["value"]) for variable in container["env"]}
    assert values["RANKWISE_DATA"] == "/$(HOME)/data"


def test_what_a_pod_runs() -> None:
    """The command by hand, with the pod's number; Kubernetes fills in that number and leaves every other $ alone."""
    found = planned(work(arguments=("--note", "$(HOME) costs 5$"), nodes="2", devices=4, grace_seconds=90.0))
    assert " ".join(found.command) == (
        "rankwise run toy --devices 4 --name big --resume auto --grace-seconds 90.0 --nodes 2 --node-rank "
        "$(JOB_COMPLETION_INDEX) --endpoint big-0.big:29500 -- --note $$(HOME) costs 5$$")
    assert found.termination_seconds == 120
    assert "nodes" not in " ".join(planned(work()).command)


def test_the_doctor_has_no_probes() -> None:
    """It writes no status files: it would be taken for dead."""
    pod = pod_of(manifest(planned(work("doctor", nodes="2"))), "job")
    assert pod["containers"][0]["args"][:2] == ["rankwise", "doctor"]
    assert not {"livenessProbe", "startupProbe"} & pod["containers"][0].keys()


def test_the_probes_see_whether_the_ranks_of_this_pod_write(tmp_path: Path) -> None:
    """Status files of this host within 5 minutes; older ones, and those of another pod, are no sign of life."""
    check = pod_of(manifest(job(run="big run")), "job")["containers"][0]["livenessProbe"]["exec"]["command"]
    status = tmp_path / "runs/big run/status"

    def is_alive() -> bool:
        return subprocess.run(check, cwd=tmp_path, timeout=10, stdin=subprocess.DEVNULL, check=False,
                              stderr=subprocess.DEVNULL).returncode == 0

    assert not is_alive()
    for host, expected in ((f"{socket.gethostname()}0", False), (socket.gethostname(), True)):
        RankStatus(rank=3, world_size=4, attempt=0, host=host, pid=1, launcher_pid=1, time=1.0, state="").write(status)
        assert is_alive() is expected
    os.utime(status / "rank3.json", times=(time.time() - 360,) * 2)
    assert not is_alive()


@pytest.mark.parametrize(("changes", "says"), [
    ({"kind": "pytorchjob"}, "--kind is pytorchjob"),
    ({"accelerator": "mps"}, "--accelerator is mps"),
    ({"nodes": "2:4", "max_restarts": 1}, "fixed number of machines"),
])
def test_what_cannot_be_a_job(changes: dict[str, Any], says: str) -> None:
    """Said before anything is written."""
    with pytest.raises(UsageError, match=says):
        planned(work(**{name: value for name, value in changes.items() if name != "kind"}),
                kind=changes.get("kind", "job"))


def test_the_command_line(tmp_path: Path) -> None:
    """--dry-run prints what --output writes, with no cluster and no kubectl; --help shows how it is used."""
    words = [*RANKWISE, "submit", "k8s", "toy", "--image", "r/x:1", "--name", "big", "--nodes", "2", "--kind", "jobset"]
    printed = run([*words, "--dry-run"], tmp_path, PATH=str(tmp_path))
    assert (printed.code, printed.err) == (0, ""), printed.text
    assert [document["kind"] for document in documents(printed.out)] == ["JobSet"]
    assert run([*words, "--output", "job.yaml"], tmp_path).code == 0
    assert (tmp_path / "job.yaml").read_text() == printed.out
    refused = run([*words, "--output", "no/job.yaml"], tmp_path)
    assert refused.code == 2
    assert "--output is no/job.yaml" in refused.err
