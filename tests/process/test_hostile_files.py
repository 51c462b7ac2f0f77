"""Files that a cloned project brings, full disks, closed streams: one sentence, and the right exit code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from projects import Project

from envgen.errors import ProjectError
from envgen.patches.series import load_series

NOWHERE = {"DOCKER_HOST": "unix:///nonexistent/envgen.sock", "XDG_CACHE_HOME": "/tmp/envgentest-hostile-cache"}
ENVGEN = (sys.executable, "-m", "envgen")


@pytest.fixture
def made(tmp_path: Path) -> Project:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "envgen.yaml").write_text("""\
version: 1
name: hostile
default_profile: dev
profiles:
  dev:
    mode: development
    base: {image: "localhost:9/none:1"}
    cuda: {arch_list: 12.1a}
    gpu: none
    services: {web: {command: [sleep, infinity]}}
""")
    return Project(tmp_path / "p", "hostile")


@pytest.mark.parametrize("level", [".envgen", ".envgen/render", ".envgen/logs", ".envgen/state"])
@pytest.mark.parametrize("words", [("build",), ("lock",), ("doctor", "--bundle", "b.tgz")])
def test_envgens_own_folder_follows_no_link(made: Project, tmp_path: Path, level: str, words: tuple[str, ...]) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (made.root / level).parent.mkdir(exist_ok=True)
    (made.root / level).symlink_to(outside)
    found = made.envgen(*words, code=None, env=NOWHERE)
    assert found.code in (0, 1, 3, 6, 7), found
    assert list(outside.iterdir()) == []


def test_lock_writes_through_no_link(made: Project, tmp_path: Path) -> None:
    victim = tmp_path / "authorized_keys"
    victim.write_text("key\n")
    (made.root / ".envgen" / "state").mkdir(parents=True)
    for name in (".envgen/state/lock-check", ".envgen/state/lock.lock"):
        (made.root / name).symlink_to(victim)
    made.envgen("lock", "--check", code=None, env=NOWHERE)
    made.envgen("lock", code=None, env=NOWHERE)
    assert victim.read_text() == "key\n"


def test_a_bundle_has_no_file_of_somebody_else(made: Project, tmp_path: Path) -> None:
    secret = tmp_path / "shadow"
    secret.write_text("root:precious\n")
    (made.root / ".envgen" / "logs").mkdir(parents=True)
    (made.root / ".envgen" / "logs" / "zz.log").symlink_to(secret)
    (made.root / ".envgen" / "logs" / "ours.log").write_text("ours\n")
    (made.root / "envgen.lock").symlink_to(secret)
    made.envgen("doctor", "--bundle", "b.tgz", code=None, env=NOWHERE)
    if (made.root / "b.tgz").exists():
        with tarfile.open(made.root / "b.tgz") as bundle:
            for member in bundle:
                content = bundle.extractfile(member)
                assert content is None or b"precious" not in content.read(), member.name


@pytest.mark.parametrize("name", ["envgen.yaml", "envgen.local.yaml", "envgen.lock", "x.yaml"])
def test_a_fifo_is_refused_at_once(made: Project, name: str) -> None:
    (made.root / name).unlink(missing_ok=True)
    os.mkfifo(made.root / name)
    words = ["lock", "--check"] if name == "envgen.lock" else ["config"]
    found = made.envgen(*words, *(["-f", name] if name == "x.yaml" else []), code=None, env=NOWHERE)
    assert found.code == 2, found
    assert "not a regular file" in found.err


@pytest.mark.parametrize("name", ["series", "0001-x.patch"])
def test_a_fifo_among_patches_is_refused_at_once(made: Project, name: str) -> None:
    folder = made.root / "patches" / "vllm"
    folder.mkdir(parents=True)
    (folder / "series").write_text("0001-x.patch\n")
    (folder / "0001-x.patch").write_text("Description: x\n\n--- a/a.py\n+++ b/a.py\n@@ -1 +1,2 @@\n a = 1\n+b = 1\n")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ProjectError, match=r"not a (regular )?file"):
        load_series(made.root, "vllm")


def test_a_project_file_of_somebody_else_is_named_or_refused(made: Project) -> None:
    below = made.root / "victim" / "work"
    below.mkdir(parents=True)
    os.chown(made.root / "envgen.yaml", 4242, 4242)
    there = Project(below, "x")
    assert "belongs to another user" in there.envgen("config", code=6).err
    there.envgen("config", "-f", str(made.root / "envgen.yaml"))
    there.envgen("config", env={"SUDO_UID": "4242"})


def run(command: str, cwd: Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """A command line of a shell, in which $EG is envgen."""
    env = {**os.environ, **NOWHERE, "EG": " ".join(ENVGEN)}
    return subprocess.run(
        ["sh", "-c", command], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )


@pytest.mark.parametrize("verb", ["config", "render --check", "lock --check", "results list", "--version"])
def test_standard_output_that_cannot_be_written(made: Project, verb: str) -> None:
    whole = made.envgen(*verb.split(), code=None, env=NOWHERE)
    for stream in (">/dev/full", ">&-"):
        found = run(f"$EG {verb} {stream}", made.root)
        assert found.returncode == (6 if whole.out else whole.code), (whole, found)
        if whole.out:
            why = "no space left on device" if "full" in stream else "bad file descriptor"
            assert found.stderr.startswith(f"envgen: the file system refused: {why}\n"), found


def test_standard_error_that_cannot_be_written_changes_no_code(made: Project) -> None:
    made.envgen("render")
    for stream in ("2>/dev/full", "2>&-"):
        assert run(f"$EG render --check {stream}", made.root).returncode == 0
        assert run(f"$EG config -p none {stream}", made.root).returncode == 2


def test_a_current_folder_that_is_gone(tmp_path: Path) -> None:
    for verb in ("render", "doctor", "config", "init x", "patch check", "explain"):
        found = run(f"mkdir gone && cd gone && rmdir ../gone && $EG {verb}", tmp_path)
        assert found.returncode in (2, 6), (verb, found)
        assert "Traceback" not in found.stderr and "internal" not in found.stderr
        assert "was removed" in found.stderr, found


def test_no_home(made: Project) -> None:
    user = "env -u HOME -u XDG_CACHE_HOME setpriv --reuid 4243 --regid 4243 --clear-groups"
    for verb in ("config", "render --check"):
        found = run(f"{user} $EG {verb} -f envgen.yaml", made.root)
        assert "internal" not in found.stderr and found.returncode in (0, 1, 2, 6), (verb, found)


def test_a_pipe_is_a_log_and_a_device_is_not(made: Project) -> None:
    assert run("$EG explain /dev/zero", made.root).returncode == 2
    piped = subprocess.run(
        ["bash", "-c", f"{' '.join(ENVGEN)} explain <(echo one; sleep 0.2; echo two)"],
        cwd=made.root, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "2 lines" in piped.stdout, piped


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(mount)], check=True)
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


VERBS = ("render", "lock", "build", "up", "init new", "config", "doctor --bundle b.tgz", "results list")


@pytest.mark.parametrize("trouble", ["no space", "read-only"])
def test_a_disk_that_takes_nothing(made: Project, small: Path, trouble: str) -> None:
    shutil.copy(made.root / "envgen.yaml", small)
    if trouble == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    else:
        with (small / "ballast").open("wb", buffering=0) as ballast, pytest.raises(OSError, match="No space"):
            while ballast.write(b"\0" * 4096):
                pass
    before = {path.name for path in small.iterdir()}
    for verb in VERBS:
        found = Project(small, "hostile").envgen(*verb.split(), code=None, env=NOWHERE)
        assert found.code not in (70, 1) and "internal" not in found.err, (verb, found)
        if verb in ("render", "init new"):
            assert found.code == 6 and trouble in found.err, (verb, found)
    assert {path.name for path in small.iterdir()} - {".envgen", "new"} == before
