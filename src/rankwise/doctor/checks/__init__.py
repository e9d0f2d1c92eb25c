"""Checks: each looks at the facts of this machine, and says what it sees. None of them reads anything itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rankwise.doctor.checks import driver, gpus, host, network, software, variables, versions
from rankwise.doctor.facts import Facts, NotReadError
from rankwise.doctor.finding import Finding, Seen, fault, not_applicable, ok, warning

DRIVER, SOFTWARE, VERSIONS = "driver and CUDA", "Python and torch", "versions"
GPUS, HOST, NETWORK, VARIABLES = "GPUs", "host", "network", "environment variables"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check: its group and name, and the function from facts to what it sees."""

    group: str
    name: str
    look: Callable[[Facts], Seen]


CHECKS = tuple(Check(group=group, name=name, look=look) for group, name, look in (
    (DRIVER, "driver", driver.driver_seen),
    (DRIVER, "torch and CUDA", driver.torch_sees_cuda),
    (SOFTWARE, "Python", software.python),
    (SOFTWARE, "torch", software.torch),
    (SOFTWARE, "backends", software.backends),
    (SOFTWARE, "numpy", software.numpy),
    (SOFTWARE, "pinned packages", software.pins),
    (SOFTWARE, "compiler", software.compiler),
    (VERSIONS, "driver for CUDA", versions.driver),
    (VERSIONS, "cuDNN", versions.cudnn),
    (VERSIONS, "NCCL", versions.nccl),
    (VERSIONS, "architecture", versions.architecture),
    (GPUS, "memory", gpus.memory),
    (GPUS, "memory errors", gpus.ecc),
    (GPUS, "slow-down", gpus.throttling),
    (GPUS, "other processes", gpus.others),
    (GPUS, "links", gpus.links),
    (HOST, "cores", host.cores),
    (HOST, "load", host.load),
    (HOST, "memory", host.memory),
    (HOST, "shared memory", host.shared_memory),
    (HOST, "open files", host.open_files),
    (HOST, "locked memory", host.locked_memory),
    (HOST, "processes", host.processes),
    (HOST, "temporary folder", host.temporary_folder),
    (HOST, "clock", host.clock),
    (NETWORK, "loopback", network.loopback),
    (NETWORK, "host name", network.own_name),
    (NETWORK, "endpoint", network.endpoint),
    (NETWORK, "gloo's interface", network.gloo),
    (NETWORK, "NCCL's interface", network.nccl),
    (NETWORK, "ports", network.ports),
    (NETWORK, "proxy", network.proxies),
))


def examine(facts: Facts) -> list[Finding]:
    """The findings of all checks, those of a driver and of torch's CUDA first."""
    return [*(_finding(check, facts) for check in CHECKS), *_unread(facts),
            *(_finding(check, facts) for check in _of_variables(facts))]


def _of_variables(facts: Facts) -> list[Check]:
    """A check for each variable that is set; one, where none is."""
    if not facts.variables:
        return [Check(group=VARIABLES, name="none", look=lambda _: ok("none that matters is set."))]
    return [Check(group=VARIABLES, name=name, look=partial(_look_at_variable, name, value))
            for name, value in facts.variables.items()]


def _look_at_variable(name: str, value: str, facts: Facts) -> Seen:
    return variables.seen_of(name, value)


def _finding(check: Check, facts: Facts) -> Finding:
    """What a check saw; one that cannot be made, or that fails itself, is told and stops no other."""
    try:
        seen = check.look(facts)
    except NotReadError as error:
        seen = not_applicable(f"not known: the facts on {error.unread.what} could not be read.")
    except Exception as error:
        seen = warning(f"This check itself failed: {type(error).__name__}: {error}",
                       "Please report it, with the output of: rankwise doctor --quick --markdown")
    return Finding.of(check.group, check.name, seen)


def _unread(facts: Facts) -> list[Finding]:
    """A finding for each part of the facts that could not be read; one whose reader hangs or dies is a fault."""
    groups = {"software": SOFTWARE, "gpus": GPUS, "host": HOST, "network": NETWORK}
    remedies = {"software": "python -c 'import torch; torch.cuda.is_available()'", "gpus": "nvidia-smi"}
    return [Finding.of(groups[part.what], "facts", (fault if part.is_fault else warning)(
        f"The facts on {part.what} could not be read: {part.reason}.",
        f"See where this ends: {remedies[part.what]}" if part.what in remedies else ""))
        for part in facts.unread()]
