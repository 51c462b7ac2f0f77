"""Production: small real sources, patched, built and installed by the rendered Dockerfile alone."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from local import Quiet, serving
from lock_servers import git_daemon
from patch_sources import committed
from projects import lean_base, run_again
from projects import ran as docker
from rendering import package, render

pytestmark = pytest.mark.engine

WORDS = b"IQ== 0\n"
CA_MARK = "bm90IGEgcmVhbCBvbmUsIGFuZCBpdCBtdXN0IHN0YXkgb3V0"
PROJECT = """\
version: 1
name: {name}
default_profile: prod
profiles:
  prod:
    description: "Two small sources: it's $HOME"
    mode: production
    base: {{image: "{base}"}}
    cuda: {{arch_list: 9.0a}}
    build: {{ccache: false, wheelhouse: wheels}}
    apt: {{runtime: [less]}}
    pip: {{deps: [iniconfig], override: [pluggy, beta], protect: [pip]}}
    tiktoken:
      encodings: {{small: {{url: "{words}", sha256: {sha256}}}}}
    sources:
      alpha: {{origin: {{git: "{git}/alpha", ref: v1.5}}, package: alpha, distribution: alpha, mount: /workspace/alpha,
              patches: alpha, install: {{requires: [setuptools, wheel], env: {{ALPHA_WORD: "a 'b' $c"}}}}}}
      beta: {{origin: {{git: "{git}/beta", ref: v1.5}}, package: beta, distribution: beta, mount: /workspace/beta,
             console_scripts: [beta-cli],
             install: {{requires: [setuptools, wheel], prepare: [touch, "beta/prepared by.py"], dependencies: true}}}}
    gpu: none
    working_dir: /work space
    services:
      serve: {{command: [beta-cli]}}
"""
SETUP = """\
import os
from setuptools import setup
open("alpha/built.py", "w").write("WORD = %r\\nJOBS = %r\\n" % (os.environ["ALPHA_WORD"], os.environ["MAX_JOBS"]))
STAGE = "as released"
open("alpha/stage.py", "w").write("STAGE = %r\\n" % STAGE)
setup()
"""
PATCHES = {
    "0001-built.patch": """\
--- a/setup.py
+++ b/setup.py
@@ -3,3 +3,3 @@
 open("alpha/built.py", "w").write("WORD = %r\\nJOBS = %r\\n" % (os.environ["ALPHA_WORD"], os.environ["MAX_JOBS"]))
-STAGE = "as released"
+STAGE = "patched"
 open("alpha/stage.py", "w").write("STAGE = %r\\n" % STAGE)
""",
    "0002-python.patch": """\
