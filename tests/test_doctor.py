"""The command `rankwise doctor` as a whole: what it sees in real surroundings that are not fit, and how it ends."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest

from doctorfacts import facts
from hosts import hosts, needs_hosts
from launches import RANKWISE, TORCHRUN, Ended, Launch, run
from rankwise.cli import main
from rankwise.doctor import examining
from rankwise.doctor.facts import Task, Unread, reading
from slurm import needs_slurm, slurm_on_one_machine

UNSHARE = shutil.which("unshare")
needs_namespaces = pytest.mark.skipif(os.geteuid() != 0 or UNSHARE is None or sys.platform != "linux",
                                      reason="needs root and namespaces of Linux")
NAMES = ("NCCL_", "TORCH_", "OMP_", "MASTER_", "GLOO_", "CUDA_VISIBLE_DEVICES")
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
BROKEN = """
import os, resource, subprocess, sys
def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True, timeout=10)
mount("-t", "tmpfs", "-o", "size=8m", "tmpfs", "/dev/shm")
open("hosts", "w").write("127.0.0.1 localhost\\n127.0.1.1 another-name\\n")
mount("--bind", "hosts", "/etc/hosts")
subprocess.run(["hostname", "node-without-address"], check=True, timeout=10)
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 4096))
os.execv(sys.argv[1], sys.argv[1:])
"""


def verdicts(ended: Ended) -> dict[tuple[str, str], tuple[str, str]]:
    """(group, check) -> (verdict, evidence and remedy), from --json."""
    return {(each["group"], each["check"]): (each["verdict"], f"{each['evidence']} -> {each['remedy']}")
            for each in json.loads(ended.out)["findings"] if each["machine"] is None}


@pytest.fixture(autouse=True)
def no_variables_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine is set up with is not what is tested."""
    for name in [*os.environ]:
        if name.startswith(NAMES) or name.lower() in PROXIES:
            monkeypatch.delenv(name)


@needs_namespaces
def test_surroundings_that_are_not_fit(tmp_path: Path) -> None:
    """A small /dev/shm, few open files, a name that resolves to nothing, an interface that is
    not there, a port that is taken, a proxy: each is found, by looking at the real thing; and no secret is printed.
    """
    script = tmp_path / "broken.py"
    script.write_text(BROKEN)
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        ended = run([*RANKWISE, "doctor", "--quick", "--json"], tmp_path, 60,
                    [str(UNSHARE), "--mount", "--uts", sys.executable, str(script)], GLOO_SOCKET_IFNAME="eth99",
                    MASTER_ADDR="localhost", MASTER_PORT=str(port), NCCL_IB_DISABLE="1",
                    https_proxy="http://ada:hunter2@proxy:3128", OMP_NUM_THREADS="two", SECRET_TOKEN="hunter3")  # noqa: S106
    assert ended.code == 1, ended.text
    found = verdicts(ended)
    for where, verdict, words in (
            (("host", "shared memory"), "fault", "8.39 MB of 8.39 MB"),
            (("host", "open files"), "fault", "ulimit -n: 128 open files a process"),
            (("host", "open files"), "fault", "ulimit -n 4096"),
            (("network", "host name"), "warning", "node-without-address has no address"),
            (("network", "gloo's interface"), "fault", "GLOO_SOCKET_IFNAME=eth99: there is no such interface"),
            (("network", "ports"), "fault", f"port {port} (MASTER_PORT) is taken by process {os.getpid()} ("),
            (("network", "proxy"), "warning", "https_proxy is set, and no_proxy leaves out localhost"),
            (("environment variables", "OMP_NUM_THREADS"), "fault", "no number of threads"),
            (("environment variables", "NCCL_IB_DISABLE"), "warning", "over TCP sockets")):
        assert found[where][0] == verdict, found[where]
        assert words in found[where][1]
    assert "hunter" not in ended.out + ended.err
    assert list(found)[:2] == [("driver and CUDA", "driver"), ("driver and CUDA", "torch and CUDA")]


@needs_namespaces
@pytest.mark.environment
def test_a_network_that_is_down(tmp_path: Path) -> None:
    """In a network namespace of its own not even loopback is up."""
    ended = run([*RANKWISE, "doctor", "--quick", "--json"], tmp_path, 60, [str(UNSHARE), "--net"])
    assert ended.code == 1, ended.text
    assert verdicts(ended)["network", "loopback"][0] == "fault"


