"""An SBOM in SPDX 2.3: what an image holds, read from inside, joined with what the image says it was made of.

The same image gives the same bytes: identifiers come from names, the time is the build's own time stamp, and the
namespace holds the image's ID. Written and validated by spdx-tools.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone

from spdx_tools.spdx.model.actor import Actor, ActorType
from spdx_tools.spdx.model.annotation import Annotation, AnnotationType
from spdx_tools.spdx.model.document import CreationInfo, Document
from spdx_tools.spdx.model.package import Package
from spdx_tools.spdx.model.relationship import Relationship, RelationshipType
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document
from spdx_tools.spdx.writer.json.json_writer import write_document_to_stream

from envgen import __version__
from envgen.engine.base import Image
from envgen.errors import EnvgenError, ExitCode
from envgen.lock import sbom_parts as parts
from envgen.lock.inventory import Distribution, Inventory
from envgen.lock.manifest import Manifest
from envgen.lock.registry import seconds

TOP = "SPDXRef-DOCUMENT"
_STEPS_INSIDE = ("uv", "deps", "install.")  # what these steps install is in the finished image


class Sbom:
    """``content``: the JSON document. ``differences``: where the image holds something else than its lock names."""

    def __init__(self, content: bytes, differences: tuple[str, ...], packages: int) -> None:
        self.content = content
        self.differences = differences
        self.packages = packages


class InvalidSbomError(EnvgenError):
    """The library does not accept the document: a defect of envgen."""

    exit_code = ExitCode.INTERNAL


def write(found: Manifest, image: Image, inventory: Inventory) -> Sbom:
    """The SBOM of an image. Raises ``InvalidSbomError`` when spdx-tools refuses it."""
    made = _Maker(found, image, inventory)
    document = made.document()
    messages = validate_full_spdx_document(document)
    if messages:
        raise InvalidSbomError(f"the SBOM is not valid SPDX: {messages[0].validation_message}")
    out = io.StringIO()
    write_document_to_stream(document, out, validate=False)
    tidy = json.dumps(json.loads(out.getvalue()), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    return Sbom(tidy.encode(), tuple(made.differences), len(document.packages))


class _Maker:
    """Collects the elements of one document."""

    def __init__(self, found: Manifest, image: Image, inventory: Inventory) -> None:
        self.found = found
        self.image = image
        self.inventory = inventory
        self.ids = parts.Ids()
        self.packages: list[Package] = []
        self.relations: list[Relationship] = []
        self.differences: list[str] = []
        self.created = datetime.fromtimestamp(found.epoch or seconds(image.created), tz=timezone.utc)
        self.arch = f"linux/{image.architecture}"
        # Of the inputs for other platforms nothing is in this image.
        self.pins = _pins(found.inputs, f"{self.arch} pip ")
        self.apt = _apt(found.inputs, f"{self.arch} apt ")
        self.used: set[tuple[str, str]] = set()

    def document(self) -> Document:
        """All of it, in a fixed order."""
        said = [f"{key}={value}" for key, value in sorted(self.found.labels.items()) if value]
        top = self._add(
            parts.image(
                self.ids, self.found.image, self.image.id, self.image.architecture, note="labels: " + ", ".join(said)
            )
        )
        self._relate(TOP, RelationshipType.DESCRIBES, top)
        self._base(top)
        sources = self._sources(top)
        self._debian(top)
        self._python(top, sources)
        self._build_only(top)
        self._files(top)
        name = f"{self.found.image} {self.image.id}"
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", self.found.image).strip("-")
        info = CreationInfo(
            spdx_version="SPDX-2.3",
            spdx_id=TOP,
            name=name,
            document_namespace=f"https://spdx.org/spdxdocs/envgen-{slug}-{self.image.id.removeprefix('sha256:')}",
            creators=[Actor(ActorType.TOOL, f"envgen-{__version__}")],
            created=self.created,
            document_comment=f"{self.inventory.os.get('PRETTY_NAME', 'unknown system')}, "
            f"Python {self.inventory.python}, {self.inventory.machine}. Read from inside the image; "
            "what its lock demanded stands beside it.",
        )
        return Document(info, self.packages, annotations=self._annotations(top), relationships=self.relations)

    def _add(self, package: Package) -> str:
        self.packages.append(package)
        return package.spdx_id

    def _relate(self, one: str, kind: RelationshipType, other: str, comment: str | None = None) -> None:
        self.relations.append(Relationship(one, kind, other, comment))

    def _annotations(self, top: str) -> list[Annotation]:
        texts = [f"not locked: {text}" for text in self.found.open]
        texts += self.differences
        if not self.found.inputs:
            texts.append("built without a lock: its inputs are not known")
        tool = Actor(ActorType.TOOL, f"envgen-{__version__}")
        return [Annotation(top, AnnotationType.OTHER, tool, self.created, text) for text in texts]

    def _base(self, top: str) -> None:
        for name, digest in _named(self.found.inputs, "image "):
            note = "by the digest in its registry, or by its ID where it was made on the machine that locked it"
            base = self._add(parts.image(self.ids, name, digest, self.image.architecture, base=True, note=note))
            self._relate(top, RelationshipType.DESCENDANT_OF, base)

    def _sources(self, top: str) -> dict[str, str]:
        """distribution -> the element of its source. With submodules, and patches in the order of their series."""
        made: dict[str, str] = {}
        for name, source in sorted(self.found.sources.items()):
            source_id = self._source(name, source)
            if not source_id:
                continue
            made[source["distribution"]] = source_id
            self._relate(source_id, RelationshipType.BUILD_DEPENDENCY_OF, top)
            folder = source.get("patches", "")
            series = self.found.inputs.get(f"series {folder}", "") if folder else ""
            in_image = self.found.labels.get("dev.envgen.patches", "").split(" ")
            for number, file in enumerate([word for word in series.split(", ") if word], 1):
                path = f"patches/{folder}/{file}"
                fits = f"{folder}/{file}" in in_image or f"{name}/{file}" in in_image
                note = f"number {number} of the series for {name}" + (
                    "" if fits else "; not for this version: left out"
                )
                digest = self.found.inputs[f"patch {folder}/{file}"]
                patch = self._add(parts.file(self.ids, path, digest, note))
                kind = RelationshipType.PATCH_FOR if fits else RelationshipType.OTHER
                self._relate(patch, kind, source_id, None if fits else "a patch that was left out of the build")
        return made

    def _source(self, name: str, source: Mapping[str, str]) -> str:
        origin = source.get("origin", "")
        if source.get("kind") == "git":
            url, _, ref = origin.rpartition(" ")
            commit = self.found.inputs.get(f"git {origin}", "")
            if not commit:
                return ""
            made = self._add(parts.checkout(self.ids, name, url, commit, f"asked for as {ref}"))
            for path, inner in _named(self.found.inputs, f"git {origin} submodule "):
                note = f"submodule {path} of {name}"
                module = self._add(parts.submodule(self.ids, f"{name}/{path}", inner, note))
                self._relate(made, RelationshipType.CONTAINS, module)
            return made
        if source.get("kind") == "pypi":
            for (step, package), (version, hashes) in sorted(self.pins.items()):
                if step == f"sdist.{name}":
                    self.used.add((step, package))
                    return self._add(
                        parts.pinned(self.ids, package, version, hashes, f"source distribution of {name}", source=True)
                    )
        return ""

    def _debian(self, top: str) -> None:
        for package in self.inventory.debian:
            wanted = self.apt.get(package.name, {})
            notes = [
                f"brought by apt for {step}" for step, version in sorted(wanted.items()) if version == package.version
            ]
            if wanted and not notes:
                names = ", ".join(sorted(set(wanted.values())))
                self._differs(f"{package.name} {package.version} (Debian): the lock names {names}")
            made = self._add(parts.debian(self.ids, package, self.inventory.os, notes))
            self._relate(top, RelationshipType.CONTAINS, made)
        for name in sorted(set(self.apt).difference(package.name for package in self.inventory.debian)):
            self._differs(f"{name} {', '.join(sorted(set(self.apt[name].values())))} (Debian): the image has none")

    def _python(self, top: str, sources: Mapping[str, str]) -> None:
        for package in self.inventory.distributions:
            found = {
                step: (version, hashes) for (step, name), (version, hashes) in self.pins.items() if name == package.name
            }
            inside = {step: pin for step, pin in found.items() if step.startswith(_STEPS_INSIDE)}
            mine = {step: pin for step, pin in inside.items() if pin[0] == package.version}
            self.used |= {(step, package.name) for step in inside}
            if inside and not mine and not self._is_hidden(package):
                names = ", ".join(sorted({version for version, _ in inside.values()}))
                self._differs(f"{package.name} {package.version} (Python): the lock names {names}")
            hashes = sorted({digest for _, digests in mine.values() for digest in digests})
            notes = [f"brought by the step {step}" for step in sorted(mine)]
            made = self._add(parts.distribution(self.ids, package, hashes, notes))
            self._relate(top, RelationshipType.CONTAINS, made)
            if package.name in sources:
                self._relate(made, RelationshipType.GENERATED_FROM, sources[package.name])

    def _is_hidden(self, package: Distribution) -> bool:
        """True when another distribution of the same name lies in another folder, and has the version of the lock."""
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
            made = self._add(parts.pinned(self.ids, name, version, hashes, "used by the build: " + ", ".join(steps)))
            self._relate(made, RelationshipType.BUILD_DEPENDENCY_OF, top)

    def _files(self, top: str) -> None:
        for url, digest in _named(self.found.inputs, "file "):
            made = self._add(parts.file(self.ids, url.rpartition("/")[2], digest, "vocabulary file", url))
            self._relate(top, RelationshipType.CONTAINS, made)


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
