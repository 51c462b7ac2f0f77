"""Patches and checkouts with real files: which are lacking, and new ones."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from lock_servers import git_daemon
from patch_sources import TOP, VLLM, checkout, committed, mirrored, project, tree_hash
from projects import Project

from envgen.app.patch_sources import with_line
from envgen.engine.git import git
from envgen.lock.ask import locked
from envgen.lock.model import GitLock, Lock, load, save
from envgen.patches.checkout import command_for, lacking
from envgen.profile.load import load_project

SHIPPED = load_project(file=TOP / "envgen.yaml", local=False).project.profiles
SHIPPED_LOCK = locked(SHIPPED["prod"], load(TOP) or Lock())
LOADER = "vllm/model_executor/model_loader/weight_utils.py"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return checkout(tmp_path / "vllm", "vllm", "0.14.0")


@pytest.fixture
def made(tmp_path: Path) -> Project:
    (tmp_path / "project").mkdir()
    return project(tmp_path / "project")


def applied(root: Path, source: Path, patches: Iterable[str], series: str = "vllm") -> None:
    """Type what `up` prints for a checkout that lacks patches."""
    described: Any = SimpleNamespace(patches=series)
    subprocess.run(["sh", "-c", command_for(described, str(source), patches)], check=True, cwd=root)


@pytest.mark.parametrize("name", [key for key, one in SHIPPED.items() if one.mounted_sources])
def test_the_command_that_up_names_works_in_each_shipped_development_profile(
    tmp_path: Path, source: Path, name: str
) -> None:
    (tmp_path / "project").mkdir()
    shutil.copytree(TOP / "patches", tmp_path / "project/patches")
    shutil.copy(TOP / "envgen.yaml", tmp_path / "project/envgen.yaml")
    sets = [
        f"sources.{one}.origin.checkout={source if one == 'vllm' else tmp_path / 'none'}"
        for one in ("vllm", "flashinfer")
    ]

    def lacks() -> dict[str, tuple[str, ...]]:
        loaded = load_project(file=tmp_path / "project/envgen.yaml", profile=name, sets=sets, local=False)
        return lacking(loaded.project.profiles[name], tmp_path / "project")

    assert bool(lacks()) is (SHIPPED[name].sources["vllm"].patches is not None)
    for patches in lacks().values():
        applied(tmp_path / "project", source, patches)
    assert lacks() == {}
    git(["checkout", "-q", "."], cwd=source)
    git(["tag", "-d", "v0.14.0"], cwd=source)
    git(["tag", "v0.32.0"], cwd=source)  # a release that they are not for
    assert lacks() == {}


def test_what_a_build_writes_is_no_edit(made: Project, source: Path) -> None:
    """An sdist's checkout tracks _version.py, which git ignores and each editable build writes again."""
    (source / ".gitignore").write_text("/vllm/ignored.py\n")
    (source / "vllm/_version.py").write_text("version = '0.14.0'\n")
    (source / "vllm/ignored.py").write_text("x = 1\n")
    git(["add", "--all", "--force"], cwd=source)
    git(["commit", "-qm", "an sdist"], cwd=source)
    (source / "vllm/_version.py").write_text("version = '0.14.1.dev0'\n")
    (source / "vllm/ignored.py").write_text("x = 2\n")
    for folder in ("vllm.egg-info", "build", "flashinfer/data"):
        (source / folder).mkdir(parents=True)
    for name in ("build/x.o", "vllm/_C.abi3.so", "flashinfer/_build_meta.py"):
        (source / name).touch()
    (source / "flashinfer/data/csrc").symlink_to("../../vllm")
    (source / "vllm.egg-info/PKG-INFO").write_text("of an editable install\n")
    assert "nothing has changed" in made.envgen("patch", "new", "x", "vllm", "--checkout", str(source), code=2).err
    (source / LOADER).write_text((source / LOADER).read_text() + "# mine\n")
    found = made.envgen("patch", "new", "x", "vllm", "--checkout", str(source))
    for name in ("vllm.egg-info/PKG-INFO", "vllm/_version.py", "vllm/ignored.py"):
        assert name in found.err.partition("because a build writes them: ")[2]
    text = (made.root / found.out.strip()).read_text()
    assert "+# mine" in text and text.count("diff --git") == 1


