"""The machine: cores, memory, shared memory, limits and the clock, against what a training with several ranks needs."""

from __future__ import annotations

from rankwise.doctor.facts import Facts
from rankwise.doctor.finding import Seen, fault, not_applicable, ok, warning
from rankwise.quantities import byte_count

_LITTLE_MEMORY = 2 << 30     # a rank with torch holds 0.3 GB and more before the first tensor
_SHARED_FAULT = 64 << 20     # what docker gives by default, and where data workers die of a bus error
_SHARED_WARNING = 512 << 20  # as DeepSpeed's ds_report warns
_FILES_FAULT, _FILES_WARNING = 256, 1024
_LOCKED_WARNING = 1 << 30
_LITTLE_SPACE = 1 << 30


def cores(facts: Facts) -> Seen:
    """How many cores this process may use, and whether a control group gives it less time than they have."""
    host = facts.host
    said = f"{host.cores} of {host.cores_of_machine} cores may be used"
    limit = host.limits.cores
    if limit is not None and limit < host.cores:
        return warning(f"{said}, and a control group allows the time of {limit:g}: threads for all cores wait for "
                       "each other.", f"export OMP_NUM_THREADS={max(1, int(limit))}, or rankwise run --threads N")
    return ok(f"{said}.")


def load(facts: Facts) -> Seen:
    """Whether others use the cores just now."""
    host = facts.host
    if host.load is None:
        return not_applicable("this system does not tell its load.")
    said = f"{host.load:.1f} processes wanted a core in the last minute, of {host.cores_of_machine}"
    if host.load > host.cores_of_machine:
        return warning(f"{said}: what is measured here shares them.", "See who it is: top -o %CPU")
    return ok(f"{said}.")


def memory(facts: Facts) -> Seen:
    """The memory that is left, in the machine and in its control group."""
    host = facts.host
    said = f"{byte_count(host.available_bytes)} of {byte_count(host.memory_bytes)} are available"
    limit = host.limits.memory_bytes
    if limit is not None and limit < host.memory_bytes:
        said += f"; a control group allows {byte_count(limit)}"
        if limit < _LITTLE_MEMORY:
            return fault(f"{said}: ranks are killed when they reach it.",
                         "Give the container more: docker run --memory 16g")
        return warning(f"{said}: what reaches it is killed, whatever the machine has.",
                       "docker run --memory ..., or the job's own option (--mem with Slurm)")
    if host.available_bytes < _LITTLE_MEMORY:
        return warning(f"{said}.", "See who holds it: top -o %MEM")
    return ok(f"{said}.")


def shared_memory(facts: Facts) -> Seen:
    """Data workers and NCCL exchange through /dev/shm; a container has 64 MB of it unless it is given more."""
    space = facts.host.shared_memory
    remedy = "docker run --shm-size 8g, or --ipc host; without a container: sudo mount -o remount,size=8G /dev/shm"
    if space is None:
        if facts.software.system != "Linux":
            return not_applicable("this system has no /dev/shm.")
        return fault("There is no /dev/shm: data workers and NCCL cannot share memory.", remedy)
    said = f"{byte_count(space.free_bytes)} of {byte_count(space.total_bytes)} are free in /dev/shm"
    if space.problem:
        return fault(f"{said}, and cannot be written to: {space.problem}.", remedy)
    if space.free_bytes <= _SHARED_FAULT:
        return fault(f"{said}: data workers die of a bus error when it is full.", remedy)
    if space.free_bytes < _SHARED_WARNING:
        return warning(f"{said}: little, for several data workers with large batches.", remedy)
    return ok(f"{said}.")


def open_files(facts: Facts) -> Seen:
    """Each tensor of a data worker, and each connection between ranks, is an open file."""
    soft, hard = facts.host.open_files, facts.host.most_open_files
    if soft is None:
        return ok("ulimit -n: no limit.")
    said = f"ulimit -n: {soft} open files a process"
    most = "unlimited" if hard is None else str(hard)
    if soft < _FILES_WARNING:
        remedy = (f"ulimit -n {most}" if hard is None or hard > soft else
                  "docker run --ulimit nofile=65536, or /etc/security/limits.conf")
        tell = fault if soft < _FILES_FAULT else warning
        return tell(f"{said}: data workers fail with `Too many open files` or `received 0 items of ancdata`.", remedy)
    return ok(f"{said}; it can be raised to {most}." if hard != soft else f"{said}.")


def locked_memory(facts: Facts) -> Seen:
    """RDMA pins the memory that it sends from."""
    host = facts.host
    if host.locked_bytes is None:
        return ok("ulimit -l: no limit.")
    said = f"ulimit -l: {byte_count(host.locked_bytes)} of memory can be pinned"
    if host.has_rdma and host.locked_bytes < _LOCKED_WARNING:
        return fault(f"{said}, and there is RDMA (InfiniBand or RoCE), which pins what it sends.",
                     "docker run --ulimit memlock=-1; without a container: ulimit -l unlimited")
    return ok(f"{said}{'' if host.has_rdma else '; without RDMA that is enough'}.")


def processes(facts: Facts) -> Seen:
    """Each rank has some dozens of threads, and a limit counts them as processes."""
    limits = [each for each in (facts.host.processes, facts.host.limits.processes) if each is not None]
    if not limits:
        return ok("no limit of processes.")
    said = f"at most {min(limits)} processes and threads"
    if min(limits) < _FILES_WARNING:
        return warning(f"{said}.", "docker run --pids-limit -1; without a container: ulimit -u 65536")
    return ok(f"{said}.")


def temporary_folder(facts: Facts) -> Seen:
    """Launchers, compilers and data sets need a folder for what is not kept."""
    space = facts.host.temporary
    if space.problem:
        return fault(f"The temporary folder cannot be written to: {space.problem}.", "export TMPDIR=/some/folder")
    if space.free_bytes < _LITTLE_SPACE:
        return warning(f"The temporary folder has {byte_count(space.free_bytes)} left.",
                       "Make room there, or: export TMPDIR=/some/folder")
    return ok(f"the temporary folder has {byte_count(space.free_bytes)} left.")


def clock(facts: Facts) -> Seen:
    """A clock that runs behind breaks downloads. How far those of several machines differ, their ranks measure."""
    host = facts.host
    if host.now_seconds < host.newest_file_seconds:
        return fault("The clock shows a time before rankwise was installed here.",
                     "sudo timedatectl set-ntp true")
    if host.clock_is_synchronised:
        return ok("the clock is kept by a time service.")
    if host.clock_is_synchronised is None:
        return not_applicable("whether a time service keeps the clock is not known.")
    if facts.task.nodes == 1:
        return not_applicable("no time service keeps the clock, says the kernel; that matters to several machines.")
    return warning("No time service keeps the clock, says the kernel: those of several machines drift apart, and the "
                   "times in their logs with them.", "sudo apt install chrony, or: sudo timedatectl set-ntp true")
