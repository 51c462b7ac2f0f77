"""`envgen prune` on a real engine, after kill -9 of save, load and build; and whatever is not its own stays."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from local import until
from projects import BASE, Project, docker

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
    file = project.root / "envgen.yaml"
    file.write_text(file.read_text().replace("flashinfer}}", "flashinfer, namespace: false}}"))
    source = f"{project.name}-dev-cache-flashinfer"
    docker("volume", "create", "--label", f"com.docker.compose.project={project.name}-dev", source)
    made = "mkdir -p /c/.envgen-work-0123456789abcdef/x /c/0.7.2.post1/121a/cached_ops/page"
    docker("run", "--rm", "-v", f"{source}:/c", BASE, "sh", "-c", made)
    before = throwaways()
    child = project.start("cache", "list")
    until(lambda: throwaways() - before or child.poll() is not None)
    assert child.poll() is None, f"it had ended before it could be killed: {child.communicate()}"
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    until(lambda: not throwaways() - before)  # its program ends by itself, and the engine removes it

    planned = project.envgen("prune", "--dry-run", "--json").json
    assert "stage" in {item["kind"] for item in planned["items"]}
    refused = project.envgen("prune", code=2)
    assert "--yes" in refused.err
    assert "removed" in project.envgen("prune", "--yes").out
    assert not throwaways() - before
    again = project.envgen("prune", "--dry-run", "--json").json
    assert [item for item in again["items"] if item["kind"] in ("container", "stage")] == []
    assert "page" in project.envgen("cache", "list").out


def test_images_overlays_and_namespaces_of_this_project_alone(project: Project, tmp_path: Path) -> None:
    name = project.name
    ours, theirs = (
        ("--label", f"com.docker.compose.project={name}-dev"),
        ("--label", "com.docker.compose.project=x-dev"),
    )
    volumes = {
        f"{name}-dev-env-0123456789ab": (*ours,),  # an overlay that no profile has
        f"{name}-dev-cache-flashinfer-0123456789ab": (*ours,),  # a namespace that nobody uses
        f"{name}-dev-cache-flashinfer-ba9876543210": (*ours,),  # used a moment ago
        f"{name}-dev-cache-flashinfer-aaaaaaaaaaaa": (*theirs,),  # another project's label
        f"{name}-dev-data": (*ours,),  # not a name that envgen gives
        f"{name}-dev-env-bbbbbbbbbbbb": (),  # by hand
    }
    for volume, labels in volumes.items():
        docker("volume", "create", *labels, volume)
        old = "" if "ba98" in volume else "touch -d '90 days ago' /c/x;"
        docker("run", "--rm", "-v", f"{volume}:/c", BASE, "sh", "-c", f"echo x > /c/x; {old} true")
    images = []
    for label in (name, "other"):
        text = f"FROM {BASE}\nLABEL dev.envgen.project={label} dev.envgen.profile=dev\nRUN echo {uuid.uuid4()} > /x\n"
        iid = tmp_path / f"{label}.iid"
        context = tmp_path / f"context-{label}"
        context.mkdir()
        (context / "Dockerfile").write_text(text)
        docker("build", "-q", "--iidfile", str(iid), str(context))
        images.append(iid.read_text())
    try:
        found = project.envgen("prune", "--yes", "--json").json["items"]
        gone = {item["name"] for item in found if item["kind"] in ("image", "overlay", "cache")}
        assert gone == {
            images[0].removeprefix("sha256:")[:12],
            f"{name}-dev-env-0123456789ab",
            f"{name}-dev-cache-flashinfer-0123456789ab",
        }
        assert all(item["removed"] for item in found if item["name"] in gone)
        left = set(docker("volume", "ls", "-q", "--filter", f"name={name}").split())
        assert left == set(volumes) - gone
        assert docker("image", "inspect", "-f", "{{.Id}}", images[1]).strip() == images[1]
    finally:
        docker("rmi", "-f", *images, check=False)
