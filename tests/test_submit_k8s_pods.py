"""The pods of a Kubernetes job, run for real by `podman play kube`: two of them train together, as in a cluster."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k8sjobs import documents, of_kind, yaml
from rankwise.submit.k8s.job import Claim
from rankwise.submit.k8s.manifest import manifest
from rankwise.submit.k8s.submission import job_of
from rankwise.submit.work import Work
from test_submit_ray import SCRIPT

PODMAN = shutil.which("podman")
IMAGE = "localhost/rankwise:train-cpu-torch2.13.0"
SUBNET = "10.89.219"
NAME = f"rw{os.getpid()}"

pytestmark = [pytest.mark.environment, pytest.mark.timeout(300)]


def podman(*words: str, check: bool = True, seconds: float = 90) -> str:
    """What podman says; `check` asks that it does what it is told."""
    assert PODMAN is not None
    answer = subprocess.run([PODMAN, *words], capture_output=True, text=True, timeout=seconds, check=False,
                            stdin=subprocess.DEVNULL)
    assert answer.returncode == 0 or not check, answer.stdout + answer.stderr
    return answer.stdout + (answer.stderr if words[0] == "logs" else "")


@pytest.fixture
def network() -> Iterator[str]:
    """A network for the pods; it, they and the claim are gone at the end."""
    if PODMAN is None or not podman("images", "--quiet", IMAGE, check=False).strip():
        pytest.skip(f"needs podman and the image {IMAGE}: make images")
    podman("network", "create", f"--subnet={SUBNET}.0/24", NAME)
    try:
        yield NAME
    finally:
        podman("pod", "rm", "--force", "--time=0", f"{NAME}-0", f"{NAME}-1", check=False)
        podman("network", "rm", "--force", NAME, check=False)
        podman("volume", "rm", "--force", "claim", "tmp", "home", "shared-memory", f"{NAME}-script", check=False)


def the_manifest(script: Path, *arguments: str) -> str:
    """Of two pods that share a claim."""
    work = Work.of(str(script), list(arguments), {"nodes": "2", "devices": 1, "accelerator": "cpu", "name": NAME,
                                                  "threads": 1}, is_module=False)
    return manifest(job_of(work, kind="job", is_in_image=False, image=IMAGE, namespace=None, cpu=None, memory=None,
                           shared_memory="64Mi", claim=Claim(name="claim")))


def pod_of(text: str, number: int) -> list[Any]:
    """What the Job's controller makes of its template for this pod; the name of pod 0 stands in /etc/hosts here."""
    template = copy.deepcopy(of_kind(text, "Job")["spec"]["template"])
    spec = template["spec"]
    spec["hostname"] = f"{NAME}-{number}"
    spec["hostAliases"] = [{"ip": f"{SUBNET}.10", "hostnames": [f"{NAME}-0.{spec.pop('subdomain')}"]}]
    container, = spec["containers"]
    container["args"] = [word.replace("$(JOB_COMPLETION_INDEX)", str(number)).replace("$$", "$")
                         for word in container["args"]]
    for each in (container, *spec["initContainers"]):
        each["imagePullPolicy"] = "Never"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": f"{NAME}-{number}"},
           "spec": spec}
    return [*(document for document in documents(text) if document["kind"] == "ConfigMap"), pod]


def play(text: str, network: str, folder: Path) -> None:
    """Start both pods."""
    for number in (0, 1):
        file = folder / f"pod{number}.yaml"
        file.write_text(yaml.safe_dump_all(pod_of(text, number)))
        podman("play", "kube", "--replace", f"--network={network}", f"--ip={SUBNET}.{10 + number}", str(file))


def container(number: int) -> str:
    return f"{NAME}-{number}-node"


def state(number: int) -> Any:
    return json.loads(podman("inspect", container(number)))[0]


def exit_codes(deadline_seconds: float = 100.0) -> list[int]:
    return [int(podman("wait", container(number), seconds=deadline_seconds)) for number in (0, 1)]


def until(holds: Any, deadline_seconds: float = 60.0) -> None:
    deadline = time.monotonic() + deadline_seconds
    while not holds():
        assert time.monotonic() < deadline, podman("logs", container(0), check=False)
        time.sleep(0.5)


def test_two_pods_train_together_and_go_on_after_a_preemption(network: str, tmp_path: Path) -> None:
    """With no right at all and a root file system that is read-only; SIGTERM ends both with 75, and both go on."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    text = the_manifest(script, "--epochs", "12", "--seconds", "0.5")
    probe = of_kind(text, "Job")["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["exec"]["command"]
    play(text, network, tmp_path)
    until(lambda: "epoch  4/12" in podman("logs", container(0)))
    found = state(1)
    assert found["Config"]["User"] == "10001:10001"
    assert found["HostConfig"]["ReadonlyRootfs"] is True
    assert found["EffectiveCaps"] in (None, [])
    for number in (0, 1):
        podman("exec", container(number), *probe)   # each pod sees its own rank alive
    podman("kill", "--signal=TERM", container(1))
    assert exit_codes() == [75, 75]
    play(text, network, tmp_path)
    assert exit_codes() == [0, 0], podman("logs", container(0)) + podman("logs", container(1))
    log = podman("logs", container(0))
    assert "epoch 12/12" in log
    assert "epoch  1/12" not in log
