"""Whose certificates the servers of the network are checked against."""

from __future__ import annotations

import contextlib
import os
import ssl
from pathlib import Path

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
        with contextlib.suppress(OSError):
            if name and Path(name).is_file() and Path(name).stat().st_size:
                return name
    return True
