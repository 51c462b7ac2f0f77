"""`envgen prune` on a real engine, after kill -9 of save, load and build; and whatever is not its own stays."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from local import until
from projects import BASE, Project, docker

from envgen.app import prune
from envgen.deployment import Deployment
from envgen.engine.client import Engine
from envgen.profile.load import load_project

pytestmark = pytest.mark.engine

FILE = """\
profiles:
  dev:
    mode: development
    caches: {flashinfer: {path: /root/.cache/flashinfer}}
    services: {dev: {command: [sleep, infinity]}}
"""
THROWAWAY = "label=dev.envgen.throwaway"


@pytest.fixture
def project(make_project: Callable[..., Project]) -> Iterator[Project]:
    made: Project = make_project(f"prune{uuid.uuid4().hex[:8]}", FILE)
    yield made
    for volume in docker("volume", "ls", "-q", "--filter", f"name={made.name}").split():
        docker("volume", "rm", "-f", volume, check=False)
    for image in docker("images", "-q", "--filter", f"label=dev.envgen.project={made.name}").split():
        docker("rmi", "-f", image, check=False)


def throwaways() -> set[str]:
    return set(docker("ps", "-aq", "--filter", THROWAWAY).split())


def test_nothing_is_left_after_kills(project: Project) -> None:
    source = f"{project.name}-dev-cache-flashinfer"
    file = project.root / "envgen.yaml"
    file.write_text(file.read_text().replace("flashinfer}}", "flashinfer, namespace: false}}"))
    docker("volume", "create", "--label", f"com.docker.compose.project={project.name}-dev", source)
    docker("run", "--rm", "-v", f"{source}:/c", BASE, "mkdir", "-p", "/c/0.7.2.post1/121a/cached_ops/page")
    before = throwaways()
    child = project.start("cache", "list")
    until(lambda: throwaways() - before or child.poll() is not None)
    assert child.poll() is None, f"it had ended before it could be killed: {child.communicate()}"
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    until(lambda: not throwaways() - before)  # its program ends by itself, and the engine removes it
    again = project.envgen("prune", "--dry-run", "--json").json
    assert [item for item in again["items"] if item["kind"] == "container"] == []
    assert "page" in project.envgen("cache", "list").out


def test_images_of_this_project_alone(project: Project, tmp_path: Path) -> None:
    name, images = project.name, []
    volume = f"{name}-dev-env-0123456789ab"
    docker("volume", "create", "--label", f"com.docker.compose.project={name}-dev", volume)
    for label in (name, "other"):
        text = f"FROM {BASE}\nLABEL dev.envgen.project={label} dev.envgen.profile=dev\nRUN echo {uuid.uuid4()} > /x\n"
        iid = tmp_path / f"{label}.iid"
        docker("build", "-q", "--iidfile", str(iid), "-", stdin=text)
        images.append(iid.read_text())
    try:
        assert "--yes" in project.envgen("prune", code=2).err
        (gone,) = project.envgen("prune", "--yes", "--json").json["items"]
        assert gone["removed"] and gone["name"] == images[0].removeprefix("sha256:")[:12]
        assert docker("image", "inspect", "-f", "{{.Id}}", images[1]).strip() == images[1]
        assert docker("volume", "ls", "-q", "--filter", f"name={name}") == volume
    finally:
        docker("rmi", "-f", *images, check=False)


def test_the_promised_bytes_are_those_that_no_other_image_has(project: Project, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN head -c 3000000 /dev/urandom > /own\n")
    labels = (f"dev.envgen.project={project.name}", "dev.envgen.profile=dev")
    docker("build", "-q", *(word for label in labels for word in ("--label", label)), str(tmp_path))
    found = project.envgen("prune", "--dry-run", "--json").json
    assert found["items"][0]["kind"] == "image" and 3_000_000 <= found["bytes"] < 4_000_000
    assert "`docker builder prune` would free" in project.envgen("prune", "--dry-run").err


def test_volumes_of_earlier_builds_go_and_what_is_in_use_or_the_way_back_needs_stays(
    project: Project, monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    """Docker dates its volumes itself, so the month is over at once."""
    monkeypatch.setattr(prune, "UNUSED", -1.0)
    loaded = load_project(file=project.root / "envgen.yaml").project
    head, key = f"{project.name}-dev-cache-flashinfer-", "0123456789a"
    owner = ("--label", f"com.docker.compose.project={project.name}-dev")
    labels = (*owner, "--label", f"dev.envgen.folder={project.root}")
    volumes = [head + key + end for end in "bcd"]
    for volume in volumes:
        docker("volume", "create", *labels, volume)
    docker("volume", "create", *owner, head + key + "e")  # nothing says whose
    (now,) = [one for name, one in _caches(loaded, engine).items() if name == "flashinfer"]
    docker("volume", "create", *labels, now)
    docker("run", "--rm", "-v", f"{volumes[0]}:/c", BASE, "sh", "-c", "head -c 3000000 /dev/urandom > /c/x")
    holder = docker("create", "-v", f"{volumes[2]}:/c", BASE, "true").strip()
    back = f"{project.name}:dev-before"
    docker("tag", BASE, back)
    try:
        monkeypatch.setattr(prune, "UNUSED", 60.0)  # the image was tagged just now: there is a way back
        assert not [one for one in prune.find(engine, loaded) if one.kind == "volume"]
        docker("rmi", back)
        monkeypatch.setattr(prune, "UNUSED", -1.0)
        items = [one for one in prune.find(engine, loaded) if one.kind == "volume"]
        assert [one.name for one in items] == volumes[:2]
        assert 3_000_000 <= items[0].bytes < 4_000_000 and items[1].bytes == 0
        assert not any(prune.remove(items))
        left = docker("volume", "ls", "-q", "--filter", f"name={project.name}").split()
        assert sorted(left) == sorted([volumes[2], head + key + "e", now])
    finally:
        docker("rm", "-f", holder, check=False)
        docker("rmi", back, check=False)


def _caches(loaded: Any, engine: Engine) -> dict[str, str]:
    deployment = Deployment(loaded.profiles["dev"], loaded.root).with_cached(engine=engine)
    return {name: mount.source for name, mount in deployment.caches.items()}


def test_kernels_of_one_release_and_parts_of_downloads_within_volumes(
    project: Project, monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    caches = (
        "flashinfer: {path: /root/.cache/flashinfer, namespace: false}, huggingface: {path: /root/.cache/huggingface}"
    )
    text = FILE.replace("flashinfer: {path: /root/.cache/flashinfer}", caches)
    text = text.replace("[sleep, infinity]", "[sleep, infinity], model: {repo: acme/tiny}")
    file = project.root / "envgen.yaml"
    file.write_text(file.read_text().replace(FILE, text))
    head, labels = f"{project.name}-dev-cache-", []
    for label in (f"com.docker.compose.project={project.name}-dev", f"dev.envgen.folder={project.root}"):
        labels += ["--label", label]
    for name in ("flashinfer", "huggingface"):
        docker("volume", "create", *labels, head + name)
    blobs = "/h/hub/models--acme--tiny/blobs"
    script = (
        f"set -e; mkdir -p {blobs}; head -c 2000000 /dev/urandom > {blobs}/old.incomplete; touch {blobs}/young.incomplete;"
        f"touch -d '8 days ago' {blobs}/old.incomplete; cd /f; for v in 0.5.3:40 0.7.3:2 0.7.4:0; do d=${{v%:*}}/121a;"
        "mkdir -p $d/cached_ops/page $d/cached_ops/tmp; head -c 3000000 /dev/urandom > $d/cached_ops/page/page.so;"
        'touch $d/cached_ops/tmp/page.lock; find $d -type f -exec touch -d "${v#*:} days ago" {} +; done'
    )
    mounts = ["-v", f"{head}flashinfer:/f", "-v", f"{head}huggingface:/h"]
    docker("tag", BASE, f"{project.name}:dev")
    docker("run", "--rm", *mounts, "--entrypoint", "sh", BASE, "-c", script)
    loaded = load_project(file=file).project

    def found() -> dict[str, int]:
        items = [one for one in prune.find(engine, loaded) if one.kind in ("kernels", "download")]
        assert not any(prune.remove(items))
        return {one.kind: one.bytes for one in items}

    try:
        assert found() == {"download": 2_000_000}  # Docker dates its volumes itself: this one is young
        month = prune._age
        monkeypatch.setattr(prune, "_age", lambda at: month(at) + (31 if month(at) < 0.5 else 0))
        assert found() == {"kernels": 3_000_000}
        assert found() == {}
        left = docker("run", "--rm", *mounts, "--entrypoint", "find", BASE, "/f", "/h", "-type", "f", "-size", "+0")
        assert sorted(left.split()) == [f"/f/{one}/121a/cached_ops/page/page.so" for one in ("0.7.3", "0.7.4")]
        assert project.envgen("status", "--json", code=None).json["leftovers"] == 0
    finally:
        docker("rmi", f"{project.name}:dev", check=False)
