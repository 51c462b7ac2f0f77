"""Where a service answers on this machine."""

from __future__ import annotations

from urllib.parse import urlsplit

from envgen.profile.model import Service


def service_url(service: Service, engine_host: str) -> str:
    """``http://address:port`` of the port that answers HTTP; empty if the service publishes none.

    ``engine_host``: the engine's address (unix://... or tcp://host:port); ports are published on that machine.
    """
    inside = service.ready.port if service.ready and service.ready.port else None
    for port in service.ports:
        if inside in (None, port.container):
            host = urlsplit(engine_host).hostname or "127.0.0.1"
            return f"http://{port.address if port.address not in ('', '0.0.0.0') else host}:{port.host}"
    return ""
