"""The package index that pip uses: which releases there are, and their source distributions, kept in a cache.

The cache is the same that ``scripts/fetch-source`` fills: an archive and, beside it, the sha256 that the index gave.
"""

from __future__ import annotations

import configparser
import hashlib
import html.parser
import io
import json
import os
import re
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urljoin

import requests
import urllib3
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envgen import files
from envgen.engine import process
from envgen.errors import EnvgenError
from envgen.redact import without_login

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


_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_SHA256 = re.compile(r"[0-9a-f]{64}")
LARGEST = 512 << 20
PART = 1 << 18  # bytes; the list of vLLM's files takes two of these, a file one more


@dataclass(frozen=True)
class Sdist:
    """A release's source distribution on the index."""

    version: str
    url: str
    sha256: str
    yanked: bool = False


class PackageIndex:
    """Reads an index. ``seconds`` limits each whole request, a download included."""

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        cache: Path | None = None,
        seconds: float = 300,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self._settings = pip_settings(environ)
        self.cache = cache or files.cache_dir(environ) / "sdists"
        self._seconds = seconds
        self._say = say
        self._pages: dict[str, list[Sdist]] = {}
        self._wheels: dict[str, dict[str, str]] = {}  # name -> version -> address of one of its wheels
        self._listed: dict[str, list[dict[str, Any]]] = {}  # name -> its page's files

    def releases(self, name: str) -> list[Sdist]:
        """The source distributions of a package that were not withdrawn, in no particular order."""
        key = canonicalize_name(name)
        if key not in self._pages:
            self._pages[key] = [sdist for sdist in self._page(key) if not sdist.yanked]
        return self._pages[key]

    def versions(self, name: str) -> list[str]:
        """Every version that was not withdrawn, as a source distribution or as wheels alone."""
        sources = [sdist.version for sdist in self.releases(name)]
        return [*sources, *sorted(self._wheels.get(canonicalize_name(name), {}).keys() - set(sources))]

    def fitting(self, name: str, *, wheel: bool, arch: str, python: str = "") -> set[Version]:
        """The releases with a source distribution, or a ``wheel``, that was not withdrawn and is for this machine.

        ``arch``: as x86_64; ``python``: as 3.12, "" where it is not known, and then every one will do.
        """
        self.releases(name)
        found = set()
        for entry in self._listed.get(canonicalize_name(name), ()):
            try:
                if wheel:
                    version, tags = parse_wheel_filename(entry["filename"])[1::2]
                    fits = any(_is_for(tag, arch, python) for tag in tags)
                else:
                    version, fits = parse_sdist_filename(entry["filename"])[1], True
                asked = SpecifierSet(entry.get("requires-python") or "")
            except ValueError:  # a name, a version or a range that is none
                continue
            if fits and not entry.get("yanked") and (not python or asked.contains(python, prereleases=True)):
                found.add(version)
        return found

    def only_wheels(self, name: str, version: str) -> bool:
        """Whether the index has wheels of a release, and no source distribution."""
        same = _same_version(version)
        sources = [sdist.version for sdist in self.releases(name)]
        return any(map(same, self._wheels.get(canonicalize_name(name), {}))) and not any(map(same, sources))

    def wheel(self, name: str, version: str) -> BinaryIO:
        """A wheel of a release, for any machine: a file that is fetched in parts, as it is read.

        Parts have no checksum, so what is read here may be looked at, and never installed.
        """
        self.releases(name)
        wheels = self._wheels.get(canonicalize_name(name), {})
        url = next((wheels[one] for one in wheels if _same_version(version)(one)), None)
        if url is None:
            raise EnvgenError(f"the package index has no wheel of {name} {version}")
        return io.BufferedReader(_Parts(lambda part: self._get(url, "*/*", part), f"{name} {version}"), PART)

    def cached_versions(self, name: str) -> list[str]:
        """The versions whose source distribution is in the cache."""
        stem = f"{canonicalize_name(name)}-"
        files = self.cache.glob(f"{stem}[0-9]*.tar.gz") if self.cache.is_dir() else ()
        return [file.name[len(stem) : -len(".tar.gz")] for file in files]

    def cached(self, name: str, version: str) -> Path | None:
        """The archive from the cache, if it is there and intact."""
        archive = self.cache / f"{canonicalize_name(name)}-{version}.tar.gz"
        try:
            record = Path(f"{archive}.sha256").read_text(encoding="ascii").strip()
            with archive.open("rb") as file:
                found = _digest(iter(lambda: file.read(1 << 20), b""))
        except (OSError, UnicodeDecodeError):
            return None
        return archive if found == record else None

    def fetch(self, name: str, version: str) -> Path:
        """The archive of a release: from the cache, else from the index, checked against the index's sha256."""
        known = self.cached(name, version)
        if known is not None:
            return known
        wanted = _same_version(version)
        for sdist in self._page(canonicalize_name(name)):
            if wanted(sdist.version):
                if not _SHA256.fullmatch(sdist.sha256):
                    raise EnvgenError(f"the package index gives no sha256 for {name} {version}")
                return self._download(name, version, sdist)
        raise EnvgenError(f"the package index has no source distribution (.tar.gz) of {name} {version}")

    def _download(self, name: str, version: str, sdist: Sdist) -> Path:
        self._say(f"fetching {name} {version} from the package index")
        self.cache.mkdir(parents=True, exist_ok=True)
        archive = self.cache / f"{canonicalize_name(name)}-{version}.tar.gz"
        try:
            # The archive first: without a record it counts for nothing.
            with files.writing(archive) as out, self._get(sdist.url, "*/*") as answer:
                deadline, size, found = time.monotonic() + self._seconds, 0, hashlib.sha256()
                for block in answer.iter_content(1 << 20):
                    size += len(block)
                    if size > LARGEST or time.monotonic() > deadline:
                        raise EnvgenError(f"{name} {version} is too large, or took longer than {self._seconds:.0f} s")
                    found.update(block)
                    out.write(block)
                if found.hexdigest() != sdist.sha256:
                    raise EnvgenError(
                        f"{name} {version} arrived with sha256 {found.hexdigest()}, but the index says {sdist.sha256}"
                    )
            files.write(Path(f"{archive}.sha256"), f"{sdist.sha256}\n".encode())
        except requests.RequestException as error:
            raise EnvgenError(f"cannot fetch {name} {version}: {_reason(error)}") from None
        return archive

    def _page(self, name: str) -> list[Sdist]:
        troubles = []
        for index in self._indexes():
            url = f"{index.rstrip('/')}/{name}/"
            try:
                with self._get(url, _ACCEPT) as answer:
                    files = _files(answer)
                    found = _sdists(answer.url, files, name)
                    self._wheels[name] = _wheels(answer.url, files, name)
                    self._listed[name] = files
            except (requests.RequestException, ValueError) as error:
                troubles.append(f"{without_login(index)}: {_reason(error)}")
                continue
            if found or self._wheels[name]:
                return found
            troubles.append(f"{without_login(index)} has none")
        raise EnvgenError(f"no releases of {name}: " + "; ".join(troubles))

    def _indexes(self) -> list[str]:
        first = self._settings.get("index-url") or default_index()
        others = self._settings.get("extra-index-url", "").split()
        return [index for index in (first, *others) if index.startswith(("http://", "https://"))]

    def _get(self, url: str, accept: str, part: str = "") -> requests.Response:
        options: dict[str, Any] = {"timeout": min(60.0, self._seconds), "stream": True}
        options["verify"] = self._settings.get("cert") or certificates()
        headers = {"Accept": accept, "User-Agent": "envgen"}
        headers |= {"Range": part, "Accept-Encoding": "identity"} if part else {}
        answer = requests.get(url, headers=headers, **options)
        answer.raise_for_status()
        return answer


