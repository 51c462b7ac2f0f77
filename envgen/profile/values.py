"""Domain values that own their spellings.

Each type is immutable and has ``parse(text)``, which raises ``ValueError`` with a sentence that a
user can act on, and a ``PATTERN`` for the JSON Schema. ``str(value)`` is the spelling of the
project file. Only this module formats an arch, an image name or a size. ``NUMBER``: the kind of
YAML number that may be written unquoted.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import ClassVar

from envgen.text import forbidden_character, size, visible

LONGEST_NAME = 255  # bytes of one name in a path, on every Linux file system
LONGEST_PATH = 4000
LONGEST = 60_000  # bytes; the Dockerfile parser gives up on lines of more than 64 KiB


def plain_text(text: str) -> str:
    """Return ``text`` if a Dockerfile, YAML and a shell can all carry it; else raise
    ``ValueError``.

    Control characters (newline, NUL, tab, NEL, ...), line separators, bidi controls and lone
    surrogates are refused:
    a Dockerfile has no way to write them, or they make a line look like another one.
    """
    char = forbidden_character(text)
    if char:
        if "\ud800" <= char <= "\udfff":
            raise ValueError("contains a lone surrogate, which is not text")
        if char < " " or "\x7f" <= char <= "\x9f":
            raise ValueError(
                f"contains the control character {char!r}; a value is one line of printable text"
            )
        raise ValueError(f"contains {visible(char)}, which breaks or reorders a line")
    if len(text) * 4 > LONGEST and len(text.encode()) > LONGEST:
        raise ValueError(
            f"is longer than {LONGEST} bytes, which a Dockerfile cannot carry in one line"
        )
    return text


def _match(pattern: str, text: str, what: str) -> re.Match[str]:
    match = re.fullmatch(pattern, text)
    if not match:
        raise ValueError(f"{text!r} is not {what}")
    return match


def _path_text(text: str) -> str:
    """``text`` if a file system takes it as a path. Raises ValueError."""
    plain_text(text)
    if len(text.encode()) > LONGEST_PATH or any(
        len(part.encode()) > LONGEST_NAME for part in text.split("/")
    ):
        raise ValueError(
            f"is too long for a path: {LONGEST_PATH} bytes, and {LONGEST_NAME} for each name, are allowed"
        )
    return text


@dataclass(frozen=True)
class ContainerPath:
    """An absolute, normalised POSIX path inside the container."""

    path: str

    PATTERN = r"^/(?!([^/]*/)*\.\.(/|$))[^:\x00-\x1f\x7f]*$"
    EXAMPLE = "/workspace/vllm"

    @classmethod
    def parse(cls, text: str) -> ContainerPath:
        _path_text(text)
        if not text.startswith("/"):
            raise ValueError(f"{text!r} is not an absolute path inside the container")
        if ":" in text:
            raise ValueError(
                f"{text!r} contains a colon, which separates the fields of a mount and of PYTHONPATH"
            )
        parts = [part for part in text.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise ValueError(f"{text!r} contains '..'")
        return cls(f"/{'/'.join(parts)}")

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class HostPath:
    """A path on the machine of the user: absolute, ``~/...`` or relative to the project's folder.

    It stays as written. A rendered file holds only one that is relative to the project or begins
    with ``~``.
    """

    path: str

    PATTERN = r"^[^:\x00-\x1f\x7f]+$"
    EXAMPLE = "../vllm"

    @classmethod
    def parse(cls, text: str) -> HostPath:
        _path_text(text)
        if not text:
            raise ValueError("is empty; write a path")
        if ":" in text:
            raise ValueError(f"{text!r} contains a colon, which separates the fields of a mount")
        return cls(text)

    def __str__(self) -> str:
        return self.path

    @property
    def is_machine_specific(self) -> bool:
        """True for an absolute path: it must not reach a committed file."""
        return self.path.startswith("/")

    @property
    def is_relative(self) -> bool:
        """True where it starts from the project's folder."""
        return not self.path.startswith(("/", "~"))

    def below(self, root: Path) -> Path:
        """Where it is on this machine, for a project in ``root``."""
        return (root / Path(self.path).expanduser()).resolve()


