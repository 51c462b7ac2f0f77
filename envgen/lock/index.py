"""The package index that pip uses: its releases, and their source distributions in a cache.

The cache is the one that ``scripts/fetch-source`` fills: an archive, and beside it the sha256 from the index.
"""

from __future__ import annotations

import configparser
import contextlib
import hashlib
import html.parser
import netrc
import os
import re
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue
from threading import Event
from urllib.parse import unquote, urljoin, urlsplit

import requests
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from envgen import files
from envgen.engine import process
from envgen.engine.process import in_background
from envgen.errors import EnvgenError
from envgen.redact import without_login

_SHA256 = re.compile(r"[0-9a-f]{64}")
LARGEST = 512 << 20  # bytes of an archive
PAGE = 64 << 20  # bytes of an index page; that of torch is 1 MiB
# Of Debian and Ubuntu; Fedora and RHEL; openSUSE. An interpreter built elsewhere may look in other places.
BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem")


def certificates() -> str | bool:
    """The ``verify`` argument of requests: a file, or True for the list that requests finds.

    requests uses certifi's list, which lacks a company's authority that was added to this machine. First come
    REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE, as in requests; then SSL_CERT_FILE or the interpreter's default, then
    BUNDLES, then certifi.
    """
    if os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE"):
        return True
    for name in (ssl.get_default_verify_paths().cafile, *BUNDLES):
        with contextlib.suppress(OSError):
            if name and Path(name).is_file() and Path(name).stat().st_size:
                return name
    return True


@dataclass(frozen=True)
class IndexFile:
    """One file of a release on the index: a wheel, or a source distribution."""

    version: Version
    url: str
    sha256: str
    yanked: bool
    wheel: bool


class PackageIndex:
    """Reads an index. ``seconds`` limits each whole request, a download included."""

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        seconds: float = 300,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self._settings = pip_settings(environ)
        self._logins = environ.get("NETRC", "")
        self.cache = files.cache_dir(environ) / "sdists"
        self._seconds = seconds
        self._say = say
        self._session = requests.Session()
        self._pages: dict[str, list[IndexFile]] = {}

    def versions(self, name: str) -> list[str]:
        """Every version that was not yanked, with a source distribution or a wheel."""
        return [str(version) for version in sorted({file.version for file in self._page(name) if not file.yanked})]

    def _archive(self, name: str, version: str) -> Path:
        return self.cache / f"{canonicalize_name(name)}-{version}.tar.gz"

    def cached(self, name: str, version: str) -> Path | None:
        """The archive from the cache, if it is there and intact."""
        archive, digest = self._archive(name, version), hashlib.sha256()
        try:
            record = Path(f"{archive}.sha256").read_text(encoding="ascii").strip()
            with archive.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        except (OSError, UnicodeDecodeError):
            return None
        return archive if digest.hexdigest() == record else None

    def fetch(self, name: str, version: str) -> Path:
        """The archive of a release: from the cache, else from the index, checked against the index's sha256."""
        known = self.cached(name, version)
        if known is not None:
            return known
        wanted = Version(version)
        archives = [file for file in self._page(name) if not file.wheel and file.version == wanted]
        if not archives:
            hint = f"`envgen patch check --ref v{version}` asks git, where the source's origin is git"
            raise EnvgenError(f"the package index has no source distribution (.tar.gz) of {name} {version}", hint=hint)
        if not _SHA256.fullmatch(archives[0].sha256):
            raise EnvgenError(f"the package index has no sha256 for {name} {version}")
        try:
            return self._download(f"{name} {version}", self._archive(name, version), archives[0])
        except requests.RequestException as error:
            raise EnvgenError(f"cannot fetch {name} {version}: {_reason(error)}") from None

    def _download(self, what: str, archive: Path, release: IndexFile) -> Path:
        self._say(f"fetching {what} from the package index")
        self.cache.mkdir(parents=True, exist_ok=True)
        # The archive first: `cached` ignores one without its .sha256.
        with files.writing(archive) as out:
            answer = self._get(release.url, "*/*")
            digest = hashlib.sha256()
            for block in self._blocks(answer, LARGEST, what):
                digest.update(block)
                out.write(block)
            if digest.hexdigest() != release.sha256:
                message = f"{what} arrived with sha256 {digest.hexdigest()}, but the index lists {release.sha256}"
                raise EnvgenError(message)
        files.write(Path(f"{archive}.sha256"), f"{release.sha256}\n".encode())
        return archive

    def _page(self, name: str) -> list[IndexFile]:
        """All files of a package, from the first index that has any."""
        name = canonicalize_name(name)
        if name in self._pages:
            return self._pages[name]
        indexes = (self._settings.get("index-url") or default_index(), self._settings.get("extra-index-url", ""))
        reasons = []
        for index in " ".join(indexes).split():
            if not index.startswith(("http://", "https://")):
                continue
            try:
                answer = self._get(f"{index.rstrip('/')}/{name}/", "text/html")
                page = b"".join(self._blocks(answer, PAGE, f"the page of {name}"))
                releases = _releases(page.decode("utf-8", "replace"), answer.url, name)
            except requests.RequestException as error:
                reasons.append(f"{without_login(index)}: {_reason(error)}")
                continue
            if releases:
                self._pages[name] = releases
                return releases
            reasons.append(f"{without_login(index)} has none")
        raise EnvgenError(f"no releases of {name}: " + "; ".join(reasons))

    def _blocks(self, answer: requests.Response, limit: int, what: str) -> Iterator[bytes]:
        """The whole body, unpacked: at most ``limit`` bytes, within ``seconds`` in all, however slowly it arrives."""
        blocks, ended = Queue[bytes | BaseException | None](maxsize=4), Event()

        def put(block: bytes | BaseException | None) -> None:
            while not ended.is_set():
                with contextlib.suppress(Full):
                    blocks.put(block, timeout=1)
                    break

        def read() -> None:
            try:
                for block in answer.iter_content(1 << 16):
                    put(block)
                put(None)
            except BaseException as error:  # raised by the loop below
                put(error)

        in_background(read)  # a read waits for 64 KiB, however long they take
        deadline, size = time.monotonic() + self._seconds, 0
        try:
            while True:
                block = blocks.get(timeout=max(0.0, deadline - time.monotonic()))
                if block is None:
                    return
                if isinstance(block, BaseException):
                    raise block
                size += len(block)
                if size > limit:
                    raise EnvgenError(f"{what} is larger than {limit >> 20} MiB")
                yield block
        except Empty:
            raise EnvgenError(f"{what} took longer than {self._seconds:.0f} s") from None
        finally:
            ended.set()
            in_background(answer.close)  # waits for a read in progress

    def _login(self, url: str) -> tuple[str, str] | None:
        """The login of the netrc file for an address; None leaves it to requests, which reads ~/.netrc."""
        try:
            found = netrc.netrc(self._logins).authenticators(urlsplit(url).hostname or "") if self._logins else None
        except (OSError, netrc.NetrcParseError):
            raise EnvgenError(
                f"{self._logins} is not a netrc file", hint="machine HOST login NAME password SECRET"
            ) from None
        return (found[0], found[2]) if found and found[2] else None

    def _get(self, url: str, accept: str) -> requests.Response:
        headers = {"Accept": accept, "User-Agent": "envgen"}
        verify = self._settings.get("cert") or certificates()
        timeout = min(60.0, self._seconds)
        auth = self._login(url)
        answer = self._session.get(url, headers=headers, timeout=timeout, stream=True, verify=verify, auth=auth)
        answer.raise_for_status()
        return answer


