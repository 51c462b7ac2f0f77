"""Questions to a Docker Engine with limits, and its errors in one sentence.

An engine may be stopped, killed in the middle of an answer, or not an engine at all. So each request has a time limit
and each answer a size limit, however slowly it arrives.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from http.client import HTTPResponse
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from envgen.engine import request
from envgen.engine.endpoint import Endpoint, forwards, ssh_timeout
from envgen.engine.process import in_background
from envgen.engine.values import MISSHAPEN, read_json
from envgen.errors import EngineError, EngineTimeout
from envgen.text import progress, reason_of

T = TypeVar("T")
Query = Mapping[str, str]
_NOTHING: Query = {}

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


class BadStatus(EngineError):
    """The engine answered with a ``status`` of 400 or more, and a reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class EngineSession:
    """The requests of one engine. Every one ends in time, and no answer is larger than LARGEST."""

    def __init__(self, endpoint: Endpoint, version: str = "") -> None:
        """``version``: of its API; "" is its newest."""
        self._endpoint = endpoint
        self._prefix = f"/v{quote(version, safe='')}" if version else ""

    def ask(
        self, method: str, path: str, seconds: float = QUESTION, *, query: Query = _NOTHING, send: Any = None
    ) -> Any:
        """The document of an answer, ``send`` and ``query`` being those of the request; None for an empty one."""

        def whole(response: HTTPResponse) -> bytes:
            body = request.body_of(response, LARGEST)
            if len(body) > LARGEST:
                text = f"the engine's answer has more than {LARGEST >> 20} MiB: this may not be a Docker Engine"
                raise EngineError(text)
            return body

        body = self._request(method, path, seconds, whole, send, query)
        try:
            return read_json(body) if body or method == "GET" else None
        except ValueError:
            raise EngineError("the engine's answer is not JSON: this may not be a Docker Engine") from None

    def stream(self, path: str, seconds: float = QUESTION, *, query: Query = _NOTHING) -> Iterator[bytes]:
        """An answer in pieces, as they come. The time limit ends when it begins."""
        response = self._request("GET", path, seconds, lambda response: response, None, query)
        with response:
            pieces = request.blocks(response)
            while True:
                try:
                    data = next(pieces, b"")
                except OSError as error:
                    raise unreachable(self._endpoint, error) from None
                if not data:
                    return
                yield data

    def _request(
        self, method: str, path: str, seconds: float, read: Callable[[HTTPResponse], T], document: Any, query: Query
    ) -> T:  # fmt: skip
        host = self._endpoint.host
        limit = shown = float(seconds)
        budget, spent = _budgets[-1] if _budgets else (0.0, defaultdict[str, float](float))
        if budget and limit > budget - spent[host] and limit <= START:
            limit, shown = max(0.0, budget - spent[host]), budget
        elif not budget and limit <= PATIENT:
            limit = shown = min(limit, QUESTION)
        url = self._endpoint.url  # may connect by ssh, which has its own limit
        target = f"{self._prefix}{quote(path, safe='/:')}{'?' if query else ''}{urlencode(query)}"

        def ask() -> T:
            # The time-out of a socket is between two bytes; the limit for the whole is shorter.
            response = request.send(url, method, target, document=document, timeout=limit + 5)
            if response.status >= 400:
                raise BadStatus(response.status, _explanation(response))
            return read(response)

        began = time.monotonic()
        try:
            if limit:
                return within(limit, ask)
        except TimeoutError:
            pass
        except OSError as error:
            raise unreachable(self._endpoint, error) from None
        finally:
            with _counting:
                spent[host] += time.monotonic() - began
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


def _explanation(response: HTTPResponse) -> str:
    """The engine's own words for an error."""
    text = request.body_of(response, LARGEST).decode(errors="replace")
    with contextlib.suppress(*MISSHAPEN):
        text = str(json.loads(text)["message"])
    return re.sub(r"\s+", " ", text).strip()[:1000] or f"the engine answered {response.status}"


@contextlib.contextmanager
def about(what: str) -> Iterator[None]:
    """Names ``what`` in a BadStatus that is raised inside; EngineError for a document of another form."""
    try:
        yield
    except BadStatus as error:
        raise BadStatus(error.status, f"{what}: {error.problems[0].message}") from None
    except (*MISSHAPEN, RecursionError):
        raise EngineError(f"{what}: the engine's answer does not have the form of a Docker Engine's") from None


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
        EngineSession(self._endpoint).ask("GET", "/version", GREETING)


def unreachable(endpoint: Endpoint, error: OSError) -> EngineError:
    """The error for an engine that can't be reached, or ends in the middle of an answer."""
    if connection := forwards.get((endpoint.host, "")):
        return connection.error()
    where = f"{endpoint.host} (from {endpoint.chosen_by})"
    if isinstance(error, TimeoutError):
        return EngineTimeout(
            f"the Docker Engine at {where} stopped answering", hint="it may be overloaded: try `docker version`"
        )
    if isinstance(error, PermissionError):
        return EngineError(
            f"no permission to use the Docker Engine at {where}",
            hint="add yourself to the group docker (`sudo usermod -aG docker $USER`, then log in again)",
            command="sudo usermod -aG docker $USER",
        )
    if isinstance(error, ConnectionRefusedError) and endpoint.local:
        return EngineError(f"the Docker Engine at {where} is stopped", hint=_HINT, command=_START)
    if endpoint.local and error.errno in (errno.ENOENT, errno.ENOTDIR):
        if endpoint.chosen_by == "the default" and not shutil.which("docker"):
            return EngineError(
                "Docker is not installed: neither the program `docker` nor the socket /var/run/docker.sock exists",
                hint="https://docs.docker.com/engine/install/; in a checkout of envgen: scripts/engine up",
            )
        message = f"the Docker Engine is not running: no socket at {where}"
        return EngineError(message, hint=_HINT, command=_START)
    hint = "`docker version` tries the same; check that it runs, and that it is a Docker Engine"
    return EngineError(f"cannot reach the Docker Engine at {where}: {reason_of(error)}", hint=hint)


_START = "sudo systemctl start docker"
_HINT = f"start it (`{_START}`), or set DOCKER_HOST to the engine that runs"
