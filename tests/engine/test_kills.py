"""kill -9 at a random moment of a verb, many times: no internal error, no half state, nothing left after a prune.

Four in all, or ENVGEN_EXAMPLES: `ENVGEN_EXAMPLES=300 pytest -n 0 tests/engine/test_kills.py` is the whole trial.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hub_server import Hub, model_files, serve
from jit_lab import Envgen, Lab
from local import until
from projects import Finished, Project, docker, ran

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

KILLS = int(os.environ.get("ENVGEN_EXAMPLES", "4"))
VERBS = ("render", "lock", "clear", "recipe", "build")
FILE = """
profiles:
  prod:
    mode: production
    caches: {flashinfer: {path: /root/.cache/flashinfer}}
    services: {web: {command: [sleep, infinity]}}
"""
SERVER = b"""
  server:
    extends: prod
    services: {web: {command: [vllm, serve, x], ports: ["127.0.0.1:8000:8000"], ready: {port: 8000}}}
"""
MODEL = """
  pip: {tools: [huggingface_hub]}
  caches: {huggingface: {path: /hf, host: cache}}
profiles:
  prod:
    mode: production
    services: {web: {command: [sleep, infinity], model: {repo: acme/tiny}}}
"""
MODULES = """
for m in page norm rope; do
  d=/root/.cache/flashinfer/0.5.3/121a/cached_ops/$m
  mkdir -p $d
  [ -s $d/$m.so ] || head -c 3000000 /dev/urandom > $d/$m.so
  for i in $(seq 100); do echo $i > $d/$i.o; done
