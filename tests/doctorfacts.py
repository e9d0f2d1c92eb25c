"""Facts of a machine on which all is well, with two GPUs: each test changes what it is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rankwise.doctor.facts import Facts, Task
from rankwise.doctor.facts.cgroup import Limits
from rankwise.doctor.facts.gpus import Gpu, Gpus
from rankwise.doctor.facts.host import Host, Space
from rankwise.doctor.facts.network import Interface, Network
from rankwise.doctor.facts.software import Device, Pin, Software

GB = 10 ** 9
GPU = Gpu(name="NVIDIA H100", total_bytes=80 * GB, free_bytes=79 * GB, ecc_is_on=True, uncorrected_errors=0,
          rows_to_remap=False, slow_downs=(), is_power_capped=False, temperature_celsius=40, other_processes=(),
          compute_mode=0, has_mig=False, pcie_width=16, pcie_widest=16, pcie_generation=5, nvlinks=18,
          nvlink_version=4)
SOFTWARE = Software(
    python="3.11.7", is_64_bit=True, machine="x86_64", system="Linux", compiler="gcc", torch="2.13.0+cu130",
    torch_metadata="2.13.0", cuda="13.0", cudnn="9.20.0", nccl="2.29.7", cuda_is_available=True, has_gloo=True,
    has_nccl=True, architectures=("sm_80", "sm_90", "compute_90"),
    devices=(Device(name="NVIDIA H100", capability=(9, 0), problem=""),) * 2,
    pins=(Pin(by="torch", package="nvidia-nccl-cu13", wanted="2.29.7", found="2.29.7"),),
    loaded={"libnccl": "/env/site-packages/nvidia/nccl/lib/libnccl.so.2"}, packages_folder="/env/site-packages")
HOST = Host(
    cores=8, cores_of_machine=8, load=0.5, memory_bytes=64 * GB, available_bytes=60 * GB, limits=Limits(),
    shared_memory=Space(total_bytes=32 * GB, free_bytes=32 * GB, problem=""),
    temporary=Space(total_bytes=100 * GB, free_bytes=50 * GB, problem=""), open_files=65536, most_open_files=65536,
    locked_bytes=None, processes=None, has_rdma=False, now_seconds=2e9, newest_file_seconds=1.9e9,
    clock_is_synchronised=True)
LOOPBACK = Interface(name="lo", addresses=("127.0.0.1",), is_up=True, is_loopback=True, is_virtual=True,
                     speed_bytes_per_second=None)
ETHERNET = Interface(name="eth0", addresses=("10.1.2.3",), is_up=True, is_loopback=False, is_virtual=False,
                     speed_bytes_per_second=1.25e9)
DOCKER = Interface(name="docker0", addresses=("172.17.0.1",), is_up=True, is_loopback=False, is_virtual=True,
                   speed_bytes_per_second=None)
NETWORK = Network(
    name="node7", name_addresses=("10.1.2.3",), name_is_bindable=True, name_problem="",
    interfaces=(LOOPBACK, ETHERNET, DOCKER), towards_endpoint=None, endpoint_host=None, endpoint_problem="",
    default_route="eth0", loopback_problem="", ports=(), proxies=(), no_proxy="")


def facts(*, software: dict[str, Any] | None = None, gpus: dict[str, Any] | None = None,
          gpu: dict[str, Any] | None = None, host: dict[str, Any] | None = None,
          network: dict[str, Any] | None = None, variables: dict[str, str] | None = None, nodes: int = 1,
          node_rank: int = 0) -> Facts:
    """A healthy machine with these changes; `gpu` changes the second of its two GPUs."""
    two = Gpus(driver="580.65.06", driver_cuda="13.0", in_slots=2, has_kernel_module=True,
               found=(GPU, replace(GPU, **(gpu or {}))))
    return Facts(software_or_not=replace(SOFTWARE, **(software or {})), gpus_or_not=replace(two, **(gpus or {})),
                 host_or_not=replace(HOST, **(host or {})), network_or_not=replace(NETWORK, **(network or {})),
                 variables=variables or {}, own_words=("node7", "ada", "10.1.2.3"),
                 task=Task(nodes=nodes, node_rank=node_rank))
