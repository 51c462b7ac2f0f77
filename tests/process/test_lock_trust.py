"""HTTPS of a model hub behind an authority that only this machine knows: a real TLS server on loopback."""

from __future__ import annotations

import http.server
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from local import Quiet, serving

from envgen.errors import LockError
from envgen.lock.servers import commit_of
from envgen.profile.service import ModelRef

VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "HF_TOKEN")


class _Page(Quiet):
    def do_GET(self) -> None:
        self.reply(b'{"sha": "%s"}' % (b"0" * 40))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that signs itself; the key lies beside it."""
    folder = tmp_path_factory.mktemp("authority")
    words = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2", "-nodes"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *words,
         "-keyout", folder / "key.pem", "-out", folder / "ca.pem"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return folder / "ca.pem"


@pytest.fixture(scope="module")
def url(authority: Path) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, authority.with_name("key.pem"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    with serving(server) as address:
        yield address.replace("http:", "https:")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def asked(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """ "good", or what was said."""
    monkeypatch.setenv("HF_ENDPOINT", url)
    try:
        commit_of(ModelRef("demo/demo"))
    except LockError as error:
        return "refused" if "export REQUESTS_CA_BUNDLE" in str(error) else str(error)
    return "good"


def test_an_unknown_authority_is_refused_with_what_to_do(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(url, monkeypatch) == "refused"


@pytest.mark.parametrize("how", ["the machine's", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_what_the_machine_trusts_is_trusted(
    how: str, url: str, authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "the machine's":
        (tmp_path / "empty.pem").touch()
        places = [tmp_path / "none.pem", tmp_path / "empty.pem", authority]
        monkeypatch.setattr("envgen.engine.web.BUNDLES", tuple(map(str, places)))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))  # the interpreter's own place has nothing
    else:
        monkeypatch.setenv(how, str(authority))
    assert asked(url, monkeypatch) == "good"


def test_what_is_named_goes_before_what_the_machine_has(
    url: str, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/etc/ssl/certs/ca-certificates.crt")
    assert asked(url, monkeypatch) == "refused"
