"""HTTP for resolving: retries where they help, one clear sentence where they don't, and no secret in any of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import requests

from envgen.errors import LockError
from envgen.lock.ask import shown
from envgen.lock.trust import certificates

ATTEMPTS = 4
LONGEST_WAIT = 60.0
LIMIT = 32 << 20  # nothing that is asked for here is larger


class Web:
    """A session with time-outs and retries. ``say`` hears of waits."""

    def __init__(
        self, say: Callable[[str], None] = lambda _line: None, *, timeout: float = 30, pause: float = 0.5
    ) -> None:
        self._say = say
        self._timeout = timeout
        self._pause = pause
        self._session = requests.Session()
        self._session.verify = certificates()

    def get(
        self, url: str, headers: Mapping[str, str] | None = None, auth: tuple[str, str] | None = None
    ) -> requests.Response:
        """A GET. What is worth another try is tried again; other answers, good or bad, are the caller's."""
        trouble = ""
        for attempt in range(1, ATTEMPTS + 1):
            wait = self._pause * 2 ** (attempt - 1)
            try:
                answer = self._once(url, headers, auth)
                if answer.status_code != 429 and answer.status_code < 500:
                    return answer
                trouble = f"answered {answer.status_code}" + (
                    " (too many requests)" if answer.status_code == 429 else ""
                )
                asked = _retry_after(answer.headers.get("Retry-After", ""))
                if asked > LONGEST_WAIT:
                    raise LockError(f"{_host(url)} {trouble} and asks to wait {asked:.0f} s", hint="try again later")
                wait = max(wait, asked)
            except requests.exceptions.SSLError as error:
                raise LockError(f"{_host(url)}: TLS failed: {reason(error)}", hint=_CA_HINT) from None
            except requests.exceptions.Timeout:
                trouble = f"did not answer within {self._timeout:g} s"
            except (requests.exceptions.ChunkedEncodingError, requests.exceptions.ContentDecodingError):
                trouble = "broke off in the middle of its answer"
            except requests.exceptions.ConnectionError as error:
                trouble = f"cannot be reached: {reason(error)}"
            except (requests.exceptions.RequestException, ValueError) as error:
                raise LockError(f"{shown(url)}: {reason(error)}") from None
            if attempt < ATTEMPTS:
                self._say(f"{_host(url)} {trouble}; trying again in {wait:.1f} s")
                time.sleep(wait)
        raise LockError(f"{_host(url)} {trouble} ({ATTEMPTS} tries)", hint="is the network up, and its proxy right?")

    def _once(self, url: str, headers: Mapping[str, str] | None, auth: tuple[str, str] | None) -> requests.Response:
        deadline = time.monotonic() + 4 * self._timeout  # a server may drip byte after byte
        # `auth` also keeps requests from reading ~/.netrc for hosts that we were given no password for.
        with self._session.get(
            url, headers=dict(headers or {}), auth=auth or _nobody, timeout=self._timeout, stream=True
        ) as answer:
            body = bytearray()
            for chunk in answer.iter_content(64 << 10):
                body += chunk
                if len(body) > LIMIT:
                    raise LockError(f"{_host(url)} sends more than {LIMIT >> 20} MiB, which is no answer to this")
                if time.monotonic() > deadline:
                    raise requests.exceptions.Timeout
            length = answer.headers.get("Content-Length", "")
            if length.isdigit() and "Content-Encoding" not in answer.headers and len(body) < int(length):
                raise requests.exceptions.ChunkedEncodingError
            answer._content = bytes(body)
            return answer


_CA_HINT = (
    "behind a company's own authority add its certificates to this machine's (update-ca-certificates), or name them in "
    "REQUESTS_CA_BUNDLE"
)


def _nobody(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def document(answer: requests.Response, what: str) -> Any:
    """The answer as JSON, or LockError."""
    try:
        return answer.json()
    except ValueError:
        raise LockError(f"{what}: the answer is not JSON: is this address right?") from None


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def _retry_after(text: str) -> float:
    """Seconds from a number or a date; 0 when it is neither."""
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return 0.0


def reason(error: BaseException) -> str:
    """The innermost cause in a few words: requests and urllib3 wrap several errors around it."""
    inner: BaseException = error
    while (following := inner.__cause__ or inner.__context__) is not None and following is not inner:
        inner = following
    text = str(getattr(inner, "strerror", None) or inner)
    return shown(text if len(text) < 200 else text[:197] + "...")