--- a/alpha/__init__.py
+++ b/alpha/__init__.py
@@ -1 +1 @@
-ORIGIN = "alpha as released"
+ORIGIN = "alpha patched"
""",
}


class Prod:
    def __init__(self, top: Path, name: str) -> None:
        self.top, self.root, self.name, self.image = top, top / "project", name, f"{name}:prod"

    def build(self, *options: str, jobs: str = "2") -> str:
        """Build and return the log."""
        (self.top / "jobs").write_text(jobs)
        done = docker(
            "buildx", "build", "--progress=plain", "--load", "-t", self.image, "-f", str(self.root / "Dockerfile"),
            "--build-context", f"wheelhouse={self.top / 'wheels'}", "--secret", f"id=jobs,src={self.top / 'jobs'}",
            "--secret", f"id=ca_certificates,src={self.top / 'ca.pem'}", *options, str(self.root),
        )  # fmt: skip
        return done.stderr

    def run(self, *argv: str) -> str:
        return docker("run", "--rm", self.image, *argv).stdout

    def identity(self) -> str:
        return docker("image", "inspect", "--format", "{{.Id}}", self.image).stdout.strip()


class Words(Quiet):
    """Serves the vocabulary."""

    def do_GET(self) -> None:
        self.reply(WORDS)


@pytest.fixture(scope="module")
def prod(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prod]:
    top = tmp_path_factory.mktemp("production")
    found = Prod(top, f"envgen-test-{uuid.uuid4().hex[:10]}")
    base = lean_base(f"{found.name}:base")
    (top / "wheels").mkdir()
    package(top / "git/alpha", "alpha")
    (top / "git/alpha/setup.py").write_text(SETUP)
    package(top / "git/beta", "beta", requires='"pluggy", "alpha==0.0.9", "packaging"')
    for name in ("alpha", "beta"):
        committed(top / "git" / name, "v1.5")
    # A company's CA beside those that the downloads of this test need.
    system = Path("/etc/ssl/certs/ca-certificates.crt")
    known = system.read_text() if system.exists() else ""
    (top / "ca.pem").write_text(f"{known}\n# {CA_MARK}\n")
    (found.root / "patches/alpha").mkdir(parents=True)
    for name, text in PATCHES.items():
        (found.root / "patches/alpha" / name).write_text(text)
    (found.root / "patches/alpha/series").write_text("".join(f"{name}\n" for name in PATCHES))
    gateway = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}").stdout.strip()
    digest = hashlib.sha256(WORDS).hexdigest()
    with serving(Words, gateway) as url, git_daemon(top / "git", gateway) as address:
        words = f"{url}/small"
        render(found.root, PROJECT.format(name=found.name, base=base, words=words, sha256=digest, git=address))
        try:
            found.build()
            yield found
        finally:
            docker("image", "rm", "-f", found.image, base, check=False)


def test_sources_are_built_patched_and_installed(prod: Prod) -> None:
    code = "import alpha, alpha.built, alpha.stage; print([alpha.ORIGIN, alpha.stage.STAGE, alpha.built.WORD])"
    assert prod.run("python3", "-c", code).strip() == str(["alpha patched", "patched", "a 'b' $c"])
    assert prod.run("beta-cli") == "beta as released\n"
    assert prod.run("python3", "-c", "import beta, os; print(os.listdir(os.path.dirname(beta.__file__)))").count(
        "prepared by.py"
    )


def test_dependencies_come_but_never_what_is_switched_off(prod: Prod) -> None:
    code = "import importlib.metadata as m; print(sorted(d.metadata['Name'].lower() for d in m.distributions()))"
    listed = prod.run("python3", "-c", code)
    assert "'packaging'" in listed
    assert "'iniconfig'" in listed
    assert "'pluggy'" not in listed
    assert "'uv'" not in listed


def test_bytecode_is_there_and_fresh(prod: Prod) -> None:
    code = (
        "import alpha, importlib.util as u, importlib._bootstrap_external as b, os;"
        "p = u.cache_from_source(alpha.__file__); d = open(p, 'rb').read();"
        "s = os.stat(alpha.__file__);"
        "b._validate_timestamp_pyc(d, int(s.st_mtime), s.st_size, 'alpha', {}); print('fresh')"
    )
    assert prod.run("python3", "-B", "-c", code) == "fresh\n"


def test_files_programs_and_identity(prod: Prod) -> None:
    assert prod.run("cat", "/workspace/tiktoken_encodings/small.tiktoken").encode() == WORDS
    assert prod.run("less", "--version").startswith("less")
    assert prod.run("pwd") == "/work space\n"
    config = json.loads(docker("image", "inspect", prod.image).stdout)[0]["Config"]
    labels = config["Labels"]
    assert labels["dev.envgen.profile"] == "prod"
    assert f'dev.envgen.render="{labels["dev.envgen.render"]}"' in (prod.root / "Dockerfile").read_text()
    assert "TIKTOKEN_ENCODINGS_BASE=/workspace/tiktoken_encodings" in config["Env"]


def test_nothing_of_the_build_stays(prod: Prod) -> None:
    """No certificate, no secret, no package lists, no scripts of the build in any layer."""
    container = docker("create", prod.image).stdout.strip()
    mark, listed, holders = CA_MARK.encode(), [], []
    try:
        with subprocess.Popen(["docker", "export", container], stdout=subprocess.PIPE) as export:
            assert export.stdout
            with tarfile.open(fileobj=export.stdout, mode="r|") as tar:
                for member in tar:
                    listed.append(member.name)
                    file, tail = tar.extractfile(member) if member.isreg() else None, b""
                    while file and (data := file.read(1 << 20)):
                        if mark in tail + data:
                            holders.append(member.name)
                        tail = data[-len(mark) :]
            export.stdout.read()  # the padding behind the archive's end
        assert export.returncode == 0
    finally:
        docker("rm", container)
    assert holders == []
    assert any(name.endswith("bin/less") for name in listed)  # what is there is seen
    assert not [
        name for name in listed if name.startswith(("run/envgen", "run/secrets/", "src/", "wheels/", "dev/shm/e"))
    ]
    assert not [name for name in listed if name.startswith("var/lib/apt/lists/") and name.endswith("Packages")]
    assert CA_MARK not in docker("history", "--no-trunc", prod.image).stdout


def test_another_number_of_jobs_rebuilds_nothing(prod: Prod) -> None:
    before = prod.identity()
    log = prod.build(jobs="7")
    assert "RUN" in log
    assert not [line for line in log.splitlines() if " DONE " in line and "[final" in line]
    assert prod.identity() == before
    assert prod.run("python3", "-c", "import alpha.built as b; print(b.JOBS)") == "2\n"


def test_without_a_number_the_gate_decides(prod: Prod) -> None:
    done = docker(
        "buildx", "build", "--progress=plain", "--target", "wheel-alpha", "-f", str(prod.root / "Dockerfile"),
        "--build-context", f"wheelhouse={prod.top / 'wheels'}", "--no-cache-filter", "wheel-alpha",
        "--secret", f"id=ca_certificates,src={prod.top / 'ca.pem'}", str(prod.root),
    )  # fmt: skip
    assert re.findall(r"with MAX_JOBS=(\d+)", done.stderr)[-1] == "128"


def test_a_patch_of_python_builds_no_wheel_again(prod: Prod) -> None:
    path = prod.root / "patches/alpha/0002-python.patch"
    good = path.read_text()
    path.write_text(good.replace("alpha patched", f"alpha patched {uuid.uuid4()}"))  # no earlier run built this
    again = run_again(prod.build())
    assert [name for name in again if "apply-patches --installed" in name]
    assert not [name for name in again if "build-wheel" in name]
    path.write_text(good)
