"""As a normal user: what containers write into a checkout or a cache folder stays the user's.

envgen runs as a uid that has no entry in /etc/passwd and is in the group of the engine's socket. It may read what root
may (this checkout, the interpreter and the socket's folder can lie below /root), and write only what is its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from projects import BASE, Finished, docker
from rendering import package

pytestmark = pytest.mark.engine

UID, GID = 12345, 12346
NAME = "envgentestuser"
WHO = ("-c", "user.name=t", "-c", "user.email=t@localhost")
FILE = f"""\
version: 1
name: {NAME}
default_profile: dev
profiles:
  dev:
    mode: development
    base: {{image: {BASE}}}
    cuda: {{arch_list: 12.1a}}
    gpu: none
    build: {{ccache: false}}
    sources:
      lib: {{origin: {{checkout: lib}}, package: lib, distribution: lib, mount: /workspace/lib-source}}
    caches:
      huggingface: {{path: /root/.cache/huggingface, host: ~/hub/huggingface}}
      torch: {{path: /root/.cache/torch}}
      triton: {{path: /root/.triton}}
      flashinfer: {{path: /root/.cache/flashinfer, host: ~/kernels}}
    services:
      dev: {{command: [sleep, infinity], interactive: true}}
      serve: {{command: [sh, -c, "lib-cli && exec sleep infinity"]}}
