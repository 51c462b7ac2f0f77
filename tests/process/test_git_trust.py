"""Nothing that a checkout's git directory names is ever executed on the host: every key, every place, every verb."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from projects import Project

from envgen.bench.facts import checkouts
from envgen.engine.git import Mirror, WorkTree, read_config
from envgen.errors import RefusedError, UsageError
from envgen.lock.servers import resolve_git
from envgen.patches.checkout import Checkout
from envgen.patches.series import Series
from envgen.profile.load import load_project

# A `*` or <name> in a key of `git help --config` is a driver, remote, branch or tool; this one is used everywhere.
NAME = "evil"
# Keys whose value git may run, with a value that is valid for git: were one of them read, the marker would be there.
# (`git help --config` does not say which these are; the test with all keys covers those that a later git adds.)
COMMANDS = (
    *("core.fsmonitor", "core.sshCommand", "core.gitProxy", "core.pager", "core.editor", "core.askPass"),
    *("core.alternateRefsCommand", "sequence.editor", "diff.external", "credential.helper", "gpg.program"),
    *("gpg.ssh.program", "gpg.x509.program", "gpg.openpgp.program", "gpg.ssh.defaultKeyCommand"),
    *("interactive.diffFilter", "core.hooksPath", "credential.https://example.com.helper", "instaweb.browser"),
    "uploadpack.packObjectsHook",
    *(f"filter.{NAME}.{what}" for what in ("clean", "smudge", "process")),
    *(f"diff.{NAME}.{what}" for what in ("command", "textconv")),
    *(f"merge.{NAME}.driver", f"remote.{NAME}.uploadpack", f"remote.{NAME}.receivepack", "remote.origin.vcs"),
    *(f"pager.{verb}" for verb in ("diff", "log", "tag", "status", "show")),
    *(f"alias.{verb}" for verb in ("diff", "status", "ls-files", "rev-parse")),
    *(f"submodule.{NAME}.update", "submodule.sub.update", f"trailer.{NAME}.command", f"trailer.{NAME}.cmd"),
    *(f"sendemail.{what}" for what in ("smtpserver", "sendmailCmd", "toCmd", "ccCmd")),
    *(f"{tool}.{NAME}.{what}" for tool in ("difftool", "mergetool", "browser", "man") for what in ("cmd", "path")),
    *("diff.tool", "diff.guitool", "merge.tool", "merge.guitool", f"guitool.{NAME}.cmd", "web.browser"),
    *("protocol.ext.allow", "url.ext::sh -c MARK.insteadOf"),
)  # fmt: skip
HOOKS = (
    "pre-commit", "post-checkout", "post-index-change", "fsmonitor-watchman", "reference-transaction",
    "post-merge", "pre-applypatch", "post-applypatch", "applypatch-msg", "pre-auto-gc", "post-rewrite",
    "prepare-commit-msg")  # fmt: skip


def sh(*words: str, cwd: Path) -> str:
    own = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_ALLOW_PROTOCOL": "file"}
    identity = {f"GIT_{who}_{what}": "t@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    return subprocess.run(
        words, cwd=cwd, env={**os.environ, **own, **identity}, capture_output=True, text=True, check=True
    ).stdout


def all_keys() -> list[str]:
    """Every key that the installed git documents."""
    found = []
    for line in sh("git", "help", "--config", cwd=Path("/")).splitlines():
        section, _, rest = line.strip().partition(".")
        middle, _, key = rest.rpartition(".")
        if not key or key == "*" or not key.replace("-", "").isalnum():
            continue
        found.append(
            ".".join(part for part in (section, NAME if middle.startswith(("<", "*")) else middle, key) if part)
        )
    assert len(found) > 400
    return found


def lines(keys: dict[str, str]) -> str:
    """A configuration file."""
    text = ""
    for key, value in keys.items():
        section, _, rest = key.partition(".")
        middle, _, name = rest.rpartition(".")
        text += f'[{section} "{middle}"]\n' if middle else f"[{section}]\n"
        text += f'\t{name} = "{value}"\n'
    return text


class Trap:
    """A repository with a submodule and a linked worktree, in whose git directories every value is a command."""

    def __init__(self, root: Path, keys: dict[str, str], marker: Path) -> None:
        self.root, self.marker = root, marker
        inner, self.top, self.linked = root / "inner", root / "flashinfer", root / "linked"
        for folder in (inner, self.top):
            folder.mkdir()
            sh("git", "init", "-q", "-b", "main", cwd=folder)
            (folder / "a.py").write_text("a = 1\n")
            (folder / ".gitattributes").write_text(f"* filter={NAME} diff={NAME} merge={NAME}\n")
            sh("git", "add", ".", cwd=folder)
            sh("git", "commit", "-qm", "one", cwd=folder)
        sh("git", "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "sub", cwd=self.top)
        sh("git", "commit", "-qm", "two", cwd=self.top)
        sh("git", "tag", "v0.5.3", cwd=self.top)
        sh("git", "worktree", "add", "-q", "--detach", str(self.linked), cwd=self.top)
        for folder in (self.top, self.linked):
            (folder / "a.py").write_text("a = 2\n")
            (folder / "new.py").write_text("n = 1\n")
        (self.top / "sub" / "a.py").write_text("a = 3\n")
        git_dir = self.top / ".git"
        (root / "included").write_text(lines(keys))
        include = f'[include]\n\tpath = {root}/included\n[includeIf "gitdir:{root}/"]\n\tpath = {root}/included\n'
        extension = "[extensions]\n\tworktreeConfig = true\n"
        for config in (git_dir / "config", git_dir / "modules" / "sub" / "config"):
            config.write_text(config.read_text() + extension + lines(keys) + include)
        for folder in (git_dir, git_dir / "worktrees" / "linked", git_dir / "modules" / "sub"):
            (folder / "config.worktree").write_text(lines(keys))
            (folder / "hooks").mkdir(exist_ok=True)
            for hook in HOOKS:
                (folder / "hooks" / hook).write_text(f"#!/bin/sh\ntouch {marker}\n")
                (folder / "hooks" / hook).chmod(0o755)


@pytest.fixture(params=["every key", "every command"])
def trap(request: pytest.FixtureRequest, tmp_path: Path) -> Trap:
    marker = tmp_path / "MARKER"
    keys = all_keys() if request.param == "every key" else COMMANDS
    command = f"touch {marker}; false"
    return Trap(tmp_path, {key.replace("MARK", str(marker)): command for key in keys}, marker)


def test_the_trap_works(tmp_path: Path) -> None:
    """Plain git steps into it, in each of the places: else the other tests could not fail."""
    marker = tmp_path / "MARKER"
    for number, keys in enumerate((["core.fsmonitor"], [f"filter.{NAME}.clean"], [f"diff.{NAME}.textconv"])):
        (tmp_path / str(number)).mkdir()
        trap = Trap(tmp_path / str(number), dict.fromkeys(keys, f"touch {marker}; false"), marker)
        for folder in (trap.top, trap.linked, trap.top / "sub"):
            assert not marker.exists()
            subprocess.run(["git", "diff", "HEAD"], cwd=folder, capture_output=True, check=False)
            subprocess.run(["git", "status"], cwd=folder, capture_output=True, check=False)
            assert marker.exists(), (keys, folder)
            marker.unlink()


def test_questions(trap: Trap) -> None:
    for folder in (trap.top, trap.linked):
        tree = WorkTree(folder)
        assert tree.head
        assert tree.edited("HEAD") == ["a.py"]
        assert tree.untracked() == ["new.py"]
        assert WorkTree(folder).commit("v0.5.3") == tree.head
    assert WorkTree(trap.top / "sub").edited("HEAD") == ["a.py"]
    assert not trap.marker.exists()


def test_git_finds_no_other_program_even_if_it_is_asked_to_start_one(trap: Trap) -> None:
    """`git status` in a submodule would read that submodule's own configuration."""
    assert WorkTree(trap.top).git(["status"], check=False).code
    assert not trap.marker.exists()


