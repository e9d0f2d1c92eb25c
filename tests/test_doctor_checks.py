"""Each check of `rankwise doctor` fails where it must, and only there: machines that are healthy but for one thing."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from doctorfacts import DOCKER, ETHERNET, LOOPBACK, facts
from rankwise.doctor import checks, privacy, table, values
from rankwise.doctor.checks.interfaces import nccl_choice
from rankwise.doctor.checks.network import covers
from rankwise.doctor.checks.versions import has_code_for
from rankwise.doctor.examination import Examination
from rankwise.doctor.facts import Unread, cgroup
from rankwise.doctor.facts.cgroup import Limits
from rankwise.doctor.facts.host import Space
from rankwise.doctor.facts.network import Port
from rankwise.doctor.facts.software import Device, Pin
from rankwise.doctor.finding import FAULT, OK, WARNING, Finding
from rankwise.doctor.nominal import Nominal, between_ranks
from rankwise.doctor.privacy import scrubbed

NO_GPU = {"driver": None, "problem": "NVML Shared Library Not Found", "found": (), "in_slots": 0,
          "has_kernel_module": False}
LOOPED = {"towards_endpoint": "lo", "endpoint_host": "127.0.0.1"}
SMALL = Space(total_bytes=64 << 20, free_bytes=64 << 20, problem="")

PLANTED: list[tuple[str, dict[str, Any], str, str]] = [   # check, what is changed, verdict, words of evidence or remedy
    ("driver", {"gpus": NO_GPU | {"in_slots": 2}}, FAULT, "2 NVIDIA devices on the PCI bus, and no driver"),
    ("driver", {"gpus": NO_GPU | {"has_kernel_module": True}}, FAULT, "sudo reboot"),
    ("driver", {"gpus": {"found": ()}}, FAULT, "--gpus all"),
    ("driver", {"gpus": NO_GPU}, "not applicable", "no NVIDIA GPU"),
    ("torch and CUDA", {"software": {"cuda": None, "cuda_is_available": False, "devices": ()}}, FAULT,
     "torch==2.15.0"),
    ("torch and CUDA", {"software": {"cuda": None, "cuda_is_available": False, "devices": ()},
                        "gpus": {"driver": "550.54.14"}}, FAULT, "torch==2.10.0"),
    ("torch and CUDA", {"software": {"cuda": None, "cuda_is_available": False, "devices": ()},
                        "gpus": {"driver": "470.10"}}, FAULT, "Update the driver"),
    ("torch and CUDA", {"software": {"cuda_is_available": False, "devices": ()}}, FAULT, "torch sees no GPU"),
    ("torch and CUDA", {"software": {"cuda_is_available": False}, "variables": {"CUDA_VISIBLE_DEVICES": ""}}, WARNING,
     "unset CUDA_VISIBLE_DEVICES"),
    ("torch and CUDA", {"software": {"torch": None, "torch_problem": "OSError: libcudart.so.13"}}, FAULT, "libcudart"),
    ("Python", {"software": {"python": "3.9.2"}}, FAULT, "3.10 or newer"),
    ("Python", {"software": {"is_64_bit": False}}, FAULT, "64-bit"),
    ("Python", {"software": {"system": "Darwin"}}, WARNING, "tested on Linux"),
    ("torch", {"software": {"torch": "2.6.0"}}, FAULT, "2.7.1 or newer"),
    ("torch", {"software": {"torch_metadata": "2.11.0"}}, FAULT, "two installations"),
    ("torch", {"software": {"torch": "3.4.0", "torch_metadata": "3.4.0"}}, WARNING, "not among the releases"),
    ("backends", {"software": {"has_nccl": False}}, FAULT, "has no NCCL"),
    ("backends", {"software": {"has_nccl": False, "has_gloo": False, "cuda_is_available": False}}, FAULT,
     "no backend"),
    ("numpy", {"software": {"numpy_problem": "numpy.core.multiarray failed to import"}}, FAULT, "multiarray"),
    ("pinned packages", {"software": {"pins": (Pin(by="torch", package="nvidia-nccl-cu13", wanted="2.29.7",
                                                   found="2.27.3"),)}}, FAULT, "'nvidia-nccl-cu13==2.29.7'"),
    ("pinned packages", {"software": {"pins": (Pin(by="torchvision", package="torch", wanted="2.12.0",
                                                   found="2.13.0"),)}}, FAULT, "pip install torchvision"),
    ("compiler", {"software": {"compiler": None}}, WARNING, "gcc"),
    ("driver for CUDA", {"gpus": {"driver": "550.54.14"}, "software": {"cuda_is_available": False}}, FAULT,
     "needs driver 580.65.06"),
    ("driver for CUDA", {"gpus": {"driver": "550.54.14"}}, WARNING, "forward compatibility"),
    ("driver for CUDA", {"gpus": {"driver": "530.30.02"}, "software": {"cuda": "12.6"}}, OK,
     "minor version compatibility"),
    ("cuDNN", {"software": {"cudnn": "8.9.7"}}, FAULT, "built with 9.20.0"),
    ("cuDNN", {"software": {"cudnn": "9.21.0"}}, WARNING, "9.21.0 is loaded"),
    ("cuDNN", {"software": {"cudnn": None}}, FAULT, "missing, or does not fit"),
    ("NCCL", {"software": {"nccl": "2.26.2"}}, FAULT, "2.26.2 is loaded"),
    ("NCCL", {"software": {"nccl": "2.26.2", "loaded": {"libnccl": "/opt/nccl/lib/libnccl.so.2"}}}, FAULT,
     "unset LD_LIBRARY_PATH"),
    ("NCCL", {"software": {"loaded": {"libnccl": "/opt/nccl/lib/libnccl.so.2"}}}, WARNING, "from /opt/nccl/lib"),
    ("architecture", {"software": {"devices": (Device(name="GTX 1080", capability=(6, 1), problem=""),)}}, FAULT,
     "GTX 1080 (sm_61)"),
    ("architecture", {"software": {"devices": (Device(name="H100", capability=(9, 0), problem="CUDA error: no "
                                                      "kernel image"),)}}, FAULT, "GPU 0: CUDA error"),
    ("memory", {"gpu": {"free_bytes": 10 ** 9}}, WARNING, "On GPU 1"),
    ("memory errors", {"gpu": {"uncorrected_errors": 3}}, FAULT, "GPU 1: 3"),
    ("memory errors", {"gpu": {"rows_to_remap": True}}, WARNING, "gpu-reset"),
    ("memory errors", {"gpu": {"ecc_is_on": False}}, WARNING, "nvidia-smi -e 1"),
    ("slow-down", {"gpu": {"slow_downs": ("too hot (hardware)",)}}, WARNING, "GPU 1: too hot (hardware), 40 °C"),
    ("other processes", {"gpu": {"other_processes": (4711,)}}, WARNING, "process 4711"),
    ("other processes", {"gpu": {"other_processes": (4711,), "compute_mode": 3}}, FAULT, "one process at a time"),
    ("other processes", {"gpu": {"compute_mode": 2}}, FAULT, "prohibited"),
    ("other processes", {"gpu": {"has_mig": True}}, WARNING, "MIG"),
    ("links", {"gpu": {"pcie_width": 4}}, WARNING, "GPU 1: 4 of 16 lanes"),
    ("links", {"gpus": {"without_peer_access": ((0, 1),)}}, WARNING, "between GPU 0-1"),
    ("cores", {"host": {"limits": Limits(cores=2.5)}}, WARNING, "OMP_NUM_THREADS=2"),
    ("load", {"host": {"load": 12.0}}, WARNING, "12.0 processes"),
    ("memory", {"host": {"limits": Limits(memory_bytes=1 << 30)}}, FAULT, "docker run --memory"),
    ("memory", {"host": {"limits": Limits(memory_bytes=8 << 30)}}, WARNING, "a control group allows 8.59 GB"),
    ("memory", {"host": {"available_bytes": 10 ** 9}}, WARNING, "1.00 GB of 64.0 GB"),
    ("shared memory", {"host": {"shared_memory": SMALL}}, FAULT, "--shm-size"),
    ("shared memory", {"host": {"shared_memory": replace(SMALL, free_bytes=256 << 20)}}, WARNING, "little"),
    ("shared memory", {"host": {"shared_memory": replace(SMALL, free_bytes=1 << 40, problem="Permission denied")}},
     FAULT, "Permission denied"),
    ("shared memory", {"host": {"shared_memory": None}}, FAULT, "no /dev/shm"),
    ("open files", {"host": {"open_files": 128, "most_open_files": 4096}}, FAULT, "ulimit -n 4096"),
    ("open files", {"host": {"open_files": 1000, "most_open_files": 1000}}, WARNING, "--ulimit nofile"),
    ("locked memory", {"host": {"locked_bytes": 65536, "has_rdma": True}}, FAULT, "memlock=-1"),
    ("processes", {"host": {"limits": Limits(processes=100)}}, WARNING, "--pids-limit"),
    ("temporary folder", {"host": {"temporary": replace(SMALL, problem="Read-only file system")}}, FAULT, "TMPDIR"),
    ("temporary folder", {"host": {"temporary": SMALL}}, WARNING, "67.1 MB left"),
    ("clock", {"host": {"now_seconds": 1e9}}, FAULT, "before rankwise was installed"),
    ("clock", {"host": {"clock_is_synchronised": False}}, "not applicable", "matters to several machines"),
    ("clock", {"host": {"clock_is_synchronised": False}, "nodes": 2}, WARNING, "chrony"),
    ("loopback", {"network": {"loopback_problem": "Network is unreachable"}}, FAULT, "ip link set lo up"),
    ("host name", {"network": {"name_addresses": (), "name_problem": "Name or service not known"}}, WARNING,
     "/etc/hosts"),
    ("host name", {"network": {"name_addresses": ()}, "nodes": 2}, FAULT, "has no address"),
    ("host name", {"network": {"name_addresses": ("127.0.1.1",), "towards_endpoint": "eth0"}, "nodes": 2}, WARNING,
     "GLOO_SOCKET_IFNAME=eth0"),
    ("host name", {"network": {"name_addresses": ("127.0.1.1",), "towards_endpoint": "lo", "endpoint_host": "node7"},
                   "nodes": 2}, WARNING, "GLOO_SOCKET_IFNAME=eth0"),
    ("host name", {"network": LOOPED | {"name_addresses": ("127.0.0.1",)}, "nodes": 2}, OK,
     "all machines are this one"),
    ("host name", {"network": {"name_is_bindable": False}}, WARNING, "no address of this machine"),
    ("endpoint", {"network": {"endpoint_host": "head", "endpoint_problem": "No route to host"}}, FAULT, "No route"),
    ("endpoint", {"network": {"endpoint_host": "head", "towards_endpoint": "lo"}, "nodes": 2, "node_rank": 1}, FAULT,
     "is this machine itself"),
    ("gloo's interface", {"variables": {"GLOO_SOCKET_IFNAME": "eth99"}}, FAULT, "no such interface"),
    ("gloo's interface", {"variables": {"GLOO_SOCKET_IFNAME": "lo"}, "nodes": 2,
                          "network": {"towards_endpoint": "eth0"}}, FAULT, "export GLOO_SOCKET_IFNAME=eth0"),
    ("gloo's interface", {"variables": {"GLOO_SOCKET_IFNAME": "eth0"},
                          "network": {"interfaces": (LOOPBACK, replace(ETHERNET, is_up=False))}}, FAULT, "is down"),
    ("NCCL's interface", {"variables": {"NCCL_SOCKET_IFNAME": "ens"}}, FAULT, "fits no interface"),
    ("NCCL's interface", {"variables": {"NCCL_SOCKET_IFNAME": "docker"}, "nodes": 2,
                          "network": {"towards_endpoint": "eth0"}}, FAULT, "export NCCL_SOCKET_IFNAME=eth0"),
    ("NCCL's interface", {"network": LOOPED, "nodes": 2}, OK, "NCCL takes eth0"),
    ("ports", {"network": {"ports": (Port(number=29500, meant_by="MASTER_PORT", owner="process 7 (python)"),)}}, FAULT,
     "port 29500 (MASTER_PORT) is taken by process 7 (python)"),
    ("proxy", {"network": {"proxies": ("http_proxy",)}}, WARNING,
     "no_proxy=${no_proxy:+$no_proxy,}localhost,127.0.0.1,node7"),
    ("proxy", {"network": {"proxies": ("http_proxy",), "no_proxy": "localhost,127.0.0.1,node7"}}, OK, "has this"),
    ("NCCL_P2P_DISABLE", {"variables": {"NCCL_P2P_DISABLE": "1"}}, WARNING, "through the host"),
    ("NCCL_P2P_DISABLE", {"variables": {"NCCL_P2P_DISABLE": "0"}}, OK, "NCCL_P2P_DISABLE=0"),
    ("OMP_NUM_THREADS", {"variables": {"OMP_NUM_THREADS": "many"}}, FAULT, "no number of threads"),
    ("MASTER_PORT", {"variables": {"MASTER_PORT": "abc"}}, FAULT, "it is no port"),
    ("NCCL_NEW", {"variables": {"NCCL_NEW": "x"}}, OK, "does not know"),
]


def of(findings: list[Finding], check: str, group: str | None = None) -> Finding:
    found, *_ = [each for each in findings if each.check == check and group in (None, each.group)]
    return found


def test_a_healthy_machine_has_no_fault_and_no_warning() -> None:
    """Nothing is found where nothing is wrong; the tutorials' two commands come first."""
    findings = checks.examine(facts())
    assert {each.verdict for each in findings} <= {OK, "not applicable"}
    assert findings[0].evidence == "driver 580.65.06, which knows CUDA up to 13.0; 2 GPUs: NVIDIA H100."
    assert findings[1].evidence == "torch 2.13.0+cu130 sees CUDA 13.0 and 2 GPUs."