done"""


@dataclass
class Measurement:
    """Kills one verb again and again. ``ended``: how often it was done before it could be killed."""

    project: Project
    longest: dict[str, float] = field(default_factory=dict)
    ended: int = 0

    def envgen(self, *words: str) -> Finished:
        """A run that is not killed."""
        found = self.project.envgen(*words, code=None)
        assert found.code != 70 and "internal error" not in found.err, (words, found)
        return found

    def kill(self, *words: str) -> None:
        """Start, wait for a random part of the time that the verb takes, and kill it alone, not its children."""
        verb = " ".join(words[:2])
        if verb not in self.longest:
            began = time.monotonic()
            child = self.project.start(*words)
            _, err = child.communicate()
            self.longest[verb] = time.monotonic() - began
            assert child.returncode != 70 and "internal error" not in err, (words, err)
            return
        child = self.project.start(*words)
        time.sleep(random.uniform(0.05, 0.9) * self.longest[verb])
        self.ended += child.poll() is not None
        child.kill()
        for pipe in (child.stdout, child.stderr):  # closed, not read: children of it may live on for a moment
            assert pipe
            pipe.close()
        child.wait()


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project]) -> Project:
    made = make_project("envgentestkills", FILE)
    made.envgen("build")
    made.envgen("up", "web")
    return made


@pytest.fixture
def own_temporary_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path


def fill(trial: Measurement) -> None:
    assert trial.envgen("exec", "web", "--", "sh", "-c", MODULES).code == 0


def render(trial: Measurement) -> None:
    for path in trial.project.root.glob("Dockerfile"):
        path.unlink()
    trial.kill("render")
    for path in (trial.project.root / "compose").glob("*.yaml"):
        assert path.read_bytes().endswith(b"\n")
    assert trial.envgen("render").code == 0
    assert trial.envgen("render", "--check").code == 0


def lock(trial: Measurement) -> None:
    file = trial.project.root / "envgen.lock"
    trial.kill("lock")
    if file.exists():  # whole: it is read, and compared
        assert trial.envgen("lock", "--check").code in (0, 1)
    assert trial.envgen("lock").code == 0
    file.unlink()


def clear(trial: Measurement) -> None:
    fill(trial)
    trial.kill("cache", "clear", "page")
    left = trial.envgen("cache", "list").out
    assert "norm" in left and "rope" in left
    assert trial.envgen("cache", "clear", "page").code in (0, 1)  # 1: it was gone already
    assert "page" not in trial.envgen("cache", "list").out


def recipe(trial: Measurement) -> None:
    """The project file has the profile, whole, or has not; a copy of it is nowhere."""
    file = trial.project.root / "added" / "envgen.yaml"
    file.parent.mkdir(exist_ok=True)
    before = (trial.project.root / "envgen.yaml").read_bytes() + SERVER
    file.write_bytes(before)
    words = ("recipe", "add", "qwen3.6-35b-a3b", "--extends", "server", "--yes", "-f", "added/envgen.yaml")
    trial.kill(*words)
    if file.read_bytes() == before:
        assert trial.envgen(*words).code == 0
    assert trial.envgen("config", "-f", "added/envgen.yaml", "-p", "qwen3_6_35b_a3b", "--json").code == 0
    assert list(file.parent.iterdir()) == [file]


def build(trial: Measurement) -> None:
    trial.kill("build", "--no-cache")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.usefixtures("own_temporary_folders")
def test_kills(project: Project, verb: str) -> None:
    trial = Measurement(project)
    one = globals()[verb]
    for _ in range(max(KILLS // len(VERBS), 1) + 1):  # the first run is measured, not killed
        one(trial)
    if verb == "build":
        assert trial.envgen("build", "--no-cache").code == 0
        assert trial.envgen("up", "web", "--recreate").code == 0
    assert trial.envgen("prune", "--yes").code == 0
    assert [row for row in trial.envgen("prune", "--dry-run", "--json").json["items"] if row["kind"] != "image"] == []
    killed = KILLS // len(VERBS) - trial.ended
    print(f"{verb}: {killed} killed, {trial.ended} had ended", file=sys.stderr)


@pytest.mark.usefixtures("own_temporary_folders")
def test_kills_of_a_download(make_project: Callable[..., Project], monkeypatch: pytest.MonkeyPatch) -> None:
    """A download goes on where it was, is whole in the end, and no container of it is left."""
    with serve(Hub(model_files(400_000), rate=400_000)) as hub:
        gateway = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")
        monkeypatch.setenv("HF_ENDPOINT", f"http://{gateway}:{hub.port}")
        trial = Measurement(make_project("envgentestkilled", MODEL))
        trial.envgen("build")
        for _ in range(max(KILLS // 2, 1) + 1):
            trial.kill("model", "pull", "web")
            assert trial.envgen("model", "check", "--json").json["state"] in ("absent", "partial", "whole")
            assert trial.envgen("model", "pull", "web").code == 0
            assert trial.envgen("model", "check", "--json").json["state"] == "whole"
            until(lambda: not left_of(trial.project), "a container of a killed download is left")
            shutil.rmtree(trial.project.root / "cache")
    print(f"{trial.ended} had ended", file=sys.stderr)


@pytest.mark.parametrize("victim", ["envgen", "container", "cicc"])
def test_kills_of_a_compile(jit_lab: Lab, cache_command: Envgen, victim: str) -> None:
    """Nothing half is called fresh, no lock is left, and the next `warm` compiles what is not there."""
    jit_lab.start()
    lab = jit_lab.container
    for _ in range(max(KILLS // 4, 1)):
        cache_command("clear", "page", "--version", "0.5.3")
        argv = [sys.executable, "-m", "envgen", "cache", "warm", "page"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as warm:
            until(lambda: jit_lab.sh("pgrep cicc || true"))
            time.sleep(random.uniform(0, 8))
            if victim == "envgen":
                warm.kill()
            else:  # it may have ended
                ran(*{"container": ("kill", lab), "cicc": ("exec", lab, "pkill", "-9", "cicc")}[victim], check=False)
            said = {"envgen": "", "cicc": "page: "}.get(victim, "page: compiled" if warm.wait() == 0 else "was killed")
            assert said in warm.communicate()[0]
        docker("start", jit_lab.container)
        state = cache_command.states().get("0.5.3 page", "absent")
        printed = cache_command("warm", "page")
        assert "already compiled" in printed or state in ("absent", "partial", "building"), (state, printed)
        assert cache_command.states()["0.5.3 page"] == "fresh"


def left_of(project: Project) -> str:
    return docker("ps", "-q", "--filter", f"ancestor={project.name}:prod", "--filter", "label=dev.envgen.throwaway")


def test_builds_die_with_their_envgen(project: Project) -> None:
    """docker-buildx is told to stop; it doesn't build on for somebody who is gone."""
    child = project.start("build", "--no-cache")
    until(lambda: _buildx(project.root))
    found = _buildx(project.root)
    child.kill()
    for pipe in (child.stdout, child.stderr):
        assert pipe
        pipe.close()
    child.wait()
    until(lambda: not found & _buildx(project.root), "buildx builds on")


def _buildx(root: Path) -> set[str]:
    """The processes of builds in that folder."""
    found = subprocess.run(["pgrep", "-f", f"buildx.*{root}"], capture_output=True, text=True, check=False)
    return set(found.stdout.split())