"""


@dataclass(frozen=True)
class User:
    """A user of the engine with a home, a project and a checkout in it."""

    home: Path

    @property
    def root(self) -> Path:
        return self.home / "project"

    def run(self, *words: str, code: int | None = 0) -> Finished:
        """Run a program as this user."""
        host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        group = Path(host.removeprefix("unix://")).stat().st_gid
        who = ["--reuid", str(UID), "--regid", str(GID), "--groups", str(group)]
        caps = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "SUDO_", "ENVGEN_"))}
        env["PATH"] = f"{self.home}/bin:{env['PATH']}"
        env |= {"HOME": str(self.home), "DOCKER_CONFIG": str(self.home / ".docker"), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            ["setpriv", *who, *caps, *words],
            cwd=self.root, env=env, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        if code is not None:
            assert done.returncode == code, f"{words} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return Finished(done.returncode, done.stdout, done.stderr)

    def envgen(self, *words: str, code: int | None = 0) -> Finished:
        return self.run(sys.executable, "-m", "envgen", *words, code=code)

    def inside(self, command: str, code: int | None = 0) -> Finished:
        return self.envgen("exec", "dev", "--", "bash", "-c", command, code=code)

    def foreign(self) -> list[str]:
        """What in the project and the caches belongs to somebody else."""
        tops = (self.root, self.home / "hub", self.home / "kernels")
        found = [Path(at, name) for top in tops for at, folders, files in os.walk(top) for name in (*folders, *files)]
        return [f"{path} {path.lstat().st_uid}" for path in found if path.lstat().st_uid != UID]


def give(top: Path) -> None:
    """Hand a tree to the user."""
    for at, folders, files in os.walk(top):
        for name in (".", *folders, *files):
            os.chown(Path(at, name), UID, GID, follow_symlinks=False)


def reachable(programs: Iterable[Path], folder: Path) -> None:
    """Put programs where the user finds them: those of a private engine can lie below /root."""
    folder.mkdir(parents=True)
    for program in programs:
        try:
            (folder / program.name).hardlink_to(program.resolve())
        except OSError:  # another file system
            shutil.copy2(program.resolve(), folder / program.name)


@pytest.fixture(scope="module")
def user(engine: Any) -> Iterator[User]:
    home = Path(tempfile.mkdtemp(prefix="envgentest-home-"))  # pytest's own lies below a folder of root's
    home.chmod(0o755)
    found = User(home)
    package(found.root / "lib", "lib")
    (found.root / "envgen.yaml").write_text(FILE)
    reachable([Path(shutil.which("docker") or "docker")], home / "bin")
    plugins = Path(os.environ.get("DOCKER_CONFIG", "/nowhere"), "cli-plugins")
    reachable(plugins.glob("docker-*"), home / ".docker/cli-plugins")
    give(found.root)
    for folder in (home, home / ".docker", home / "bin"):
        os.chown(folder, UID, GID)
    for words in (["init", "-q"], ["add", "."], [*WHO, "commit", "-qm1"]):
        found.run("git", "-C", str(found.root / "lib"), *words)
    found.envgen("build")
    yield found
    found.envgen("down", "--volumes", code=None)
    docker("image", "rm", "-f", f"{NAME}:dev", check=False)
    shutil.rmtree(home)


@pytest.fixture(autouse=True)
def fresh(user: User) -> Iterator[None]:
    yield
    user.envgen("down", "--volumes")
    user.run("git", "-C", "lib", "clean", "-fdxq")
    user.run("git", "-C", "lib", "checkout", "-q", ".")


def test_a_day_leaves_nothing_of_roots(user: User) -> None:
    """Start, edit, install, compile, commit; then everything in the checkout can be removed by its owner."""
    done = user.envgen("up", "dev")
    assert "lib: 1.5 installed in" in done.err
    assert user.inside("id -u; id -g; echo $HOME; lib-cli").out == f"{UID}\n{GID}\n/root\nlib as released\n"
    (user.root / "lib/lib/__init__.py").write_text('ORIGIN = "edited"\n')
    assert user.inside("lib-cli").out == "edited\n"
    user.inside("python3 -m compileall -q /workspace/lib-source && mkdir /workspace/x && touch /workspace/x/y.so")
    user.inside(
        "cd /workspace/lib-source && git -c user.name=t -c user.email=t@localhost commit -qam two && git status"
    )
    folders = ("/root", "/root/.cache/huggingface", "/root/.cache/torch", "/root/.triton", "/root/.cache/new")
    made = [f"mkdir -p {folder}/made && echo x >{folder}/made/file" for folder in folders]
    user.inside(" && ".join([*made, "echo x >/root/.cache/flashinfer/made"]))
    user.inside("pip install -q iniconfig && python3 -c 'import iniconfig'")
    assert user.foreign() == []
    assert (user.home / "hub/huggingface/made/file").read_text() == "x\n"
    user.envgen("down")
    assert "lib: installed already (1.5)" in user.envgen("up", "dev").err
    user.inside("touch /root/.cache/torch/kept /root/.triton/kept")
    # torch's inductor names its folder after getpass.getuser(), which fails for a uid without an entry.
    who = "python3 -c 'import getpass, pathlib; print(getpass.getuser(), pathlib.Path.home())'"
    assert user.inside(who).out == "envgen /root\n"
    findings = user.envgen("doctor", "--json", code=None).json["findings"]
    wrong = [one for one in findings if one["severity"] == "error"]
    assert [one for one in wrong if not one["check"].startswith("import.")] == []  # /lib is a namespace of that name
    assert [one["severity"] for one in findings if one["check"] == "mounts.caches"] == ["ok"]
    user.run("git", "-C", "lib", "clean", "-fdxq")
    assert not (user.root / "lib/lib/__pycache__").exists() and user.foreign() == []


def test_volumes_that_root_filled_are_handed_over(user: User) -> None:
    """Plain `docker compose up` is root, unless it is told another user."""
    user.envgen("render")
    compose = ["docker", "compose", "-f", str(user.root / "compose/dev.yaml")]

    def plain(*words: str, **env: str) -> str:
        done = subprocess.run(
            [*compose, *words], env={**os.environ, **env}, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    shown = plain("config", "--format", "json", "dev", ENVGEN_UID=str(UID), ENVGEN_GID=str(GID))
    assert f'"user": "{UID}:{GID}"' in shown
    plain("run", "--rm", "-T", "dev", "sh", "-c", "cd /root/.triton && mkdir of-root && touch of-root/x")
    plain("run", "--rm", "-T", "dev", "envgen-install")
    assert user.foreign()
    give(user.root)
    user.envgen("up", "dev")
    user.inside("rm -r /root/.triton/of-root && envgen-install --force && pip install -q iniconfig")
    assert user.foreign() == []


def test_a_checkout_that_cannot_be_written_is_one_sentence(user: User) -> None:
    lib = user.root / "lib"
    for folder in (lib, lib / "lib"):
        folder.chmod(0o555)
    try:
        done = user.envgen("up", "dev", code=5)
        assert f"lib: user {UID} can't write the checkout /workspace/lib-source" in done.err
    finally:
        for folder in (lib, lib / "lib"):
            folder.chmod(0o755)


def test_a_build_tree_of_roots_is_named_with_what_hands_it_over(user: User) -> None:
    """As an earlier container left it. git's own read-only files are no trouble; a checkout without a tag is told."""
    lib = user.root / "lib"
    mine, roots = lib / ".deps" / "object", lib / "build" / "temp.linux" / "one.o"
    for path in (mine, roots):
        path.parent.mkdir(parents=True)
        path.write_text("")
        path.chmod(0o444)
    give(lib / ".deps")
    os.chown(lib / "build", UID, GID)
    with (lib / "pyproject.toml").open("a") as file:
        file.write("\n[tool.setuptools_scm]\n")
    done = user.envgen("up", "dev", code=5)
    assert f"lib: user {UID} can't write what an earlier container left in /workspace/lib-source" in done.err
    (cure,) = [line.split("run: sudo ")[1] for line in done.err.splitlines() if "run: sudo " in line][:1]
    assert cure == f"chown -R {UID}:{GID} build"
    assert "lib: the checkout has no tag for its version: run `git fetch --tags`" in done.err
    subprocess.run(cure.split(), cwd=lib, check=True)
    user.envgen("up", "dev")