@pytest.mark.parametrize(("check", "changes", "verdict", "words"), PLANTED,
                         ids=[f"{each[0]}-{number}" for number, each in enumerate(PLANTED)])
def test_what_is_planted_is_found(check: str, changes: dict[str, Any], verdict: str, words: str) -> None:
    """Each check sees its own trouble, says what it saw and what to do."""
    group = checks.HOST if "host" in changes else checks.GPUS if "gpu" in changes else None
    found = of(checks.examine(facts(**changes)), check, group)
    assert found.verdict == verdict, found
    assert words in f"{found.evidence} {found.remedy}"


def test_every_check_can_fail() -> None:
    """No check stands in the table that no test makes fail."""
    failing = {check for check, _, verdict, _ in PLANTED if verdict in (WARNING, FAULT)}
    assert {check.name for check in checks.CHECKS} <= failing


def test_a_check_that_crashes_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """And stops no other one."""
    broken = checks.Check(group="host", name="broken", look=lambda _: 1 / 0)   # type: ignore[arg-type,return-value]
    monkeypatch.setattr(checks, "CHECKS", (broken, *checks.CHECKS))
    findings = checks.examine(facts())
    assert findings[0].verdict == WARNING
    assert "ZeroDivisionError" in findings[0].evidence
    assert of(findings, "clock").verdict == OK