def test_facts_that_hang_or_die_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of a part that hangs is ended at the limit; one that dies, or raises, is told too."""
    for name in ("_LEAST_SECONDS", "_PER_PART_SECONDS"):
        monkeypatch.setattr(reading, name, 0.1)
    code = {"software": "import time; time.sleep(1000)", "gpus": "import os; os.abort()",
            "host": "raise OSError('no such driver')"}

    def start(what: str, arguments: tuple[object, ...]) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", code.get(what, "import time; time.sleep(1000)")],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    monkeypatch.setattr(reading, "_start", start)
    monkeypatch.setattr(reading, "_READERS", dict.fromkeys(("host", "gpus", "software", "network")))
    found = reading.read_facts(Task(), limit_seconds=2.0)
    assert found.software_or_not == Unread(what="software", reason="no answer within 2 s", is_fault=True)
    assert found.gpus_or_not == Unread(what="gpus", reason="the process that asked was ended by signal 6",
                                       is_fault=True)
    assert found.host_or_not == Unread(what="host", reason="OSError: no such driver", is_fault=False)


def test_this_machine(tmp_path: Path) -> None:
    """With ranks: they came through, measured something, and what is printed is what the documentation says."""
    ended = run([*RANKWISE, "doctor", "--json", "--accelerator", "cpu", "--devices", "2"], tmp_path, 90)
    values = json.loads(ended.out)
    found = verdicts(ended)
    assert {found["ranks", check][0] for check in ("all ranks", "same software", "all-reduce", "broadcast",
                                                   "all-gather", "reduce-scatter")} == {"ok"}, ended.text
    assert ended.code == values["exit_code"] == int(values["verdict"] == "fault")
    assert values["counts"]["fault"] == sum(each["verdict"] == "fault" for each in values["findings"])
    measured = values["measurements"]
    assert (measured["ranks"], measured["backend"], len(measured["work_seconds"])) == (2, "gloo", 2)
    first = measured["all_reduce"][0]
    assert first["size_bytes"] == 1024
    assert first["bus_bytes_per_second"] == pytest.approx(2 * 1 / 2 * 1024 / first["seconds"])
    assert {"bfloat16", "float16", "float32", "int64"} <= {each.split()[-1] for each in
                                                           measured["collectives"]["all-reduce"]["claimed"]}
    assert not list(tmp_path.iterdir()), "nothing is left in the folder"


@pytest.mark.parametrize(("options", "words"), [
    (["--json", "--markdown"], "Leave one out."), (["--devices", "0"], "--devices"),
    (["--nodes", "2"], "--endpoint is not given"), (["--nodes", "2", "--endpoint", "foo"], "HOST:PORT"),
    (["--nodes", "2", "--endpoint", "127.0.0.1:99999"], "HOST:PORT"),
    (["--endpoint", "127.0.0.1:29500"], "--nodes is 1"), (["--quick", "--devices", "2"], "starts no ranks"),
    (["--quick", "--accelerator", "cpu"], "starts no ranks"), (["--timeout", "inf"], "3600"),
    (["--timeout", "nan"], "3600")])
def test_what_cannot_be_asked_for(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and why."""
    with pytest.raises(SystemExit) as end:
        main(["doctor", *options])
    assert end.value.code == 2
    assert words in capsys.readouterr().err


