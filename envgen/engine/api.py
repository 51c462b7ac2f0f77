"""The SDK's client with limits, and an engine's errors in one sentence.

An engine may be stopped, killed in the middle of an answer, or not an engine at all. So each request has a time limit
and each answer a size limit, however slowly it arrives.
"""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import docker.errors
import requests
from docker.constants import DEFAULT_DOCKER_API_VERSION

import docker
from envgen.engine.endpoint import Endpoint, forwards, ssh_timeout
from envgen.engine.process import in_background
from envgen.errors import EngineError, EngineTimeout
from envgen.text import progress, reason_of

T = TypeVar("T")

GREETING = 5  # seconds for the first answer of an engine
QUESTION = 8  # for what an engine answers at once; a busy one took two
START = 60  # to start a container, or a program in one
WORK = 300  # for slow requests: removing a volume of many files, starting a container
PATIENT = 30  # a request with a longer limit is work, not a question
DOCTOR = 6.0  # for all questions of `envgen doctor` to one engine
LARGEST = 16 << 20  # bytes of one answer; the list of 5,000 containers has 8 MiB


# The time limits of ``time_budget`` blocks, the innermost last, and what each engine (by its address, for a command may
# connect more than once) has used of it.
_budgets: list[tuple[float, defaultdict[str, float]]] = []
_counting = threading.Lock()  # several threads ask several engines


@contextlib.contextmanager
def time_budget(seconds: float) -> Iterator[None]:
    """Inside, all questions to one engine together take at most ``seconds``."""
    _budgets.append((seconds, defaultdict(float)))
    try:
        with ssh_timeout(seconds):
            yield
    finally:
        _budgets.pop()


class EngineSession(docker.APIClient):
    """The SDK's client. Every request ends in time, and no answer is larger than LARGEST."""

    def __init__(self, endpoint: Endpoint, version: str, seconds: int = QUESTION) -> None:
        """``seconds``: the time of a request that names none."""
        with wrap_errors(endpoint):
            super().__init__(base_url=endpoint.url, version=version, timeout=seconds)
        self.trust_env = False  # no proxy and no ~/.netrc for an engine
        self._host = endpoint.host

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """One request. With ``stream`` the time limit ends when the answer begins."""
        limit = shown = float(options.get("timeout") or QUESTION)
        budget, spent = _budgets[-1] if _budgets else (0.0, defaultdict[str, float](float))
        if budget and limit > budget - spent[self._host] and limit <= START:
            limit, shown = max(0.0, budget - spent[self._host]), budget
        elif not budget and limit <= PATIENT:
            limit = shown = min(limit, QUESTION)
        streams = options.pop("stream", False)
        options["timeout"] = limit + 5  # of the socket, between two bytes; the limit for the whole is shorter

        def ask() -> requests.Response:
            response = super(EngineSession, self).send(request, stream=True, **options)
            return response if streams else read_all(response)

        began = time.monotonic()
        try:
            if limit:
                return within(limit, ask)
        except TimeoutError:
            pass
        finally:
            with _counting:
                spent[self._host] += time.monotonic() - began
        hint = "it may be overloaded: `docker version` shows whether it answers"
        raise EngineTimeout(f"the Docker Engine did not answer within {shown:g} s", hint=hint)


def within(seconds: float, ask: Callable[[], T]) -> T:
    """``ask()``, or TimeoutError after ``seconds`` in all; a socket's own time-out is only between two bytes.

    It runs in a thread, which a late answer leaves behind until its connection, or envgen, ends.
    """
    answer = in_background(ask)
    if not wait([answer], seconds).done:
        raise TimeoutError
    return answer.result()


def read_all(response: requests.Response) -> requests.Response:
    """The answer with its whole body, of at most LARGEST bytes."""
    body = bytearray()
    for chunk in response.iter_content(64 << 10):
        body += chunk
        if len(body) > LARGEST:
            response.close()
            raise EngineError(f"the engine's answer has more than {LARGEST >> 20} MiB: this may not be a Docker Engine")
    response._content = bytes(body)
    return response


@contextlib.contextmanager
def wrap_errors(endpoint: Endpoint, what: str = "") -> Iterator[None]:
    """Turns what the SDK raises inside into EngineError. ``what``: in front of the engine's message."""
    prefix = f"{what}: " if what else ""
    try:
        yield
    except EngineError:
        raise
    except docker.errors.APIError as error:
        raise EngineError(prefix + _explanation(error)) from None
    except (requests.exceptions.JSONDecodeError, requests.exceptions.InvalidJSONError):  # an OSError, a ValueError
        raise EngineError("the engine's answer is not JSON: this may not be a Docker Engine") from None
    except (OSError, docker.errors.DockerException) as error:  # all errors of requests are OSErrors
        raise unreachable(endpoint, error) from None
    except _UNEXPECTED as error:
        if not _from_an_answer(error):
            raise
        raise EngineError(f"{prefix}the engine's answer does not have the form of a Docker Engine's") from None