@dataclass(frozen=True, order=True)
class CudaArch:
    """One CUDA architecture such as ``12.1a``.

    Suffix ``a`` = architecture-specific, ``f`` = family-specific, empty = portable. On 10.x and
    later the FP4 conversion instructions exist only with a suffix (else ptxas: ``cvt.e2m1x2 not
    supported on .target 'sm_121'``).
    """

    major: int
    minor: int
    suffix: str = ""

    PATTERN = r"^([0-9]{1,2})\.([0-9])([af]?)$"
    EXAMPLE = "12.1a"

    @classmethod
    def parse(cls, text: str) -> CudaArch:
        # Without the dot, as nvcc and cache folders write it.
        other = re.fullmatch(r"(?:sm_?|compute_)?([0-9]{1,2})\.?([0-9])([af]?)", text.lower())
        example = f"{other[1]}.{other[2]}{other[3]}" if other else "12.1a"
        match = _match(cls.PATTERN, text, f"a CUDA architecture; write it like {example}")
        return cls(int(match[1]), int(match[2]), match[3])

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}{self.suffix}"

    @property
    def folder(self) -> str:
        """As FlashInfer names it in its cache folder: ``121a``."""
        return f"{self.major}{self.minor}{self.suffix}"

    @property
    def sm(self) -> str:
        """As nvcc and ptxas name the real architecture: ``sm_121a``."""
        return f"sm_{self.folder}"

    @property
    def needs_suffix_for_fp4(self) -> bool:
        """True where FP4 instructions need ``a`` or ``f`` and this arch has neither."""
        return self.major >= 10 and not self.suffix


@dataclass(frozen=True)
class CudaArchList:
    """A list of architectures; FlashInfer wants single spaces, Torch wants semicolons (facts,
    section 1).
    """

    archs: tuple[CudaArch, ...]

    PATTERN = r"^\s*[0-9]{1,2}\.[0-9][af]?([\s,;]+[0-9]{1,2}\.[0-9][af]?)*\s*$"
    EXAMPLE = "12.1a"
    NUMBER = "float"  # 12.1 is a number to YAML

    @property
    def shares_memory(self) -> bool:
        """Whether one of these GPUs uses the machine's memory: Orin, Thor, GB10."""
        shared = {(8, 7), (11, 0), (12, 1)}
        return any((arch.major, arch.minor) in shared for arch in self.archs)

    @classmethod
    def parse(cls, text: str) -> CudaArchList:
        parts = re.split(r"[\s,;]+", text.strip())
        if len(set(parts)) != len(parts):
            raise ValueError(f"{text!r} names an architecture twice")
        return cls(tuple(map(CudaArch.parse, parts)))

    def __str__(self) -> str:
        return " ".join(str(arch) for arch in self.archs)

    @property
    def torch(self) -> str:
        """For TORCH_CUDA_ARCH_LIST: ``12.0a;12.1a``. torch refuses ``12.1f`` and gets ``12.1a``."""
        known = (replace(arch, suffix="a") if arch.suffix == "f" else arch for arch in self.archs)
        return ";".join(dict.fromkeys(map(str, known)))

    @property
    def folder(self) -> str:
        """FlashInfer's cache folder: joined by ``_``, as FlashInfer sorts: ``90a_121a`` (number,
        then text).
        """
        ordered = sorted(self.archs, key=lambda arch: (arch.major, f"{arch.minor}{arch.suffix}"))
        return "_".join(arch.folder for arch in ordered)


@dataclass(frozen=True)
class ImageRef:
    """A Docker image reference: ``[registry/]path[:tag][@sha256:digest]``."""

    registry: str
    path: str
    tag: str
    digest: str

    PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:/@-]*$"
    EXAMPLE = "nvcr.io/nvidia/pytorch:25.12-py3"
    _NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
    _HOST = r"(?:localhost|[^/]*[.:][^/]*)/"  # what makes a first part the host of a registry
    _WHOLE = (
        rf"(?:(?!{_HOST})|(?={_HOST})([A-Za-z0-9]+(?:[.-]+[A-Za-z0-9]+)*(?::[0-9]{{1,5}})?)/)"
        rf"({_NAME}(?:/{_NAME})*)(?::([A-Za-z0-9_][\w.-]{{0,127}}))?(?:@(sha256:[0-9a-f]{{64}}))?"
    )

    @classmethod
    def parse(cls, text: str) -> ImageRef:
        # Longer than any valid name; the expression takes quadratic time.
        match = re.fullmatch(cls._WHOLE, text, re.ASCII) if len(text) <= 512 else None
        if not match:
            raise ValueError(f"{text!r} is not an image name; write it like {cls.EXAMPLE}")
        registry, path, tag, digest = (part or "" for part in match.groups())
        if len(registry) + len(path) + bool(registry) > 255:
            raise ValueError("an image name without its tag has at most 255 characters")
        if not registry and path == "scratch":
            raise ValueError("scratch is Docker's own name for the empty image")
        return cls(registry, path, tag, digest)

    def __str__(self) -> str:
        name = f"{self.registry}/{self.path}" if self.registry else self.path
        if self.tag:
            name += f":{self.tag}"
        if self.digest:
            name += f"@{self.digest}"
        return name


