"""The files of a released wheel. Of one on a package index only what is wanted is read: vLLM's has
600 MB.
"""

from __future__ import annotations

import configparser
import functools
import hashlib
import importlib
import io
import os
import re
import runpy
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from envgen import files
from envgen.binding import JsonDict, digest_of
from envgen.engine.web import Reply, get
from envgen.errors import EnvgenError
from envgen.lock.model import Pinned
from envgen.patches.series import Patch, strip
from envgen.redact import without_login
from envgen.text import network_reason, progress

_CODE = (".py", ".json", "/METADATA", "/entry_points.txt")
LARGEST = 64 << 20  # bytes of a file in a wheel, or of an index's page
FETCHED = 256 << 20  # bytes of a wheel that are read by ranges
# Whatever a hostile or damaged archive makes zipfile raise.
_UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    RuntimeError,
    NotImplementedError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)
_SETTINGS = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")


@dataclass(frozen=True)
class File:
    """One file of a source."""

    data: bytes
    executable: bool = False


@dataclass(frozen=True)
class WheelTree:
    """A released wheel: the list of its files, and what reads them."""

    label: str
    version: str
    names: Sequence[str]
    fetch: Callable[[Collection[str]], dict[str, bytes]]
    code: Callable[[], bytes]  # its Python, tables and metadata, as an archive

    def read(self, names: Collection[str]) -> dict[str, File]:
        """The named files of the source, as the wheel has them."""
        places_of = _program()["places"]
        placed = {}
        for name in names:
            places = places_of(name, self.names)
            if places:
                placed[name] = places[0]
        data = self.fetch(set(placed.values()))
        return {name: File(data[place]) for name, place in placed.items()}

    def lacking(self, patch: Patch) -> list[str]:
        """The files of a patch that the wheel does not carry."""
        lost = []
        for file in patch.diffs:
            old = "" if file.source == "/dev/null" else strip(file.source)
            new = "" if file.target == "/dev/null" else strip(file.target)
            if old and not _program()["places"](old, self.names):
                lost.append(old)
            elif new and new != old and not _program()["place_of_new"](new, self.names):
                lost.append(new)
        return lost


@functools.cache
def _program() -> JsonDict:
    """The functions of apply-patches, which does the same to what is installed."""
    return runpy.run_path(str(files.data_dir("docker") / "build" / "apply-patches"))


def released(
    name: str,
    version: str,
    indexes: tuple[str, ...],
    wheelhouse: Path | None,
    pins: tuple[Pinned, ...] = (),
) -> WheelTree:
    """The wheel of a release: of the folder of wheels, envgen's cache, or a package index.
    EnvgenError without one.

    ``pins``: what the lock has of it. Another index, or another hash, is another wheel.
    """
    at_hand = None
    for path in sorted(wheelhouse.glob("*.whl")) if wheelhouse else []:
        if _is(path.name, name, version):
            at_hand = path
            break
    if not indexes or not indexes[0]:
        indexes = (*_configured(), *indexes[1:])
    key = digest_of(2, {"indexes": indexes, "pins": sorted(map(str, pins))})[:16]
    cache = files.cache_dir() / "wheels" / f"{canonicalize_name(name)}-{version}-{key}"
    label = at_hand.name if at_hand else f"the wheel of {name} {version}"
    release = _WheelFiles(name, version, indexes, at_hand, cache)
    return WheelTree(label, version, release.names, release.fetch, release.code)