def test_facts_that_cannot_be_read_are_a_finding() -> None:
    """A driver that hangs is one fault; what depends on it is said to be unknown."""
    stuck = replace(facts(), gpus_or_not=Unread(what="gpus", reason="no answer within 30 s", is_fault=True))
    findings = checks.examine(stuck)
    assert [each.check for each in findings if each.verdict == FAULT] == ["facts"]
    assert "not known" in of(findings, "driver").evidence
    assert of(findings, "driver").verdict == "not applicable"


def test_a_bug_report_has_nothing_private() -> None:
    """Names, addresses and homes are hidden, and in a remedy a shell can read what stands there. JSON has them. The
    value of a variable that nobody knows is nowhere.
    """
    changed = facts(variables={"NCCL_SECRET": "hunter2-and-more", "MASTER_ADDR": "node7.lab.example"}, nodes=2,
                    network={"name_addresses": ("10.9.8.7",), "name_is_bindable": False, "endpoint_host": "head.lab",
                             "endpoint_problem": "cannot open /home/ada/x", "proxies": ("http_proxy",)})
    examination = Examination(findings=checks.examine(changed), own_words=changed.own_words)
    text, whole = values.as_markdown(examination), str(values.as_values(examination))
    for word in ("hunter2", "node7", "10.9.8.7", "10.1.2.3", "head.lab", "ada"):
        assert word not in text, word
    assert "hunter2" not in whole
    assert "node7.lab.example" in whole
    assert "export no_proxy=${no_proxy:+$no_proxy,}localhost,127.0.0.1,HIDDEN,HIDDEN" in text
    assert "NCCL_SECRET=(hidden)" in text
    assert "torch 2.13.0+cu130" in text


