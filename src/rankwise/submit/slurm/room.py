"""Whether a partition has the machines that a job asks for, from what is known of the cluster."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from rankwise.errors import UsageError
from rankwise.submit.slurm.cluster import Machine


def of_partition(machines: Sequence[Machine], partition: str | None) -> list[Machine]:
    """The machines of this partition, or of the default one.

    Raises UsageError where there is none of that name, or no default.
    """
    names = sorted({machine.partition for machine in machines})
    found = [machine for machine in machines
             if (machine.partition == partition if partition else machine.is_in_default)]
    if found:
        return found
    given = f"--partition is {partition}." if partition else "--partition is not given."
    truth = "The cluster has no partition of that name" if partition else "The cluster has no default partition"
    close = difflib.get_close_matches(partition or "", names, n=1)
    raise UsageError(given, f"{truth}: it has {', '.join(names) or 'none that you may use'}.",
                     f"Did you mean --partition {close[0]}?" if close else "Give --partition one of these.")


def require(machines: Sequence[Machine], *, nodes: int, devices: int, cores: int, uses_gpus: bool) -> None:
    """Raise UsageError where fewer than `nodes` of the partition's machines have so many devices and cores."""
    where = f"Partition {machines[0].partition}"
    if nodes > len(machines):
        raise UsageError(f"--nodes is {nodes}.", f"{where} has {_counted(len(machines), 'machine')}.",
                         f"Take --nodes {len(machines)} or fewer, or another --partition.")
    for what, asked, has in (("GPU", devices * uses_gpus, [machine.gpus for machine in machines]),
                             ("core", cores, [machine.cores for machine in machines])):
        if sum(amount >= asked for amount in has) < nodes:
            most = sorted(has)[-nodes]
            remedy = (f"Take {most} or fewer: --devices{', or --cores-per-device' if what == 'core' else ''}."
                      if most else "Give --accelerator cpu, or another --partition.")
            raise UsageError(
                f"The job takes {_counted(asked, what)} of {'each of ' if nodes > 1 else ''}"
                f"{_counted(nodes, 'machine')}.",
                f"{where} has {_counted(sum(amount >= most for amount in has), 'machine')} with "
                f"{_counted(most, what)}{' or more' if max(has) > most else ''}, and none better for that many.",
                remedy)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"
