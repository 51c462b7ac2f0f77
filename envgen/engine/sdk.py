"""The SDK's client, and its errors in one sentence.

An engine may be stopped, killed in the middle of an answer, or not an engine at all: the SDK limits
the time of a request, and this file the size of an answer. Importing the SDK takes a tenth of a
second: only this file does, and it is imported by the first question to an engine.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from functools import partial
from typing import Any

import docker.errors
import requests
from docker.constants import DEFAULT_DOCKER_API_VERSION

import docker
from envgen.engine import api, process
from envgen.engine.endpoint import Endpoint
from envgen.engine.web import body_of
from envgen.errors import EngineError

ABSENT = (docker.errors.NotFound, docker.errors.NullResource)  # NullResource: an empty name
LARGEST = 16 << 20  # bytes of one answer; the list of 5,000 containers has 8 MiB


class EngineSession(docker.APIClient):
    """The SDK's client, with a limit for the size of an answer.

    An engine that has not answered in time is left alone for a while, so that a command with many
    questions does not wait for each.
    """

    def __init__(self, endpoint: Endpoint, version: str = "", seconds: int = api.QUESTION) -> None:
        """``version``: of the engine's API; "": the SDK's. ``seconds``: the time of a request that
        names none.
        """
        with wrap_errors(endpoint):
            super().__init__(endpoint.url, version or DEFAULT_DOCKER_API_VERSION, seconds)
            self._probe = process.PROBES[endpoint.url] = partial(probe, endpoint)
        self.trust_env = False  # no proxy and no ~/.netrc for an engine
        self._silent_until = 0.0

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """One request, with its whole answer unless it is to stream."""
        if time.monotonic() < self._silent_until:
            raise TimeoutError
        streams = options.pop("stream", False)
        options["timeout"] = options.get("timeout") or self.timeout  # requests has none by itself
        try:
            answer = process.in_background(partial(super().send, request, stream=True, **options))
            while self.timeout > api.SILENT and not wait((answer,), process.AGAIN).done:
                self._probe()
            response = answer.result()
            return response if streams else read_all(response)
        except requests.Timeout:
            self._silent_until = time.monotonic() + process.AGAIN
            raise


def greet(endpoint: Endpoint) -> Any:
    """The answer of an engine to ``GET /version``, its first one."""
    with wrap_errors(endpoint):
        return EngineSession(endpoint, seconds=api.GREETING).version(api_version=False)


def probe(endpoint: Endpoint) -> None:
    """EngineTimeout where an engine does not even answer that it is there."""
    with wrap_errors(endpoint):
        EngineSession(endpoint, seconds=api.SILENT).ping()


def read_all(response: requests.Response) -> requests.Response:
    """The answer with its whole body, of at most LARGEST bytes."""
    body = body_of(response, LARGEST)
    if len(body) > LARGEST:
        raise EngineError(
            f"the engine's answer has more than {LARGEST >> 20} MiB: this may not be a Docker Engine"
        )
    response._content = body
    return response


@contextmanager
def wrap_errors(endpoint: Endpoint, what: str = "") -> Iterator[None]:
    """Turns what the SDK and ``values.py`` raise inside into EngineError. ``what``: in front of the
    engine's message.

    Inside stand only a question and the reading of its answer: a defect of envgen elsewhere must
    stay one.
    """
    prefix = f"{what}: " if what else ""
    try:
        yield
    except EngineError:
        raise
    except docker.errors.APIError as error:
        raise EngineError(prefix + _explanation(error)) from None
    except (
        requests.exceptions.JSONDecodeError,
        requests.exceptions.InvalidJSONError,
    ):  # an OSError, a ValueError
        raise EngineError(
            "the engine's answer is not JSON: this may not be a Docker Engine"
        ) from None
    except (OSError, docker.errors.DockerException) as error:  # all errors of requests are OSErrors
        raise api.unreachable(endpoint, error) from None
    except _UNEXPECTED:
        raise EngineError(
            f"{prefix}the engine's answer does not have the form of a Docker Engine's"
        ) from None


def _explanation(error: docker.errors.APIError) -> str:
    words = error.explanation
    text = words if isinstance(words, str) else str(error)
    return re.sub(r"\s+", " ", text).strip()[:1000] or f"the engine answered {error.status_code}"


_UNEXPECTED = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)
