"""What an image says of itself: its manifest, what is installed in it, its SBOM; and two saved images compared."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from envgen import __version__
from envgen.binding import ShapeError, bind
from envgen.engine.client import Engine
from envgen.engine.values import ExecResult, Image
from envgen.errors import EngineError, NotFoundError
from envgen.inside import run
from envgen.lock.servers import seconds

PATH = "/opt/envgen/manifest.json"
PREFIX = "dev.envgen."


@dataclass(frozen=True)
class Manifest:
    """``inputs`` is empty for an image that was built without a lock."""

    image: str
    id: str
    labels: Mapping[str, str]
    profile: str
    lock: str
    inputs: Mapping[str, str]
    open: tuple[str, ...]
    # source -> distribution, kind, origin, patches
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    epoch: int = 0  # the time stamp of what the build added; 0 = it was built without a lock


def read(engine: Engine, name: str) -> Manifest:
    """The manifest of an image that the engine has. NotFoundError when it is not there, or not one of ours."""
    image = engine.image(name)
    if image is None:
        raise NotFoundError(f"the engine has no image {name}", hint="`docker image ls` shows those that it has")
    labels = {key: value for key, value in image.labels.items() if key.startswith((PREFIX, "org.opencontainers."))}
    if f"{PREFIX}render" not in labels:
        raise NotFoundError(f"the image {name} was not built by envgen")
    known = {"image": name, "id": image.id, "labels": labels}
    known |= {key: labels.get(f"{PREFIX}{key}", "") for key in ("profile", "lock")}
    try:
        said: dict[str, Any] = {"inputs": {}, "open": []}
        if known["lock"]:
            said = engine.run_once(image.id, ["cat", PATH], timeout=60).document()
        return bind(Manifest, {**said, **known})
    except (TypeError, ValueError):
        message = f"the image {name} has no manifest of its inputs that can be read ({PATH})"
        raise NotFoundError(message) from None


TIMEOUT = 120
UV = "/opt/envgen/uv"  # where a build puts uv, outside of the interpreter's own folders
PROGRAM = run.Program("inventory")
# The interpreter that the build worked with; an image that envgen did not build has no such link.
_CHOOSE = 'for python in /opt/envgen/bin/base-python python3; do command -v "$python" && break; done >/dev/null\n'
_CHOOSE += 'shift; exec "$python" "$@"'


@dataclass(frozen=True)
class Debian:
    """An installed Debian package."""

    name: str
    version: str
    arch: str


@dataclass(frozen=True)
class Distribution:
    """An installed Python distribution. ``license``: what it says as an SPDX expression, or ""."""

    name: str
    version: str
    license: str


@dataclass(frozen=True)
class Inventory:
    """Everything that was found, sorted by name; ``os``: /etc/os-release."""

    os: Mapping[str, str]
    debian: tuple[Debian, ...]
    distributions: tuple[Distribution, ...]


def take(engine: Engine, image_id: str) -> Inventory:
    """Ask an image what is in it. NotFoundError when it has no Python that could tell."""
    inside = run.in_image(engine, image_id, user="0:0")

    def execute(argv: Sequence[str], stdin: bytes, timeout: float) -> ExecResult:
        return inside(["sh", "-c", _CHOOSE, "sh", *argv], stdin, timeout)

    try:
        answer = run.ask(execute, "python3", PROGRAM, {"folders": [UV]}, timeout=TIMEOUT)
        if not isinstance(answer, run.Failure):
            return bind(Inventory, answer)
        trouble = str(answer)
    except (EngineError, ShapeError) as error:
        trouble = str(error).splitlines()[0]
    raise NotFoundError(
        f"the image {image_id[:19]} does not report what is installed in it: {trouble}",
        hint="does it have Python 3.8 or newer, as python3?",
    )


TOP = "SPDXRef-DOCUMENT"
_UNKNOWN = "NOASSERTION"


def write_sbom(found: Manifest, image: Image, inventory: Inventory) -> bytes:
    """The SBOM of an image, as JSON."""
    document = _Document()
    top = document.add("image", found.image, image.id, _oci(found.image, image.id), primaryPackagePurpose="CONTAINER")
    document.relate(TOP, "DESCRIBES", top)
    for name, digest in found.inputs.items():
        if name.startswith("image "):
            base = document.add("base", name[6:], digest, _oci(name[6:], digest), primaryPackagePurpose="CONTAINER")
            document.relate(top, "DESCENDANT_OF", base)
    sources = {}
    for name, source in sorted(found.sources.items()):
        if commit := found.inputs.get(f"git {source['origin']}", ""):
            said = f"{source['origin'].rpartition(' ')[0]} at commit {commit}"
            purl = _purl("generic", name, commit)
            sources[source["distribution"]] = document.add("source", name, commit, purl, sourceInfo=said)
    for package in inventory.debian:
        purl = _purl(f"deb/{quote(inventory.os.get('ID', 'debian'))}", package.name, package.version)
        purl += f"?arch={quote(package.arch)}"
        document.relate(top, "CONTAINS", document.add("deb", package.name, package.version, purl))
    hashes = _hashes(found.inputs, f"linux/{image.architecture} pip ")
    for one in inventory.distributions:
        made = document.add(
            "python", one.name, one.version, _purl("pypi", one.name, one.version),
            hashes.get((one.name, one.version), ""), licenseDeclared=_license(one.license),
        )  # fmt: skip
        document.relate(top, "CONTAINS", made)
        if one.name in sources:
            document.relate(made, "GENERATED_FROM", sources[one.name])
    created = datetime.fromtimestamp(found.epoch or seconds(image.created), tz=timezone.utc)
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", found.image).strip("-")
    return document.text(
        name=f"{found.image} {image.id}",
        documentNamespace=f"https://spdx.org/spdxdocs/envgen-{slug}-{image.id.removeprefix('sha256:')}",
        creationInfo={
            "created": created.strftime("%Y-%m-%dT%H:%M:%SZ"), "creators": [f"Tool: envgen-{__version__}"],
        },
    )  # fmt: skip


class _Document:
    """Collects packages and how they are related."""

    def __init__(self) -> None:
        self.packages: list[dict[str, Any]] = []
        self.relations: list[dict[str, str]] = []

    def add(self, kind: str, name: str, version: str, purl: str, sha256: str = "", **more: str) -> str:
        """A package; its identifier."""
        key = f"SPDXRef-{kind}-{len(self.packages)}"
        refers = {"referenceCategory": "PACKAGE_MANAGER", "referenceType": "purl", "referenceLocator": purl}
        made = {"SPDXID": key, "name": name, "versionInfo": version, "filesAnalyzed": False, "externalRefs": [refers]}
        unknown = ("downloadLocation", "supplier", "copyrightText", "licenseConcluded", "licenseDeclared")
        made |= dict.fromkeys(unknown, _UNKNOWN) | {field: value for field, value in more.items() if value}
        made |= {"checksums": [{"algorithm": "SHA256", "checksumValue": sha256}]} if sha256 else {}
        self.packages.append({field: value for field, value in made.items() if value != ""})
        return key

    def relate(self, one: str, kind: str, other: str) -> None:
        self.relations.append({"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other})

    def text(self, **head: Any) -> bytes:
        head |= {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": TOP}
        whole = {**head, "packages": self.packages, "relationships": self.relations}
        return (json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def _purl(kind: str, name: str, version: str) -> str:
    """A package URL (https://github.com/package-url/purl-spec). None can hold a name of blanks and slashes alone."""
    head = f"pkg:{kind}/{quote(name.strip().strip('/').strip() or 'unnamed', safe=':')}"
    return head + (f"@{quote(version, safe=':')}" if version else "")


def _oci(name: str, digest: str) -> str:
    return _purl("oci", name.partition("@")[0].rpartition("/")[2].partition(":")[0].lower(), digest)


def _license(expression: str) -> str:
    """An SPDX expression, if it is one."""
    try:
        return canonicalize_license_expression(expression)
    except InvalidLicenseExpression:
        return ""


def _hashes(inputs: Mapping[str, str], head: str) -> dict[tuple[str, str], str]:
    """(package, version) -> the SHA-256 of its file, where the lock allows a single one."""
    found = {}
    for name, version in inputs.items():
        if name.startswith(head) and not name.endswith(" sha256"):
            digests = inputs.get(f"{name} sha256", "").split()
            found[name.rpartition(" ")[2], version] = digests[0] if len(digests) == 1 else ""
    return found


# Files that are made of times, or name them: logs, the loader's auxiliary cache, uv's note of when a wheel was made.
_TIMES = re.compile(
    r"/var/log/(apt/[^/]+|dpkg\.log|alternatives\.log|bootstrap\.log)|/var/cache/ldconfig/aux-cache|.*/uv_cache\.json"
)
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
MOST = 1000  # differences; more say nothing new


@dataclass(frozen=True)
class Difference:
    """One field of one path, or of one key of the configuration."""

    path: str
    field: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.path}: {self.field}: {self.first or 'nothing'} and {self.second or 'nothing'}"


