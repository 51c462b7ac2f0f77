"""The head of a patch, version ranges, and the folder of a series."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from envgen.errors import ProjectError, UsageError
from envgen.patches import series as folder
from envgen.patches.series import add, applies_to_of, head_of, in_range, load_series
from envgen.profile.model import Origin
from envgen.profile.values import Pin, version_of_ref

FIELDS = ("Description", "Origin", "Forwarded", "Upstream-Status", "Applies-To", "Verified", "Not-Verified")
HEAD = """\
Description: One line
 and more
 .
 after a gap
Origin: envgen
Applies-To: >=0.13.0,
 <0.17

"""
DIFF = "--- a/vllm/a.py\n+++ b/vllm/a.py\n@@ -1,1 +1,1 @@\n-old\n+new\n"
ROOT = Path(__file__).parents[3]


def test_the_range_may_have_several_lines() -> None:
    assert applies_to_of((HEAD + DIFF).encode(), "p") == ">=0.13.0, <0.17"
    assert head_of((HEAD + DIFF).encode()).decode() == HEAD
    assert applies_to_of(DIFF.encode(), "p") == ""


def test_what_is_no_range_is_refused_with_its_line() -> None:
    head = HEAD.replace("\n <0.17", "\n 0.17 or so")
    with pytest.raises(ProjectError) as caught:
        applies_to_of((head + DIFF).encode(), "p")
    [problem] = caught.value.problems
    assert "'>=0.13.0, 0.17 or so' is not a range of versions" in str(problem)
    assert problem.place is not None and problem.place.line == 6


@pytest.mark.parametrize(
    ("spec", "version", "inside"),
    [
        (">=0.13.0, <0.17", "0.16.1", True),
        (">=0.13.0, <0.17", "0.17.0", False),
        (">=0.5.3, <0.6.1", "0.6.0rc2", True),
        ("==0.6.18.post1", "0.6.18.post1", True),
        ("", "0.1", True),
        (">=9", "", True),  # a branch: nobody can say
        (">=9", "main", True),
    ],
)
def test_ranges(spec: str, version: str, inside: bool) -> None:
    assert in_range(spec, version) is inside


@pytest.mark.parametrize(
    ("ref", "version"),
    [
        ("v0.14.0", "0.14.0"),
        ("refs/tags/v0.6.18.post1", "0.6.18.post1"),
        ("0.7.0rc1", "0.7.0rc1"),
        ("main", ""),
        ("v1", ""),
        ("b17039bccc17b94a2ea107272ad7bc93508708df", ""),
        ("release-0.14.0", ""),
    ],
)
def test_versions_of_refs(ref: str, version: str) -> None:
    assert version_of_ref(ref) == version
    assert Origin(git="https://example.org/x.git", ref=ref).version == version


def test_versions_of_other_origins() -> None:
    assert Origin(wheel=Pin("vllm", "0.14.0")).version == "0.14.0"
    assert Origin(git="https://example.org/x.git", ref="refs/pull/7/head").version == ""


@pytest.mark.parametrize("name", ["vllm", "flashinfer"])
def test_the_shipped_patches_say_what_they_are(name: str) -> None:
    series = load_series(ROOT, name)
    assert series.patches
    for patch in series.patches:
        # What the compilers see is applied before the wheel is built.
        assert patch.is_python_only(name) is (patch.name[:4] not in ("0004", "0005"))
        head = head_of(patch.content).decode()
        for field in FIELDS:
            assert re.search(rf"(?m)^{field}: \S", head), f"{patch.path} has no {field}"


def test_patches_for_other_versions_are_left_out() -> None:
    series = load_series(ROOT, "vllm")
    assert [patch.name[:4] for patch in series.for_version("0.13.0").patches] == ["0001", "0003"]
    assert series.for_version("0.20.2").patches == ()
    assert series.for_version("").patches == series.patches


def test_add(tmp_path: Path) -> None:
    assert folder.add(tmp_path, "patches/x", "first", HEAD, DIFF.encode()) == "patches/x/0001-first.patch"
    (tmp_path / "patches/x/series").write_text("# why\n0001-first.patch  # because")  # no newline at the end
    other = DIFF.replace("+new", "+newer").encode()
    assert folder.add(tmp_path, "patches/x", "second", HEAD, other) == "patches/x/0002-second.patch"
    assert (tmp_path / "patches/x/series").read_text() == "# why\n0001-first.patch  # because\n0002-second.patch\n"


@pytest.mark.parametrize("title", ["", "Up", "a b", "../x", "a--b", "-a", "a.patch"])
def test_names_that_are_refused(tmp_path: Path, title: str) -> None:
    with pytest.raises(UsageError, match="not a name for a patch"):
        folder.add(tmp_path, "patches/x", title, HEAD, DIFF.encode())
    assert not list(tmp_path.iterdir())


def test_a_diff_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="changes no file"):
        folder.add(tmp_path, "patches/x", "bin", HEAD, b"Binary files a/x and b/x differ\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("listed", "there", "name", "after"),
    [
        (None, {}, "0001-mine.patch", "0001-mine.patch\n"),
        ("", {}, "0001-mine.patch", "0001-mine.patch\n"),
        ("0001-a.patch\n", {"0001-a.patch": "x"}, "0002-mine.patch", "0001-a.patch\n0002-mine.patch\n"),
        ("0007-a.patch # why", {}, "0008-mine.patch", "0007-a.patch # why\n0008-mine.patch\n"),  # it is not there
        ("# 0009-a.patch\n", {}, "0001-mine.patch", "# 0009-a.patch\n0001-mine.patch\n"),
        ("", {"0004-left.patch": "x"}, "0005-mine.patch", "0005-mine.patch\n"),  # in no series
        ("own.patch\n", {"own.patch": "x"}, "0001-mine.patch", "own.patch\n0001-mine.patch\n"),
    ],
)
def test_a_new_patch_has_the_next_number(
    tmp_path: Path, listed: str | None, there: dict[str, str], name: str, after: str
) -> None:
    folder = tmp_path / "patches/v"
    folder.mkdir(parents=True)
    if listed is not None:
        (folder / "series").write_text(listed)
    for file, text in there.items():
        (folder / file).write_text(text)
    assert add(tmp_path, "patches/v", "mine", "Subject: x\n", DIFF.encode()) == f"patches/v/{name}"
    assert (folder / "series").read_text() == after
    assert (folder / name).read_text() == f"Subject: x\n\n{DIFF}"
