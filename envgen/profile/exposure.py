"""Who can reach a service: which of its ports are published to the network, and whether it asks for a key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from envgen.profile.model import Profile, Service

API_KEY = "VLLM_API_KEY"


def is_local(address: str) -> bool:
    """True for an address that only the engine's own machine reaches. No address means every interface."""
    return address.startswith("127.") or address in ("::1", "localhost")


def asks_for_key(profile: Profile, service: Service) -> bool:
    """True when the server gets an API key: vLLM's variable among ``secrets``, or the flag in its command."""
    return API_KEY in profile.secrets or any("--api-key" in word for word in service.argv)


def open_ports(service: Service) -> tuple[int, ...]:
    """The host's ports of ``service`` that other machines reach."""
    return tuple(port.host for port in service.host_ports if not is_local(port.address))


def exposed(profile: Profile, name: str) -> str:
    """One sentence about a service that the network reaches; empty for one that it doesn't reach."""
    service = profile.services[name]
    ports = open_ports(service)
    if not ports:
        return ""
    which = f"port {ports[0]} is" if len(ports) == 1 else f"ports {', '.join(map(str, ports))} are"
    sentence = f"{name}: {which} reachable from the network, past ufw"
    return sentence if asks_for_key(profile, service) else f"{sentence}, and the server asks for no API key"


def on_loopback(service: Service) -> str:
    """The first open port, published on the loopback address instead."""
    return str(replace(next(port for port in service.ports if not is_local(port.address)), address="127.0.0.1"))


def renumbered(service: Service, numbers: Mapping[int, int]) -> str:
    """The ports of ``service`` as a YAML list, with other ``numbers`` for the host's ports, on the same address."""
    return f"[{', '.join(repr(str(replace(p, host=numbers.get(p.host, p.host)))) for p in service.ports)}]"
