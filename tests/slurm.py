"""A real Slurm for tests: its own munge, controller and two nodes, in a folder, on one machine or on hosts."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from hosts import Host
from launches import Ended, Launch

needs_slurm = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("slurmctld", "slurmd", "munged", "sbatch"))),
    reason="needs root, and the packages slurm-wlm and munge")

_START_SECONDS = 20.0
_STOP_SECONDS = 15.0

# Everything of it lies in one folder. Each node has four cores and two devices that stand for GPUs (/dev/null in fact).
# Jobs are numbered from anywhere on: ranks meet at a port that follows from the number, and two Slurms may run here.
_CONFIGURATION = """\
ClusterName=rankwise
SlurmctldHost={control}
SlurmctldPort={ports[0]}
FirstJobId={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/slurmd-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
MpiDefault=none
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
GresTypes=gpu
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=60 State=UP
PartitionName=small Nodes={first} MaxTime=60 State=UP
"""
_NODE = "NodeName={name} NodeHostname={host} Port={port} CPUs=4 RealMemory=2000 Gres=gpu:2"
_DEVICES = "AutoDetect=off\nNodeName={names} Name=gpu File={folder}/gpu[0-1]\n"


@dataclass(frozen=True)
class Slurm:
    """A running Slurm; `prefix` runs a command where its users log in."""

    folder: Path
    prefix: Sequence[str] = ()

    @property
    def variables(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self, command: Sequence[str], folder: Path, **variables: str) -> Launch:
        """A command of a user of this Slurm, under way."""
        return Launch(command, folder, self.prefix, **self.variables, **variables)

    def run(self, command: Sequence[str], folder: Path, deadline_seconds: float = 60.0, **variables: str) -> Ended:
        """The same, from start to end."""
        return self.start(command, folder, **variables).ended(deadline_seconds)

    def says(self, *command: str) -> str:
        """The output of one of Slurm's own commands, which must succeed."""
        return subprocess.run([*self.prefix, *command], env={**os.environ, **self.variables}, check=True, timeout=20,
                              capture_output=True, text=True).stdout.strip()

    def wait_for(self, text: str, *command: str, deadline_seconds: float = 30.0) -> str:
        """Ask until this text is in the answer, and return it."""
        deadline = time.monotonic() + deadline_seconds
        while text not in (answer := self.says(*command)):
            assert time.monotonic() < deadline, f"{' '.join(command)} says {answer!r}, without {text!r}"
            time.sleep(0.1)
        return answer

    def start_now(self, job: str) -> None:
        """Spare a requeued job the two minutes that Slurm lets it wait; a moment of them it needs.

        One that starts in the second of its end is killed: it bears the credential that was revoked then.
        """
        time.sleep(2)
        self.says("scontrol", "update", f"jobid={job}", "StartTime=now")


@contextlib.contextmanager
def slurm_on_one_machine(folder: Path) -> Iterator[Slurm]:
    """Both nodes, and the controller, are this machine."""
    ports = _free_ports(3)
    names = ["127.0.0.1", "127.0.0.2"]   # each an address of the loopback interface, where ranks can meet
    nodes = [_NODE.format(name=name, host="localhost", port=port) for name, port in zip(names, ports[1:], strict=True)]
    with _running(folder, "localhost", ports, names, nodes, [(), (), ()]) as slurm:
        yield slurm


@contextlib.contextmanager
def slurm_on_hosts(folder: Path, hosts: Sequence[Host]) -> Iterator[Slurm]:
    """The first host has the controller and the users, each of the other two is a node; all know each other's names."""
    names = ["login", "n1", "n2"]
    file = folder / "hosts"
    folder.mkdir(exist_ok=True)
    file.write_text("".join(f"{host.address} {name}\n" for host, name in zip(hosts, names, strict=True))
                    + "127.0.0.1 localhost\n")
    prefixes = [_as_host(host, name, file) for host, name in zip(hosts, names, strict=True)]
    nodes = [_NODE.format(name=name, host=name, port=6818) for name in names[1:]]
    with _running(folder, "login", [6817], names[1:], nodes, prefixes) as slurm:
        yield slurm


def _as_host(host: Host, name: str, file: Path) -> list[str]:
    """Runs a command on this host, under its name, with a list of all hosts; it keeps the machine's /sys, which
    `ip netns exec` would hide and a node of Slurm needs."""
    inside = 'mount --bind "$1" /etc/hosts && hostname "$0" && shift && exec "$@"'
    return ["nsenter", f"--net=/run/netns/{host.name}", "unshare", "--mount", "--uts", "--propagation", "slave", "sh",
            "-c", inside, name, str(file)]


@contextlib.contextmanager
def _running(folder: Path, control: str, ports: list[int], names: list[str], nodes: list[str],
             prefixes: list[Sequence[str]]) -> Iterator[Slurm]:
    """A Slurm whose controller and nodes run behind these prefixes."""
    for part in ("state", "log", *(f"spool/{name}" for name in names)):
        (folder / part).mkdir(parents=True)
    for number in range(2):
        os.mknod(folder / f"gpu{number}", 0o20666, os.makedev(1, 3))
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o600)
    (folder / "slurm.conf").write_text(_CONFIGURATION.format(control=control, ports=ports, folder=folder,
                                                             nodes="\n".join(nodes), names=",".join(names),
                                                             first=names[0]))
    (folder / "gres.conf").write_text(_DEVICES.format(folder=folder, names=",".join(names)))
    slurm = Slurm(folder, prefixes[0])
    with contextlib.ExitStack() as daemons:
        _start(daemons, slurm, (), "munged", "--foreground", "--force", f"--key-file={folder}/key",
               f"--socket={folder}/munge.socket", f"--pid-file={folder}/munge.pid", f"--log-file={folder}/log/munge",
               f"--seed-file={folder}/munge.seed")
        _start(daemons, slurm, prefixes[0], "slurmctld", "-D", "-c")
        for name, prefix in zip(names, prefixes[1:], strict=True):
            _start(daemons, slurm, prefix, "slurmd", "-D", "-N", name)
        _wait_until_idle(slurm)
        yield slurm


def _start(daemons: contextlib.ExitStack, slurm: Slurm, prefix: Sequence[str], *command: str) -> None:
    path = shutil.which(command[0])
    assert path is not None
    process = subprocess.Popen([*prefix, path, *command[1:]], env={**os.environ, **slurm.variables},
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    daemons.callback(_stop, process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_until_idle(slurm: Slurm) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):
            if slurm.says("sinfo", "--noheader", "--partition=main", "--format=%T %D") == "idle 2":
                return
        if time.monotonic() > deadline:
            logs = "\n".join(f"{file.name}: {file.read_text()[-1500:]}" for file in (slurm.folder / "log").iterdir())
            raise AssertionError(f"Slurm did not start within {_START_SECONDS:.0f} s\n{logs}")
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as sockets:
        held = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
