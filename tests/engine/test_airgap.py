"""Builds without any network (`--network=none`), from a folder of wheels: complete, and with one missing.

Also the lock of such a profile: it reads the wheelhouse, and the wheel folders of the base image's pip configuration.
And a company's index that asks for a login, for lock, build, plain Docker and a mounted source.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local import Quiet, serving
from projects import BASE, Project, lean_base
from projects import ran as docker
from rendering import package

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

PROFILE = """\
profiles:
  prod:
    mode: production
    base: {image: "BASE"}
    pip: {tools: [airtool]}
    build: {wheelhouse: wheels}
    services: {web: {command: [sleep, infinity]}}
"""


def wheel(folder: Path, name: str, requires: str = "") -> Path:
    """A wheel of one module; returns its file."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": "HERE = True\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in (*files, f"{info}/RECORD"))
    with zipfile.ZipFile(path, "w") as out:
        for file, text in {**files, f"{info}/RECORD": record}.items():
            out.writestr(file, text)
    return path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """airtool, what it requires, and uv, which a build installs."""
    folder = tmp_path_factory.mktemp("wheels")
    wheel(folder, "airtool", "Requires-Dist: airneed\n")
    wheel(folder, "airneed")
    pip = ("pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--dest", "/wheels", "uv")
    docker("run", "--rm", "-v", f"{folder}:/wheels", BASE, *pip)
    return folder


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project], wheels: Path) -> Project:
    found = make_project("envgentest-airgap", PROFILE.replace("BASE", BASE))
    shutil.copytree(wheels, found.root / "wheels")
    found.envgen("render")
    return found