class _Parts(io.RawIOBase):
    """A file on a server, read by ranges of bytes."""

    def __init__(self, get: Callable[[str], requests.Response], name: str) -> None:
        super().__init__()
        self._get, self._name, self._at = get, name, 0
        size = self._ask("bytes=-1", 1)[1].rpartition("/")[2]
        self._size = int(size) if size.isdecimal() else 0

    def _ask(self, part: str, size: int) -> tuple[bytes, str]:
        """(bytes, their place in the file). EnvgenError where the server sends no parts."""
        try:
            with self._get(part) as answer:
                if answer.status_code != 206:
                    raise EnvgenError(f"the package index has a wheel of {self._name}, and sends no parts of it")
                return answer.raw.read(size), answer.headers.get("Content-Range", "")
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise EnvgenError(f"cannot read the wheel of {self._name}: {_reason(error)}") from None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        data = self._ask(f"bytes={self._at}-{end - 1}", end - self._at)[0]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


# --- pages of an index ------------------------------------------------------------------------------------------------


class _Links(html.parser.HTMLParser):
    """The links of an index's HTML page, in the shape of the JSON one: older indexes have no JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[dict[str, Any]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        href = found.get("href")
        if tag == "a" and href:
            url, _, fragment = href.partition("#")
            kind, _, digest = fragment.partition("=")
            name = unquote(url.rsplit("/", 1)[-1])
            more = {"yanked": "data-yanked" in found, "requires-python": found.get("data-requires-python")}
            self.files.append({"filename": name, "url": url, "hashes": {kind: digest}, **more})


def _files(answer: requests.Response) -> list[dict[str, Any]]:
    if "json" in answer.headers.get("Content-Type", ""):
        files: list[dict[str, Any]] = json.loads(answer.content)["files"]
        return files
    links = _Links()
    links.feed(answer.text)
    return links.files


def _wheels(page: str, files: Sequence[dict[str, Any]], name: str) -> dict[str, str]:
    """Version -> a wheel that was not withdrawn; a wheel's name is NAME-VERSION-TAGS.whl."""
    words = [(file["filename"].split("-"), file["url"]) for file in files if not file.get("yanked")]
    return {
        parts[1]: urljoin(page, url)
        for parts, url in words
        if parts[-1].endswith(".whl") and canonicalize_name(parts[0]) == name
    }