def test_names_of_variables_are_whole_on_a_terminal() -> None:
    """Also in 80 columns."""
    console = Console(width=80, file=io.StringIO(), record=True)
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    table.show(console, Examination(findings=checks.examine(facts(variables={name: "1"})), own_words=()))
    assert name in console.export_text()


def test_machines_that_are_one_share_a_memory() -> None:
    """With an endpoint on loopback no interface bounds what their ranks exchange."""
    assert between_ranks(facts(nodes=2, network=LOOPED), on_gpus=False) is None
    found = between_ranks(facts(nodes=2, network={"towards_endpoint": "eth0", "endpoint_host": "head"}), on_gpus=False)
    assert found == Nominal(name="interface eth0", bytes_per_second=1.25e9)


@given(st.text("abcxyz019.-", min_size=3, max_size=12), st.text("abc 019.,:()", max_size=20))
def test_a_private_word_never_stands_by_itself(word: str, around: str) -> None:
    """Whatever stands around it; versions and words that only contain it stay."""
    if word in privacy._NOT_PRIVATE:
        return
    assert f" {word} " not in scrubbed(f"{around} {word} {around}", [word])


def test_versions_are_no_addresses() -> None:
    """Four numbers are a version; with a port they are an address."""
    text = "nvidia-cudnn-cu12 9.10.2.21 at 10.0.0.7:29500, [fe80::1:2:3%eth0], nvme and 127.0.0.1:80"
    assert scrubbed(text, ["vm"]) == "nvidia-cudnn-cu12 9.10.2.21 at (hidden), [(hidden)], nvme and 127.0.0.1:80"


