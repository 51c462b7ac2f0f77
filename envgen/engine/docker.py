"""connect(): a Docker Engine, or one clear sentence why there is none. Imports the SDK, and only when needed."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any

from envgen.engine.api import Answer, Api, Stream, UnixApi
from envgen.engine.base import Engine
from envgen.engine.client import DockerEngine
from envgen.engine.endpoint import Endpoint, find_endpoint
from envgen.engine.parse import is_new_enough, too_old
from envgen.errors import EngineError


def connect(environ: Mapping[str, str] | None = None) -> Engine:
    """The engine that ``docker`` itself would use. EngineError: absent, stopped, forbidden, too old."""
    return DockerEngine(*open_api(environ))


def open_api(environ: Mapping[str, str] | None = None) -> tuple[Api, Endpoint]:
    """Its HTTP API, and where it is. EngineError as ``connect``."""
    endpoint = find_endpoint(environ)
    try:
        api: Api = UnixApi(endpoint.socket_path) if endpoint.socket_path else SdkApi(endpoint)
        if not is_new_enough(api.request("GET", "/_ping").headers):
            # It takes 13 ms, since the engine runs runc, containerd and its init to ask them for their versions, too.
            _refuse_old(api.request("GET", "/version").check("version"), endpoint)
    except OSError as error:
        raise unreachable(endpoint, error, environ) from None
    return api, endpoint


def _refuse_old(version: Any, endpoint: Endpoint) -> None:
    if not isinstance(version, dict):
        raise EngineError(f"what answers at {endpoint.host} is not a Docker Engine")
    if reason := too_old(version):
        raise EngineError(reason, hint="install a newer one: https://docs.docker.com/engine/install/")


def unreachable(endpoint: Endpoint, error: OSError, environ: Mapping[str, str] | None = None) -> EngineError:
    """The sentence for a socket that can't be reached."""
    where = f"{endpoint.host} (from {endpoint.said_by})"
    if isinstance(error, PermissionError):
        return EngineError(
            f"no permission to use the Docker Engine at {where}",
            hint="add yourself to the group docker (`sudo usermod -aG docker $USER`, then log in again)",
        )
    if isinstance(error, ConnectionRefusedError):
        return EngineError(f"the Docker Engine at {where} is stopped", hint=_START)
    if isinstance(error, FileNotFoundError) or error.errno == errno.ENOTDIR:
        import shutil

        path = (os.environ if environ is None else environ).get("PATH")
        if endpoint.said_by == "the default" and not shutil.which("docker", path=path):
            return EngineError(
                "Docker is not installed: there is no program `docker` and no socket /var/run/docker.sock",
                hint="https://docs.docker.com/engine/install/; in a checkout of envgen: scripts/engine up",
            )
        return EngineError(f"the Docker Engine is not running: there is no socket at {where}", hint=_START)
    return EngineError(f"cannot reach the Docker Engine at {where}: {error.strerror or error}")


_START = "start it (`sudo systemctl start docker`), or point DOCKER_HOST at the one that runs"


class SdkApi:
    """The API through Docker's SDK, for what is no unix socket: tcp, TLS, ssh, named pipes."""

    can_stream = False  # the SDK offers no half-closed connection over TLS or ssh; `docker exec` does

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        import docker.errors

        try:
            self._client = _sdk_client(endpoint)
            self._base = str(self._client.base_url)
        except (docker.errors.DockerException, OSError, ValueError) as error:
            raise EngineError(f"cannot reach the Docker Engine at {endpoint.host}: {_short(error)}") from None

    def request(self, method: str, path: str, query: Mapping[str, str] | None = None, body: Any = None) -> Answer:
        try:
            response = self._client.request(method, self._base + path, params=dict(query or {}), json=body)
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status_code, response.content, headers)
        except OSError as error:  # all of requests' errors are OSErrors
            raise EngineError(
                f"cannot reach the Docker Engine at {self._endpoint.host} (from {self._endpoint.said_by}): "
                f"{_short(error)}",
                hint="is the address right, and does the engine listen there?",
            ) from None

    def stream(self, path: str, query: Mapping[str, str] | None, body: Any) -> Stream:
        raise NotImplementedError


def _sdk_client(endpoint: Endpoint) -> Any:
    import docker

    # A fixed API version: "auto" would ask first, and then raise its own kind of error.
    if endpoint.context != "default":
        from docker.context import ContextAPI

        context = ContextAPI.get_context(endpoint.context)
        tls = context.TLSConfig if context else None
        return docker.APIClient(base_url=endpoint.host, version="1.42", tls=tls or False, timeout=60)
    return docker.DockerClient.from_env(version="1.42", timeout=60).api


def _short(error: BaseException) -> str:
    """The innermost reason: requests wraps three errors around it."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return str(getattr(error, "strerror", None) or error)
