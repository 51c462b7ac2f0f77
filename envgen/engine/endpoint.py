"""Where the Docker Engine answers, and where Docker's plugin programs are. Reads files and variables.

Calling ``docker-buildx`` itself rather than ``docker buildx`` saves 100 to 150 ms a call: ``docker`` starts every
plugin once more to ask what it offers.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envgen.engine import process
from envgen.engine.forward import forward
from envgen.errors import EngineError

DEFAULT_SOCKET = "unix:///var/run/docker.sock"
# Docker's own search path after the user's folder (cli/cli-plugins/manager).
SYSTEM_PLUGINS = (
    "/usr/local/lib/docker/cli-plugins",
    "/usr/local/libexec/docker/cli-plugins",
    "/usr/lib/docker/cli-plugins",
    "/usr/libexec/docker/cli-plugins",
    "/opt/homebrew/lib/docker/cli-plugins",
)
_TLS = ("DOCKER_TLS_VERIFY", "DOCKER_TLS", "DOCKER_CERT_PATH", "DOCKER_CONFIG", "HOME")
NAMES = {"buildx": "BuildKit's client (buildx)", "compose": "Docker Compose v2"}
# The first with what envgen asks of them: --provenance, and COMPOSE_DISABLE_ENV_FILE.
OLDEST = {"buildx": "0.10", "compose": "2.24"}


@dataclass(frozen=True)
class Endpoint:
    """The address of an engine: ``unix:///...``, ``tcp://...``, ``ssh://...``, and who said so.

    ``secured``: what `docker` needs to reach it over TLS; None where there is no TLS.
    """

    host: str
    context: str = "default"
    said_by: str = "the default"
    secured: tuple[tuple[str, str], ...] | None = None

    @property
    def local(self) -> bool:
        """True where the engine is on this machine for certain: paths and ports mean the same to both."""
        return self.host.startswith("unix://")

    @property
    def forwarded(self) -> bool:
        """True where a program makes the connection (``forward.py``)."""
        return self.host.startswith("ssh://") or self.secured is not None

    @property
    def url(self) -> str:
        """What the SDK and Docker's programs are given: a socket or a bare TCP port. Connects where need be."""
        if not self.forwarded:
            return self.host
        return f"unix://{forward(self.host, dict(self.secured or ())).path}"

    @property
    def environment(self) -> dict[str, str]:
        """What a Docker program must be given to reach the same engine."""
        return {"DOCKER_HOST": self.url} | ({"DOCKER_TLS_VERIFY": "", "DOCKER_TLS": ""} if self.secured else {})


def config_dir(environ: Mapping[str, str]) -> Path:
    """Docker's configuration folder."""
    named = environ.get("DOCKER_CONFIG")
    return Path(named) if named else Path(environ.get("HOME") or Path.home()) / ".docker"


def find_endpoint(environ: Mapping[str, str] | None = None) -> Endpoint:
    """The engine that ``docker`` itself would use: DOCKER_HOST, DOCKER_CONTEXT, the current context, the default."""
    environ = os.environ if environ is None else environ
    if host := environ.get("DOCKER_HOST"):
        host = _spelled_out(host)
        wanted = environ.get("DOCKER_TLS_VERIFY") or environ.get("DOCKER_TLS")
        named = {"DOCKER_HOST": host} | {name: environ[name] for name in _TLS if environ.get(name)}
        return Endpoint(host, "default", "DOCKER_HOST", tuple(named.items()) if wanted and _is_tcp(host) else None)
    folder = config_dir(environ)
    name, said_by = environ.get("DOCKER_CONTEXT", ""), "DOCKER_CONTEXT"
    if not name:
        name, said_by = str(_read_json(folder / "config.json").get("currentContext") or ""), "the current context"
    if name in ("", "default"):
        return Endpoint(DEFAULT_SOCKET)
    meta = folder / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest() / "meta.json"
    endpoints = _read_json(meta).get("Endpoints")
    docker = endpoints.get("docker") if isinstance(endpoints, dict) else None
    host = docker.get("Host") if isinstance(docker, dict) else None
    if not host:
        raise EngineError(
            f"the Docker context {name!r} (from {said_by}) is not defined",
            hint="`docker context ls` shows those that are; `docker context use default` goes back",
        )
    address = _spelled_out(str(host))
    material = folder / "contexts" / "tls" / meta.parent.name / "docker"
    by_context = (("DOCKER_CONFIG", str(folder)), ("DOCKER_CONTEXT", name), ("DOCKER_HOST", ""))
    secured = _is_tcp(address) and (material.is_dir() or bool(docker and docker.get("SkipTLSVerify")))
    return Endpoint(address, name, f"the context {name!r}", by_context if secured else None)


