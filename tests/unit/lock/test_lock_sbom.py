"""SBOMs: what stands in one, that the library accepts it whatever the packages are called, and that it never varies."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from envgen.binding import ShapeError, bind
from envgen.engine.base import Image
from envgen.lock import sbom
from envgen.lock.manifest import Debian, Distribution, Inventory, Manifest

ID = "sha256:" + "1" * 64
BASE = "sha256:" + "2" * 64
COMMIT, MODULE = "3" * 40, "4" * 40
GIT = "git https://github.com/Vllm-Project/vllm.git v0.14.0"
INPUTS = {
    "image nvcr.io/nvidia/pytorch:25.12-py3": BASE,
    GIT: COMMIT,
    f"{GIT} submodule 3rdparty/cutlass": MODULE,
    "file https://example.org/o200k_base.tiktoken": "5" * 64,
    "patch vllm/0001-a.patch": "6" * 64,
    "patch vllm/0002-b.patch": "7" * 64,
    "series vllm": "0001-a.patch, 0002-b.patch",
    "linux/amd64 python": "3.11.2",
    "linux/amd64 pip uv uv": "0.9.1",
    "linux/amd64 pip uv uv sha256": "8" * 64,
    "linux/amd64 pip deps numpy": "2.2.6",
    "linux/amd64 pip deps numpy sha256": "9" * 64 + " " + "a" * 64,
    "linux/amd64 pip requires.vllm setuptools": "80.1",
    "linux/amd64 pip requires.vllm setuptools sha256": "b" * 64,
    "linux/amd64 pip sdist.six six": "1.16.0",
    "linux/amd64 pip sdist.six six sha256": "c" * 64,
    "linux/amd64 apt runtime curl": "7.88-10",
    "linux/arm64 pip deps numpy": "2.2.7",
}
SOURCES = {
    "vllm": {
        "distribution": "vllm",
        "kind": "git",
        "origin": GIT.removeprefix("git "),
        "patches": "vllm",
    },
    "six": {"distribution": "six", "kind": "pypi", "origin": "six==1.16.0", "patches": ""},
}
LABELS = {"dev.envgen.lock": "d" * 64, "dev.envgen.patches": "vllm/0001-a.patch"}
FOUND = Manifest("my:prod", ID, LABELS, "prod", "d" * 64, INPUTS, ("install.x: why",), SOURCES, 1_765_425_907)
IMAGE = Image(ID, {}, "2026-01-01T00:00:00Z", 1, "amd64", ("my:prod",), {})
HERE = "/usr/local/lib/python3.11/dist-packages"


def distribution(name: str, version: str, place: str = HERE, license: str = "", said: str = "") -> Distribution:
    return Distribution(name, version, place, "", license, said)


INVENTORY = Inventory(
    {"ID": "debian", "VERSION_ID": "12", "PRETTY_NAME": "Debian 12"},
    "x86_64",
    "3.11.2",
    (
        Debian("curl", "7.88-10", "amd64", "curl", "7.88-10", "https://curl.se/"),
        Debian("libstdc++6", "1:12.2", "amd64", "gcc-12", "12.2", ""),
    ),
    (
        distribution("numpy", "2.2.6", license="BSD-3-Clause", said="BSD License"),
        distribution("six", "1.16.0", license="No Such Licence"),
        distribution("torch", "2.10.0a0+b4e4ee8"),
        distribution("uv", "0.9.1", "/opt/envgen/uv"),
        distribution("vllm", "0.14.0"),
    ),
)


def document(found: Manifest = FOUND, inventory: Inventory = INVENTORY) -> dict[str, Any]:
    content = sbom.write(found, IMAGE, inventory).content
    return dict(json.loads(content))


def package(name: str, kind: str, said: dict[str, Any]) -> dict[str, Any]:
    return next(p for p in said["packages"] if p["name"] == name and p["SPDXID"].startswith(f"SPDXRef-{kind}"))


def related(said: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {(r["spdxElementId"], r["relationshipType"], r["relatedSpdxElement"]) for r in said["relationships"]}


def test_it_says_what_is_inside_and_where_it_came_from() -> None:
    said = document()
    assert said["spdxVersion"] == "SPDX-2.3"
    assert said["creationInfo"]["created"] == "2025-12-11T04:05:07Z"
    assert said["documentNamespace"].endswith(f"my-prod-{ID[7:]}")
    base = package("nvcr.io/nvidia/pytorch:25.12-py3", "base", said)
    assert base["versionInfo"] == BASE
    assert base["checksums"] == [{"algorithm": "SHA256", "checksumValue": BASE[7:]}]
    purls = {p["SPDXID"]: p["externalRefs"][0]["referenceLocator"] for p in said["packages"]}
    assert purls["SPDXRef-base-pytorch"] == (
        f"pkg:oci/pytorch@{BASE}?arch=amd64&repository_url=nvcr.io/nvidia/pytorch&tag=25.12-py3"
    )
    assert purls["SPDXRef-python-torch-2.10.0a0-b4e4ee8"] == "pkg:pypi/torch@2.10.0a0%2Bb4e4ee8"
    assert purls["SPDXRef-deb-libstdc-6-amd64"].startswith("pkg:deb/debian/libstdc%2B%2B6@1:12.2?arch=amd64&")
    assert purls[f"SPDXRef-git-vllm-{COMMIT[:12]}"] == f"pkg:github/vllm-project/vllm@{COMMIT}"
    links = related(said)
    assert ("SPDXRef-image-my", "DESCENDANT_OF", "SPDXRef-base-pytorch") in links
    source, patch = f"SPDXRef-git-vllm-{COMMIT[:12]}", "SPDXRef-file-patches-vllm-0001-a.patch"
    assert (patch, "PATCH_FOR", source) in links
    assert ("SPDXRef-file-patches-vllm-0002-b.patch", "OTHER", source) in links  # the label says that it is not in
    assert ("SPDXRef-python-vllm-0.14.0", "GENERATED_FROM", source) in links
    assert ("SPDXRef-python-six-1.16.0", "GENERATED_FROM", "SPDXRef-sdist-six-1.16.0") in links
    assert (source, "CONTAINS", f"SPDXRef-git-vllm-3rdparty-cutlass-{MODULE[:12]}") in links
    assert ("SPDXRef-build-setuptools-80.1", "BUILD_DEPENDENCY_OF", "SPDXRef-image-my") in links


def test_checksums_are_those_that_the_lock_demanded() -> None:
    said = document()
    assert package("uv", "python", said)["checksums"][0]["checksumValue"] == "8" * 64
    assert "checksums" not in package("numpy", "python", said)  # one of two files: nobody knows which
    assert "sha256:" + "9" * 64 in package("numpy", "python", said)["comment"]
    assert package("patches/vllm/0001-a.patch", "file", said)["checksums"][0]["checksumValue"] == "6" * 64
    assert package("o200k_base.tiktoken", "file", said)["downloadLocation"].startswith("https://example.org/")
    assert "2.2.7" not in json.dumps(said)  # another platform's


def test_licences_that_spdx_does_not_know_are_only_quoted() -> None:
    said = document()
    assert package("numpy", "python", said)["licenseDeclared"] == "BSD-3-Clause"
    assert "BSD License" in package("numpy", "python", said)["licenseComments"]
    assert package("six", "python", said)["licenseDeclared"] == "NOASSERTION"


def test_what_differs_from_the_lock_is_told() -> None:
    other = replace(INVENTORY, distributions=(distribution("numpy", "1.0"),), debian=())
    made = sbom.write(FOUND, IMAGE, other)
    assert "differs from the lock: numpy 1.0 (Python): the lock names 2.2.6" in made.differences
    assert "differs from the lock: uv 0.9.1 (Python): locked for uv, and the image has none" in made.differences
    assert "differs from the lock: curl 7.88-10 (Debian): the image has none" in made.differences
    comments = [a["comment"] for a in package("my:prod", "image", json.loads(made.content))["annotations"]]
    assert "not locked: install.x: why" in comments
    assert set(made.differences) <= set(comments)
    assert sbom.write(FOUND, IMAGE, INVENTORY).differences == ()


def test_without_a_lock_it_says_what_is_inside() -> None:
    bare = Manifest("my:dev", ID, {}, "dev", "", {}, ())
    said = document(bare)
    assert said["creationInfo"]["created"] == "2026-01-01T00:00:00Z"  # the image's own
    assert package("torch", "python", said)
    assert "built without a lock" in package("my:dev", "image", said)["annotations"][0]["comment"]


def test_a_source_of_which_nothing_was_locked() -> None:
    no_commit = {key: value for key, value in INPUTS.items() if not key.startswith("git ")}
    assert not [p for p in document(replace(FOUND, inputs=no_commit))["packages"] if "git" in p["SPDXID"]]


def test_git_servers_without_a_public_name() -> None:
    url = "git://127.0.0.1:9418/x.git"
    inputs = {f"git {url} main": COMMIT}
    sources = {"x": {"distribution": "x", "kind": "git", "origin": f"{url} main", "patches": ""}}
    made = package("x", "git", document(replace(FOUND, inputs=inputs, sources=sources)))
    assert made["downloadLocation"] == "NOASSERTION"
    assert made["sourceInfo"] == f"{url} at commit {COMMIT}"


def test_the_same_image_gives_the_same_bytes() -> None:
    assert sbom.write(FOUND, IMAGE, INVENTORY).content == sbom.write(FOUND, IMAGE, INVENTORY).content


@settings(max_examples=40, deadline=None)
@example([distribution(" ", "", "", "", ""), distribution("\x0b", "1", "", "", "")])  # no package URL can say that
@given(st.lists(st.builds(distribution, st.text(min_size=1), st.text(), st.text(), st.text(), st.text()), max_size=4))
@example([distribution("\r", "", "", "", "")])
@example([distribution(" / ", "", "", "", "")])
def test_it_is_valid_whatever_packages_say_of_themselves(packages: list[Distribution]) -> None:
    content = sbom.write(FOUND, IMAGE, replace(INVENTORY, distributions=tuple(packages))).content
    read = JsonLikeDictParser().parse(json.loads(content))
    assert validate_full_spdx_document(read) == []
    assert len([p for p in read.packages if p.spdx_id.startswith("SPDXRef-python")]) == len(packages)


@pytest.mark.parametrize("said", [{}, {"os": {}, "machine": "", "python": "", "debian": [{}], "distributions": []}])
def test_another_document_is_no_inventory(said: dict[str, Any]) -> None:
    with pytest.raises(ShapeError):
        bind(Inventory, said)