def test_a_source_is_not_taken_for_the_name_of_a_patch(made: Project, source: Path) -> None:
    stderr = made.envgen("patch", "new", "vllm", "--checkout", str(source), code=2).err
    assert "vllm is a source, and the patch has no name" in stderr and "envgen patch new NAME vllm" in stderr


def test_a_new_patch_from_a_checkout(made: Project, source: Path) -> None:
    shipped = [path.name for path in sorted((made.root / "patches/vllm").glob("0*.patch"))]
    applied(made.root, source, shipped)
    patched = tree_hash(source)
    assert "nothing has changed" in made.envgen("patch", "new", "x", "vllm", "--checkout", str(source), code=2).err
    (source / LOADER).write_text((source / LOADER).read_text() + "\n\nOURS = True\n")
    (source / "vllm/ours.py").write_text("x = 1\n")
    before = tree_hash(source)
    path = made.envgen("patch", "new", "our-loader", "vllm", "--checkout", str(source), "-m", "Ours").out.strip()
    assert path == "patches/vllm/0006-our-loader.patch"
    assert tree_hash(source) == before
    text = (made.root / path).read_text()
    assert text.startswith("Description: Ours\n")
    assert "Applies-To: >=0.14.0\n" in text
    assert "get_world_group().device" not in "".join(line for line in text.splitlines(True) if line.startswith("+"))
    own = mirrored(made.root.parent / "mirror", vllm=["0.14.0"])
    assert made.envgen("patch", "check", "vllm", env=own).out.count(" ok ") == 6
    assert patched != before
    # From a clean checkout the four give what is in this one.
    git(["checkout", "-q", "."], cwd=source)
    (source / "vllm/ours.py").unlink()
    applied(made.root, source, [*shipped, "0006-our-loader.patch"])
    assert tree_hash(source).splitlines()[:-4] == before.splitlines()[:-4]


FIRST = """\
version: 1
name: envgenfirst
defaults:
  base: {image: "debian:12"}
  cuda: {arch_list: 12.1a}
profiles:
  dev:
    mode: development
    sources:
      tool:
        origin: {checkout: tool}
        package: tool
        distribution: tool
        mount: /code/tool
  prod:
    mode: production
    sources:
      tool: {<<ORIGIN>>, package: tool, distribution: tool, mount: /code/tool}
""".replace("<<ORIGIN>>", "origin: {git: https://localhost/tool.git, ref: v1.2.3}")


def tool_of(tmp_path: Path, folder: str = "tool") -> Path:
    """A checkout of a release with an edit."""
    tool = tmp_path / folder / "tool"
    tool.mkdir(parents=True)
    (tool / "__init__.py").write_text("x = 1\n")
    committed(tool.parent, "v1.2.3")
    (tool / "__init__.py").write_text("x = 2\n")
    return tool


def test_every_verb_works_where_every_source_is_mounted(tmp_path: Path) -> None:
    made, tool = Project(tmp_path, "envgenfirst"), tool_of(tmp_path)
    mounted = FIRST.partition("  prod:")[0]
    (tmp_path / "envgen.yaml").write_text(mounted)
    assert "taken by no profile yet" in made.envgen("patch", "new", "two", "tool").err
    (tmp_path / "envgen.yaml").write_text(
        mounted.replace("mount: /code/tool", "mount: /code/tool\n        patches: tool")
    )
    assert "0001-two.patch: fits" in made.envgen("patch", "check").out
    git(["checkout", "-q", "."], cwd=tool.parent)
    assert lacking(load_project(file=tmp_path / "envgen.yaml").project.profiles["dev"], tmp_path)
    applied(tmp_path, tool.parent, ["0001-two.patch"], "tool")
    assert (tool / "__init__.py").read_text() == "x = 2\n"
    git(["commit", "-qam", "in the fork"], cwd=tool.parent)  # the checkout has it
    assert "ok  0001-two.patch: already applied" in made.envgen("patch", "check").out