@dataclass(frozen=True)
class _WheelFiles:
    """A wheel that is ``at_hand``, or on an index: what was read of that is kept in ``cache``."""

    name: str
    version: str
    indexes: tuple[str, ...]
    at_hand: Path | None
    cache: Path

    @functools.cached_property
    def names(self) -> list[str]:
        """Its files."""
        content = self._kept("names")
        if content:
            return content.decode("utf-8", "surrogateescape").split("\n")
        with self._opened() as archive:
            names = [one for one in archive.namelist() if not one.endswith("/")]
        self._keep("names", "\n".join(names).encode("utf-8", "surrogateescape"))
        return names

    def code(self) -> bytes:
        """Its Python, tables and metadata, as an archive."""
        content = self._kept("code")
        if content is not None:
            return content
        wanted = [one for one in self.names if one.endswith(_CODE)]
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in self._read(wanted).items():
                archive.writestr(name, text)
        content = packed.getvalue()
        self._keep("code", content)
        return content

    def fetch(self, wanted: Collection[str]) -> dict[str, bytes]:
        """The content of some of its files."""
        found = {}
        rest = {}
        for member in sorted(wanted):
            digest = hashlib.sha256(member.encode()).hexdigest()
            content = self._kept(digest)
            if content is None:
                rest[member] = digest
            else:
                found[member] = content
        new = self._read(rest) if rest else {}
        for member, digest in rest.items():
            self._keep(digest, new[member])
        return {**found, **new}

    def _read(self, members: Collection[str]) -> dict[str, bytes]:
        with self._opened() as archive:
            return {member: _member(archive, member) for member in members}

    @contextmanager
    def _opened(self) -> Iterator[zipfile.ZipFile]:
        """The archive. EnvgenError for whatever can't be read of it."""
        file: Any = self.at_hand
        try:
            if file is None:
                address = _address(self.name, self.version, self.indexes)
                file = io.BufferedReader(_Remote(address), 1 << 18)
            with zipfile.ZipFile(file) as archive:
                yield archive
        except _UNREADABLE as error:
            why = str(error) or type(error).__name__
            message = f"the wheel of {self.name} {self.version} can't be read: {why[:300]}"
            raise EnvgenError(message) from None

    def _keep(self, part: str, content: bytes) -> None:
        if self.at_hand:
            return
        with suppress(OSError):
            self.cache.mkdir(parents=True, exist_ok=True)
            files.write(self.cache / part, hashlib.sha256(content).digest() + content)

    def _kept(self, part: str) -> bytes | None:
        """What ``_keep`` wrote; None where that is not what is there."""
        if self.at_hand:
            return None
        try:
            data = files.read(self.cache / part, limit=LARGEST + 32)
        except OSError:
            return None
        digest = data[:32]
        content = data[32:]
        return content if hashlib.sha256(content).digest() == digest else None


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    with archive.open(name) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise OSError(f"{name} has more than {LARGEST >> 20} MiB")
    return content


# No `<`: a page of them would be searched from each to its end.
_LINK = re.compile(r"""<a\s[^<>]*?href=["']([^"'#]+)""")


@functools.cache
def _address(name: str, version: str, indexes: tuple[str, ...]) -> str:
    """The address of a wheel of a release; for any processor, since patches change text."""
    trouble = []
    for index in indexes:
        page = f"{index.rstrip('/')}/{canonicalize_name(name)}/"
        progress(f"looking for the wheel of {name} {version} at {without_login(index)}")
        try:
            answer = get(page, largest=LARGEST)
        except OSError as error:
            trouble.append(f"{without_login(index)}: {network_reason(error)}")
            continue
        if answer.status != 200:
            trouble.append(f"{without_login(index)} answers {answer.status}")
            continue
        for link in _LINK.findall(answer.text):
            path = link.split("?")[0]
            file = unquote(path.rpartition("/")[2])
            if _is(file, name, version):
                with suppress(ValueError):
                    return urljoin(answer.address, str(link))
        trouble.append(f"{without_login(index)} has none")
    raise EnvgenError(f"no wheel of {name} {version}: {'; '.join(trouble)}")


def _is(file: str, name: str, version: str) -> bool:
    try:
        package, release, *_ = parse_wheel_filename(file)
        return package == canonicalize_name(name) and release == Version(version)
    except ValueError:
        return False


def _configured() -> Iterator[str]:
    """The indexes of this machine's uv or pip; PyPI where none is set."""
    listed = [os.environ[name] for name in _SETTINGS if os.environ.get(name)]
    places = [
        os.environ.get("PIP_CONFIG_FILE", ""),
        "~/.config/pip/pip.conf",
        "~/.pip/pip.conf",
        "/etc/pip.conf",
    ]
    settings = configparser.RawConfigParser(strict=False)
    for place in reversed(places):
        if place and place != os.devnull:
            settings.read(Path(place).expanduser())
    if not listed:
        listed = [settings.get("global", "index-url", fallback="")]
    if not listed[0]:  # the one that pip takes
        with suppress(ImportError, AttributeError):
            listed[0] = importlib.import_module("pip._internal.models.index").PyPI.simple_url
    yield from filter(None, listed)
    yield from settings.get("global", "extra-index-url", fallback="").split()


class _Remote(io.RawIOBase):
    """A file of a web server, read by ranges."""

    def __init__(self, address: str) -> None:
        import requests

        self._address = address
        self._at = 0
        self._left = FETCHED
        self._session = requests.Session()
        content_range = self._get(0, 0).headers.get("Content-Range", "")
        _, _, whole = content_range.rpartition("/")
        if not re.fullmatch(r"[0-9]{1,12}", whole):
            raise OSError("the server does not say how large it is")
        self._size = int(whole)

    def _get(self, first: int, last: int) -> Reply:
        self._left -= last - first + 1
        if self._left < 0:
            raise OSError(f"more than {FETCHED >> 20} MiB of it would be read")
        part = {"Range": f"bytes={first}-{last}"}
        answer = get(self._address, largest=last - first + 1, headers=part, session=self._session)
        if answer.status != 206:
            raise OSError(f"the server answers {answer.status} to a request for a part of it")
        return answer

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}
        self._at = starts[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        last = min(self._at + len(buffer), self._size) - 1
        if last < self._at:
            return 0
        data = self._get(self._at, last).body
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
