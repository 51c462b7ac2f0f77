"""An SBOM in SPDX 2.3: the packages that an image holds, read from inside, with the hashes and commits of its lock.

The same image gives the same bytes: the time is the build's own time stamp, and the namespace holds the image's ID.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from envgen import __version__
from envgen.engine.base import Image
from envgen.lock.manifest import Inventory, Manifest
from envgen.lock.registry import seconds

TOP = "SPDXRef-DOCUMENT"
_UNKNOWN = "NOASSERTION"


def write(found: Manifest, image: Image, inventory: Inventory) -> bytes:
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