@pytest.mark.parametrize(("no_proxy", "host", "expected"), [
    ("localhost", "localhost", True), (".lab.example", "n1.lab.example", True), ("lab.example", "n1.lab.example", True),
    ("ab.example", "n1.lab.example", False), ("10.0.0.0/8", "10.9.9.9", True), ("10.0.0.0/8", "11.9.9.9", False),
    ("*", "anything", True), ("", "localhost", False), ("LocalHost, other", "localhost", True)])
def test_which_hosts_go_past_the_proxy(no_proxy: str, host: str, expected: bool) -> None:
    """By name, by domain, by network."""
    assert covers(no_proxy, host) is expected


@pytest.mark.parametrize(("variable", "expected"), [
    ("", ["eth0"]), ("eth", ["eth0"]), ("=eth0", ["eth0"]), ("=eth", []), ("^docker", ["lo", "eth0"]),
    ("^=docker0,lo", ["eth0"]), ("docker,lo", ["lo", "docker0"])])
def test_which_interfaces_nccl_takes(variable: str, expected: list[str]) -> None:
    """As NCCL's guide says of NCCL_SOCKET_IFNAME."""
    assert nccl_choice((LOOPBACK, ETHERNET, DOCKER), variable) == expected


def test_nccl_takes_what_is_left() -> None:
    """InfiniBand first; a bridge of docker where there is nothing else, and loopback last."""
    infiniband = replace(ETHERNET, name="ib0")
    assert nccl_choice((LOOPBACK, ETHERNET, infiniband), "") == ["ib0"]
    assert nccl_choice((LOOPBACK, DOCKER), "") == ["docker0"]
    assert nccl_choice((LOOPBACK, replace(ETHERNET, is_up=False)), "") == ["lo"]


@pytest.mark.parametrize(("capability", "built", "expected"), [
    ((8, 6), ("sm_80",), True), ((8, 0), ("sm_86",), False), ((9, 0), ("sm_80",), False),
    ((9, 0), ("compute_80",), True),
    ((9, 0), ("sm_90a",), True), ((9, 1), ("sm_90a",), False), ((12, 0), ("sm_120",), True),
    ((10, 3), ("sm_100",), True), ((6, 1), ("sm_75", "compute_90"), False)])
def test_code_for_an_architecture(capability: tuple[int, int], built: tuple[str, ...], expected: bool) -> None:
    """As CUDA's guide to binary compatibility has it."""
    assert has_code_for(capability, built) is expected


def test_limits_of_control_groups(tmp_path: Path) -> None:
    """The tightest one up to the root counts, in both versions; `max` and huge numbers are no limits."""
    def files(**content: str) -> Path:
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in content.items():
            file = root / name.replace("__", "/").replace("_dot_", ".")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return root

    second = files(proc__self__cgroup="0::/job/step\n", sys__fs__cgroup__job__cpu_dot_max="150000 100000\n",
                   sys__fs__cgroup__job__step__cpu_dot_max="max 100000\n",
                   sys__fs__cgroup__job__step__memory_dot_max="max\n", sys__fs__cgroup__memory_dot_max="4294967296\n",
                   sys__fs__cgroup__job__pids_dot_max="77\n")
    assert cgroup.read(second) == Limits(cores=1.5, memory_bytes=4 << 30, processes=77)
    first = files(proc__self__cgroup="4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n",
                  sys__fs__cgroup__cpu__cpu_dot_cfs_quota_us="50000",
                  sys__fs__cgroup__cpu__cpu_dot_cfs_period_us="100000",
                  sys__fs__cgroup__memory__memory_dot_limit_in_bytes="2147483648")
    assert cgroup.read(first) == Limits(cores=0.5, memory_bytes=2 << 30)
    free = files(proc__self__cgroup="4:memory:/\n3:cpu:/\n", sys__fs__cgroup__cpu__cpu_dot_cfs_quota_us="-1",
                 sys__fs__cgroup__memory__memory_dot_limit_in_bytes="9223372036854771712")
    assert cgroup.read(free) == Limits()
    assert cgroup.read(tmp_path / "none") == Limits()
