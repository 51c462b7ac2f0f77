"""`envgen upgrade` as a process: on two real releases of vLLM, and on an index and a terminal of the test's own."""

from __future__ import annotations

import hashlib
import io
import os
import pty
import select
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lock_servers import Answer, failing, git_daemon
from patch_sources import project
from projects import Finished, Project

SERVE = """\
      serve:
        command: [vllm, serve, m]
        ports: ["127.0.0.1:8000:8000"]
        args:
          max-model-len: 8192   # kept
          no-such-flag: 1
        env: {VLLM_ATTENTION_BACKEND: FLASHINFER, VLLM_LOGGING_LEVEL: INFO}
        ready:
          model: m
          port: 8000
          expect:
            marlin: Falling back to Marlin FP4 MoE kernel
            loading: 'Starting to load model m'
            either: 'Falling back to Marlin FP4 MoE kernel|Starting to load model'
"""


def test_two_real_releases(tmp_path: Path) -> None:
    """vLLM 0.16.0 pins FlashInfer 0.6.3, no longer reads one variable, and no longer logs one line."""
    made = project(tmp_path)
    file = tmp_path / "envgen.yaml"
    before = file.read_text().replace("      serve: {command: [sleep, infinity]}\n", SERVE)
    before = before.replace("pypi: vllm==0.14.0", 'pypi: "vllm==0.14.0"')
    file.write_text(before)
    found = made.envgen("upgrade", "vllm", "0.16.0", "--json", "--yes", code=1).json
    assert found["sources"] == {
        "vllm": {"now": "0.14.0", "then": "0.16.0"},
        "flashinfer": {"now": "0.5.3", "then": "0.6.3"},
    }
    assert found["torch"] == "torch==2.9.1 is asked for; nvcr.io/nvidia/pytorch:25.12-py3 has 2.10"
    states = {one["name"][:4]: one["state"] for run in found["patches"] for one in run["patches"]}
    assert states == {"0001": "out of range", "0002": "applies with offset", "0003": "applies with offset"}
    said = {one["message"]: one for one in found["findings"]}
    lines = before.splitlines()

    def place(message: str) -> str:
        file, line, *_ = said[message]["place"].split(":")
        assert file == "envgen.yaml"
        return lines[int(line) - 1].strip()

    flag = "vllm 0.16.0 has no flag --no-such-flag"
    assert said[flag]["stops"] and place(flag) == "no-such-flag: 1"
    assert place("vllm 0.16.0 does not read VLLM_ATTENTION_BACKEND any more").startswith("env:")
    [lost] = [one for one in said if "Falling back" in one]
    assert lost.startswith("'Falling back to Marlin FP4 MoE kernel' finds") and place(lost).startswith("marlin:")
    assert not [one for one in said if "max-model-len" in one or "LOGGING_LEVEL" in one]
    after = before.replace('"vllm==0.14.0"', '"vllm==0.16.0"').replace("python==0.5.3", "python==0.6.3")
    assert found["written"] and file.read_text() == after.replace("PRETEND_VERSION: 0.14.0", "PRETEND_VERSION: 0.16.0")
    assert made.envgen("upgrade", "vllm", "0.16.0").out == "vllm (profile prod) is at 0.16.0 already\n"


# --- an index of the test's own ---------------------------------------------------------------------------------------

TEXT = """\
version: 1
name: t
profiles:
  prod:
    mode: production
    base: {{image: "x:1", platform: linux/arm64}}
    cuda: {{arch_list: 12.1a}}
    gpu: none
    sources:
      # vllm 0.1.0 needs beta 1.0
      vllm: {{origin: {vllm}, package: vllm, distribution: vllm, mount: /w/vllm}}   # 0.1.0
      beta:
        origin: {{pypi: 'beta==1.0'}} # kept
        package: beta
        distribution: beta
        mount: /w/beta
    services:
      serve: {{command: [sleep, infinity], env: {{VLLM_X: 1}}}}
  mounted:
    extends: prod
    mode: development
    dockerfile: Dockerfile.dev
    sources:
      vllm: {{origin: {{checkout: ../vllm}}}}
"""


