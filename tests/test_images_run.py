"""`rankwise image run` and `shell`: the engine's command, what is refused, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.cli import main
from rankwise.errors import UsageError
from rankwise.images import containers
from rankwise.images.containers import Container
from rankwise.images.engine import Engine

PODMAN, DOCKER = Engine(name="podman", program="podman"), Engine(name="docker", program="docker")


def started(engine: Engine, is_rootless: bool = True, **container: object) -> list[str]:
    value = Container(**{"tag": "it", "command": ("x",), "folder": Path("/here"), **container})  # type: ignore[arg-type]
    return containers.command(engine, value, "name", user=(1000, 1001), is_rootless=is_rootless)


def test_a_container_gets_what_a_training_needs() -> None:
    """The working folder, shared memory, the caller's user; GPUs in the words of each engine."""
    common = ["--volume=/here:/workspace", "--workdir=/workspace", "--shm-size=8g"]
    first = ["run", "--rm", "--pull=never", "--name=name", "--interactive"]
    assert started(DOCKER) == ["docker", *first, "--user=1000:1001", *common, "it", "x"]
    assert started(PODMAN) == ["podman", *first, "--userns=keep-id", "--user=1000:1001", *common, "it", "x"]
    assert "--gpus=all" in started(DOCKER, gpus="all")
    assert '--gpus="device=0,2"' in started(DOCKER, gpus="0,2")
    assert [each for each in started(PODMAN, gpus="0,2") if "nvidia" in each] == [
        "--device=nvidia.com/gpu=0", "--device=nvidia.com/gpu=2"]
    assert "--ulimit=memlock=-1" in started(PODMAN, gpus="all")
    assert "--tty" in started(PODMAN, has_terminal=True)
    assert "--userns=keep-id" not in started(PODMAN, is_rootless=False)


@pytest.mark.parametrize(("publish", "said"), [("8888", "--publish=127.0.0.1:8888:8888"),
                                               ("0.0.0.0:80", "--publish=0.0.0.0:80:80")])
def test_a_port_is_on_loopback_unless_asked(publish: str, said: str) -> None:
    """--publish PORT is for this machine alone; Jupyter listens where the port comes from, with its token."""
    assert said in started(DOCKER, publish=publish)
    command = containers.jupyter(publish)
    assert f"--port={publish.split(':')[-1]}" in command
    assert not any("token" in word or "password" in word for word in command)


def test_what_cannot_be_started_is_refused() -> None:
    """A port, a size or a list of GPUs that cannot be read, and a folder that no engine can mount."""
    for wrong in ({"publish": "http"}, {"publish": "70000"}, {"gpus": "some"}, {"gpus": "0,,1"},
                  {"publish": "::1:8888"}, {"publish": "localhost:8888"}, {"publish": "8888:9999"}, {"publish": ":80"},
                  {"shared_memory": "lots"}, {"shared_memory": "-5"}, {"shared_memory": ""},
                  {"folder": Path("/here:there")}):
        with pytest.raises(UsageError):
            started(DOCKER, **wrong)


def test_a_dry_run_needs_no_engine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is shown where nothing is installed; JupyterLab starts in the image that has it."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SystemExit) as end:
        main(["image", "run", "dev", "--cuda", "cu126", "--dry-run", "--publish", "8888"])
    shown = capsys.readouterr().out
    assert end.value.code == 0
    assert shown.startswith("docker run ")
    assert "rankwise:dev-cu126-torch2.7.1 jupyter lab" in shown
    with pytest.raises(SystemExit) as end:
        main(["image", "run", "train", "--dry-run", "--publish", "8888"])
    assert end.value.code == 2
    assert "Take dev" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["TERM", "INT"])
def test_a_signal_is_handed_to_the_container(word: str, tmp_path: Path) -> None:
    """SIGTERM brings the command's own exit code, SIGINT an interrupt; the container is removed after both."""
    file = tmp_path / "engine"
    file.write_text(f"""#!/bin/sh
cd {tmp_path}; echo "$@" >> log
case $1 in
  run) trap 'exit 75' USR1; echo $$ > pid; kill -{word} $PPID; while :; do sleep 0.05; done;;
  kill) kill -USR1 $(cat pid);;
esac
""")
    file.chmod(0o755)
    stand_in = Engine(name="podman", program=str(file))
    if word == "INT":
        with pytest.raises(KeyboardInterrupt):
            containers.run([str(file), "run"], stand_in, "it", has_terminal=False)
    else:
        assert containers.run([str(file), "run"], stand_in, "it", has_terminal=False) == 75
    assert (tmp_path / "log").read_text().splitlines() == ["run", f"kill --signal={word} it", "rm --force it"]
