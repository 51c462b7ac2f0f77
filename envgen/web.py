"""GET by HTTP, with this machine's proxies, certificates and logins."""

from __future__ import annotations

import base64
import contextlib
import netrc
import os
import ssl
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

# Of Debian and Ubuntu; Fedora and RHEL; openSUSE. An interpreter built elsewhere may look in other places.
BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")


def get(address: str, headers: Mapping[str, str], *, authorization: str = "", timeout: float = 30) -> Any:
    """The answer, as of ``urlopen``, whatever its status. OSError where there is none.

    ``authorization``, or a login in the address or in ~/.netrc, goes to this server, and not where it redirects to.
    """
    try:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https"):
            raise OSError("its address does not begin with http:// or https://")
        host = parts.netloc.rpartition("@")[2]
        request = Request(urlunsplit(parts._replace(netloc=host)), headers=dict(headers))
        if authorization := authorization or _login(parts.hostname or "", parts.username, parts.password):
            request.add_unredirected_header("Authorization", authorization)
        return urlopen(request, timeout=timeout, context=_trusted())
    except HTTPError as error:
        return error
    except (HTTPException, ValueError) as error:
        raise OSError(f"{type(error).__name__}: {error}") from None


def _login(host: str, user: str | None, password: str | None) -> str:
    if not user:
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            user, _, password = netrc.netrc(os.environ.get("NETRC")).authenticators(host) or (None, None, None)
    text = f"{unquote(user or '')}:{unquote(password or '')}"
    return "Basic " + base64.b64encode(text.encode()).decode() if user else ""


def _trusted() -> ssl.SSLContext:
    """The bundle that REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE names, as for the hub's own library; else this machine's."""
    if named := os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE"):
        is_folder = Path(named).is_dir()
        return ssl.create_default_context(cafile=None if is_folder else named, capath=named if is_folder else None)
    context = ssl.create_default_context()
    for bundle in BUNDLES:
        with contextlib.suppress(OSError):
            context.load_verify_locations(bundle)
    return context
