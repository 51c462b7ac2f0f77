"""The elements of an SBOM: SPDX packages of each kind, with their package URLs. ``sbom.py`` puts them together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from packageurl import PackageURL
from spdx_tools.common.spdx_licensing import spdx_licensing  # type: ignore[import-untyped]
from spdx_tools.spdx.model.checksum import Checksum, ChecksumAlgorithm
from spdx_tools.spdx.model.package import ExternalPackageRef, ExternalPackageRefCategory, Package, PackagePurpose
from spdx_tools.spdx.model.spdx_no_assertion import SpdxNoAssertion
from spdx_tools.spdx.validation.uri_validators import validate_download_location, validate_url

from envgen.lock.inventory import Debian, Distribution

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


class Ids:
    """Gives each element an identifier of its own: readable, and the same for the same elements in the same order."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def of(self, *words: str) -> str:
        """An identifier made of ``words``."""
        stem = "SPDXRef-" + re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words)).strip("-")
        found, number = stem, 1
        while found in self._taken:
            number += 1
            found = f"{stem}-{number}"
        self._taken.add(found)
        return found


def _package(spdx_id: str, name: str, version: str, purl: PackageURL | None, **more: Any) -> Package:
    """A package; what nobody told is NOASSERTION, which is what SPDX wants to see then."""
    refs = []
    if purl is not None and purl.name:  # a name of blanks alone makes a purl that cannot be written
        refs.append(ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", purl.to_string()))
    base: dict[str, Any] = {
        "download_location": SpdxNoAssertion(),
        "supplier": SpdxNoAssertion(),
        "license_concluded": SpdxNoAssertion(),
        "license_declared": SpdxNoAssertion(),
        "copyright_text": SpdxNoAssertion(),
    }
    return Package(
        spdx_id=spdx_id,
        name=name,
        version=version,
        files_analyzed=False,
        external_references=refs,
        **{**base, **{key: value for key, value in more.items() if not _empty(value)}},
    )


def _empty(value: object) -> bool:
    """Nothing to tell. (A licence expression has no truth value of its own.)"""
    return value is None or (isinstance(value, (str, list)) and not value)


def sha256(*digests: str) -> list[Checksum]:
    """Checksums of a package. With more than one digest nobody knows which file it was, so there is none."""
    return [Checksum(ChecksumAlgorithm.SHA256, digests[0])] if len(digests) == 1 else []


def image(ids: Ids, name: str, digest: str, arch: str = "", *, base: bool = False, note: str = "") -> Package:
    """An image: by the digest of its manifest, or by its ID where only an engine knows it."""
    repository, tag = _split(name)
    short = repository.rpartition("/")[2]
    # Docker's own hub and images that only an engine knows have no address in their name.
    address = repository if "." in repository.partition("/")[0] or ":" in repository.partition("/")[0] else ""
    said = {"repository_url": address, "tag": tag, "arch": arch}
    qualifiers = {key: value for key, value in said.items() if value}
    match = _DIGEST.fullmatch(digest)
    return _package(
        ids.of("base" if base else "image", short),
        name,
        digest,
        PackageURL(
            "oci", None, repository.rpartition("/")[2].lower(), digest, {k: v for k, v in qualifiers.items() if v}
        ),
        primary_package_purpose=PackagePurpose.CONTAINER,
        checksums=sha256(match[1]) if match else [],
        comment=note,
    )


def _split(name: str) -> tuple[str, str]:
    """(repository, tag) of an image's name; a digest behind it is left out."""
    plain = name.partition("@")[0]
    head, colon, tag = plain.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (plain, "")


def debian(ids: Ids, package: Debian, os: Mapping[str, str], notes: Sequence[str]) -> Package:
    """A Debian package as dpkg knows it."""
    vendor = os.get("ID", "debian")
    distro = f"{vendor}-{os['VERSION_ID']}" if os.get("VERSION_ID") else ""
    qualifiers = {"arch": package.arch, "distro": distro}
    if package.source and package.source != package.name:
        qualifiers["upstream"] = f"{package.source}@{package.source_version}"
    return _package(
        ids.of("deb", package.name, package.arch),
        package.name,
        package.version,
        PackageURL("deb", vendor, package.name, package.version, {k: v for k, v in qualifiers.items() if v}),
        source_info=f"made from the Debian source package {package.source} {package.source_version}",
        homepage=_page(package.homepage),
        comment="; ".join(notes),
    )


def distribution(ids: Ids, package: Distribution, hashes: Sequence[str], notes: Sequence[str]) -> Package:
    """A Python distribution as its own metadata tell it; ``hashes``: what the lock demanded of its file."""
    said = [f"its files lie in {package.place}", *notes]
    return _package(
        ids.of("python", package.name, package.version),
        package.name,
        package.version,
        PackageURL("pypi", None, _nameable(package.name), package.version),
        checksums=sha256(*hashes),
        license_declared=_license(package.license),
        license_comment=f"the package says: {package.license_said}" if package.license_said else "",
        homepage=_page(package.homepage),
        comment="; ".join([*said, *_one_of(hashes)]),
    )


def _nameable(name: str) -> str:
    """A name that a package URL can hold: metadata may say anything, blanks alone as well."""
    return name if name.strip().strip("/").strip() else "unnamed"


def pinned(ids: Ids, name: str, version: str, hashes: Sequence[str], note: str, *, source: bool = False) -> Package:
    """A package of the index that the build used and the finished image does not hold."""
    return _package(
        ids.of("sdist" if source else "build", name, version),
        name,
        version,
        PackageURL("pypi", None, name, version),
        primary_package_purpose=PackagePurpose.SOURCE if source else None,
        checksums=sha256(*hashes),
        comment="; ".join([note, *_one_of(hashes)]),
    )


def _one_of(hashes: Sequence[str]) -> list[str]:
    return ["one of these files was taken: " + ", ".join(f"sha256:{h}" for h in hashes)] if len(hashes) > 1 else []


def checkout(ids: Ids, name: str, url: str, commit: str, note: str) -> Package:
    """A git repository at a commit."""
    location = f"git+{url}@{commit}"
    return _package(
        ids.of("git", name, commit[:12]),
        name,
        commit,
        _git_purl(name, url, commit),
        download_location="" if validate_download_location(location) else location,
        primary_package_purpose=PackagePurpose.SOURCE,
        source_info=f"{url} at commit {commit}",
        comment=note,
    )


def submodule(ids: Ids, name: str, commit: str, note: str) -> Package:
    """A submodule at a commit. The image tells its path and commit; its address is in envgen.lock."""
    return _package(
        ids.of("git", name, commit[:12]),
        name,
        commit,
        PackageURL("generic", None, name.rpartition("/")[2], commit),
        primary_package_purpose=PackagePurpose.SOURCE,
        comment=note,
    )


def _git_purl(name: str, url: str, commit: str) -> PackageURL:
    parts = urlsplit(url)
    path = parts.path.strip("/").removesuffix(".git").split("/")
    if parts.hostname == "github.com" and len(path) == 2:
        return PackageURL("github", path[0].lower(), path[1].lower(), commit)
    return PackageURL("generic", None, name, commit, {"vcs_url": f"git+{url}@{commit}"})


def file(ids: Ids, name: str, digest: str, note: str, url: str = "") -> Package:
    """One file with its SHA-256. A package of one file: SPDX's own file element must have a SHA-1 too."""
    qualifiers = {"checksum": f"sha256:{digest}", "download_url": url}
    return _package(
        ids.of("file", name),
        name,
        f"sha256:{digest}",
        PackageURL("generic", None, name.rpartition("/")[2], None, {k: v for k, v in qualifiers.items() if v}),
        file_name=name,
        download_location="" if not url or validate_download_location(url) else url,
        primary_package_purpose=PackagePurpose.FILE,
        checksums=sha256(digest),
        comment=note,
    )


def _license(expression: str) -> Any:
    """An SPDX expression, if it is one."""
    if not expression:
        return None
    try:
        return spdx_licensing.parse(expression, validate=True)
    except Exception:  # the library raises several kinds, all of which mean: no such licence
        return None


def _page(text: str) -> str:
    """A home page that SPDX accepts."""
    return "" if not text.startswith(("http://", "https://")) or validate_url(text) else text
