"""Development: editable installs of mounted checkouts outlive the container, and the base image's torch stays."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from local import until
from projects import BASE
from projects import ran as docker
from rendering import package, render

pytestmark = pytest.mark.engine

# A base image that has a torch, if only its metadata: that is all that matters here.
BASE_WITH_TORCH = f"""\
FROM {BASE}
RUN python3 -c 'import importlib.metadata as m; m.version("torch")' && exit 0; \\
    d=$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \\
    && mkdir -p $d/torch $d/torch-2.9.1+ngc.dist-info && touch $d/torch/__init__.py \\
    && printf 'Metadata-Version: 2.1\\nName: torch\\nVersion: 2.9.1+ngc\\n' >$d/torch-2.9.1+ngc.dist-info/METADATA \\
    && printf 'torch/__init__.py,,\\n' >$d/torch-2.9.1+ngc.dist-info/RECORD
"""
PROJECT = """\
version: 1
name: {name}
default_profile: dev
profiles:
  dev:
    mode: development
    dockerfile: Dockerfile.dev
    base: {{image: "{name}-base:1"}}
    cuda: {{arch_list: 9.0a}}
    build: {{max_jobs: 3, ccache: false}}
    sources:
      alpha: {{origin: {{checkout: ../alpha}}, package: alpha, distribution: alpha, mount: /workspace/alpha,
              install: {{requires: [setuptools, wheel], env: {{WORD: "it's $HOME"}},
                         prepare: [sh, -c, 'printf "%s" "$WORD" >prepared']}}}}
      beta: {{origin: {{checkout: ../beta}}, package: beta, distribution: beta, mount: /workspace/beta,
             console_scripts: [beta-cli], install: {{requires: [setuptools], dependencies: true}}}}
    python_path: [/workspace/alpha, /workspace/beta]
    caches: {{torch: {{path: /caches/torch}}}}
    gpu: none
    services:
      dev: {{command: [sleep, infinity]}}