def find_plugin(name: str, environ: Mapping[str, str] | None = None) -> Path | None:
    """The program of a Docker plugin (``buildx``, ``compose``), searched where ``docker`` searches it."""
    environ = os.environ if environ is None else environ
    folder = config_dir(environ)
    extra = _read_json(folder / "config.json").get("cliPluginsExtraDirs")
    named = [str(path) for path in extra] if isinstance(extra, list) else []
    for place in (*named, str(folder / "cli-plugins"), *SYSTEM_PLUGINS):
        program = Path(place) / f"docker-{name}"
        if os.access(program, os.X_OK) and program.is_file():  # in this order: `is_file` raises in a folder of others
            return program
    return None


def plugin_argv(name: str, environ: Mapping[str, str] | None = None) -> list[str]:
    """How to start a plugin; ``Endpoint.environment`` tells it where the engine is."""
    environ = os.environ if environ is None else environ
    program = find_plugin(name, environ)
    if program is None:
        raise _missing_plugin(name, environ.get("PATH"))
    return [str(program)]


def plugin_version(name: str, environ: Mapping[str, str] | None = None) -> str:
    """The version of a Docker plugin, such as ``0.29.1``; "" where it gives none. EngineError where it is absent."""
    done = process.run([*plugin_argv(name, environ), "version"], timeout=20, check=False)
    found = re.search(r"\bv?(\d+\.\d+(?:\.\d+)?)", done.stdout.decode(errors="replace"))
    return found[1] if found else ""


def outdated(name: str, version: str) -> bool:
    """True where a plugin of that version lacks what envgen needs. One that gives no version is taken as it is."""
    return bool(version) and _numbers(version) < _numbers(OLDEST[name])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def demand_plugin(name: str) -> None:
    """EngineError where a Docker plugin is absent or too old."""
    if outdated(name, version := plugin_version(name)):
        raise EngineError(
            f"{NAMES[name]} is {version} here, and envgen needs {OLDEST[name]} or newer",
            hint=f"install a newer docker-{name}-plugin (Debian: docker-{name}), or put a newer docker-{name} into "
            "~/.docker/cli-plugins",
        )


def _missing_plugin(name: str, path: str | None) -> EngineError:
    if name == "compose" and shutil.which("docker-compose", path=path):
        return EngineError(
            "only the old `docker-compose` (v1) is here, and envgen needs Docker Compose v2",
            hint="install the package docker-compose-plugin (Debian: docker-compose)",
        )
    return EngineError(
        f"Docker has no {name} plugin here: {NAMES.get(name, name)} is needed",
        hint=f"install the package docker-{name}-plugin (Debian: docker-{name}), or put docker-{name} "
        "into ~/.docker/cli-plugins",
    )


def _spelled_out(host: str) -> str:
    """A bare path is a socket, as the Docker programs read it. EngineError for an address of another kind."""
    host = f"unix://{host}" if host.startswith("/") else host
    if not host.startswith(("unix://", "tcp://", "ssh://", "http://", "https://")):
        raise EngineError(
            f"the engine's address {host!r} is of a kind that envgen cannot use",
            hint="it takes unix:///path, tcp://host:port and ssh://user@host",
        )
    return host


def _is_tcp(host: str) -> bool:
    return host.startswith(("tcp://", "https://"))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
