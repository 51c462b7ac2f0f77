"""`envgen up` of a development profile: mounted sources are installed once, before what needs them starts."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from projects import Project, docker
from rendering import package

from envgen.profile.load import load_project
from envgen.render.environment import overlay_volume

pytestmark = pytest.mark.engine

FILE = """
profiles:
  dev:
    mode: development
    sources:
      lib:
        origin: {checkout: lib}
        package: lib
        distribution: lib
        mount: /workspace/lib
        console_scripts: [lib-cli]
    services:
      dev: {command: [sleep, infinity], interactive: true}
      serve: {command: [sh, -c, "lib-cli && exec sleep infinity"]}
"""


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project]) -> Project:
    made = make_project("envgentestdev", FILE)
    package(made.root / "lib", "lib")
    made.envgen("build")
    return made


@pytest.fixture(autouse=True)
def stopped(project: Project) -> Iterator[None]:
    """What is installed stays: to install it again costs more than most of these tests."""
    yield
    project.envgen("down")


@pytest.fixture
def fresh(project: Project) -> Iterator[None]:
    """Nothing is installed before, and nothing of the test stays."""
    project.envgen("down", "--volumes")
    yield
    project.envgen("down", "--volumes")


@pytest.mark.nightly
def test_an_editor_attaches_to_it(project: Project, tmp_path: Path) -> None:
    """The devcontainers' own command line reads what `export devcontainer` writes; the container is that of `up`."""
    program = shutil.which("devcontainer")
    if program is None:
        pytest.fail("this test needs the devcontainers CLI: npm install -g @devcontainers/cli@0.89.0", pytrace=False)
    project.envgen("render")
    project.envgen("export", "devcontainer", "dev", "-o", ".devcontainer/devcontainer.json")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # its first step is `envgen up`

    def editor(verb: str, *words: str) -> str:
        own = ["--workspace-folder", str(project.root), "--user-data-folder", str(tmp_path)]
        done = subprocess.run(
            [program, verb, *own, *words], env={**os.environ, "PATH": path}, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    opened = json.loads(editor("up").splitlines()[-1])
    assert opened["outcome"] == "success" and opened["remoteWorkspaceFolder"] == "/workspace"
    assert [row["id"] for row in project.envgen("ps", "--json").json] == [opened["containerId"]]
    assert editor("exec", "--container-id", opened["containerId"], "lib-cli") == "lib as released\n"
    found = {one["check"]: one["severity"] for one in project.envgen("doctor", "--json", code=None).json["findings"]}
    around = ("container.running", "container.settings", "mounts.sources", "import.metadata")
    assert [found[check] for check in around] == ["ok"] * len(around), found


def test_installed_once_whatever_happens_to_the_container(project: Project) -> None:
    """A server finds it; also what pip installs in its shell; and doctor's command installs what was lost."""
    project.envgen("down", "--volumes")
    done = project.envgen("up", "serve")
    assert "lib: 1.5 installed in" in done.err and "serve is running" in done.out
    assert project.envgen("logs", "serve").out.endswith("lib as released\n")
    assert [row["service"] for row in project.envgen("ps", "--json").json] == ["serve"]
    project.envgen("up", "dev")
    assert project.envgen("exec", "dev", "--", "lib-cli").out == "lib as released\n"
    assert project.envgen("exec", "dev", "--", "which", "pip").out == "/opt/envgen/env/bin/pip\n"
    project.envgen("exec", "dev", "--", "pip", "install", "-q", "iniconfig")
    project.envgen("down")
    again = project.envgen("up", "dev")
    assert "lib: installed already (1.5)" in again.err
    assert project.envgen("exec", "dev", "--", "lib-cli").out == "lib as released\n"
    (project.root / "lib" / "lib" / "__init__.py").write_text('ORIGIN = "edited"\n')
    assert project.envgen("exec", "dev", "--", "lib-cli").out == "edited\n"
    shown = project.envgen("exec", "dev", "--", "python3", "-c", "import iniconfig; print(iniconfig.__file__)")
    assert shown.out.startswith("/opt/envgen/env/")
    # Its metadata goes, as when somebody cleans up site-packages: version and console script go with it.
    code = "import importlib.metadata as m; print([one.version for one in m.distributions(name='lib')])"
    version = ("exec", "dev", "--", "python3", "-c", code)
    assert project.envgen(*version).out == "['1.5']\n"
    lose = "import importlib.metadata as m, shutil; shutil.rmtree(m.distribution('lib')._path)"
    project.envgen("exec", "dev", "--", "python3", "-c", lose)
    assert project.envgen(*version).out == "[]\n"
    found = project.envgen("doctor", "--json", code=None).json["findings"]
    cures = {one["remedy"]["text"] for one in found if one["check"] == "import.metadata" and one["remedy"]}
    assert len(cures) == 1, found
    (cure,) = cures
    project.envgen(*shlex.split(cure)[1:])
    assert project.envgen(*version).out == "['1.5']\n"
    assert project.envgen("exec", "dev", "--", "lib-cli").code == 0


@pytest.mark.usefixtures("fresh")
def test_an_installation_that_fails_leaves_nothing(project: Project) -> None:
    path = project.root / "lib" / "pyproject.toml"
    text = path.read_text()
    path.write_text(text.replace('version = "1.5"', 'version = "not a version"'))
    try:
        for service in ("dev", "serve"):
            done = project.envgen("up", service, code=5)
            assert "the mounted sources could not be installed" in done.err
            assert project.envgen("ps", "--json").json == []
    finally:
        path.write_text(text)


@pytest.mark.usefixtures("fresh")
def test_a_full_overlay_is_named(project: Project) -> None:
    profile = load_project(file=project.root / "envgen.yaml", environ={}).project.profiles["dev"]
    small = ("--opt", "type=tmpfs", "--opt", "device=tmpfs", "--opt", "o=size=16k")
    docker("volume", "create", *small, overlay_volume(profile))
    done = project.envgen("up", "serve", code=5)
    assert "a disk is full" in done.err and "docker system df" in done.err
    assert project.envgen("ps", "--json").json == []


BACKEND = """\
from setuptools.build_meta import *
from setuptools.build_meta import build_editable as build
def get_requires_for_build_editable(settings=None): return ["{wanted}"]
def build_editable(*words):
    import iniconfig
    return build(*words)
"""


@pytest.mark.usefixtures("fresh")
def test_the_build_backend_is_asked_what_it_needs(project: Project) -> None:
    """It names iniconfig itself, in no file; and what can't be had is one sentence that names the key."""
    path = project.root / "lib" / "pyproject.toml"
    text = path.read_text()
    backend = text.replace('build-backend = "setuptools.build_meta"', 'build-backend = "ours"\nbackend-path = ["."]')
    path.write_text(backend)
    try:
        (path.parent / "ours.py").write_text(BACKEND.format(wanted="envgen-no-such-package"))
        refused = project.envgen("up", "dev", code=5)
        last = [line for line in refused.err.splitlines() if line.startswith("envgen: ")][-1]
        assert "lib: cannot install envgen-no-such-package" in last, refused.err
        assert "sources.lib.install.requires" in last and "pip.tools" in last
        (path.parent / "ours.py").write_text(BACKEND.format(wanted="iniconfig"))
        assert "lib: 1.5 installed in" in project.envgen("up", "dev").err
    finally:
        path.write_text(text)


@pytest.mark.usefixtures("fresh")
def test_run_installs_nothing(project: Project) -> None:
    """The way into a container whose sources cannot be installed."""
    assert project.envgen("run", "dev", "lib-cli", code=None).code != 0


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "protocol.file.allow=always"]
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def inside(project: Project) -> Callable[..., list[int]]:
    """Run commands in the checkout, each in a shell of its own; their exit codes."""

    def run(*commands: str) -> list[int]:
        each = "; ".join(f"(cd /workspace/lib && {command}) >&2; echo $?" for command in commands)
        return [int(code) for code in project.envgen("exec", "dev", "--", "sh", "-c", each).out.split()]

    return run