def test_patches(trap: Trap) -> None:
    for folder in (trap.top, trap.linked):
        there = Checkout(folder)
        diff, _ = there.changes(Series("patches/x", ()))
        assert b"+a = 2" in diff and b"+n = 1" in diff
        assert there.version == "0.5.3"
    assert not trap.marker.exists()


def project(trap: Trap) -> Project:
    root = trap.root / "project"
    (root / "patches" / "flashinfer").mkdir(parents=True)
    (root / "patches" / "flashinfer" / "series").write_text("0001-a.patch\n")
    change = "--- a/a.py\n+++ b/a.py\n@@ -1 +1,2 @@\n a = 1\n+b = 1\n"
    (root / "patches" / "flashinfer" / "0001-a.patch").write_text(f"Description: a\n\n{change}")
    head = """
    base: {image: "nvcr.io/nvidia/pytorch:25.12-py3"}
    cuda: {arch_list: 12.1a}
    gpu: none
    services: {web: {command: [sleep, infinity]}}
"""
    source = "package: flashinfer, distribution: flashinfer-python, mount: /workspace/flashinfer"
    (root / "envgen.yaml").write_text(f"""\
version: 1
name: envgentrust
default_profile: dev
profiles:
  dev:
    dockerfile: Dockerfile.dev
    mode: development{head}    sources:
      flashinfer: {{origin: {{checkout: ../flashinfer}}, {source}, install: {{requires: [setuptools]}}}}
  prod:
    mode: production{head}    sources:
      flashinfer: {{origin: {{git: "https://localhost/f.git", ref: v0.5.3}}, {source}, patches: flashinfer,
                   install: {{requires: [setuptools]}}}}
""")
    return Project(root, "envgentrust")