# --- pages of an index ------------------------------------------------------------------------------------------------


class _Links(html.parser.HTMLParser):
    """The attributes of all links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.append(dict(attrs))


def _releases(page: str, address: str, name: str) -> list[IndexFile]:
    """The wheels and source distributions (.tar.gz) that a package's page lists. Every index has that page as HTML."""
    links, releases = _Links(), []
    links.feed(page)
    for link in links.found:
        url, _, fragment = (link.get("href") or "").partition("#")
        file = unquote(url.rpartition("/")[2])
        try:
            if file.endswith(".whl"):
                package, version, *_ = parse_wheel_filename(file)
            elif file.endswith(".tar.gz"):
                package, version = parse_sdist_filename(file)
            else:
                continue
        except ValueError:  # not a name or a version
            continue
        if package == name:
            sha256 = fragment.removeprefix("sha256=")
            is_wheel, yanked = file.endswith(".whl"), "data-yanked" in link
            releases.append(IndexFile(version, urljoin(address, url), sha256, yanked, is_wheel))
    return releases


# --- pip's configuration ----------------------------------------------------------------------------------------------


def pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """index-url, extra-index-url and cert as pip reads them: files, then variables."""
    home = Path(environ.get("HOME") or "~").expanduser()
    own = files.xdg_dir("XDG_CONFIG_HOME", ".config", environ)
    sources = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), home / ".pip/pip.conf", own / "pip/pip.conf"]
    sources += [Path(sys.prefix) / "pip.conf", Path(environ.get("PIP_CONFIG_FILE") or os.devnull)]
    settings: dict[str, str] = {}
    for file in sources:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself reports it
        if parser.has_section("global"):
            settings.update({key.replace("_", "-"): value.strip() for key, value in parser.items("global")})
    for key in ("index-url", "extra-index-url", "cert"):
        settings[key] = environ.get(f"PIP_{key.upper().replace('-', '_')}") or settings.get(key, "")
    return settings


def default_index() -> str:
    """The default index of pip."""
    code = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    for python in (sys.executable, "python3"):
        answer = process.run([python, "-c", code], check=False, timeout=30)
        if not answer.code:
            return answer.stdout.decode().strip()
    raise EnvgenError(
        "pip, which knows the package index, is not installed", hint="install python3-pip, or set PIP_INDEX_URL"
    )


_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (requests.Timeout, "no answer in time"),
    (requests.exceptions.SSLError, "its certificate is not accepted (set PIP_CERT or REQUESTS_CA_BUNDLE)"),
    (requests.ConnectionError, "cannot be reached"),
)


def _reason(error: Exception) -> str:
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"answered {error.response.status_code}"
    return next((reason for kind, reason in _REASONS if isinstance(error, kind)), type(error).__name__)
