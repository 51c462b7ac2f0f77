"""SBOMs: what stands in one, and that the library accepts it whatever the packages are called."""

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
from envgen.engine.values import Image
from envgen.lock.image import Debian, Distribution, Inventory, Manifest, write_sbom

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
INVENTORY = Inventory(
    {"ID": "debian", "VERSION_ID": "12"},
    (Debian("curl", "7.88-10", "amd64"), Debian("libstdc++6", "1:12.2", "amd64")),
    (
        Distribution("numpy", "2.2.6", "BSD-3-Clause"),
        Distribution("six", "1.16.0", "No Such Licence"),
        Distribution("torch", "2.10.0a0+b4e4ee8", ""),
        Distribution("uv", "0.9.1", ""),
        Distribution("vllm", "0.14.0", ""),
    ),
)


def document(found: Manifest = FOUND, inventory: Inventory = INVENTORY) -> dict[str, Any]:
    return dict(json.loads(write_sbom(found, IMAGE, inventory)))


def package(name: str, kind: str, said: dict[str, Any]) -> dict[str, Any]:
    return next(p for p in said["packages"] if p["name"] == name and p["SPDXID"].startswith(f"SPDXRef-{kind}"))


def related(said: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {(r["spdxElementId"], r["relationshipType"], r["relatedSpdxElement"]) for r in said["relationships"]}


def test_it_says_what_is_inside_and_where_it_came_from() -> None:
    said = document()
    assert said["creationInfo"]["created"] == "2025-12-11T04:05:07Z"
    assert said["documentNamespace"].endswith(f"my-prod-{ID[7:]}")
    base = package("nvcr.io/nvidia/pytorch:25.12-py3", "base", said)
    assert base["versionInfo"] == BASE
    source = package("vllm", "source", said)
    assert source["sourceInfo"] == f"https://github.com/Vllm-Project/vllm.git at commit {COMMIT}"
    purls = {p["name"]: p["externalRefs"][0]["referenceLocator"] for p in said["packages"]}
    assert purls[base["name"]] == f"pkg:oci/pytorch@{BASE}"
    assert purls["torch"] == "pkg:pypi/torch@2.10.0a0%2Bb4e4ee8"
    assert purls["libstdc++6"] == "pkg:deb/debian/libstdc%2B%2B6@1:12.2?arch=amd64"
    links = related(said)
    assert (package("my:prod", "image", said)["SPDXID"], "DESCENDANT_OF", base["SPDXID"]) in links
    assert (package("vllm", "python", said)["SPDXID"], "GENERATED_FROM", source["SPDXID"]) in links
    assert package("uv", "python", said)["checksums"][0]["checksumValue"] == "8" * 64
    assert "checksums" not in package("numpy", "python", said)  # one of two files: unknown which
    assert package("numpy", "python", said)["licenseDeclared"] == "BSD-3-Clause"
    assert package("six", "python", said)["licenseDeclared"] == "NOASSERTION"


def test_without_a_lock_it_says_what_is_inside() -> None:
    said = document(Manifest("my:dev", ID, {}, "dev", "", {}, ()))
    assert said["creationInfo"]["created"] == "2026-01-01T00:00:00Z"  # the image's own
    assert package("torch", "python", said)


@settings(max_examples=40, deadline=None)
@example([Distribution(" ", "", ""), Distribution("\x0b", "1", "")])  # no package URL can say that
@given(st.lists(st.builds(Distribution, st.text(min_size=1), st.text(), st.text()), max_size=4))
@example([Distribution("\r", "", "")])
@example([Distribution(" / ", "", "")])
def test_it_is_valid_whatever_packages_say_of_themselves(packages: list[Distribution]) -> None:
    content = write_sbom(FOUND, IMAGE, replace(INVENTORY, distributions=tuple(packages)))
    read = JsonLikeDictParser().parse(json.loads(content))
    assert validate_full_spdx_document(read) == []
    assert len([p for p in read.packages if p.spdx_id.startswith("SPDXRef-python")]) == len(packages)


@pytest.mark.parametrize("said", [{}, {"os": {}, "debian": [{}], "distributions": []}])
def test_another_document_is_no_inventory(said: dict[str, Any]) -> None:
    with pytest.raises(ShapeError):
        bind(Inventory, said)
