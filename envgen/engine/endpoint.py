"""Where the Docker Engine answers, and where Docker's plugin programs lie. Looks at files and variables; asks nobody.

Calling ``docker-buildx`` itself rather than ``docker buildx`` saves 100 to 150 ms a call: ``docker`` starts every
plugin once more to ask what it offers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
NAMES = {"buildx": "BuildKit's client (buildx)", "compose": "Docker Compose v2"}


@dataclass(frozen=True)
class Endpoint:
    """The address of an engine: ``unix:///...``, ``tcp://...``, ``ssh://...``, and who said so."""

    host: str
    context: str = "default"
    said_by: str = "the default"

    @property
    def socket_path(self) -> str | None:
        """The socket's path where the engine is reached over one."""
        return self.host.removeprefix("unix://") if self.host.startswith("unix://") else None

    @property
    def environment(self) -> dict[str, str]:
        """What a Docker program must be given to reach the same engine.

        Only for sockets: other kinds need the context's TLS material, which the programs find by themselves.
        """
        return {"DOCKER_HOST": self.host} if self.socket_path else {}


def config_dir(environ: Mapping[str, str]) -> Path:
    """Docker's configuration folder."""
    named = environ.get("DOCKER_CONFIG")
    return Path(named) if named else Path(environ.get("HOME") or Path.home()) / ".docker"


def find_endpoint(environ: Mapping[str, str] | None = None) -> Endpoint:
    """The engine that ``docker`` itself would use: DOCKER_HOST, DOCKER_CONTEXT, the current context, the default."""
    environ = os.environ if environ is None else environ
    if host := environ.get("DOCKER_HOST"):
        return Endpoint(_spelled_out(host), said_by="DOCKER_HOST")
    folder = config_dir(environ)
    name, said_by = environ.get("DOCKER_CONTEXT", ""), "DOCKER_CONTEXT"
    if not name:
        name, said_by = str(_read_json(folder / "config.json").get("currentContext") or ""), "the current context"
    if name in ("", "default"):
        return Endpoint(DEFAULT_SOCKET)
    import hashlib  # with shutil below: 5 ms that a command on the usual socket does not need

    meta = folder / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest() / "meta.json"
    endpoints = _read_json(meta).get("Endpoints")
    docker = endpoints.get("docker") if isinstance(endpoints, dict) else None
    host = docker.get("Host") if isinstance(docker, dict) else None
    if not host:
        raise EngineError(
            f"the Docker context {name!r} (from {said_by}) is not defined",
            hint="`docker context ls` shows those that are; `docker context use default` goes back",
        )
    return Endpoint(_spelled_out(str(host)), name, f"the context {name!r}")


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


def plugin_argv(name: str, endpoint: Endpoint, environ: Mapping[str, str] | None = None) -> list[str]:
    """How to start a plugin: its program itself where we can tell it the engine's address, else through ``docker``."""
    environ = os.environ if environ is None else environ
    program = find_plugin(name, environ)
    path = environ.get("PATH")
    if program and endpoint.socket_path:
        return [str(program)]
    if program and _which("docker", path):
        return ["docker", name]
    if program:
        return [str(program)]
    raise _missing_plugin(name, path)


def _missing_plugin(name: str, path: str | None) -> EngineError:
    if name == "compose" and _which("docker-compose", path):
        return EngineError(
            "only the old `docker-compose` (v1) is here, and envgen needs Docker Compose v2",
            hint="install the package docker-compose-plugin (Debian: docker-compose)",
        )
    return EngineError(
        f"Docker has no {name} plugin here: {NAMES.get(name, name)} is needed",
        hint=f"install the package docker-{name}-plugin (Debian: docker-{name}), or put docker-{name} "
        "into ~/.docker/cli-plugins",
    )


def _which(program: str, path: str | None) -> str | None:
    import shutil

    return shutil.which(program, path=path)


def _spelled_out(host: str) -> str:
    """A bare path is a socket, as the Docker programs read it."""
    return f"unix://{host}" if host.startswith("/") else host


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
