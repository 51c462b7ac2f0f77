"""The SDK's client with limits, and what goes wrong with an engine in one sentence.

An engine may be stopped, killed in mid-answer or no engine at all. So each request has a time for the whole of it and
each answer a largest size, whatever the other end sends, and how slowly.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from typing import Any, TypeVar

import docker.errors
import requests

import docker
from envgen.background import in_background
from envgen.engine import forward
from envgen.engine.endpoint import Endpoint
from envgen.errors import EngineError, EngineTimeout
from envgen.text import reason_of

T = TypeVar("T")

GREETING = 5  # seconds for the first answer of an engine
QUESTION = 8  # for what an engine answers at once; a busy one has been seen to take two
START = 60  # until a program in a container, or a container, has been started
WORK = 300  # for what takes its time: removing a volume of many files, starting a container
PATIENT = 30  # up to this a request is a question, not work
SICK = 1.0  # for a question to an engine that did not answer the last one
DOCTOR = 6.0  # for all questions of `envgen doctor` to one engine
LARGEST = 16 << 20  # bytes of one answer; the list of 5,000 containers has 8 MiB


class Patience:
    """How long questions to an engine may wait, all together. ``renews``: an answer in time gives it back.

    ``least`` is what a question gets when nothing is left; with none of that it is not asked any more.
    """

    def __init__(self, seconds: float, *, least: float = 0.0, renews: bool = False) -> None:
        self.seconds = self._left = seconds
        self._least = least
        self._renews = renews

    def limit(self, wanted: float) -> float:
        """Of ``wanted`` seconds, those that a request gets."""
        is_question = wanted <= (PATIENT if self._renews else START)
        return min(wanted, max(self._left, self._least)) if is_question else wanted

    def waited(self, seconds: float, *, answered: bool) -> None:
        """Note how long a request took."""
        self._left = self.seconds if answered and self._renews else self._left - seconds


# Of all clients in this process, for a command may connect more than once: by the engine's address.
_by_host: dict[str, Patience] = {}
_hurried: list[float] = []


def hurry(seconds: float) -> None:
    """From now on all questions to an engine wait so long together, whatever it does in between."""
    _by_host.clear()
    _hurried[:] = [seconds]


def _patience(host: str) -> Patience:
    fresh = Patience(_hurried[0]) if _hurried else Patience(QUESTION, least=SICK, renews=True)
    return _by_host.setdefault(host, fresh)


class Session(docker.APIClient):
    """The SDK's client. Every request ends in time, and no answer is larger than LARGEST."""

    def __init__(self, endpoint: Endpoint, version: str, seconds: int = QUESTION) -> None:
        """``seconds``: the time of a request that names none."""
        with told(endpoint):
            super().__init__(base_url=endpoint.url, version=version, timeout=seconds)
        self.trust_env = False  # neither a proxy nor ~/.netrc has a say between us and the engine
        self._host = endpoint.host

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """One request. With ``stream`` the time is that until the answer begins."""
        patience = _patience(self._host)
        wanted = float(options.get("timeout") or QUESTION)
        limit = patience.limit(wanted)
        streams = options.pop("stream", False)
        options["timeout"] = limit + 5  # of the socket, between two bytes: the whole is over before

        def ask() -> requests.Response:
            response = super(Session, self).send(request, stream=True, **options)
            return response if streams else read_all(response)

        began, answered = time.monotonic(), True
        try:
            if limit > 0:
                return within(limit, ask)
        except TimeoutError:
            answered = False
        finally:
            patience.waited(time.monotonic() - began, answered=answered)
        raise EngineTimeout(
            f"the Docker Engine did not answer within {limit if limit == wanted else patience.seconds:g} s",
            hint="is it stopped or overloaded? `docker version` shows whether it answers",
        )


def within(seconds: float, ask: Callable[[], T]) -> T:
    """``ask()``, or TimeoutError. A time-out of the socket is one between two bytes, and a server may drip them.

    So it is asked in a thread. One that is late is left to itself; it ends with its connection, or with envgen.
    """
    answer = in_background(ask)
    if not wait([answer], seconds).done:
        raise TimeoutError
    return answer.result()


def read_all(response: requests.Response) -> requests.Response:
    """The answer with all of its body, which ``requests`` would read without a limit."""
    body = bytearray()
    for chunk in response.iter_content(64 << 10):
        body += chunk
        if len(body) > LARGEST:
            response.close()
            raise EngineError(
                f"the engine's answer has more than {LARGEST >> 20} MiB: is this a Docker Engine's address?"
            )
    whole = requests.Response()
    whole.status_code, whole.headers, whole.reason = response.status_code, response.headers, response.reason
    whole.url, whole.request, whole.raw = response.url, response.request, io.BytesIO(body)
    return whole