class _Saved:
    """One saved image."""

    def __init__(self, path: Path) -> None:
        self.tar = tarfile.open(path)  # noqa: SIM115  (closed by close)
        self.close = self.tar.close
        document = self._json("manifest.json")
        self.layers: list[str] = list(document[0]["Layers"])
        self.config: dict[str, Any] = self._json(document[0]["Config"])
        self.diff_ids: list[str] = list(self.config.get("rootfs", {}).get("diff_ids", []))

    def _json(self, name: str) -> Any:
        file = self.tar.extractfile(name)
        if file is None:
            raise EngineError(f"the saved image lacks {name}")
        return json.load(file)

    def configuration(self, times: bool) -> dict[str, dict[str, str]]:
        """Environment, labels, ...; when it was made too, with ``times``."""
        found = ((key, value) for key, value in _flat(self.config).items() if not key.startswith("rootfs"))
        return {key: {"value": value} for key, value in found if times or not key.endswith("created")}

    def entries(self, index: int, bytewise: bool = False) -> dict[str, Mapping[str, str]]:
        """path -> fields of a layer, in its order; nothing where there is no such layer."""
        found: dict[str, Mapping[str, str]] = {}
        if index >= len(self.layers):
            return found
        with tarfile.open(fileobj=self.tar.extractfile(self.layers[index])) as layer:
            for member in layer:
                file = layer.extractfile(member) if member.isreg() else None
                digest = hashlib.sha256()
                noted = file is not None and member.name.endswith(".dist-info/RECORD") and not bytewise
                while file and (block := file.read(-1 if noted else 1 << 20)):
                    digest.update(_without_notes(block) if noted else block)
                found["/" + member.name.lstrip("./")] = {
                    "kind": str(member.type, "ascii", "replace"),
                    "mode": oct(member.mode),
                    "owner": f"{member.uid}:{member.gid}",
                    "size": str(member.size),
                    "time": f"{member.mtime:f}".rstrip("0").rstrip("."),
                    "link": member.linkname,
                    "content": digest.hexdigest()[:16] if file else "",
                    **{key: value for key, value in member.pax_headers.items() if key.startswith("SCHILY")},
                }
        return found


