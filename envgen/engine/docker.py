"""connect(): a Docker Engine, or one clear sentence why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import docker.errors
from docker.constants import DEFAULT_DOCKER_API_VERSION

from envgen.engine.base import Engine
from envgen.engine.client import DockerEngine
from envgen.engine.endpoint import Endpoint, find_endpoint
from envgen.engine.parse import is_new_enough, too_old
from envgen.engine.session import GREETING, Session, message_of, told
from envgen.errors import EngineError


def connect(environ: Mapping[str, str] | None = None) -> Engine:
    """The engine that ``docker`` itself would use. EngineError: absent, stopped, forbidden, too old, no engine."""
    endpoint = find_endpoint(environ)
    with told(endpoint, environ=environ):
        session = Session(endpoint, DEFAULT_DOCKER_API_VERSION)
        greeting = session.get(f"{session.base_url}/_ping", timeout=GREETING)
        if greeting.status_code >= 400:
            raise docker.errors.APIError(str(greeting.reason), greeting, message_of(greeting))
        if not is_new_enough(greeting.headers):
            _refuse_old(session.version(api_version=False), endpoint)
    return DockerEngine(endpoint, greeting.headers)


def _refuse_old(version: Any, endpoint: Endpoint) -> None:
    if not isinstance(version, dict):
        raise EngineError(f"what answers at {endpoint.host} is not a Docker Engine")
    if reason := too_old(version):
        raise EngineError(reason, hint="install a newer one: https://docs.docker.com/engine/install/")