def _is_for(tag: Tag, arch: str, python: str) -> bool:
    """Whether a wheel of this tag can be installed on such a machine."""
    if tag.platform != "any" and not re.fullmatch(rf"(many)?linux.*_{arch}", tag.platform):
        return False
    if not python:
        return True
    version = [int(part) for part in python.split(".")[:2]]
    name = f"cp{version[0]}{version[1]}"
    every = (*cpython_tags(version, [name], ["any"]), *compatible_tags(version, name, ["any"]))
    return any((tag.interpreter, tag.abi) == (one.interpreter, one.abi) for one in every)


def _sdists(page: str, files: Sequence[dict[str, Any]], name: str) -> list[Sdist]:
    found = []
    for entry in files:
        stem, dot, _ = entry["filename"].partition(".tar.gz")
        package, _, version = stem.rpartition("-")
        if dot and canonicalize_name(package) == name:
            url = urljoin(page, entry["url"])
            found.append(Sdist(version, url, entry.get("hashes", {}).get("sha256", ""), bool(entry.get("yanked"))))
    return found


def _same_version(version: str) -> Callable[[str], bool]:
    def same(other: str) -> bool:
        try:
            return Version(other) == Version(version)
        except InvalidVersion:
            return other == version

    return same


# --- pip's configuration ----------------------------------------------------------------------------------------------


def pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """index-url, extra-index-url and cert as pip would take them: files, then variables."""
    home = Path(environ.get("HOME") or "~").expanduser()
    sources = [
        Path("/etc/xdg/pip/pip.conf"),
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        files.xdg_dir("XDG_CONFIG_HOME", ".config", environ) / "pip/pip.conf",
        Path(sys.prefix) / "pip.conf",
    ]
    if environ.get("PIP_CONFIG_FILE"):
        sources.append(Path(environ["PIP_CONFIG_FILE"]))
    found: dict[str, str] = {}
    for file in sources:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself will complain about it
        if parser.has_section("global"):
            found.update({key.replace("_", "-"): value.strip() for key, value in parser.items("global")})
    for key in ("index-url", "extra-index-url", "cert"):
        value = environ.get("PIP_" + key.upper().replace("-", "_"))
        if value:
            found[key] = value
    return found


def default_index() -> str:
    """The index of a pip without configuration; pip itself knows which."""
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        code = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
        answer = process.run(["python3", "-c", code], check=False, timeout=30)
        if answer.code:
            hint = "install pip (python3-pip), or set PIP_INDEX_URL"
            raise EnvgenError("there is no pip to ask for the package index", hint=hint) from None
        return answer.stdout.decode().strip()
    return str(PyPI.simple_url)


def _reason(error: Exception) -> str:
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"answered {error.response.status_code}"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate is not accepted (set PIP_CERT or REQUESTS_CA_BUNDLE)"
    if isinstance(error, requests.ConnectionError):
        return "cannot be reached"
    return type(error).__name__


def _digest(blocks: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for block in blocks:
        found.update(block)
    return found.hexdigest()
