"""Asks servers of the network, none of which is trusted: an answer has a limit of bytes and of time.

Only a package index and the Hugging Face Hub are asked this way; a running service is
``serve.events``'.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Mapping
from concurrent.futures import TimeoutError as LateError
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from envgen.engine.process import in_background

if TYPE_CHECKING:
    import requests

SECONDS = 60.0  # for a whole answer
SILENCE = 20.0  # seconds without data
LATE = "no whole answer within a minute"


@dataclass(frozen=True)
class Reply:
    """A server's answer. ``address``: where redirects have led to."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    address: str = ""

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


def get(
    address: str,
    *,
    largest: int,
    headers: Mapping[str, str] | None = None,
    session: requests.Session | None = None,
) -> Reply:
    """The answer to GET. OSError without one, or where it is larger than ``largest`` bytes or takes
    longer than SECONDS, its headers included.
    """
    # A server that sends a byte a second is never silent for long: a thread can be left behind.
    answer = in_background(partial(_get, address, largest, headers or {}, session))
    try:
        return answer.result(SECONDS)
    except (LateError, ValueError) as error:
        why = LATE if isinstance(error, LateError) else f"not an address: {error}"
        raise OSError(why) from None


def body_of(response: requests.Response, largest: int) -> bytes:
    """The body of a response; its beginning, if larger than ``largest``."""
    body = bytearray()
    with closing(response):
        for chunk in response.iter_content(64 << 10):
            body += chunk
            if len(body) > largest:
                break
    return bytes(body)


def _get(
    address: str,
    largest: int,
    headers: Mapping[str, str],
    session: requests.Session | None,
) -> Reply:
    import requests  # a tenth of a second: only where a server is asked

    end = time.monotonic() + SECONDS
    body = bytearray()
    ask = session.get if session else requests.get
    reply = ask(address, headers=headers, timeout=SILENCE, stream=True, verify=certificates())
    with closing(reply):
        for chunk in reply.iter_content(64 << 10):
            body += chunk
            if len(body) > largest:
                raise OSError(f"its answer ({reply.status_code}) has more than {largest} bytes")
            if time.monotonic() > end:
                raise OSError(LATE)
    return Reply(reply.status_code, bytes(body), reply.headers, str(reply.url))


# Of Debian and Ubuntu; Fedora and RHEL; openSUSE. An interpreter built elsewhere may look in other
# places.
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
)


def certificates() -> str | bool:
    """The ``verify`` argument of requests: a file, or True for the list that requests finds.

    requests uses certifi's list, which lacks a company's authority that was added to this machine.
    First come REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE, as in requests; then SSL_CERT_FILE or the
    interpreter's default, then BUNDLES, then certifi.
    """
    if os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE"):
        return True
    for name in (ssl.get_default_verify_paths().cafile, *BUNDLES):
        with suppress(OSError):
            if name and Path(name).is_file() and Path(name).stat().st_size:
                return name
    return True