def _from_an_answer(error: BaseException) -> bool:
    """Whether it was raised while reading an answer (in ``values.py``, the SDK), and is not a defect of envgen."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    name = trace.tb_frame.f_globals.get("__name__", "") if trace else ""
    return name in _READERS or name.partition(".")[0] in _LIBRARIES


def _explanation(error: docker.errors.APIError) -> str:
    words = error.explanation
    text = words if isinstance(words, str) else str(error)
    return re.sub(r"\s+", " ", text).strip()[:1000] or f"the engine answered {error.status_code}"


SILENT = 60.0  # seconds without an answer, after which an engine is given up while another program waits for it
_BETWEEN = 5.0  # seconds between two questions to it


class Pulse:
    """Watches whether an engine still answers while ``what``, another program, works with it. Call it now and then.

    Compose has no limit of its own: with an engine that is stopped or hangs it would wait for ever.
    """

    def __init__(self, endpoint: Endpoint, what: str, *, only_says: bool = False) -> None:
        """``only_says``: for what a user runs and can end."""
        self._endpoint, self._what, self._only_says = endpoint, what, only_says
        self._answered = self._asked = time.monotonic()
        self._question: Future[None] | None = None
        self._told = False

    def __call__(self) -> None:
        """EngineTimeout if the engine has not answered for ``SILENT`` seconds."""
        now = time.monotonic()
        if self._question is not None and self._question.done():
            if self._question.exception() is None:
                self._answered, self._told = now, False
            self._question = None
        if self._question is None and now - self._asked >= _BETWEEN:
            self._asked, self._question = now, in_background(self._ask)
        silent = now - self._answered
        if silent >= SILENT and not self._only_says:
            reason = f"the Docker Engine at {self._endpoint.host} has not answered for {SILENT:.0f} s"
            raise EngineTimeout(f"{reason}, while {self._what} waited for it", hint="systemctl status docker")
        if silent >= SILENT / 3 and not self._told:
            self._told = True
            progress(f"  {self._what} waits for the Docker Engine, which has not answered for {silent:.0f} s")

    def _ask(self) -> None:
        with wrap_errors(self._endpoint):
            EngineSession(self._endpoint, DEFAULT_DOCKER_API_VERSION, GREETING).version(api_version=False)


def unreachable(endpoint: Endpoint, error: BaseException) -> EngineError:
    """The error for an engine that can't be reached, or ends in the middle of an answer."""
    if connection := forwards.get((endpoint.host, "")):
        return connection.error()
    cause = _innermost(error)
    where = f"{endpoint.host} (from {endpoint.chosen_by})"
    if isinstance(cause, TimeoutError):
        return EngineTimeout(
            f"the Docker Engine at {where} stopped answering", hint="it may be overloaded: try `docker version`"
        )
    if isinstance(cause, PermissionError):
        return EngineError(
            f"no permission to use the Docker Engine at {where}",
            hint="add yourself to the group docker (`sudo usermod -aG docker $USER`, then log in again)",
            command="sudo usermod -aG docker $USER",
        )
    if isinstance(cause, ConnectionRefusedError) and endpoint.local:
        return EngineError(f"the Docker Engine at {where} is stopped", hint=_HINT, command=_START)
    if endpoint.local and isinstance(cause, OSError) and cause.errno in (errno.ENOENT, errno.ENOTDIR):
        if endpoint.chosen_by == "the default" and not shutil.which("docker"):
            return EngineError(
                "Docker is not installed: neither the program `docker` nor the socket /var/run/docker.sock exists",
                hint="https://docs.docker.com/engine/install/; in a checkout of envgen: scripts/engine up",
            )
        message = f"the Docker Engine is not running: no socket at {where}"
        return EngineError(message, hint=_HINT, command=_START)
    hint = "`docker version` tries the same; check that it runs, and that it is a Docker Engine"
    return EngineError(f"cannot reach the Docker Engine at {where}: {reason_of(cause)}", hint=hint)


def _innermost(error: BaseException) -> BaseException:
    """The cause, which requests and urllib3 wrap up to three times."""
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


_UNEXPECTED = (
    ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError,
)  # fmt: skip
_READERS = ("envgen.engine.client", "envgen.engine.host", "envgen.engine.values")
_LIBRARIES = ("docker", "requests", "urllib3", "urllib", "json", "http", "codecs")
_START = "sudo systemctl start docker"
_HINT = f"start it (`{_START}`), or set DOCKER_HOST to the engine that runs"