@pytest.mark.parametrize(
    ("before", "after", "edited"),
    [
        ("a\nb\nc\n", "a\nc\n", "a\nc\nmine\n"),  # it adds nothing
        ("a\nb\nc\n", "a\nb\nc\na\n", "mine\na\nb\nc\na\n"),  # it adds what stands elsewhere, too
        ("a\nb\nc\nd\ne\n", "a\nb\nX\nd\ne\n", "mine\nb\nX\nd\nmine\n"),
        # Taking a line out leaves two blank lines, which stand elsewhere, too.
        ("a\n\nL\n\nb\n\n\nc\n", "a\n\n\nb\n\n\nc\n", "mine\na\n\n\nb\n\n\nc\n"),
        # The block that it adds is followed by its like.
        ("1\nu\nw\nu\nw\n2\n", "1\nu\nw\nu\nw\nu\nw\n2\n", "mine\n1\nu\nw\nu\nw\nu\nw\n2\n"),
    ],
)
def test_a_checkout_lacks_a_patch_until_it_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, edited: str
) -> None:
    """Also with edits of one's own beside it, and with temporary files in a repository."""
    made, tool, temporary = Project(tmp_path, "envgenfirst"), tool_of(tmp_path), tmp_path / "a:b"
    temporary.mkdir()  # no folder with a colon can be in GIT_CEILING_DIRECTORIES
    git(["init", "-q"], cwd=tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    (tmp_path / "envgen.yaml").write_text(
        FIRST.replace("mount: /code/tool\n", "mount: /code/tool\n        patches: tool\n")
    )
    (tool / "__init__.py").write_text(before)
    git(["commit", "-qam", "before"], cwd=tool.parent)
    told = []
    for text in (after, edited, before):
        (tool / "__init__.py").write_text(text)
        if text == after:
            made.envgen("patch", "new", "two", "tool")
        told.append(lacking(load_project(file=tmp_path / "envgen.yaml").project.profiles["dev"], tmp_path))
    check = made.envgen("patch", "check", "-p", "dev").out
    assert f"  {tool.parent} lacks 0001-two.patch; it gets what is lacking by:\n" in check
    subprocess.run(["sh", "-c", check.splitlines()[-1]], check=True, cwd=tmp_path)
    assert "it gets what" not in made.envgen("patch", "check", "-p", "dev").out
    assert told == [{}, {}, {"tool": ("0001-two.patch",)}]


def test_a_mode_is_part_of_a_patch(tmp_path: Path) -> None:
    made, tool = Project(tmp_path, "envgenfirst"), tool_of(tmp_path)
    (tmp_path / "envgen.yaml").write_text(
        FIRST.replace("mount: /code/tool\n", "mount: /code/tool\n        patches: tool\n")
    )
    profile = load_project(file=tmp_path / "envgen.yaml").project.profiles["dev"]
    (tool / "__init__.py").chmod(0o755)
    made.envgen("patch", "new", "run", "tool")
    assert lacking(profile, tmp_path) == {}
    (tool / "__init__.py").chmod(0o644)
    assert lacking(profile, tmp_path) == {"tool": ("0001-run.patch",)}


def test_the_first_patch_names_its_series_and_no_second_time_gives_the_same(tmp_path: Path) -> None:
    made, tool = Project(tmp_path, "envgenfirst"), tool_of(tmp_path)
    (tmp_path / "envgen.yaml").write_text(FIRST)
    found = made.envgen("patch", "new", "two", "tool")
    assert found.out.strip() == "patches/tool/0001-two.patch"
    assert "write `patches: tool` into sources.tool of profile prod in envgen.yaml" in found.err
    assert "nothing has changed" in made.envgen("patch", "new", "again", "tool", code=2).err
    (tool / "other.py").write_text("y = 1\n")
    (tmp_path / "patches/tool/series").unlink()
    (tmp_path / "patches/tool/0001-two.patch").unlink()
    found = made.envgen("patch", "new", "two", "tool", "--yes")
    assert "wrote `patches: tool` into sources.tool of profile prod" in found.err and "taken by prod" in found.err
    assert "mount: /code/tool, patches: tool}" in (tmp_path / "envgen.yaml").read_text()
    made.envgen("config", "-p", "prod")
    (tool / "more.py").write_text("z = 1\n")
    made.envgen("patch", "new", "other")
    assert "x = 2" not in (tmp_path / "patches/tool/0002-other.patch").read_text()


def test_a_wheel_whose_release_the_lock_alone_has(tmp_path: Path) -> None:
    """The shipped `prod` takes FlashInfer's release from vLLM's requirement, and its own 0001 is for an older one."""
    made, _ = Project(tmp_path / "project", "mxfp4"), tool_of(tmp_path)
    made.root.mkdir()
    shutil.copytree(TOP / "patches", made.root / "patches")
    for name in ("envgen.yaml", "envgen.lock"):
        shutil.copy(TOP / name, made.root / name)
    git(["tag", "-d", "v1.2.3"], cwd=tmp_path / "tool")
    words = ("flashinfer", "-p", "prod", "--checkout", str(tmp_path / "tool"), "--yes")
    done = made.envgen("patch", "new", "mine", *words)
    release = SHIPPED_LOCK.version("flashinfer-python")
    assert f"\nApplies-To: >={release}\n" in (made.root / done.out.strip()).read_text()
    assert "taken by prod\ninto an image: envgen up -p prod --build --yes" in done.err

    (made.root / "envgen.lock").unlink()
    (made.root / done.out.strip()).unlink()
    shutil.copy(TOP / "patches/flashinfer/series", made.root / "patches/flashinfer/series")
    done = made.envgen("patch", "new", "mine", *words)
    assert "into an image: envgen up -p prod --build --yes" in done.err
    told = made.envgen("patch", "check", "flashinfer", "-p", "prod", code=2).err
    assert told.endswith(
        "the version of flashinfer in profile prod is not known\n    hint: envgen lock --profile prod\n"
    )


def test_each_development_profile_has_its_own_checkout_and_image(tmp_path: Path) -> None:
    """`dev`, which comes first, has a checkout that is not there, and the image of another profile."""
    made = Project(tmp_path, "envgenfirst")
    tool_of(tmp_path, "forked")
    fork = FIRST.partition("  prod:\n")[2].replace("sources:\n      tool: {", "sources:\n      tool: {patches: tool, ")
    twin = "    extends: fork\n    mode: development\n    sources: {tool: {origin: {checkout: forked}}}\n"
    file = tmp_path / "envgen.yaml"
    file.write_text(f"{FIRST}  fork:\n{fork}  fork_dev:\n{twin}")
    before = file.read_text()
    done = made.envgen("patch", "new", "two", "tool", "-p", "fork_dev", "--yes")
    assert "taken by fork\n" in done.err and "envgen up -p fork --build" in done.err and file.read_text() == before


def test_a_checkout_has_the_release_so_no_server_is_asked(tmp_path: Path) -> None:
    made, tool = Project(tmp_path, "envgenfirst"), tool_of(tmp_path)
    (tmp_path / "envgen.yaml").write_text(FIRST)
    made.envgen("patch", "new", "two", "tool", "--yes")
    (tool / "__init__.py").write_text("x = 1\n")
    found = made.envgen("patch", "check")
    assert found.out.startswith(f"v1.2.3 in {tool.parent} (patches/tool)\n  ok  0001-two.patch: fits")
    assert "fetching" not in found.err


def test_a_patch_that_its_range_leaves_out_is_told_in_the_same_words(tmp_path: Path) -> None:
    made, _ = Project(tmp_path, "envgenfirst"), tool_of(tmp_path)
    (tmp_path / "envgen.yaml").write_text(FIRST)
    made.envgen("patch", "new", "two", "tool", "--yes")
    path, file = tmp_path / "patches/tool/0001-two.patch", tmp_path / "envgen.yaml"
    path.write_text(path.read_text().replace(">=1.2.3", "<2"))
    file.write_text(file.read_text().replace("v1.2.3", "v2.0"))
    told = "prod: patches/tool: left out, because they are not for 2.0: 0001-two.patch (for <2)"
    assert told in made.envgen("render").err
    assert told in made.envgen("build", "-p", "prod", code=None).err


@pytest.mark.parametrize("series", [None, "# 0001-two.patch\n"])
def test_a_series_without_a_patch_builds_nothing(tmp_path: Path, series: str | None) -> None:
    made = Project(tmp_path, "envgenfirst")
    (tmp_path / "envgen.yaml").write_text(FIRST.replace("ref: v1.2.3},", "ref: v1}, patches: tool,"))
    if series is not None:
        (tmp_path / "patches/tool").mkdir(parents=True)
        (tmp_path / "patches/tool/series").write_text(series)
    for words in (["render"], ["render", "--check"], ["patch", "check"]):
        stderr = made.envgen(*words, code=2).err
        assert "patches/tool/series: " in stderr and "take" in stderr


YAML = """profiles:
  prod:
    sources:
      tool: {origin: {wheel: tool==1}, mount: /code/tool} # why
  dev:
    extends: prod
    sources:
      # the checkout
      tool:
        origin: {checkout: tool}
  bare: {extends: prod}
  empty:
    mode: production
"""


@pytest.mark.parametrize("profile", ["prod", "dev", "bare", "empty"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_line_is_written_wherever_the_mapping_is(profile: str, newline: str) -> None:
    text = YAML.replace("\n", newline)
    after = with_line(text, ("profiles", profile, "sources", "tool"), ("patches", "x"))
    found, before = yaml.safe_load(after), yaml.safe_load(text)
    assert found["profiles"][profile]["sources"]["tool"].pop("patches") == "x"
    if profile in ("bare", "empty"):
        assert found["profiles"][profile].pop("sources") == {"tool": {}}
    assert found == before and "# why" in after and (newline == "\n") is ("\r" not in after)


def test_a_branch_of_a_git_server(made: Project, tmp_path: Path) -> None:
    """A real git server on loopback: the commit is fetched without its files, then the files that are asked for."""
    bare = tmp_path / "srv/vllm.git"
    work = checkout(tmp_path / "work", "vllm", "0.14.0")
    git(["clone", "-q", "--bare", str(work), str(bare)], cwd=tmp_path)
    git(["config", "uploadpack.allowFilter", "true"], cwd=bare)
    git(["config", "uploadpack.allowAnySHA1InWant", "true"], cwd=bare)
    with git_daemon(bare.parent) as address:
        text = (made.root / "envgen.yaml").read_text()
        origin = f"git: {address}/vllm.git, ref: main"
        (made.root / "envgen.yaml").write_text(text.replace(VLLM, origin))
        own = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
        out = made.envgen("patch", "check", "vllm", env=own).out
        assert out.startswith(f"main of {address}/vllm.git")
        assert out.count(": fits\n") == 5
        found = made.envgen("patch", "check", "vllm", "--ref", "v0.14.0", "--json", env=own).json
        assert found["rehearsals"][0]["version"] == "0.14.0"
        # Locked: the branch moves to a source that the patches do not fit, and is not asked.
        url, commit = f"{address}/vllm.git", git(["rev-parse", "main"], cwd=bare).text
        save(made.root / "envgen.lock", Lock(git={f"{url} main": GitLock(url, "main", commit)}))
        (work / LOADER).write_text("# rewritten\n")
        git(["commit", "-qam", "away"], cwd=work)
        git(["push", "-qf", str(bare), "HEAD:main"], cwd=work)
        out = made.envgen("patch", "check", "vllm", env=own).out
        assert out.startswith(f"main of {url}, locked at {commit[:12]}") and out.count(": fits\n") == 5
        assert "patches do not fit, so nothing was built" in made.envgen("build", "--unlocked", env=own, code=4).err
        (made.root / "envgen.lock").unlink()
    made.envgen("patch", "check", "vllm", "--ref", "v0.14.0", env=own)  # a tag that is known needs no server
    assert "git fetch failed" in made.envgen("patch", "check", "vllm", "--ref", "main", env=own, code=2).err