def build(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    """Plain Docker, without a network for any step; 150 s are for a busy machine, and end what retries for minutes."""
    common = ["buildx", "build", "--network=none", "--no-cache", "--load", "-t", f"{project.name}:prod"]
    return docker(*common, *words, str(project.root), check=False, timeout=150)


def test_a_complete_wheelhouse_is_enough(project: Project, wheels: Path) -> None:
    done = build(project, "--build-context", f"wheelhouse={wheels}")
    assert done.returncode == 0, done.stderr
    assert "no package index answers (" in done.stderr
    found = docker("run", "--rm", "--entrypoint", "python3", f"{project.name}:prod", "-c", "import airneed, airtool")
    assert found.returncode == 0


def test_lock_reads_the_wheelhouse(project: Project, wheels: Path) -> None:
    project.envgen("lock")
    text = (project.root / "envgen.lock").read_text()
    for name in ("airtool", "airneed"):
        assert hashlib.sha256((wheels / f"{name}-1.0-py3-none-any.whl").read_bytes()).hexdigest() in text
    project.envgen("render")
    assert "built envgentest-airgap:prod" in project.envgen("build").out


def test_no_index_and_the_wheel_folders_of_the_base_image_are_obeyed(
    make_project: Callable[..., Project], wheels: Path, tmp_path: Path
) -> None:
    """As in a company's image. The index could be reached here: with no-index nobody asks it."""
    base = lean_base("envgentest-airbase:lean")
    conf = "[global]\\nno-index = true\\nfind-links = /opt/own\\n"
    lines = f"FROM {base}\nCOPY . /opt/own\nRUN printf '{conf}' >/etc/pip.conf\n"
    (tmp_path / "Dockerfile").write_text(lines)
    docker("build", "-q", "-t", "envgentest-airbase:own", "-f", str(tmp_path / "Dockerfile"), str(wheels))
    try:
        text = PROFILE.replace("BASE", "envgentest-airbase:own").replace("    build: {wheelhouse: wheels}\n", "")
        own = make_project("envgentest-ownindex", text)
        own.envgen("lock")
        own.envgen("render")
        assert "built envgentest-ownindex:prod" in own.envgen("build").out
        # six is on the index, but not in the folder.
        refused = own.envgen("build", "--unlocked", "--set", "pip.tools=[airtool, six]", code=None)
        assert refused.code and "six was not found in the provided package locations" in refused.err + refused.out
    finally:
        docker("image", "rm", "-f", "envgentest-airbase:own", "envgentest-airbase:lean", check=False)


# --- a company's index ------------------------------------------------------------------------------------------------

PASSWORD = "hunter2-never-shown"
COMPANY = """\
  pip: {index: "INDEX/simple"}
profiles:
  prod:
    base: {image: "envgentest-companybase:lean"}
    mode: production
    pip: {tools: [airtool]}
    services: {web: {command: [sleep, infinity]}}
  dev:
    mode: development
    base: {image: "envgentest-companybase:lean"}
    python_path: [/workspace/demo]
    sources:
      demo:
        origin: {checkout: demo}
        package: demo
        distribution: demo
        mount: /workspace/demo
        install: {dependencies: true, requires: [setuptools]}
    services: {dev: {command: [sleep, infinity]}}
"""


@pytest.fixture(scope="module")
def index(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The wheels as an index that asks for a login; its address, as containers reach it."""
    pip = ("pip", "download", "-q", "--no-deps", "--dest", "/wheels", "setuptools<81")
    docker("run", "--rm", "-v", f"{wheels}:/wheels", BASE, *pip)
    login = "Basic " + base64.b64encode(f"somebody:{PASSWORD}".encode()).decode()

    class Index(Quiet):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") != login:
                self.reply(b"", 401, WWW_Authenticate="Basic")
                return
            parts = self.path.strip("/").split("/")
            files = [one for one in wheels.glob("*.whl") if one.name.split("-")[0] == parts[1]]
            links = "".join(f"<a href='/files/{one.name}'>{one.name}</a>" for one in files)
            body = (wheels / parts[1]).read_bytes() if parts[0] == "files" else links.encode()
            kind = "application/octet-stream" if parts[0] == "files" else "text/html"
            self.reply(body, 200 if body else 404, kind)

        do_HEAD = do_GET

    host = docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}").stdout.strip()
    with serving(Index, host) as url:
        yield url


def test_a_company_s_index_with_a_login(make_project: Callable[..., Project], index: str, tmp_path: Path) -> None:
    host = index.split("/")[2].split(":")[0]
    # pip takes an index without TLS only from a host that it trusts.
    lines = f"FROM {BASE}\nENV PIP_TRUSTED_HOST={host}\n"
    (tmp_path / "Dockerfile").write_text(lines)
    docker("build", "-q", "-t", "envgentest-companybase:lean", str(tmp_path))
    found = make_project("envgentest-company", COMPANY.replace("INDEX", index))
    package(found.root / "demo", "demo", requires='"airneed"')
    logins = tmp_path / "logins"
    try:
        refused = found.envgen("lock", "-p", "prod", code=None)
        assert refused.code and "that file's path in pip.netrc" in refused.err
        logins.write_text(f"machine {host} login somebody password {PASSWORD}\n")
        (found.root / "envgen.local.yaml").write_text(f"defaults:\n  pip: {{netrc: {logins}}}\n")
        found.envgen("lock", "-p", "prod")
        found.envgen("render")
        assert "built envgentest-company:prod" in found.envgen("build", "-p", "prod").out
        plain = ["-f", str(found.root / "Dockerfile"), "--secret", f"id=netrc,src={logins}", str(found.root)]
        docker("buildx", "build", "--no-cache", "--load", "-t", "envgentest-company:plain", *plain)
        docker("run", "--rm", "--entrypoint", "python3", "envgentest-company:plain", "-c", "import airneed, airtool")
        # A mounted source is installed with what it depends on, from the same index.
        found.envgen("build", "-p", "dev")
        found.envgen("up", "dev", "-p", "dev")
        found.envgen("exec", "-p", "dev", "dev", "--", "python3", "-c", "import airneed, demo")
        kept = docker("history", "--no-trunc", "envgentest-company:prod").stdout
        kept += docker("image", "inspect", "envgentest-company:prod").stdout
        kept += "".join(path.read_text(errors="replace") for path in found.root.rglob("*") if path.is_file())
        assert PASSWORD not in kept and index in kept
    finally:
        found.envgen("down", "-p", "dev", "--volumes", code=None)
        docker("image", "rm", "-f", "envgentest-company:plain", "envgentest-companybase:lean", check=False)
