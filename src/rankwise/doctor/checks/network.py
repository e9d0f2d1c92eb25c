"""The network: whether ranks will find each other, over the right interface, at a free port, past any proxy."""

from __future__ import annotations

import ipaddress

from rankwise.doctor.checks.interfaces import gloo_choice, nccl_choice
from rankwise.doctor.facts import Facts
from rankwise.doctor.facts.network import Interface
from rankwise.doctor.finding import Seen, fault, not_applicable, ok, warning


def loopback(facts: Facts) -> Seen:
    """Ranks of one machine meet over 127.0.0.1."""
    problem = facts.network.loopback_problem
    if problem:
        return fault(f"A connection to 127.0.0.1 fails: {problem}.", "sudo ip link set lo up")
    return ok("a connection to 127.0.0.1 works.")


def own_name(facts: Facts) -> Seen:
    """What the own host name resolves to: gloo, left to itself, announces that address to the other ranks."""
    network = facts.network
    private = (network.name, *network.name_addresses)
    several = facts.task.nodes > 1
    if not network.name_addresses:
        tell = fault if several and not facts.variables.get("GLOO_SOCKET_IFNAME") else warning
        return tell(f"The host name {network.name} has no address: {network.name_problem}.",
                    f"echo '127.0.1.1 {network.name}' | sudo tee -a /etc/hosts; for several machines give its real "
                    "address", private=private)
    said = f"the host name {network.name} is {', '.join(network.name_addresses)}"
    if not network.name_is_bindable:
        return warning(f"{said}, which is no address of this machine.",
                       "Correct it in /etc/hosts, or: export GLOO_SOCKET_IFNAME=<interface>", private=private)
    if several and network.endpoint_is_loopback:
        return ok(f"{said}; with an endpoint on loopback all machines are this one.", private=private)
    if several and all(_is_loopback(address) for address in network.name_addresses):
        return warning(f"{said}, which other machines do not reach. rankwise goes by --endpoint; plain scripts do "
                       "not.", "Give the name its real address in /etc/hosts, or: export "
                       f"GLOO_SOCKET_IFNAME={_way(facts) or network.default_route or '<interface>'}", private=private)
    return ok(f"{said}.", private=private)


def gloo(facts: Facts) -> Seen:
    """Which interface gloo takes, and whether it is one that works."""
    network, asked = facts.network, facts.variables.get("GLOO_SOCKET_IFNAME")
    if asked:
        return _of_variable(facts, "GLOO_SOCKET_IFNAME", asked.split(","), [each.name for each in network.interfaces])
    choice = gloo_choice(network)
    said = f"gloo, left to itself, takes {choice}; rankwise gives it the interface on the way to machine 0"
    if facts.task.nodes > 1 and network.towards_endpoint:
        return ok(f"{said}: {network.towards_endpoint}.")
    return ok(f"{said}, on one machine loopback.")


def nccl(facts: Facts) -> Seen:
    """Which interfaces NCCL takes for its sockets, and whether they lead to the other machines."""
    network, asked = facts.network, facts.variables.get("NCCL_SOCKET_IFNAME")
    if not asked and not facts.software.has_nccl:
        return not_applicable("this torch is built without NCCL.")
    chosen = nccl_choice(network.interfaces, asked or "")
    if asked and not chosen:
        return fault(f"NCCL_SOCKET_IFNAME={asked} fits no interface that is up; here are {_names(network.interfaces)}.",
                     _export("NCCL_SOCKET_IFNAME", facts))
    if not chosen:
        return warning("NCCL finds no interface that is up.", "Bring one up: sudo ip link set eth0 up")
    way = _way(facts)
    if facts.task.nodes > 1 and way is not None and way not in chosen:
        return fault(f"NCCL takes {', '.join(chosen)}, and the way to machine 0 is {way}.",
                     f"export NCCL_SOCKET_IFNAME={way}")
    return ok(f"NCCL takes {', '.join(chosen)}.")