"""


class Dev:
    """A rendered development project, its image and its containers."""

    def __init__(self, root: Path, name: str) -> None:
        self.root, self.name = root, name
        self.env: dict[str, str] = {}

    def compose(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return docker("compose", "-f", str(self.root / "compose/dev.yaml"), *argv, check=check, env=self.env)

    def exec(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.compose("exec", "-T", "dev", *argv, check=check)

    def up(self) -> None:
        """Start `dev` and wait until its entry point has prepared the environment and become the command."""
        self.compose("up", "-d", "dev")
        self.wait()

    def wait(self) -> None:
        running = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null; true"
        until(
            lambda: "\nsleep infinity" in self.exec("sh", "-c", running).stdout,
            lambda: self.compose("logs", "dev").stdout,
        )

    def python(self, code: str) -> str:
        return self.exec("python3", "-c", code).stdout.strip()


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    top = tmp_path_factory.mktemp("overlay")
    name = f"envgen-test-{uuid.uuid4().hex[:10]}"
    package(top / "alpha", "alpha")
    # pip would install torch for this requirement; nothing may.
    package(top / "beta", "beta", requires='"torch==2.0.0", "alpha==0.0.9", "iniconfig"')
    render(top / "project", PROJECT.format(name=name))
    (top / "base").mkdir()
    (top / "base/Dockerfile").write_text(BASE_WITH_TORCH)
    found = Dev(top / "project", name)
    try:
        docker("buildx", "build", "-q", "--load", "-t", f"{name}-base:1", str(top / "base"))
        # By Compose alone, as the header of the file says.
        found.compose("--progress", "plain", "build")
        found.up()
        yield found
    finally:
        found.compose("--profile", "*", "down", "-v", "--timeout", "1", check=False)
        docker("image", "rm", "-f", f"{name}:dev", f"{name}-base:1", check=False)


def test_1_first_start_says_what_is_mounted_and_what_is_missing(dev: Dev) -> None:
    logs = dev.compose("logs", "dev").stdout
    assert "source alpha: /workspace/alpha at not a git checkout" in logs
    assert "not installed yet: alpha, beta; run `envgen-install`" in logs
    assert dev.exec("envgen-install", "--check", check=False).returncode == 1
    assert dev.exec("test", "-d", "/caches/torch").returncode == 0


def test_2_install_all_in_order(dev: Dev) -> None:
    printed = dev.exec("envgen-install").stderr
    assert printed.index("alpha: 1.5 installed") < printed.index("beta: 1.5 installed")
    assert "MAX_JOBS=3" in printed
    assert (dev.root.parent / "alpha/prepared").read_text() == "it's $HOME"
    assert dev.exec("envgen-install", "--check").stdout == "all installed\n"


def test_3_torch_of_the_base_image_is_the_only_torch(dev: Dev) -> None:
    version = "import importlib.metadata as m; print(m.version('torch'), m.distribution('torch').locate_file(''))"
    before = docker("run", "--rm", "--entrypoint=python3", f"{dev.name}-base:1", "-c", version).stdout.strip()
    assert dev.python(version) == before
    assert dev.exec("sh", "-c", "find /opt/envgen/env/lib -name 'torch*'").stdout == ""
    assert dev.python("import iniconfig; print(iniconfig.__file__)").startswith("/opt/envgen/env/")


def test_4_down_and_up_keeps_everything(dev: Dev) -> None:
    dev.compose("down", "--timeout", "1")
    dev.up()
    assert dev.exec("envgen-install", "--check").stdout == "all installed\n"
    assert dev.python("import beta; print(beta.__file__)") == "/workspace/beta/beta/__init__.py"
    assert dev.python("import importlib.metadata as m; print(m.version('beta'))") == "1.5"
    assert dev.exec("beta-cli").stdout == "beta as released\n"
    for program in ("beta-cli", "python", "python3"):
        assert dev.exec("sh", "-c", f"command -v {program}").stdout == f"/opt/envgen/env/bin/{program}\n"


def test_5_two_installs_at_once_wait_for_each_other(dev: Dev) -> None:
    both = "envgen-install --force alpha & envgen-install --force beta; a=$?; wait $! && exit $a"
    dev.exec("sh", "-c", both)
    assert dev.exec("envgen-install", "--check").stdout == "all installed\n"


def test_6_an_incomplete_environment_is_made_again(dev: Dev) -> None:
    dev.exec("rm", "/opt/envgen/env/.envgen/overlay")
    dev.exec("sh", "-c", "echo broken >/opt/envgen/env/bin/python.new")
    dev.compose("restart", "--timeout", "1", "dev")
    dev.wait()
    assert dev.exec("test", "-e", "/opt/envgen/env/bin/python.new", check=False).returncode == 1
    assert dev.exec("envgen-install", "--check", check=False).returncode == 1
    dev.exec("envgen-install")
    assert dev.exec("beta-cli").stdout == "beta as released\n"


def test_unknown_sources_are_named(dev: Dev) -> None:
    done = dev.exec("envgen-install", "gamma", check=False)
    assert done.returncode == 2
    assert "there are: alpha, beta" in done.stderr


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda path: path.mkdir(), "is empty: check its path"),
        (lambda path: package(path, "gamma"), "has no Python package beta"),
    ],
)
def test_a_wrong_mount_stops_the_container_with_a_sentence(dev: Dev, tmp_path: Path, prepare, reason: str) -> None:  # type: ignore[no-untyped-def]
    prepare(tmp_path / "wrong")
    other = Dev(dev.root, dev.name)
    other.env = {"ENVGEN_SOURCES__BETA__ORIGIN__CHECKOUT": str(tmp_path / "wrong")}
    done = other.compose("run", "--rm", "-T", "dev", "true", check=False)
    assert done.returncode == 66
    assert f"error: source beta: /workspace/beta {reason}" in done.stderr


def test_a_missing_checkout_is_not_created(dev: Dev, tmp_path: Path) -> None:
    other = Dev(dev.root, dev.name)
    other.env = {"ENVGEN_SOURCES__BETA__ORIGIN__CHECKOUT": str(tmp_path / "missing")}
    done = other.compose("run", "--rm", "-T", "dev", "true", check=False)
    assert done.returncode != 0
    assert "missing" in done.stderr
    assert not (tmp_path / "missing").exists()


def test_git_refs_are_shown_and_never_moved(dev: Dev, tmp_path: Path) -> None:
    checkout = tmp_path / "beta"
    shutil.copytree(dev.root.parent / "beta", checkout)
    git = ["git", "-C", str(checkout), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for argv in (["init", "-qb", "trunk"], ["add", "-A"], ["commit", "-qm", "one"], ["tag", "v9"]):
        subprocess.run([*git, *argv], check=True, timeout=30)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True, timeout=30).stdout
    other = Dev(dev.root, dev.name)
    other.env = {"ENVGEN_SOURCES__BETA__ORIGIN__CHECKOUT": str(checkout)}
    done = other.compose("run", "--rm", "-T", "dev", "true")
    assert f"source beta: /workspace/beta at {head[:7]} (HEAD -> trunk, tag: v9)" in done.stderr


def test_a_company_ca_reaches_every_process_of_the_container(dev: Dev, tmp_path: Path) -> None:
    mark = "-----BEGIN CERTIFICATE-----\nbm90IGEgcmVhbCBvbmU=\n-----END CERTIFICATE-----\n"
    (tmp_path / "ca.pem").write_text(mark)
    # The mount and the variables that a profile with network.ca_certificates renders.
    bundle = "/etc/ssl/certs/ca-certificates.crt"
    variables = ("-e", f"SSL_CERT_FILE={bundle}", "-e", f"REQUESTS_CA_BUNDLE={bundle}")
    mount = f"{tmp_path / 'ca.pem'}:/etc/envgen/ca.crt:ro"
    shell = 'tail -n 3 "$SSL_CERT_FILE"; echo "$REQUESTS_CA_BUNDLE"'
    done = dev.compose("run", "--rm", "-T", *variables, "-v", mount, "dev", "sh", "-c", shell)
    assert done.stdout == mark + "/etc/ssl/certs/ca-certificates.crt\n"