def sdist(name: str, version: str, *needs: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for path, text in (
            ("PKG-INFO", "".join(f"Requires-Dist: {need}\n" for need in needs)),
            (f"{name}/__init__.py", "print('imported')\nraise SystemExit(9)\n"),
            (f"{name}/../../../evil.py", "x = 1\n"),
        ):
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return out.getvalue()


FILES = {
    f"{name}-{version}.tar.gz": sdist(name, version, *needs)
    for name, version, *needs in (
        ("vllm", "0.1.0", "beta==1.0"),
        ("vllm", "0.2.0", "beta==2.0 ; platform_machine == 'aarch64'", "torch==9.9", "gone==1 ; extra == 'x'"),
        ("vllm", "0.3.0"),
        ("vllm", "0.4.0rc1"),
        ("beta", "1.0"),
        ("beta", "2.0"),
    )
}


def index(path: str, _number: int) -> Answer:
    name = path.strip("/").rpartition("/")[2]
    if name in FILES:
        return 200, {"Content-Type": "application/gzip"}, FILES[name]
    listed = [
        f'<a {"data-yanked" * ("0.3.0" in file)} href="/files/{file}#sha256={hashlib.sha256(data).hexdigest()}">'
        for file, data in FILES.items()
        if file.startswith(f"{name}-")
    ]
    return 200 if listed else 404, {"Content-Type": "text/html"}, "\n".join(listed).encode()


Upgrade = Callable[..., Finished]


@pytest.fixture
def environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables that make the test's index the only one."""
    with failing(index) as server:
        only = {
            "PIP_INDEX_URL": f"http://{server.host}/simple",
            "PIP_EXTRA_INDEX_URL": "",
            "PIP_CONFIG_FILE": os.devnull,
        }
        yield {**only, "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def upgrade(tmp_path: Path, environ: dict[str, str]) -> Upgrade:
    """`envgen upgrade ...` in a project."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p/envgen.yaml").write_text(TEXT.format(vllm="{pypi: vllm==0.1.0}"))
    made = Project(tmp_path / "p", "t")
    return lambda *words, code=0, **more: made.envgen("upgrade", *words, code=code, env={**environ, **more})


def test_the_table_writes_nothing(upgrade: Upgrade, tmp_path: Path) -> None:
    found = {(one["source"], one["profile"]): one for one in upgrade("--json").json["sources"]}
    assert found["vllm", "prod"]["newest"] == "0.2.0"  # withdrawn and unfinished ones do not count
    assert found["beta", "prod"]["newest"] == "2.0" and ("beta", "mounted") not in found
    assert found["vllm", "mounted"]["note"] == "a mounted checkout: git -C ../vllm pull"
    assert "envgen.yaml:11" in upgrade("-p", "prod").out
    assert (tmp_path / "p/envgen.yaml").read_text() == TEXT.format(vllm="{pypi: vllm==0.1.0}")


def test_what_a_release_pins_moves_with_it_and_all_else_stays(upgrade: Upgrade, tmp_path: Path) -> None:
    file = tmp_path / "p/envgen.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_text().replace("\n", "\r\n").encode())
    file.chmod(0o640)
    done = upgrade("vllm", "-p", "prod", "--yes")
    assert "beta (profile prod): 1.0 -> 2.0 (vllm 0.2.0 pins it)" in done.out
    assert "torch==9.9 is asked for; not verified: which one x:1 has" in done.out
    assert "envgen.yaml still mentions 0.1.0: line 10, 11" in done.out
    assert "vllm 0.2.0 does not read VLLM_X, as before" in done.out
    assert "next: envgen lock -p prod && envgen build -p prod" in done.err
    text = TEXT.format(vllm="{pypi: vllm==0.2.0}").replace("'beta==1.0'", "'beta==2.0'").replace("\n", "\r\n")
    assert file.read_bytes() == b"\xef\xbb\xbf" + text.encode() and file.stat().st_mode & 0o777 == 0o640
    assert not list(tmp_path.rglob("evil.py")) and "imported" not in done.out


def test_what_would_not_fit_is_said(upgrade: Upgrade) -> None:
    done = upgrade("beta", "-p", "prod", "--dry-run", code=1)
    assert "stops: vllm 0.1.0 asks for beta==1.0" in done.out and "envgen upgrade vllm moves both" in done.out
    assert "the same lines are those of mounted: they move too" in done.out


NO_INDEX = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
OVERRIDE = {"ENVGEN_SOURCES__VLLM__ORIGIN__PYPI": "vllm==0.1.1"}


@pytest.mark.parametrize(
    ("words", "env", "code", "message"),
    [
        ("vlm -p prod", {}, 2, "profile prod has no source 'vlm'"),
        ("vllm 0.2 -p mounted", {}, 2, "a mounted checkout: git -C ../vllm pull"),
        ("vllm 0.21.0 -p prod", {}, 2, "there is no vllm 0.21.0 for aarch64\n    hint: there is 0.2.0"),
        ("vllm latest -p prod", {}, 2, "'latest' is not a release"),
        ("vllm -p prod", {}, 6, "envgen.yaml is as it was: that needs a yes"),
        ("vllm -p prod --yes --dry-run", {}, 2, "name one of them"),
        ("vllm -p prod", OVERRIDE, 6, "ORIGIN__PYPI: sources.vllm.origin: this decides the release"),
        ("vllm -p prod --set sources.vllm.origin.pypi=vllm==0.1.1", {}, 6, "leave that option out"),
        ("vllm -p prod", NO_INDEX, 2, "127.0.0.1:9/simple: cannot be reached"),
        ("", NO_INDEX, 2, "127.0.0.1:9/simple: cannot be reached"),
    ],
)
def test_errors(upgrade: Upgrade, tmp_path: Path, words: str, env: dict[str, str], code: int, message: str) -> None:
    assert message in upgrade(*words.split(), code=code, **env).err
    assert (tmp_path / "p/envgen.yaml").read_text() == TEXT.format(vllm="{pypi: vllm==0.1.0}")


def test_a_value_of_the_local_file_is_named_with_its_line(upgrade: Upgrade, tmp_path: Path) -> None:
    local = tmp_path / "p/envgen.local.yaml"
    local.write_text("profiles:\n  prod:\n    sources: {vllm: {origin: {pypi: vllm==0.1.1}}}\n")
    assert "envgen.local.yaml:3:37: sources.vllm.origin" in upgrade("vllm", "-p", "prod", code=6).err


def test_of_a_repository_its_tags_are_the_releases(upgrade: Upgrade, tmp_path: Path) -> None:
    bare = tmp_path / "git/vllm.git"
    bare.mkdir(parents=True)
    identity = {f"GIT_{who}_{what}": "t@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=bare, env={**os.environ, **identity}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    git("init", "-q", "--bare")
    commit = git("commit-tree", "-m", "x", git("hash-object", "-w", "-t", "tree", "/dev/null"))
    for tag in ("v0.1.0", "v0.2.0", "v0.5.0", "v0.6.0rc1", "0.9.0", "nightly"):
        git("tag", tag, commit)
    with git_daemon(tmp_path / "git") as address:
        origin = f"{{git: {address}/vllm.git, ref: v0.1.0}}"
        (tmp_path / "p/envgen.yaml").write_text(TEXT.format(vllm=origin))
        assert "not compared: the package index does not have v0.5.0 of git" in upgrade("vllm", "--yes").out
        assert "ref: v0.5.0}, package: vllm" in (tmp_path / "p/envgen.yaml").read_text()


@pytest.mark.parametrize(("answer", "version"), [("n", "0.1.0"), ("y", "0.2.0")])
def test_the_question_at_a_terminal(
    upgrade: Upgrade, environ: dict[str, str], tmp_path: Path, answer: str, version: str
) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "envgen", "upgrade", "vllm", "-p", "prod"]
    env = {**os.environ, **environ}
    child = subprocess.Popen(words, cwd=tmp_path / "p", env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen, deadline = b"", time.monotonic() + 120
    while b"write envgen.yaml?" not in seen and time.monotonic() < deadline:
        if select.select([ours], [], [], 1)[0]:
            seen += os.read(ours, 65536)
    assert b"+      vllm: {origin: {pypi: vllm==0.2.0}" in seen
    os.write(ours, f"{answer}\n".encode())
    assert child.wait(120) == (0 if answer == "y" else 6)
    os.close(ours)
    assert f"vllm=={version}" in (tmp_path / "p/envgen.yaml").read_text()
