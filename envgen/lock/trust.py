"""Whose certificates HTTPS is checked against: those that this machine's other programs trust.

requests brings certifi's list and knows no other. Behind a company's proxy git, curl, docker and pip then work, since
its authority was added to the machine, and envgen alone would not.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

# Of Debian and Ubuntu; Fedora and RHEL; openSUSE. An interpreter that was built elsewhere may look in other places.
BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")


def certificates() -> str | bool:
    """For the ``verify`` of requests: a file, or True for what requests finds by itself.

    REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE go first, which is requests' own rule; then SSL_CERT_FILE or the
    interpreter's place for it, then BUNDLES, then certifi.
    """
    if os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE"):
        return True
    for name in (ssl.get_default_verify_paths().cafile, *BUNDLES):
        if name and _is_filled(Path(name)):
            return name
    return True


def _is_filled(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size > 0
    except OSError:
        return False
