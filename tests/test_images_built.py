"""Images as `make images` has built them: entered, broken on purpose, and trained in, two containers together."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rankwise import cli

pytestmark = [pytest.mark.environment, pytest.mark.timeout(300)]

STORE = Path(__file__).parent.parent / "build" / "images"
TRAIN, DEV = "rankwise:train-cpu-torch2.13.0", "rankwise:dev-cpu-torch2.13.0"
PODMAN = "podman"   # found on PATH
SECONDS = 200.0


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of `make images`, unless the variables of podman name another one that has the images."""
    if not os.environ.get("CONTAINERS_STORAGE_CONF") and (STORE / "storage.conf").exists():
        monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(STORE / "storage.conf"))
        monkeypatch.setenv("CONTAINERS_CONF", str(STORE / "containers.conf"))
    if not shutil.which(PODMAN):
        pytest.skip("podman is not installed")
    if podman("image", "exists", TRAIN).returncode or podman("image", "exists", DEV).returncode:
        pytest.skip("the images are not built: make images")


def podman(*words: str, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    return subprocess.run([PODMAN, *words], capture_output=True, text=True, timeout=seconds, check=False)


def in_container(tag: str, *command: str) -> str:
    ended = podman("run", "--rm", "--network=none", "--no-healthcheck", tag, *command)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def image(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(["image", *words])
    printed = capsys.readouterr()
    return int(end.value.code or 0), printed.out


@pytest.mark.parametrize("kind", ["train", "dev"])
def test_it_keeps_what_it_promises(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`rankwise image check`: each item, offline, as the image's own user."""
    code, text = image(capsys, "check", kind, "--engine", "podman", "--json")
    assert code == 0, text
    proof = json.loads(text)
    assert {item["name"] for item in proof["items"]} == {
        "user", "health check", "lock", "imports", "torch.compile", "doctor", "training"}
    assert proof["labels"]["rankwise.kind"] == kind


def test_nothing_of_the_build_is_left() -> None:
    """Secrets, wheels and the proxy's settings were there for the build alone."""
    seen = in_container(DEV, "sh", "-c", "ls -A /run/secrets /tmp/wheels /var/lib/apt/lists; cat /etc/pip.conf; env")
    assert "ca.crt" not in seen
    assert ".whl" not in seen
    assert "cert" not in seen
    history = podman("history", "--no-trunc", "--format", "{{.CreatedBy}}", DEV).stdout
    assert "pip install" in history
    assert "BEGIN CERTIFICATE" not in history


def test_what_dev_has_to_work_with() -> None:
    """Completion of rankwise in both shells, colours while one types, git, and Jupyter with its token."""
    script = ("autoload -Uz compinit; source ~/.zshrc; print -r -- $_comps[rankwise] $ZSH_HIGHLIGHT_VERSION; "
              "_TYPER_COMPLETE_ARGS='rankwise ver' _RANKWISE_COMPLETE=complete_zsh rankwise")
    zsh = in_container(DEV, "zsh", "-ic", script)
    assert zsh.startswith("_rankwise 0.7")
    assert "verify" in zsh
    bash = "source /usr/share/bash-completion/completions/rankwise; complete -p rankwise"
    assert "rankwise" in in_container(DEV, "bash", "-c", bash)
    assert "git version" in in_container(DEV, "git", "--version")
    answers = in_container(DEV, "sh", "-c", "timeout 15 jupyter lab --no-browser 2>&1 | grep -m1 token=; true")
    assert "http://127.0.0.1:8888" in answers or "http://localhost:8888" in answers


def derived(folder: Path, *lines: str) -> str:
    """An image that is TRAIN and something more."""
    (folder / "Containerfile").write_text("\n".join([f"FROM localhost/{TRAIN}", *lines, ""]))
    tag = f"localhost/rankwise-broken-{uuid.uuid4().hex[:8]}"
    ended = podman("build", "--format=docker", "--network=none", f"--tag={tag}", str(folder))
    assert ended.returncode == 0, ended.stderr
    return tag


SITE = "/opt/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(("lines", "broken"), [
    (["USER 0", 'HEALTHCHECK CMD ["true"]', f"RUN mv {SITE}/rich-15.0.0.dist-info {SITE}/rich-14.9.9.dist-info "
      f"&& sed -i s/15.0.0/14.9.9/ {SITE}/rich-14.9.9.dist-info/METADATA"], {"user", "health check", "lock"}),
    (["USER 0", f"RUN rm -r {SITE}/rankwise/cli/__pycache__ /usr/bin/g++ /usr/bin/c++ "
      f"&& echo 'raise RuntimeError' > {SITE}/rankwise/cli/doctor.py", "USER 10001:10001"],
     {"doctor", "torch.compile", "training"}),
], ids=["settings", "programs"])
def test_a_broken_image_is_seen(lines: list[str], broken: set[str], tmp_path: Path,
                                capsys: pytest.CaptureFixture[str]) -> None:
    """Things are broken on purpose, and those are named; exit code 1."""
    tag = derived(tmp_path, *lines)
    try:
        code, text = image(capsys, "check", "train", "--engine", "podman", "--tag", tag, "--json")
        assert code == 1
        assert {item["name"] for item in json.loads(text)["items"] if not item["is_kept"]} == broken
    finally:
        podman("rmi", "--force", tag)


def test_files_belong_to_the_caller(tmp_path: Path) -> None:
    """`image run` mounts this folder; what a command writes there is the caller's."""
    command = [sys.executable, "-m", "rankwise", "image", "run", "train", "--engine", "podman", "--", "sh", "-c",
               "echo here > written; exit 7"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 7, ended.stderr
    assert (tmp_path / "written").read_text() == "here\n"
    assert (tmp_path / "written").stat().st_uid == os.getuid()


def test_an_interrupt_leaves_no_container(tmp_path: Path) -> None:
    """Ctrl-C ends what runs inside, and 130 comes out."""
    command = [sys.executable, "-m", "rankwise", "image", "run", "train", "--engine", "podman", "--", "sleep", "100"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True) as started:
        assert started.stderr is not None
        name = started.stderr.readline().split("--name=")[1].split()[0]
        deadline = time.monotonic() + 60
        while podman("inspect", "--format={{.State.Running}}", name).stdout.strip() != "true":
            assert time.monotonic() < deadline
            time.sleep(0.2)
        os.killpg(started.pid, signal.SIGINT)
        assert started.wait(60) == 130
    assert podman("container", "exists", name).returncode == 1


@pytest.fixture
def network() -> Iterator[str]:
    """A network of podman on which containers know each other by name."""
    name = f"rankwise-{uuid.uuid4().hex[:8]}"
    made = podman("network", "create", name)
    if made.returncode:
        pytest.skip(f"podman makes no network here: {made.stderr.strip()[-200:]}")
    yield name
    podman("network", "rm", "--force", name)


def test_two_containers_train_together(network: str) -> None:
    """Digits in DDP on two containers: both come to the same, and say so of two devices."""
    names = [f"{network}-n{rank}" for rank in range(2)]
    training = ["rankwise", "run", "-m", "rankwise.images.digits", "--devices", "1", "--threads", "1", "--nodes", "2",
                "--endpoint", f"{names[0]}:29500"]
    nodes = [subprocess.Popen(_node(network, name, [*training, "--node-rank", str(rank)]), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank, name in enumerate(names)]
    try:
        texts = [node.communicate(timeout=SECONDS)[0] for node in nodes]
        assert [node.returncode for node in nodes] == [0, 0], "\n".join(texts)
        assert "2 devices:" in texts[0], texts[0]
        assert "ddp" in texts[0]
    finally:
        podman("rm", "--force", *names)
        for node in nodes:
            node.wait(20)


def _node(network: str, name: str, command: Sequence[str]) -> list[str]:
    return [PODMAN, "run", "--rm", f"--name={name}", f"--hostname={name}", f"--network={network}",
            "--no-healthcheck", "--shm-size=1g", TRAIN, *command]