def endpoint(facts: Facts) -> Seen:
    """Where the machines are to meet has an address, to which a way leads."""
    network = facts.network
    if network.endpoint_host is None:
        return not_applicable("one machine.")
    private = (network.endpoint_host,)
    if network.towards_endpoint is None:
        return fault(f"There is no way to {network.endpoint_host}: {network.endpoint_problem or 'no interface'}.",
                     "Give --endpoint an address of machine 0 that this machine reaches.", private=private)
    at_loopback = [each for each in network.interfaces if each.is_loopback and each.name == network.towards_endpoint]
    if facts.task.node_rank > 0 and at_loopback and not network.endpoint_is_loopback:
        return fault(f"{network.endpoint_host} is this machine itself, over {network.towards_endpoint}; machine 0 is "
                     "another one.", "Give --endpoint an address of machine 0 that this machine reaches.",
                     private=private)
    return ok(f"the way to {network.endpoint_host} is {network.towards_endpoint}.", private=private)


def ports(facts: Facts) -> Seen:
    """The ports that ranks are told to meet at are free."""
    taken = [port for port in facts.network.ports if port.owner is not None]
    if taken:
        said = "; ".join(f"port {port.number} ({port.meant_by}) is taken by {port.owner}" for port in taken)
        return fault(f"{said}.", "End that process, or take another port; rankwise on one machine chooses a free one "
                     "itself.")
    if not facts.network.ports:
        return ok("no port is asked for; rankwise chooses free ones.")
    return ok(f"free: {', '.join(f'{port.number} ({port.meant_by})' for port in facts.network.ports)}.")


def proxies(facts: Facts) -> Seen:
    """A proxy between ranks: torch's own store goes past it, but gRPC (Ray) and HTTP (etcd, health checks) do not."""
    network = facts.network
    if not network.proxies:
        return ok("no proxy variable is set.")
    hosts = ["localhost", "127.0.0.1", network.name, *([network.endpoint_host] if network.endpoint_host else [])]
    left_out = [host for host in hosts if not covers(network.no_proxy, host)]
    private = (network.name, *([network.endpoint_host] if network.endpoint_host else []))
    said = f"{', '.join(network.proxies)} {'is' if len(network.proxies) == 1 else 'are'} set"
    if left_out:
        return warning(f"{said}, and no_proxy leaves out {', '.join(left_out)}: what asks there by HTTP or gRPC ends "
                       "at the proxy.", f"export no_proxy=${{no_proxy:+$no_proxy,}}{','.join(left_out)}",
                       private=private)
    return ok(f"{said}; no_proxy has this machine.", private=private)


def covers(no_proxy: str, host: str) -> bool:
    """Whether a host is reached without the proxy: by its name, a domain above it, `*`, or a network it lies in."""
    for entry in (each.strip().lower() for each in no_proxy.split(",")):
        if entry == "*" or (entry and (host.lower() == entry.lstrip(".")
                                       or host.lower().endswith(f".{entry.lstrip('.')}"))):
            return True
        try:
            if ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False):
                return True
        except ValueError:
            continue
    return False


def _of_variable(facts: Facts, variable: str, asked: list[str], there: list[str]) -> Seen:
    found = {each.name: each for each in facts.network.interfaces}
    for name in asked:
        if name not in found:
            return fault(f"{variable}={name}: there is no such interface; here are {', '.join(there)}.",
                         _export(variable, facts))
        if not found[name].is_up or not found[name].addresses:
            return fault(f"{variable}={name}: this interface is down or has no address.", _export(variable, facts))
    way = _way(facts)
    if facts.task.nodes > 1 and way is not None and way not in asked:
        tell = fault if all(found[name].is_loopback for name in asked) else warning
        return tell(f"{variable}={','.join(asked)}, and the way to machine 0 is {way}.", _export(variable, facts))
    return ok(f"{variable}={','.join(asked)}, which is up.")


def _export(variable: str, facts: Facts) -> str:
    several = facts.task.nodes > 1 and not facts.network.endpoint_is_loopback
    way = _way(facts) or (facts.network.default_route if several else None)
    return f"unset {variable}" + (f", or: export {variable}={way}" if way else "")


def _names(interfaces: tuple[Interface, ...]) -> str:
    return ", ".join(each.name for each in interfaces if each.is_up and each.addresses)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _way(facts: Facts) -> str | None:
    """The interface on the way to machine 0; None where that is loopback, over which nothing leaves this machine."""
    way = facts.network.towards_endpoint
    return None if any(each.is_loopback and each.name == way for each in facts.network.interfaces) else way