class told:
    """Turns whatever the SDK raises inside into EngineError. ``what``: begins the engine's own words."""

    def __init__(self, endpoint: Endpoint, what: str = "", environ: Mapping[str, str] | None = None) -> None:
        self._endpoint = endpoint
        self._what = what
        self._environ = environ

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None or isinstance(error, EngineError):
            return
        if isinstance(error, docker.errors.APIError):
            raise EngineError(self._prefix() + _said(error)) from None
        # JSONDecodeError is a RequestException and a ValueError: before both.
        if isinstance(error, (requests.exceptions.JSONDecodeError, requests.exceptions.InvalidJSONError)):
            raise EngineError("the engine's answer is not JSON: is this address a Docker Engine's?") from None
        if isinstance(error, (OSError, docker.errors.DockerException)):  # all errors of requests are OSErrors
            raise unreachable(self._endpoint, error, self._environ) from None
        if isinstance(error, _OF_ANOTHER_FORM) and _from_an_answer(error):
            raise EngineError(f"{self._prefix()}the engine's answer has another form than a Docker Engine's") from None

    def _prefix(self) -> str:
        return f"{self._what}: " if self._what else ""


def _from_an_answer(error: BaseException) -> bool:
    """Whether it was raised while an answer was read (``parse.py``, the SDK), not by a defect of ours elsewhere."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    name = trace.tb_frame.f_globals.get("__name__", "") if trace else ""
    return name in _READERS or name.partition(".")[0] in _LIBRARIES


def _said(error: docker.errors.APIError) -> str:
    words = error.explanation
    text = words if isinstance(words, str) else str(error)
    return re.sub(r"\s+", " ", text).strip()[:1000] or f"the engine answered {error.status_code}"


def message_of(response: requests.Response) -> str:
    """The engine's own words about a failure."""
    try:
        return str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        return response.text.strip()[:500] or f"the engine answered {response.status_code}"


def unreachable(endpoint: Endpoint, error: BaseException, environ: Mapping[str, str] | None = None) -> EngineError:
    """The sentence for an engine that can't be reached, or is gone in the middle of an answer."""
    if endpoint.forwarded and (found := forward.existing(endpoint.host, dict(endpoint.secured or ()))):
        return found.trouble()
    cause = _innermost(error)
    where = f"{endpoint.host} (from {endpoint.said_by})"
    if isinstance(cause, TimeoutError):
        return EngineTimeout(f"the Docker Engine at {where} stopped answering", hint="is it stopped or overloaded?")
    if isinstance(cause, PermissionError):
        return EngineError(
            f"no permission to use the Docker Engine at {where}",
            hint="add yourself to the group docker (`sudo usermod -aG docker $USER`, then log in again)",
        )
    if isinstance(cause, ConnectionRefusedError) and endpoint.local:
        return EngineError(f"the Docker Engine at {where} is stopped", hint=_START)
    if endpoint.local and isinstance(cause, OSError) and cause.errno in (errno.ENOENT, errno.ENOTDIR):
        path = (os.environ if environ is None else environ).get("PATH")
        if endpoint.said_by == "the default" and not shutil.which("docker", path=path):
            return EngineError(
                "Docker is not installed: there is no program `docker` and no socket /var/run/docker.sock",
                hint="https://docs.docker.com/engine/install/; in a checkout of envgen: scripts/engine up",
            )
        return EngineError(f"the Docker Engine is not running: there is no socket at {where}", hint=_START)
    kind, text = type(cause).__name__, reason_of(cause)
    if kind in _NOT_HTTP:
        return EngineError(f"the answer from {where} is not HTTP: is this address a Docker Engine's?")
    if kind in _BROKEN_OFF:
        return EngineError(
            f"the Docker Engine at {where} closed the connection without an answer", hint="is it being stopped?"
        )
    hint = "" if endpoint.local else "is the address right, and does the engine listen there?"
    return EngineError(f"cannot reach the Docker Engine at {where}: {text}", hint=hint)


def _innermost(error: BaseException) -> BaseException:
    """The cause: requests and urllib3 wrap up to three errors around it."""
    seen = {id(error)}
    while True:
        inner = error.__cause__ or error.__context__
        if inner is None:
            inner = next(
                (arg for arg in (*error.args, getattr(error, "reason", None)) if isinstance(arg, Exception)), None
            )
        if inner is None or id(inner) in seen:
            return error
        seen.add(id(inner))
        error = inner


_OF_ANOTHER_FORM = (
    ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError,
)  # fmt: skip
_READERS = ("envgen.engine.client", "envgen.engine.leftovers", "envgen.engine.parse")
_LIBRARIES = ("docker", "requests", "urllib3", "urllib", "json", "http", "codecs")
_NOT_HTTP = (
    "BadStatusLine", "HTTPException", "HeaderParsingError", "InvalidChunkLength", "LineTooLong", "UnknownProtocol",
)  # fmt: skip
_BROKEN_OFF = (
    "BrokenPipeError",
    "ConnectionAbortedError",
    "ConnectionResetError",
    "IncompleteRead",
    "RemoteDisconnected",
)
_START = "start it (`sudo systemctl start docker`), or point DOCKER_HOST at the one that runs"
