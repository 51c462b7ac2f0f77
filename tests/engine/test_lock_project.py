"""envgen lock, build and diff on a real engine with the real package index."""

from __future__ import annotations

import difflib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from image_content import differing
from lock_servers import git_daemon
from patch_sources import committed, read
from projects import BASE, LEAN, Project, docker

from envgen.lock.model import _sum
from envgen.patches.source import put

NAME = "envgentestlock"
MY_BASE = f"{NAME}base:1"
TEXT = f"""\
profiles:
  prod:
    mode: production
    base: {{image: "{MY_BASE}"}}
    apt: {{runtime: [tree]}}
    pip: {{tools: [sniffio==1.3.1, "filelock<4"]}}
    sources:
      six:
        origin: {{git: GIT/six, ref: 1.16.0}}
        package: six
        distribution: six
        mount: /workspace/six
        patches: six
        install: {{requires: ["setuptools<81", wheel], dependencies: true}}
"""


# Of these the base has the metadata alone: its images are saved and compared eight times.
LARGE = ("torch", "sympy", "numpy", "numpy.libs", "networkx")


def make_base(salt: str) -> None:
    """The stand-in base, lean, with its own variables and entry point."""
    excluded = " ".join(f"--exclude='usr/local/lib/python3*/dist-packages/{name}'" for name in LARGE)
    lean = LEAN.replace("--exclude=usr/local/lib", excluded).replace("bin etc lib", "opt bin etc lib")
    config = json.loads(docker("image", "inspect", "-f", "{{json .Config}}", BASE))
    lines = [f"ENV {key}={json.dumps(value)}" for key, _, value in (one.partition("=") for one in config["Env"])]
    lines += [f"{key.upper()} {json.dumps(config[key])}" for key in ("Entrypoint", "Cmd") if config.get(key)]
    text = "\n".join([lean.rstrip(), *lines, f"LABEL salt={salt}"])
    docker("build", "-q", "-t", MY_BASE, "-", timeout=300, stdin=f"{text}\n")


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    make_base("one")
    source, top = read("six", "1.16.0", lambda _name: True), tmp_path_factory.mktemp("git")
    put(top / "six", source)
    committed(top / "six", "1.16.0")
    gateway = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")
    lines = source["six.py"].data.decode().splitlines(keepends=True)
    diff = difflib.unified_diff(lines, [*lines, "MARK = 1\n"], "a/six.py", "b/six.py")
    with git_daemon(top, gateway) as address:
        made = make_project(NAME, TEXT.replace("GIT", address))
        (made.root / "patches/six").mkdir(parents=True)
        (made.root / "patches/six/0001-mark.patch").write_text("Description: mark\n\n" + "".join(diff))
        (made.root / "patches/six/series").write_text("0001-mark.patch\n")
        yield made
    docker("image", "rm", "-f", MY_BASE, check=False)


@pytest.fixture
def unlocked(project: Project) -> None:
    """The project is as it was before its first `envgen lock`."""
    (project.root / "envgen.lock").unlink(missing_ok=True)


@pytest.fixture
def locked(project: Project) -> None:
    """The lock is of what the project is now: resolved once."""
    project.envgen("lock")


@pytest.fixture
def built(project: Project, locked: None) -> None:
    """Its image is built: once."""
    project.envgen("build")


@pytest.mark.usefixtures("unlocked")
def test_a_production_profile_wants_a_lock(project: Project) -> None:
    done = project.envgen("lock", "--check", code=1)
    assert "no envgen.lock" in done.err
    from envgen.__main__ import main  # in this process, so that nothing adds --unlocked

    assert main(["build", "-f", str(project.root / "envgen.yaml")]) == 6


@pytest.mark.usefixtures("unlocked")
def test_lock_then_nothing_changes(project: Project) -> None:
    document = project.envgen("lock", "--json").json
    assert document["written"]
    names = {change["name"]: change["after"] for change in document["changes"]}
    assert names[f"image {MY_BASE}"].startswith("sha256:")
    assert names["prod linux/amd64 pip deps sniffio"] == "1.3.1"
    assert "prod linux/amd64 pip requires.six setuptools" in names
    text = (project.root / "envgen.lock").read_text()
    assert "resolved: local" in text
    assert "http" not in text  # no index, no user, no password
    project.envgen("lock")
    assert (project.root / "envgen.lock").read_text() == text
    project.envgen("lock", "--check")