def test_git_works_in_the_container(project: Project, inside: Callable[..., list[int]], tmp_path: Path) -> None:
    """What writes git's configuration, too: tracking branches, renamed branches, another remote."""
    lib, other = project.root / "lib", tmp_path / "other"
    for folder in (lib, other):
        folder.mkdir(exist_ok=True)
        git(folder, "init", "-q", "-b", "main")
    git(other, "commit", "-q", "--allow-empty", "-m", "one")
    git(lib, "submodule", "--quiet", "add", str(other), "third_party/other")
    git(lib, "add", ".")
    git(lib, "commit", "-qm", "one")
    try:
        project.envgen("up", "dev")
        program = "git -c user.name=t -c user.email=t@localhost -c safe.directory='*'"
        commands = (
            f"echo new > new.txt && {program} add new.txt && {program} commit -qm two",
            f"{program} status && {program} checkout -q -b feature --track main",
            f"{program} branch -m feature renamed && {program} remote add fork https://example.com/fork.git",
            f"{program} config core.editor vi && {program} stash list",
        )
        assert inside(*commands) == [0] * len(commands)
        assert git(lib, "log", "-1", "--format=%s").strip() == "two"
        assert git(lib, "config", "branch.renamed.merge").strip() == "refs/heads/main"
        assert project.envgen("up", "dev").code == 0  # nothing is recreated for it
    finally:
        project.envgen("down")
        for path in (lib / ".git", lib / "third_party"):
            shutil.rmtree(path)
        (lib / ".gitmodules").unlink()


@pytest.mark.nightly
def test_git_bisects_a_mounted_checkout(project: Project) -> None:
    """As docs/updates.md says: git moves the checkout and puts it back, envgen starts each commit."""
    lib, file = project.root / "lib", project.root / "lib/lib/__init__.py"
    released = file.read_text()
    git(lib, "init", "-q", "-b", "main")
    commits = []
    for text in (
        "ORIGIN = 1\n",
        "ORIGIN = 2\n",
        "ORIGIN = 3\nraise RuntimeError(ORIGIN)\n",
        "import lost\n",
        "import no\n",
    ):
        file.write_text(text)
        git(lib, "add", ".")
        git(lib, "commit", "-qm", text)
        commits.append(git(lib, "rev-parse", "HEAD").strip())
    try:
        git(lib, "bisect", "start", "HEAD", "HEAD~4")
        start = f"cd {project.root} && {sys.executable} -m envgen up serve -p dev --recreate"
        printed = git(lib, "bisect", "run", "sh", "-c", start)
        assert f"{commits[2]} is the first bad commit" in printed
        git(lib, "bisect", "reset")
        assert git(lib, "rev-parse", "HEAD").strip() == commits[-1] and file.read_text() == "import no\n"
        assert git(lib, "symbolic-ref", "--short", "HEAD").strip() == "main"
    finally:
        project.envgen("down")
        shutil.rmtree(lib / ".git")
        file.write_text(released)
