"""The exposure of a service: ports that are open to the network, and its API key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from envgen.profile.model import Profile
from envgen.profile.service import Service

API_KEY = "VLLM_API_KEY"


def is_local(address: str) -> bool:
    """True for an address that only the engine's machine can reach. No address means all
    interfaces.
    """
    return address.startswith("127.") or address in ("::1", "localhost")


def asks_for_key(profile: Profile, service: Service) -> bool:
    """True where the server has an API key: vLLM's variable, or the flag in its command."""
    return API_KEY in (*profile.secrets, *service.env) or any(
        "--api-key" in word for word in service.argv
    )


def open_ports(service: Service) -> tuple[int, ...]:
    """The host's ports of ``service`` that other machines can reach."""
    return tuple(port.host for port in service.host_ports if not is_local(port.address))


def exposed(profile: Profile, name: str, running: Sequence[int] = ()) -> str:
    """One sentence about a service that the network can reach; "" for others. ``running``: open
    ports as they are.
    """
    service = profile.services[name]
    ports = running or open_ports(service)
    if not ports:
        return ""
    which = f"port {ports[0]} is" if len(ports) == 1 else f"ports {', '.join(map(str, ports))} are"
    sentence = f"{name}: {which} reachable from the network, past ufw"
    return (
        sentence
        if asks_for_key(profile, service)
        else f"{sentence}, and the server asks for no API key"
    )


def on_loopback(service: Service) -> str:
    """The first open port, as a mapping on the loopback address."""
    return str(
        replace(
            next(port for port in service.ports if not is_local(port.address)), address="127.0.0.1"
        )
    )
