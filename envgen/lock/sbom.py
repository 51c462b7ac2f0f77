"""An SBOM in SPDX 2.3: what an image holds, read from inside, joined with what the image says it was made of.

The same image gives the same bytes: identifiers come from names, the time is the build's own time stamp, and the
namespace holds the image's ID. What is not known is NOASSERTION, as SPDX wants it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote, urlsplit

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from envgen import __version__
from envgen.engine.base import Image
from envgen.lock.manifest import Distribution, Inventory, Manifest
from envgen.lock.registry import seconds

TOP = "SPDXRef-DOCUMENT"
_STEPS_INSIDE = ("uv", "deps", "install.")  # what these steps install is in the finished image
_UNKNOWN = "NOASSERTION"
_TOOL = f"Tool: envgen-{__version__}"
_PAGE = re.compile(r"(git\+)?(https?|ssh|git)://[a-z0-9]+([-.][a-z0-9]+)*\.[a-z]{2,}(:\d{1,5})?(/\S*)?")


@dataclass(frozen=True)
class Sbom:
    """``content``: the JSON document. ``differences``: where the image holds something else than its lock names."""

    content: bytes
    differences: tuple[str, ...]
    packages: int


def write(found: Manifest, image: Image, inventory: Inventory) -> Sbom:
    """The SBOM of an image."""
    made = _Maker(found, image, inventory)
    text = json.dumps(made.document(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return Sbom(text.encode("utf-8", "replace"), tuple(made.differences), len(made.packages))


class _Maker:
    """Collects the elements of one document."""

    def __init__(self, found: Manifest, image: Image, inventory: Inventory) -> None:
        self.found = found
        self.image = image
        self.inventory = inventory
        self.packages: dict[str, dict[str, Any]] = {}  # by SPDXID
        self.relations: list[dict[str, str]] = []
        self.differences: list[str] = []
        created = datetime.fromtimestamp(found.epoch or seconds(image.created), tz=timezone.utc)
        self.created = created.strftime("%Y-%m-%dT%H:%M:%SZ")
        arch = f"linux/{image.architecture}"
        # Of the inputs for other platforms nothing is in this image.
        self.pins = _pins(found.inputs, f"{arch} pip ")
        self.apt = _apt(found.inputs, f"{arch} apt ")
        self.used: set[tuple[str, str]] = set()

    def document(self) -> dict[str, Any]:
        """All of it, in a fixed order."""
        labels = [f"{key}={value}" for key, value in sorted(self.found.labels.items()) if value]
        top = self._image("image", self.found.image, self.image.id, "labels: " + ", ".join(labels))
        self._relate(TOP, "DESCRIBES", top)
        for name, digest in _named(self.found.inputs, "image "):
            note = "by the digest in its registry, or by its ID where it was made on the machine that locked it"
            self._relate(top, "DESCENDANT_OF", self._image("base", name, digest, note))
        sources = self._sources(top)
        self._debian(top)
        self._python(top, sources)
        self._build_only(top)
        for url, digest in _named(self.found.inputs, "file "):
            self._relate(top, "CONTAINS", self._file(url.rpartition("/")[2], digest, "vocabulary file", url))
        said = [*(f"not locked: {text}" for text in self.found.open), *self.differences]
        if not self.found.inputs:
            said.append("built without a lock: its inputs are not known")
        head = {"annotationDate": self.created, "annotationType": "OTHER", "annotator": _TOOL}
        self.packages[top] |= {"annotations": [{**head, "comment": text} for text in said]} if said else {}
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", self.found.image).strip("-")
        system = self.inventory.os.get("PRETTY_NAME", "unknown system")
        return {
            "spdxVersion": "SPDX-2.3",
            "dataLicense": "CC0-1.0",
            "SPDXID": TOP,
            "name": f"{self.found.image} {self.image.id}",
            "documentNamespace": f"https://spdx.org/spdxdocs/envgen-{slug}-{self.image.id.removeprefix('sha256:')}",
            "creationInfo": {"created": self.created, "creators": [_TOOL]},
            "comment": f"{system}, Python {self.inventory.python}, {self.inventory.machine}. "
            "Read from inside the image; what its lock demanded is beside it.",
            "packages": list(self.packages.values()),
            "relationships": self.relations,
        }

    def _add(
        self, words: Sequence[str], name: str, version: str, purl: str, hashes: Sequence[str] = (), **more: str
    ) -> str:
        """A package. With several hashes it is unknown which file it was: no checksum then."""
        stem = "SPDXRef-" + re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words)).strip("-")
        key, number = stem, 1
        while key in self.packages:
            number += 1
            key = f"{stem}-{number}"
        made: dict[str, Any] = {"SPDXID": key, "name": name, "versionInfo": version, "filesAnalyzed": False}
        made |= {"downloadLocation": _UNKNOWN, "supplier": _UNKNOWN, "copyrightText": _UNKNOWN}
        made |= {"licenseConcluded": _UNKNOWN, "licenseDeclared": _UNKNOWN}
        made |= {field: value for field, value in more.items() if value}
        if purl:
            refers = {"referenceCategory": "PACKAGE_MANAGER", "referenceType": "purl", "referenceLocator": purl}
            made["externalRefs"] = [refers]
        if len(hashes) == 1:
            made["checksums"] = [{"algorithm": "SHA256", "checksumValue": hashes[0]}]
        elif hashes:
            one_of = "one of these files was taken: " + ", ".join(f"sha256:{digest}" for digest in hashes)
            made["comment"] = "; ".join(text for text in (made.get("comment"), one_of) if text)
        self.packages[key] = {name: value for name, value in made.items() if value != ""}
        return key

    def _relate(self, one: str, kind: str, other: str, comment: str = "") -> None:
        row = {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}
        self.relations.append(row | ({"comment": comment} if comment else {}))

    def _image(self, kind: str, name: str, digest: str, note: str) -> str:
        """An image: by the digest of its manifest, or by its ID where only an engine knows it."""
        repository, tag = _split(name)
        host = repository.partition("/")[0]
        # Docker's own hub and images that only an engine knows have no address in their name.
        address = repository if "." in host or ":" in host else ""
        short = repository.rpartition("/")[2]
        purl = _purl("oci", short.lower(), digest, arch=self.image.architecture, repository_url=address, tag=tag)
        match = re.fullmatch(r"sha256:([0-9a-f]{64})", digest)
        hashes = [match[1]] if match else []
        return self._add((kind, short), name, digest, purl, hashes, primaryPackagePurpose="CONTAINER", comment=note)

    def _file(self, name: str, digest: str, note: str, url: str = "") -> str:
        """One file with its SHA-256. A package of one file: SPDX's own file element must have a SHA-1 too."""
        purl = _purl("generic", name.rpartition("/")[2], "", checksum=f"sha256:{digest}", download_url=url)
        more = {"downloadLocation": _address(url), "primaryPackagePurpose": "FILE", "packageFileName": name}
        return self._add(("file", name), name, f"sha256:{digest}", purl, [digest], comment=note, **more)

    def _sources(self, top: str) -> dict[str, str]:
        """distribution -> the element of its source. With submodules, and patches in the order of their series."""
        made: dict[str, str] = {}
        in_image = self.found.labels.get("dev.envgen.patches", "").split(" ")
        for name, source in sorted(self.found.sources.items()):
            source_id = self._source(name, source)
            if not source_id:
                continue
            made[source["distribution"]] = source_id
            self._relate(source_id, "BUILD_DEPENDENCY_OF", top)
            folder = source.get("patches", "")
            series = self.found.inputs.get(f"series {folder}", "") if folder else ""
            for number, file in enumerate(filter(None, series.split(", ")), 1):
                fits = f"{folder}/{file}" in in_image or f"{name}/{file}" in in_image
                note = f"number {number} of the series for {name}" + (
                    "" if fits else "; not for this version: left out"
                )
                patch = self._file(f"patches/{folder}/{file}", self.found.inputs[f"patch {folder}/{file}"], note)
                left_out = "" if fits else "a patch that was left out of the build"
                self._relate(patch, "PATCH_FOR" if fits else "OTHER", source_id, left_out)
        return made

    def _source(self, name: str, source: Mapping[str, str]) -> str:
        origin = source.get("origin", "")
        if source.get("kind") == "git" and (commit := self.found.inputs.get(f"git {origin}", "")):
            url, _, ref = origin.rpartition(" ")
            made = self._add(
                ("git", name, commit[:12]), name, commit, _git_purl(name, url, commit),
                downloadLocation=_address(f"git+{url}@{commit}"),
                primaryPackagePurpose="SOURCE", sourceInfo=f"{url} at commit {commit}", comment=f"asked for as {ref}",
            )  # fmt: skip
            for path, inner in _named(self.found.inputs, f"git {origin} submodule "):
                words, purl = ("git", name, path, inner[:12]), _purl("generic", path.rpartition("/")[2], inner)
                more = {"primaryPackagePurpose": "SOURCE", "comment": f"submodule {path} of {name}"}
                self._relate(made, "CONTAINS", self._add(words, f"{name}/{path}", inner, purl, **more))
            return made
        if source.get("kind") == "pypi":
            for (step, package), (version, hashes) in sorted(self.pins.items()):
                if step == f"sdist.{name}":
                    self.used.add((step, package))
                    more = {"primaryPackagePurpose": "SOURCE", "comment": f"source distribution of {name}"}
                    purl = _purl("pypi", package, version)
                    return self._add(("sdist", package, version), package, version, purl, hashes, **more)
        return ""

    def _debian(self, top: str) -> None:
        os = self.inventory.os
        vendor = os.get("ID", "debian")
        distro = f"{vendor}-{os['VERSION_ID']}" if os.get("VERSION_ID") else ""
        for one in self.inventory.debian:
            wanted = self.apt.get(one.name, {})
            steps = [step for step, version in sorted(wanted.items()) if version == one.version]
            if wanted and not steps:
                names = ", ".join(sorted(set(wanted.values())))
                self._differs(f"{one.name} {one.version} (Debian): the lock names {names}")
            upstream = f"{one.source}@{one.source_version}" if one.source not in ("", one.name) else ""
            made = self._add(
                ("deb", one.name, one.arch), one.name, one.version,
                _purl(f"deb/{quote(vendor)}", one.name, one.version, arch=one.arch, distro=distro, upstream=upstream),
                sourceInfo=f"made from the Debian source package {one.source} {one.source_version}",
                homepage=_address(one.homepage), comment="; ".join(f"brought by apt for {step}" for step in steps),
            )  # fmt: skip
            self._relate(top, "CONTAINS", made)
        for name in sorted(set(self.apt).difference(one.name for one in self.inventory.debian)):
            self._differs(f"{name} {', '.join(sorted(set(self.apt[name].values())))} (Debian): the image has none")

    def _python(self, top: str, sources: Mapping[str, str]) -> None:
        for one in self.inventory.distributions:
            inside = {
                step: pin for (step, name), pin in self.pins.items()
                if name == one.name and step.startswith(_STEPS_INSIDE)
            }  # fmt: skip
            mine = {step: pin for step, pin in inside.items() if pin[0] == one.version}
            self.used |= {(step, one.name) for step in inside}
            if inside and not mine and not self._is_hidden(one):
                names = ", ".join(sorted({version for version, _ in inside.values()}))
                self._differs(f"{one.name} {one.version} (Python): the lock names {names}")
            notes = [f"its files lie in {one.place}", *(f"brought by the step {step}" for step in sorted(mine))]
            made = self._add(
                ("python", one.name, one.version), one.name, one.version, _purl("pypi", one.name, one.version),
                sorted({digest for _, digests in mine.values() for digest in digests}), comment="; ".join(notes),
                licenseDeclared=_license(one.license), homepage=_address(one.homepage),
                licenseComments=f"the package says: {one.license_said}" if one.license_said else "",
            )  # fmt: skip
            self._relate(top, "CONTAINS", made)
            if one.name in sources:
                self._relate(made, "GENERATED_FROM", sources[one.name])

    def _is_hidden(self, package: Distribution) -> bool:
        """True when another distribution of the same name is in another folder, and has the version of the lock."""
        versions = {version for (_, name), (version, _) in self.pins.items() if name == package.name}
        return any(
            other.name == package.name and other.place != package.place and other.version in versions
            for other in self.inventory.distributions
        )

    def _differs(self, text: str) -> None:
        self.differences.append(f"differs from the lock: {text}")

    def _build_only(self, top: str) -> None:
        """What the stages of the wheels had, and what was locked and is not (any more) there."""
        merged: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
        for (step, name), (version, hashes) in sorted(self.pins.items()):
            if (step, name) not in self.used:
                merged.setdefault((name, version, hashes), []).append(step)
        for (name, version, hashes), steps in sorted(merged.items()):
            if any(step.startswith(_STEPS_INSIDE) for step in steps):
                self._differs(f"{name} {version} (Python): locked for {', '.join(steps)}, and the image has none")
            note = "used by the build: " + ", ".join(steps)
            purl = _purl("pypi", name, version)
            made = self._add(("build", name, version), name, version, purl, hashes, comment=note)
            self._relate(made, "BUILD_DEPENDENCY_OF", top)