@dataclass(frozen=True, order=True)
class ByteSize:
    """A number of bytes, written like ``8GiB``, ``512m`` or ``1073741824``; binary units
    throughout, as Docker's.
    """

    bytes: int

    PATTERN = r"^([0-9]+(?:\.[0-9]+)?) ?(?:([kKmMgGtT])(?:[iI]?[bB])?|[bB])?$"
    EXAMPLE = "8GiB"
    NUMBER = "int"
    RANGE = (0,)
    _LARGEST = 1 << 50
    _UNITS: ClassVar[dict[str, int]] = {
        "": 1,
        "k": 1 << 10,
        "m": 1 << 20,
        "g": 1 << 30,
        "t": 1 << 40,
    }

    @classmethod
    def parse(cls, text: str) -> ByteSize:
        match = _match(cls.PATTERN, text, "a size; write it like 8GiB")
        whole, _, part = match[1].lstrip("0").partition(".")
        if len(whole) > 19 or len(part) > 19:
            raise ValueError(
                f"a size of {len(match[1])} digits is too large or too exact; write it like 8GiB"
            )
        unit = cls._UNITS[(match[2] or "").lower()]
        count = int(Decimal(match[1]) * unit)
        if count > cls._LARGEST:
            raise ValueError(f"{text!r} is too large; the largest size is {cls(cls._LARGEST)}")
        return cls(count)

    def __str__(self) -> str:
        return size(self.bytes)


@dataclass(frozen=True, order=True)
class Duration:
    """A number of seconds, written like ``30s``, ``5m`` or ``1h``."""

    seconds: int

    PATTERN = r"^([0-9]{1,6})([smh])$"
    EXAMPLE = "30s"

    @classmethod
    def parse(cls, text: str) -> Duration:
        match = _match(cls.PATTERN, text, "a duration; write it like 30s, 5m or 1h")
        unit = {"s": 1, "m": 60, "h": 3600}[match[2]]
        return cls(int(match[1]) * unit)

    def __str__(self) -> str:
        """In seconds, which Docker and Compose both read."""
        return f"{self.seconds}s"


@dataclass(frozen=True)
class PortMapping:
    """A published port: ``[address:]host:container``; the protocol is TCP."""

    host: int
    container: int
    address: str = ""

    PATTERN = r"^(?:([0-9.]+):)?([0-9]{1,6}):([0-9]{1,6})$"
    EXAMPLE = "127.0.0.1:8000:8000"

    @classmethod
    def parse(cls, text: str) -> PortMapping:
        what = "a port mapping; write it like 8000:8000 or 127.0.0.1:8000:8000"
        match = _match(cls.PATTERN, text, what)
        address = match[1] or ""
        host = int(match[2])
        container = int(match[3])
        if address:
            ipaddress.IPv4Address(address)
        for port in (host, container):
            if not 1 <= port <= 65535:
                raise ValueError(f"port {port} is out of range (1 to 65535)")
        return cls(host, container, address)

    def __str__(self) -> str:
        return (f"{self.address}:" if self.address else "") + f"{self.host}:{self.container}"


