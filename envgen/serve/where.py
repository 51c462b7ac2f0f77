"""Where a service answers."""

from __future__ import annotations

from urllib.parse import urlsplit

from envgen.engine.endpoint import Endpoint
from envgen.engine.forward import forward_port
from envgen.profile.model import Service


def service_url(service: Service, engine_host: str) -> str:
    """``http://address:port`` of the port that answers HTTP; empty if the service publishes none.

    ``engine_host``: the engine's address (unix://... or tcp://host:port); ports are published on that machine.
    """
    inside = service.ready.port if service.ready and service.ready.port else None
    for port in service.host_ports:
        if inside in (None, port.container):
            host = urlsplit(engine_host).hostname or "127.0.0.1"
            return f"http://{port.address if port.address not in ('', '0.0.0.0') else host}:{port.host}"
    return ""


def reachable_url(service: Service, endpoint: Endpoint) -> str:
    """The same service as this process reaches it: what an ssh:// engine publishes, through ssh."""
    url = service_url(service, endpoint.host)
    if not url or not endpoint.host.startswith("ssh://"):
        return url
    inside = service.ready.port if service.ready and service.ready.port else None
    port = next(port for port in service.host_ports if inside in (None, port.container))
    address = port.address if port.address not in ("", "0.0.0.0", "::") else "127.0.0.1"
    address = f"[{address}]" if ":" in address else address
    return f"http://127.0.0.1:{forward_port(endpoint.host, f'{address}:{port.host}')}"