_Tree = Mapping[str, "Mapping[str, str] | None"]


def compare(first: Path, second: Path, *, bytewise: bool = False) -> list[Difference]:
    """What a container of one image sees and one of the other doesn't; times don't count.

    ``bytewise``: for images of different IDs, all that differs in a layer. Only layers that are not the same are read.
    """
    with closing(_Saved(first)) as one, closing(_Saved(second)) as two:
        found = list(_compared(one.configuration(bytewise), two.configuration(bytewise), "configuration: "))
        pairs = zip(one.diff_ids, two.diff_ids, strict=False)
        shared = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.layers), len(two.layers)))
        if bytewise:
            for index in range(shared, max(len(one.layers), len(two.layers))):
                found += _compared(one.entries(index, True), two.entries(index, True), f"layer {index + 1}: ")
            return found[:MOST] or [Difference("the layers' archives", "order of entries", "", "")]
        mine, theirs = (_tree(saved, shared, len(saved.layers)) for saved in (one, two))
        below: _Tree = {}
        if any((path in mine) != (path in theirs) for path in {*mine, *theirs}):  # touched, and perhaps as it was
            below = _tree(one, 0, shared)
        paths = [path for path in {*mine, *theirs} if not _TIMES.fullmatch(path)]
        first_side, second_side = ({path: tree.get(path, below.get(path)) for path in paths} for tree in (mine, theirs))
        found += _compared(first_side, second_side, ignored=frozenset(("time", "size")))
        return found[:MOST]


def _compared(one: _Tree, two: _Tree, head: str = "", *, ignored: frozenset[str] = frozenset()) -> Iterator[Difference]:
    """What differs between two trees of paths, field by field."""
    for path in sorted({*one, *two}):
        fields, others = one.get(path), two.get(path)
        if fields is None or others is None:
            if fields is not others:
                there = ("there" if side is not None else "" for side in (fields, others))
                yield Difference(head + path, "path", *there)
            continue
        for name in sorted({*fields, *others} - ignored):
            if fields.get(name) != others.get(name):
                yield Difference(head + path, name, fields.get(name, ""), others.get(name, ""))


def _tree(saved: _Saved, start: int, end: int) -> _Tree:
    """What these layers together hold; None = they remove what is below them."""
    found: dict[str, Mapping[str, str] | None] = {}
    for index in range(start, end):
        layer = saved.entries(index)
        for path in layer:  # what a layer removes is below it, wherever in the archive the mark stands
            folder, _, name = path.rpartition("/")
            if not name.startswith(_WHITEOUT):
                continue
            gone = folder if name == _OPAQUE else f"{folder}/{name.removeprefix(_WHITEOUT)}"
            for inner in [inner for inner in found if inner.startswith(f"{gone}/")]:
                del found[inner]
            if name != _OPAQUE:
                found[gone] = None
        found |= {p: fields for p, fields in layer.items() if not p.rpartition("/")[2].startswith(_WHITEOUT)}
    return found


def _without_notes(record: bytes) -> bytes:
    """A package's list of files without the line of uv's note, which has a digest of a time."""
    return b"".join(line for line in record.splitlines(keepends=True) if b"/uv_cache.json," not in line)


def _flat(value: Any, key: str = "") -> dict[str, str]:
    if isinstance(value, dict):
        return {k: v for name, inner in value.items() for k, v in _flat(inner, f"{key}.{name}".lstrip(".")).items()}
    if isinstance(value, list):
        return {k: v for place, inner in enumerate(value) for k, v in _flat(inner, f"{key}[{place}]").items()}
    return {key: str(value)}
