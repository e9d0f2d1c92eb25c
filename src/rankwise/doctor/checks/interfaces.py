"""Which network interface a backend takes by itself: the rules of gloo in torch and of NCCL, as pure functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rankwise.doctor.facts.network import Interface, Network


def gloo_choice(network: Network) -> str:
    """The interface of the address that the host name resolves to, else loopback.

    As torch's ProcessGroupGloo does where GLOO_SOCKET_IFNAME is not set.
    """
    for address in network.name_addresses if network.name_is_bindable else ():
        for interface in network.interfaces:
            if address in interface.addresses or (interface.is_loopback and address.startswith("127.")):
                return interface.name
    return next((each.name for each in network.interfaces if each.is_loopback), "loopback")


def nccl_choice(interfaces: Sequence[Interface], variable: str) -> list[str]:
    """The interfaces that NCCL uses, given what NCCL_SOCKET_IFNAME says (empty: nothing).

    By itself it takes those named ib..., else all but docker... and lo, else docker..., else lo (NCCL's guide,
    "NCCL_SOCKET_IFNAME").
    """
    there = [each for each in interfaces if each.is_up and each.addresses]
    if variable:
        return [each.name for each in there if _asked_for(variable)(each.name)]
    for wanted in ("ib", "^docker,lo", "docker", "lo"):
        found = [each.name for each in there if _asked_for(wanted)(each.name)]
        if found:
            return found
    return []


def _asked_for(variable: str) -> Callable[[str], bool]:
    """`eth` is a prefix, `=eth0` a whole name, `^` in front means all others."""
    is_exclusion, listed = variable.startswith("^"), variable.lstrip("^")
    is_exact, words = listed.startswith("="), [word for word in listed.lstrip("=").split(",") if word]

    def fits(name: str) -> bool:
        matches = any(name == word if is_exact else name.startswith(word) for word in words)
        return matches != is_exclusion
    return fits