@pytest.mark.parametrize("trap", ["every command"], indirect=True)
def test_verbs(trap: Trap) -> None:
    made = project(trap)
    nowhere = {"DOCKER_HOST": f"unix://{trap.root}/none.sock", "XDG_CACHE_HOME": str(trap.root / "cache")}
    tried: dict[str, str] = {}
    for words in (
        ("config",),
        ("render",),
        ("cache", "clear", "--stale", "--dry-run"),
        ("smoke", "web"),
        ("doctor",),
        ("build",),
        ("patch", "new", "mine", "flashinfer", "-p", "prod", "--checkout", str(trap.top)),
        *((verb, "web") for verb in ("up", "bench", "logs")),
        *(("cache", verb) for verb in ("list", "why", "warm")),
        *(("lock", *more) for more in ((), ("--check",))),
        ("doctor", "--bundle", "b.tgz"),
        ("predict", "web"), ("ps",), ("status",), ("prune", "--dry-run"),
    ):  # fmt: skip
        found = made.envgen(*words, code=None, env=nowhere)
        tried[" ".join(words[:2])] = f"{found.code} {found.err}"
        assert found.code != 70, tried
        assert not trap.marker.exists(), (words, found)
    assert tried["patch new"].startswith("0 "), tried
    assert checkouts(load_project(made.root / "envgen.yaml").project.profiles["dev"], made.root) == {
        "flashinfer": WorkTree(trap.top).head + "-dirty"
    }


def test_a_server_is_not_asked_in_the_repository_around_the_user(trap: Trap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trap.top)
    found = resolve_git(f"file://{trap.root}/inner", "main")
    assert found.commit == WorkTree(trap.root / "inner").head
    mirror = Mirror.at(trap.root / "mirror", f"file://{trap.root}/inner")
    mirror.git(["fetch", "--quiet", "--depth=1", "origin", "main"])
    assert not trap.marker.exists()


def test_an_embedded_bare_repository_is_not_a_checkout(trap: Trap) -> None:
    """What `safe.bareRepository=explicit` is for: plain files in a cloned tree that git takes for a repository."""
    bare = trap.root / "bare"
    (trap.top / ".git").rename(bare)
    with pytest.raises(UsageError, match="not a git checkout"):
        WorkTree(bare)
    assert not trap.marker.exists()


def test_a_folder_of_somebody_else_is_refused_until_the_user_trusts_it(
    trap: Trap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(trap.root))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("SUDO_UID", raising=False)
    other = 4242
    os.chown(trap.top / ".git", other, other)
    with pytest.raises(RefusedError, match="belongs to another user") as refused:
        WorkTree(trap.top)
    monkeypatch.setenv("SUDO_UID", str(other))
    assert WorkTree(trap.top).head
    monkeypatch.delenv("SUDO_UID")
    hint = refused.value.problems[0].hint.partition(": ")[2]

    subprocess.run(hint.split(), env={**os.environ, "HOME": str(trap.root)}, check=True)
    assert WorkTree(trap.top).head
    assert not trap.marker.exists()


def test_what_is_no_file_is_refused_at_once(trap: Trap) -> None:
    for name in ("HEAD", "index", "config"):
        path = trap.top / ".git" / name
        kept = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(UsageError, match="not a regular file"):
            WorkTree(trap.top).git(["rev-parse", "HEAD"])
        path.unlink()
        path.write_bytes(kept)
    assert stat.S_ISREG((trap.top / ".git" / "index").stat().st_mode)


def test_nothing_is_written_into_the_checkout(trap: Trap) -> None:
    """A question that is killed leaves no lock behind, and a read-only checkout can be asked."""

    def state() -> list[tuple[str, int]]:
        return sorted((str(path), path.lstat().st_mtime_ns) for path in trap.top.rglob("*"))

    before = state()
    WorkTree(trap.top).edited("v0.5.3")
    Checkout(trap.top).changes(Series("patches/x", ()))
    assert state() == before


def test_settings_that_say_how_files_are_read_hold(tmp_path: Path) -> None:
    sh("git", "init", "-q", str(tmp_path), cwd=tmp_path)
    (tmp_path / "a").write_text("1\n")
    sh("git", "add", ".", cwd=tmp_path)
    sh("git", "commit", "-qm", "one", cwd=tmp_path)
    (tmp_path / "a").chmod(0o755)
    assert WorkTree(tmp_path).edited("HEAD") == ["a"]
    sh("git", "config", "core.fileMode", "false", cwd=tmp_path)
    assert WorkTree(tmp_path).edited("HEAD") == []


def test_a_configuration_is_read_without_being_obeyed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("[a]\n\tb = 1\n")
    text = f'[include]\n\tpath = {tmp_path}/other\n[submodule "x y"]\n\turl = u\n'
    assert read_config(text.encode()) == [("include.path", f"{tmp_path}/other"), ("submodule.x y.url", "u")]