def _purl(kind: str, name: str, version: str, **qualifiers: str) -> str:
    """A package URL (https://github.com/package-url/purl-spec). None can hold a name of blanks and slashes alone."""
    words = [f"{key}={quote(value, safe=':/')}" for key, value in sorted(qualifiers.items()) if value]
    head = f"pkg:{kind}/{quote(name.strip().strip('/').strip() or 'unnamed', safe=':')}"
    return head + (f"@{quote(version, safe=':')}" if version else "") + ("?" + "&".join(words) if words else "")


def _git_purl(name: str, url: str, commit: str) -> str:
    parts = urlsplit(url)
    path = parts.path.strip("/").removesuffix(".git").split("/")
    if parts.hostname == "github.com" and len(path) == 2:
        return _purl(f"github/{quote(path[0].lower())}", path[1].lower(), commit)
    return _purl("generic", name, commit, vcs_url=f"git+{url}@{commit}")


def _split(name: str) -> tuple[str, str]:
    """(repository, tag) of an image's name; a digest behind it is left out."""
    plain = name.partition("@")[0]
    head, colon, tag = plain.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (plain, "")


def _license(expression: str) -> str:
    """An SPDX expression, if it is one."""
    try:
        return canonicalize_license_expression(expression)
    except InvalidLicenseExpression:
        return ""


def _address(text: str) -> str:
    """An address that SPDX accepts."""
    return text if _PAGE.fullmatch(text) else ""


def _named(inputs: Mapping[str, str], head: str) -> list[tuple[str, str]]:
    """(rest of the name, value) of the inputs whose names begin with ``head``, sorted."""
    return sorted((name.removeprefix(head), value) for name, value in inputs.items() if name.startswith(head))


def _pins(inputs: Mapping[str, str], head: str) -> dict[tuple[str, str], tuple[str, tuple[str, ...]]]:
    """(step, package) -> (version, sha256 of the files that fit)."""
    found = {}
    for name, value in _named(inputs, head):
        step, _, package = name.partition(" ")
        if " " not in package:
            hashes = tuple(sorted(inputs.get(f"{head}{name} sha256", "").split()))
            found[step, package] = (value, hashes)
    return found


def _apt(inputs: Mapping[str, str], head: str) -> dict[str, dict[str, str]]:
    """package -> step -> version."""
    found: dict[str, dict[str, str]] = {}
    for name, version in _named(inputs, head):
        step, _, package = name.partition(" ")
        found.setdefault(package.partition(":")[0], {})[step] = version
    return found
