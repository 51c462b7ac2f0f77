"""Patch series: order, refusals, and which patches need a compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.errors import ProjectError
from envgen.patches.series import load_series


def patch(*files: str) -> str:
    return "".join(f"--- a/{file}\n+++ b/{file}\n@@ -1,1 +1,1 @@\n-old\n+new\n" for file in files)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "patches/vllm").mkdir(parents=True)
    return tmp_path / "patches/vllm"


def write(folder: Path, **patches: str) -> None:
    for name, content in patches.items():
        (folder / f"{name}.patch").write_text(content)
    (folder / "series").write_text("".join(f"{name}.patch\n" for name in patches))


def refusal(folder: Path) -> str:
    with pytest.raises(ProjectError) as caught:
        load_series(folder.parent.parent, "vllm")
    return str(caught.value)


def test_order_comments_and_blank_lines(folder: Path) -> None:
    write(folder, b=patch("vllm/b.py"), a=patch("vllm/a.py"))
    (folder / "series").write_text("# first\n\n  b.patch  # why\na.patch\r\n")
    found = load_series(folder.parent.parent, "vllm")
    assert [p.path for p in found.patches] == ["patches/vllm/b.patch", "patches/vllm/a.patch"]
    assert found.patches[0].touches == ("vllm/b.py",)


@pytest.mark.parametrize(
    ("files", "python_only"),
    [
        (["vllm/a.py"], True),
        (["vllm/a.py", "vllm/b/c.py"], True),
        (["vllm/a.py", "csrc/a.cu"], False),
        (["setup.py"], False),
        (["vllm/a.pyx"], False),
        (["vllm_other/a.py"], False),
        (["src/vllm/a.py"], False),
        (["requirements/build.txt"], False),
    ],
)
def test_which_patches_need_no_compiler(folder: Path, files: list[str], python_only: bool) -> None:
    write(folder, a=patch(*files))
    early, late = load_series(folder.parent.parent, "vllm").split("vllm")
    assert (len(early), len(late)) == ((0, 1) if python_only else (1, 0))


def test_created_deleted_and_renamed_files_count_with_both_names(folder: Path) -> None:
    created = "--- /dev/null\n+++ b/vllm/new.py\n@@ -0,0 +1,1 @@\n+x\n"
    deleted = "--- a/csrc/old.cu\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\n"
    write(folder, a=created, b=deleted)
    found = load_series(folder.parent.parent, "vllm")
    assert [p.touches for p in found.patches] == [("vllm/new.py",), ("csrc/old.cu",)]
    assert [len(part) for part in found.split("vllm")] == [1, 1]


def test_a_python_patch_that_shares_a_file_with_a_built_one_is_built_too(folder: Path) -> None:
    write(
        folder,
        a=patch("vllm/c.py", "vllm/b.py"),  # tied through d
        b=patch("vllm/x.py"),
        c=patch("csrc/a.cu", "vllm/d.py"),
        d=patch("vllm/d.py", "vllm/b.py"),
    )
    early, late = load_series(folder.parent.parent, "vllm").split("vllm")
    assert [p.name for p in early] == ["a.patch", "c.patch", "d.patch"]
    assert [p.name for p in late] == ["b.patch"]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("../evil.patch", "leaves the folder"),
        ("a/../../evil.patch", "leaves the folder"),
        ("/etc/passwd", "leaves the folder of the series"),
        ("sub/a.patch", "is not the name of a patch"),
        ("a b.patch", "is not the name of a patch"),
        ("a.patch -p2", "is not the name of a patch"),
        ("a,b.patch", "is not the name of a patch"),
        ("-x.patch", "is not the name of a patch"),
        ("gone.patch", "does not exist"),
    ],
)
def test_entries_that_are_refused(folder: Path, entry: str, reason: str) -> None:
    (folder.parent / "evil.patch").write_text(patch("vllm/a.py"))
    (folder / "series").write_text(f"{entry}\n")
    text = refusal(folder)
    assert reason in text
    assert "patches/vllm/series:1" in text


def test_all_problems_at_once(folder: Path) -> None:
    write(folder, a=patch("vllm/a.py"))
    (folder / "series").write_text("a.patch\n../b\nc.patch\n")
    assert "2 problems" in refusal(folder)


def test_patches_without_a_series_are_an_error(folder: Path) -> None:
    (folder / "a.patch").write_text(patch("vllm/a.py"))
    assert "patches/vllm/series does not exist" in refusal(folder)


@pytest.mark.parametrize("name", ["series", "a.patch"])
def test_links_that_leave_the_project_are_not_followed(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    write(folder, a=patch("vllm/a.py"))
    outside = tmp_path_factory.mktemp("outside") / "file"
    outside.write_text("a.patch\n")
    (folder / name).unlink()
    (folder / name).symlink_to(outside)
    assert "a link that leaves the project" in refusal(folder)


def test_a_link_inside_the_project_is_followed(folder: Path) -> None:
    write(folder, a=patch("vllm/a.py"))
    (folder / "a.patch").rename(folder.parent / "shared.patch")
    (folder / "a.patch").symlink_to("../shared.patch")
    assert load_series(folder.parent.parent, "vllm").patches[0].touches == ("vllm/a.py",)


def test_a_link_to_itself_is_an_error(folder: Path) -> None:
    write(folder, a=patch("vllm/a.py"))
    (folder / "a.patch").unlink()
    (folder / "a.patch").symlink_to("a.patch")
    assert "a.patch" in refusal(folder)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "changes no file"),
        ("just words\n", "changes no file"),
        (patch("../outside.py"), "files of the source only"),
        (patch(".git/config"), "files of the source only"),
        ("--- a//etc/passwd\n+++ b//etc/passwd\n@@ -1,1 +1,1 @@\n-a\n+b\n", "files of the source only"),
    ],
)
def test_patches_that_are_refused(folder: Path, content: str, reason: str) -> None:
    write(folder, a=content)
    assert reason in refusal(folder)