@pytest.mark.nightly
@pytest.mark.usefixtures("locked")
def test_two_builds_have_the_same_content(project: Project, tmp_path: Path) -> None:
    """From two folders, without cache. The times of both differ, and so do their IDs."""
    project.envgen("build", "--no-cache")
    project.envgen("render")
    shutil.copytree(project.root, tmp_path / "copy")
    label = docker("image", "inspect", "-f", '{{index .Config.Labels "dev.envgen.inputs"}}', f"{NAME}:prod")
    words = ("--label", f"dev.envgen.inputs={label}", "-t", f"{NAME}:again", str(tmp_path / "copy"))
    docker("build", "-q", "--no-cache", *words, timeout=600)
    assert differing(f"{NAME}:prod", f"{NAME}:again", tmp_path) == []
    assert differing(MY_BASE, f"{NAME}:again", tmp_path)
    ids = {docker("image", "inspect", "-f", "{{.Id}}", f"{NAME}:{tag}") for tag in ("prod", "again")}
    assert len(ids) == 2


@pytest.mark.usefixtures("built")
def test_the_image_tells_its_inputs() -> None:
    inside = ("run", "--rm", "--network", "none", f"{NAME}:prod")
    manifest = json.loads(docker(*inside, "cat", "/opt/envgen/manifest.json"))
    assert manifest["inputs"]["linux/amd64 pip deps sniffio"] == "1.3.1"
    assert docker(*inside, "python3", "-c", "import six; print(six.MARK)") == "1"


@pytest.mark.usefixtures("locked")
def test_a_hash_that_does_not_match_ends_the_build(project: Project) -> None:
    lock = project.root / "envgen.lock"
    before = lock.read_text()
    document = yaml.load(before, yaml.BaseLoader)
    entry = document["python"]["prod"]["linux/amd64"]
    entry["sets"]["deps"] = [pin[:-9] + "0" * 9 if "sniffio==" in pin else pin for pin in entry["sets"]["deps"]]
    lock.write_text(yaml.safe_dump({**document, "python": {"prod": {"linux/amd64": {**entry, "sum": _sum(entry)}}}}))
    try:
        done = project.envgen("build", code=4)
        assert "sniffio" in done.err
        assert "ash" in done.err  # "hash mismatch", in uv's words
    finally:
        lock.write_text(before)


@pytest.mark.usefixtures("locked")
def test_a_moved_base_is_refused_until_it_is_upgraded(project: Project) -> None:
    before = (project.root / "envgen.lock").read_text()
    make_base("two")
    done = project.envgen("build", code=6)
    assert f"{MY_BASE} was built locally, and here it has another ID" in done.err
    assert "envgen lock --profile prod --upgrade base && " in done.err
    changed = project.envgen("lock", "--upgrade", "base").out.splitlines()
    assert [line.split(": ")[0] for line in changed] == [f"image {MY_BASE}"]
    assert (project.root / "envgen.lock").read_text() != before
    project.envgen("lock", "--check")


@pytest.mark.usefixtures("locked")
def test_a_lock_that_lost_its_pins_builds_nothing(project: Project) -> None:
    """A merge took them out: the image would have uv at the version of the day."""
    path = project.root / "envgen.lock"
    text = path.read_text()
    document = yaml.safe_load(text)
    document["python"]["prod"]["linux/amd64"]["sets"] = {}
    path.write_text(yaml.safe_dump(document))
    try:
        assert (
            "pip: the Python packages are not locked, or out of date" in project.envgen("lock", "--check", code=1).out
        )
        from envgen.__main__ import main  # in this process, so that nothing adds --unlocked

        assert main(["build", "-f", str(project.root / "envgen.yaml")]) == 6
        project.envgen("lock")
        assert path.read_text() == text
    finally:
        path.write_text(text)


@pytest.mark.usefixtures("locked")
def test_an_unknown_package_is_named_with_its_step(project: Project) -> None:
    file = project.root / "envgen.yaml"
    text, lock = file.read_text(), (project.root / "envgen.lock").read_text()
    file.write_text(text.replace("sniffio==1.3.1", "sniffio==99.99"))
    try:
        done = project.envgen("lock", code=7)
        assert "the Python packages of profile prod: deps:" in done.err
        assert "sniffio==99.99" in done.err
        assert (project.root / "envgen.lock").read_text() == lock
    finally:
        file.write_text(text)