def looked(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    """The exit code of the command on a machine that is made up, and well."""
    monkeypatch.setattr(examining, "read_facts", lambda task, limit_seconds: facts())
    with pytest.raises(SystemExit) as end:
        main(["doctor", *options])
    assert isinstance(end.value.code, int)
    return end.value.code


def test_one_rank_of_a_machine_tells(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With --quick in a job of another launcher: the others look too, and end alike."""
    told = []
    for rank in ("0", "1"):
        for name in ("RANK", "LOCAL_RANK"):
            monkeypatch.setenv(name, rank)
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            monkeypatch.setenv(name, "2")
        assert looked(monkeypatch, "--quick") == 0
        told.append(capsys.readouterr().out.count("rankwise doctor: ok"))
    assert told == [1, 0]


def test_an_interruption_says_where(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, with exit code 130."""
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(examining, "check", interrupted)
    assert looked(monkeypatch) == 130
    assert capsys.readouterr().err == "rankwise doctor: interrupted in step `facts of this machine`.\n"


def test_more_ranks_than_the_memory_holds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a CPU nothing else bounds them: refused, before anything starts."""
    assert looked(monkeypatch, "--accelerator", "cpu", "--devices", "100000") == 2
    assert "60.0 GB of memory are left.\n  Give --devices 240 at most." in capsys.readouterr().err


def test_a_system_that_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """With too few open files: each part that no process can be started for says so."""
    def refused(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(reading, "_start", refused)
    assert [(each.reason, each.is_fault) for each in reading.read_facts(Task(), limit_seconds=3.0).unread()] == [
        ("no process can be started for it: Too many open files", True)] * 4


# Whole jobs of it, with marker `environment`

@pytest.mark.environment
def test_ctrl_c_ends_every_process(tmp_path: Path) -> None:
    """In the middle of the ranks' work: exit code 130, and nothing is left."""
    launch = Launch([*RANKWISE, "doctor", "--accelerator", "cpu", "--devices", "2"], tmp_path)
    deadline = time.monotonic() + 60
    while not any("launcher.worker" in " ".join(each.cmdline()) for each in launch.processes()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    launch.process.send_signal(signal.SIGINT)
    ended = launch.ended(30)
    assert ended.code == 130, ended.text
    assert "Traceback" not in ended.err


@pytest.mark.environment
def test_as_a_job_of_torchrun(tmp_path: Path) -> None:
    """Rank 0 prints, once; all ranks end alike."""
    ended = run([*TORCHRUN, "2", "-m", "rankwise", "doctor"], tmp_path, 90)
    assert ended.code == 0, ended.text
    assert ended.out.count("rankwise doctor:") == 1
    assert "2 ranks with gloo came through" in " ".join(ended.out.split())


@needs_slurm
@pytest.mark.environment
@pytest.mark.timeout(300)
def test_as_a_job_of_slurm(tmp_path: Path) -> None:
    """As ranks, of which two nodes have different numbers; and as a launcher on each node. One of them prints."""
    own = tmp_path / "own"
    own.mkdir()
    with slurm_on_one_machine(tmp_path / "slurm") as slurm:
        ranks = slurm.run(["srun", "-N2", "-n4", *RANKWISE, "doctor", "--json"], own, 120)
        launchers = slurm.run(["srun", "-N2", "--ntasks-per-node", "1", *RANKWISE, "doctor", "--devices", "1"], own,
                              120)
    assert ranks.code == 0, ranks.text
    measured = json.loads(ranks.out)["measurements"]
    assert (measured["ranks"], [pair["machines"] for pair in measured["pairs"]]) == (4, [[0, 1]])
    assert launchers.code == 0, launchers.text
    assert "2 ranks with gloo came through" in " ".join(launchers.out.split())


@pytest.mark.environment
def test_a_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    """By a launcher of ours; the command ends with a fault."""
    launch = Launch([*RANKWISE, "doctor", "--json", "--accelerator", "cpu", "--devices", "3", "--timeout", "10"],
                    tmp_path)
    deadline = time.monotonic() + 60
    while not (ranks := [each for each in launch.processes() if each.environ().get("RANK") == "1"]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    while ranks[0].memory_info().rss < 200e6:   # until it has loaded torch
        assert time.monotonic() < deadline
        time.sleep(0.02)
    ranks[0].kill()
    ended = launch.ended(90)
    assert ended.code == 1, ended.text
    assert "Rank 1" in verdicts(ended)["ranks", "all ranks"][1]


@needs_hosts
@pytest.mark.environment
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("trouble", "code", "words"), [
    ("slow", 0, "Machine 2 is slow"), ("broken link", 1, "The link between machines 1 and 2 does not work"),
    ("cut", 1, "Of machine 2 nothing was heard.")])
def test_three_machines_of_which_one_is_bad(trouble: str, code: int, words: str, tmp_path: Path) -> None:
    """The pairs show which; all machines end alike."""
    with hosts(3) as found:
        if trouble == "slow":
            found[2].slow_down("100mbit")
        elif trouble == "cut":
            found[2].cut()
        else:
            subprocess.run([*found[1].prefix, "ip", "route", "add", "blackhole", f"{found[2].address}/32"], check=True,
                           timeout=10)
        command = [*RANKWISE, "doctor", "--json", "--accelerator", "cpu", "--devices", "1", "--nodes", "3", "--timeout",
                   "20", "--endpoint", "10.77.9.1:29547", "--node-rank"]
        launches = [Launch([*command, str(number)], tmp_path, host.prefix) for number, host in enumerate(found)]
        ends = [each.ended(150) for each in launches]
    assert [each.code for each in ends] == [code] * 3, "\n".join(each.text for each in ends)
    said = verdicts(ends[0])
    assert words in " ".join(words for (group, _), (_, words) in said.items() if group == "ranks")