@dataclass(frozen=True)
class Pin:
    """A PyPI distribution with ``extras``, whose ``version`` may be left to what the other sources
    ask for ("").
    """

    name: str
    version: str
    extras: tuple[str, ...] = ()

    PATTERN = (
        r"^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:\[([A-Za-z0-9._-]+(?:,[A-Za-z0-9._-]+)*)\])?"
        r"(?:==([0-9][A-Za-z0-9.!+_-]*))?$"
    )
    EXAMPLE = "vllm==0.33.0"

    @classmethod
    def parse(cls, text: str) -> Pin:
        if "://" in text:
            raise ValueError("an address is no origin; docs/updates.md, A wheel by address")
        what = f"a distribution, or one at an exact version; write it like {cls.EXAMPLE}"
        match = _match(cls.PATTERN, text, what)
        extras = match[2].split(",") if match[2] else ()
        return cls(match[1], match[3] or "", tuple(extras))

    def __str__(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{extras}" + (f"=={self.version}" if self.version else "")


# v0.14.0, 0.6.18.post1: a tag that is the number of a release.
_RELEASE_TAG = r"(?:refs/tags/)?v?([0-9]+(?:\.[0-9]+)+(?:(?:a|b|rc|\.post|\.dev)[0-9]+)*)"


def version_of_ref(ref: str) -> str:
    """The version in a git tag (``v0.14.0`` -> ``0.14.0``); "" for a branch or commit."""
    match = re.fullmatch(_RELEASE_TAG, ref)
    return match[1] if match else ""


@dataclass(frozen=True)
class MaxJobs:
    """How many compilers run at once: a number, or ``auto`` (as many as cores and memory allow,
    moment by moment).
    """

    count: int | None

    PATTERN = r"^(auto|[1-9][0-9]{0,3})$"
    EXAMPLE = "auto"
    NUMBER = "int"
    RANGE = (1, 9999)

    @classmethod
    def parse(cls, text: str) -> MaxJobs:
        _match(cls.PATTERN, text, "a number of jobs; write auto or a number from 1")
        return cls(None if text == "auto" else int(text))

    def __str__(self) -> str:
        return "auto" if self.count is None else str(self.count)


@dataclass(frozen=True)
class GpuId:
    """One GPU of the machine: its number, or its UUID as `nvidia-smi -L` prints it."""

    id: str

    PATTERN = r"^([0-9]{1,3}|(GPU|MIG)-[A-Za-z0-9/-]{1,80})$"
    EXAMPLE = "0"
    NUMBER = "int"
    RANGE = (0, 999)

    @classmethod
    def parse(cls, text: str) -> GpuId:
        _match(
            cls.PATTERN, text, "a GPU; write its number or its UUID, as nvidia-smi -L prints them"
        )
        return cls(text)

    def __str__(self) -> str:
        return self.id


# A path below the project that a build can mount; not below .envgen, .git, compose or docker.
OWN_PATH = (
    r"(?!(\.envgen|\.git|compose|docker)(/|$))(?!([^/]*/)*\.{1,2}(/|$))"
    r"[A-Za-z0-9_.@+][A-Za-z0-9._@+-]*(/[A-Za-z0-9._@+-]+)*"
)


def own_path(text: str) -> str:
    """A path of the project in its plain spelling: ``./src/`` is ``src``. ValueError: a build can't
    mount it.
    """
    plain = text.removeprefix("./").rstrip("/")
    if not re.fullmatch(OWN_PATH, plain):
        hint = "letters, digits and ._@+-, below the project file, outside of docker/ and compose/"
        raise ValueError(f"{text!r} is not a path in the project that a build can mount: {hint}")
    return plain


@dataclass(frozen=True)
class DockerLine:
    """One instruction of a Dockerfile: on one line, and not FROM."""

    text: str

    PATTERN = r"^(RUN|COPY|ENV|ARG|LABEL) \S(.*[^\\\s])?$"
    EXAMPLE = "RUN echo 1 >/etc/of-mine"
    _FLAG = r"--(chown|chmod|link)(=\S+)?|--from=\S+@sha256:[0-9a-f]{64}"

    @classmethod
    def parse(cls, text: str) -> DockerLine:
        if not re.match(r"(RUN|COPY|ENV|ARG|LABEL) \S", text):
            raise ValueError(f"{text[:60]!r} is not a RUN, COPY, ENV, ARG or LABEL line")
        if text != text.rstrip() or text.endswith("\\"):
            raise ValueError(
                "ends with a space or a backslash, which would join it to the next line; remove it"
            )
        if "<<" in text:
            raise ValueError(
                "has <<, which begins a here-document; put the text in a file and COPY it"
            )
        line = cls(text)
        for path in line.sources:
            own_path(path)
        return line

    @property
    def sources(self) -> tuple[str, ...]:
        """The paths of the project that a COPY reads."""
        keyword, *words = self.text.split()
        if keyword != "COPY":
            return ()
        flags = [word for word in words if word.startswith("--")]
        paths = words[len(flags) :]
        if (
            len(paths) < 2
            or paths[0].startswith("[")
            or not all(re.fullmatch(self._FLAG, flag) for flag in flags)
        ):
            raise ValueError(
                "is not a plain COPY; write COPY [--chown=, --chmod=, --link, --from=IMAGE@sha256:...] SOURCE... TARGET"
            )
        if any(flag.startswith("--from") for flag in flags):
            return ()
        return tuple(paths[:-1])

    def __str__(self) -> str:
        return self.text
