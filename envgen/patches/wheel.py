"""The files of a released wheel. Of one on a package index only what is wanted is read: vLLM's has
600 MB.
"""

from __future__ import annotations

import configparser
import contextlib
import functools
import hashlib
import importlib
import io
import json
import os
import re
import runpy
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urljoin

from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from envgen import files
from envgen.certificates import certificates
from envgen.errors import EnvgenError
from envgen.patches.series import Patch, strip
from envgen.redact import without_login
from envgen.text import progress

if TYPE_CHECKING:
    import requests  # a tenth of a second: only where a server is asked

TIMEOUT = 20.0  # seconds, for each answer
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

    def read(self, names: Collection[str]) -> dict[str, File]:
        """The named files of the source, as the wheel has them."""
        placed = {
            name: places[0] for name in names if (places := _program()["places"](name, self.names))
        }
        data = self.fetch(set(placed.values()))
        return {name: File(data[place]) for name, place in placed.items()}

    def lacking(self, patch: Patch) -> list[str]:
        """The files of a patch that the wheel does not carry."""
        lost = []
        for file in patch.diffs:
            old, new = (
                strip(name) if name != "/dev/null" else "" for name in (file.source, file.target)
            )
            if old and not _program()["places"](old, self.names):
                lost.append(old)
            elif new and new != old and not _program()["place_of_new"](new, self.names):
                lost.append(new)
        return lost


@functools.cache
def _program() -> dict[str, Any]:
    """The functions of apply-patches, which does the same to what is installed."""
    return runpy.run_path(str(files.data_dir("docker") / "build" / "apply-patches"))


def released(
    name: str, version: str, indexes: tuple[str, ...], wheelhouse: Path | None
) -> WheelTree:
    """The wheel of a release: of the folder of wheels, envgen's cache, or a package index.
    EnvgenError without one.
    """
    at_hand = (
        [path for path in sorted(wheelhouse.glob("*.whl")) if _is(path.name, name, version)]
        if wheelhouse
        else []
    )
    cache = files.cache_dir() / "wheels" / f"{canonicalize_name(name)}-{version}"
    if not at_hand and (cache / "names.json").is_file():
        label, names = json.loads(files.read(cache / "names.json"))
    else:
        label = at_hand[0].name if at_hand else f"the wheel of {name} {version}"
        with _opened(at_hand[0] if at_hand else None, name, version, indexes) as archive:
            names = [one for one in archive.namelist() if not one.endswith("/")]
        if not at_hand:
            _keep(cache / "names.json", json.dumps([label, names]).encode())

    def fetch(wanted: Collection[str]) -> dict[str, bytes]:
        kept = {member: cache / hashlib.sha256(member.encode()).hexdigest() for member in wanted}
        contents = {
            member: files.read(path)
            for member, path in kept.items()
            if path.is_file() and not at_hand
        }
        if rest := sorted(set(wanted) - contents.keys()):
            with _opened(at_hand[0] if at_hand else None, name, version, indexes) as archive:
                contents |= {member: archive.read(member) for member in rest}
            for member in [] if at_hand else rest:
                _keep(kept[member], contents[member])
        return contents

    return WheelTree(label, version, names, fetch)


def _keep(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, content)


def _opened(
    path: Path | None, name: str, version: str, indexes: tuple[str, ...]
) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(
            path or io.BufferedReader(_Remote(_address(name, version, indexes)), 1 << 16)
        )
    except (OSError, zipfile.BadZipFile) as error:
        raise EnvgenError(f"the wheel of {name} {version} can't be read: {error}") from None


@functools.cache
def _address(name: str, version: str, indexes: tuple[str, ...]) -> str:
    """The address of a wheel of a release; for any processor, since patches change text."""
    import requests

    trouble = []
    for index in indexes or _configured():
        page = f"{index.rstrip('/')}/{canonicalize_name(name)}/"
        progress(f"looking for the wheel of {name} {version} at {without_login(index)}")
        try:
            answer = requests.get(page, timeout=TIMEOUT, verify=certificates())
            answer.raise_for_status()
        except (requests.RequestException, ValueError) as error:
            trouble.append(f"{without_login(index)}: {type(error).__name__}")
            continue
        for link in re.findall(r"""<a\s[^>]*?href=["']([^"'#]+)""", answer.text):
            if _is(unquote(link.split("?")[0].rpartition("/")[2]), name, version):
                return urljoin(str(answer.url), str(link))
        trouble.append(f"{without_login(index)} has none")
    raise EnvgenError(f"no wheel of {name} {version}: {'; '.join(trouble)}")


def _is(file: str, name: str, version: str) -> bool:
    try:
        parts = parse_wheel_filename(file)
        return parts[0] == canonicalize_name(name) and parts[1] == Version(version)
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
    settings.read(
        [Path(place).expanduser() for place in reversed(places) if place and place != os.devnull]
    )
    listed = listed or [settings.get("global", "index-url", fallback="")]
    with contextlib.suppress(
        ImportError, AttributeError
    ):  # where none is set, the one that pip takes
        listed[0] = (
            listed[0] or importlib.import_module("pip._internal.models.index").PyPI.simple_url
        )
    yield from filter(None, listed)
    yield from settings.get("global", "extra-index-url", fallback="").split()


class _Remote(io.RawIOBase):
    """A file of a web server, read by ranges."""

    def __init__(self, address: str) -> None:
        import requests

        self._address, self._at, self._session = address, 0, requests.Session()
        self._session.verify = certificates()
        self._size = int(self._get(0, 0).headers["Content-Range"].rpartition("/")[2])

    def _get(self, first: int, last: int) -> requests.Response:
        answer = self._session.get(
            self._address, headers={"Range": f"bytes={first}-{last}"}, timeout=TIMEOUT, stream=True
        )
        if answer.status_code != 206:
            raise OSError(f"the server answers {answer.status_code} to a request for a part of it")
        return answer

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        last = min(self._at + len(buffer), self._size) - 1
        if last < self._at:
            return 0
        data = self._get(self._at, last).content
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
