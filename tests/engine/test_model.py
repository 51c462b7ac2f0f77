"""`envgen model` on a real engine, with the real huggingface_hub in the image, against a stand-in for the hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_server import COMMIT, Hub, model_files, serve, shard
from projects import Project, docker

pytestmark = pytest.mark.engine

FILE = """
  pip: {tools: [huggingface_hub]}
  caches: {huggingface: {path: /hf, host: cache}}
  secrets: [HF_TOKEN]
profiles:
  prod:
    mode: production
    services:
      web:
        command: [sh, -c, "echo offline=$HF_HUB_OFFLINE; exec sleep 1000"]
        model: {repo: acme/tiny}
    variants:
      eagle:
        services:
          web:
            args: {speculative-config: {method: eagle3, model: acme/draft, num_speculative_tokens: 3}}
"""


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project]) -> Project:
    made = make_project("envgentestmodel", FILE)
    made.envgen("build")
    return made


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    draft = {"config.json": b'{"model_type": "llama"}', "model.safetensors": shard(5000)}
    with serve(Hub(model_files(), others={"acme/draft": draft})) as found:
        yield found


@pytest.fixture(scope="module")
def reach(hub: Hub) -> dict[str, str]:
    """What leads both the containers and this machine to the stand-in."""
    gateway = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")
    return {"HF_ENDPOINT": f"http://{gateway}:{hub.port}"}


def last_shard(project: Project) -> Path:
    folder = project.root / "cache/hub/models--acme--tiny/snapshots" / COMMIT
    return folder / "model-00002-of-00002.safetensors"


def test_pull_check_up_and_a_damaged_shard(project: Project, hub: Hub, reach: dict[str, str]) -> None:
    refused = project.envgen("up", "web", code=6)
    assert "the weights of acme/tiny are not in the Hugging Face cache" in refused.err
    assert "envgen up web --yes --profile prod" in refused.err
    assert project.envgen("model", "check", "--json", code=1).json["state"] == "absent"

    hub.cut["model-00002-of-00002.safetensors"] = 1  # one download breaks off in the middle
    pulled = project.envgen("model", "pull", "web", env=reach)
    assert f"acme/tiny is complete: 0.0 GiB at {COMMIT[:12]}" in pulled.out
    assert not [one for one in hub.asked if "original" in one]
    owner = last_shard(project).stat()
    assert (owner.st_uid, owner.st_gid) == (os.getuid(), os.getgid())
    found = project.envgen("model", "check", "--json").json
    assert (found["state"], found["commit"], found["files"]) == ("whole", COMMIT, 5)

    project.envgen("up", "web")
    try:
        assert project.envgen("logs", "web").out.endswith("offline=1\n")  # behind the base image's banner
    finally:
        project.envgen("down")

    whole = last_shard(project).resolve()
    data = whole.read_bytes()
    whole.write_bytes(data[:-100])
    damaged = project.envgen("up", "web", code=6)
    assert f"are damaged: model-00002-of-00002.safetensors has {len(data) - 100} bytes of {len(data)}" in damaged.err
    whole.unlink()
    assert "model-00002-of-00002.safetensors is missing" in project.envgen("model", "check", code=1).out
    project.envgen("model", "pull", env=reach)
    assert project.envgen("model", "check", "--json").json["state"] == "whole"


def test_up_offers_to_fetch_the_weights_on_a_terminal(project: Project, hub: Hub, reach: dict[str, str]) -> None:
    elsewhere = ("--set", "caches.huggingface.host=another")
    code, shown = project.on_a_terminal(b"n\n", "up", "web", *elsewhere, env=reach)
    assert code == 6 and "weights   acme/tiny:" in shown and shown.count("acme/tiny") == 1, shown
    assert "Do this now? [y/N]" in shown and "envgen up web --yes --profile prod" in shown
    assert not (project.root / "another").exists()
    code, shown = project.on_a_terminal(b"y\n", "up", "web", *elsewhere, env=reach)
    try:
        assert code == 0 and "web is running" in shown
    finally:
        project.envgen("down")
    code, shown = project.on_a_terminal(b"y\n", "up", "web", "--set", "services.web.needs_memory=64TiB",
                                "--set", "caches.huggingface.host=third", env=reach)  # fmt: skip
    assert code == 6 and "65536.0 GiB" in shown and "Do this now" not in shown  # what it would not start anyway


@pytest.mark.nightly
def test_a_draft_is_fetched_checked_and_locked_like_the_model(project: Project, reach: dict[str, str]) -> None:
    """The service of a variant whose draft is a repository of its own starts offline only with both."""
    words = ("--variant", "eagle", "--set", "caches.huggingface.host=drafted")
    refused = project.envgen("up", "web", *words, env=reach, code=6)
    for repo in ("acme/tiny", "acme/draft"):
        assert f"the weights of {repo} are not in the Hugging Face cache" in refused.err
    project.envgen("model", "pull", *words[2:], env=reach)
    half = project.envgen("model", "check", *words, code=1)
    assert "acme/tiny is whole" in half.out and "acme/draft is absent" in half.out
    assert "envgen model pull web" in half.err and "--variant eagle" in half.err
    assert "acme/draft is complete" in project.envgen("model", "pull", *words, env=reach).out
    assert project.envgen("model", "check", *words, "--json").json["draft"]["state"] == "whole"
    project.envgen("lock", env=reach)
    assert "acme/draft main" in (project.root / "envgen.lock").read_text()
    project.envgen("build")
    project.envgen("up", "web", *words)
    try:
        assert project.envgen("logs", "web").out.endswith("offline=1\n")
    finally:
        project.envgen("down")


def test_one_command_makes_lock_image_and_weights(project: Project, hub: Hub, reach: dict[str, str]) -> None:
    """From nothing; the weights come while the image is built, by the first stage of that build."""
    fresh = ("--set", "caches.huggingface.host=fourth", "--set", "pip.tools=[huggingface_hub, six]")
    (project.root / "envgen.lock").unlink(missing_ok=True)
    refused = project.envgen("up", "web", *fresh, env=reach, code=6)
    for part in (
        "lock      resolves every version",
        "image     envgentestmodel:prod ",
        "weights   acme/tiny: 0.0 GiB",
        "--yes",
    ):
        assert part in refused.err
    assert not (project.root / "envgen.lock").exists() and not (project.root / "fourth").exists()
    asked = len(hub.asked)
    # The project file has to name what is locked: an override is this command's alone.
    path = project.root / "envgen.yaml"
    path.write_text(path.read_text().replace("[huggingface_hub]", "[huggingface_hub, six]"))
    up = project.envgen("up", "web", "--yes", *fresh[:2], env=reach)
    try:
        assert "web is running" in up.out and len(hub.asked) > asked
        parts = ("wrote envgen.lock", "preparing the download of weights", "built envgentestmodel:prod", "up web:")
        assert sorted(parts, key=up.err.index) == list(parts)
        assert "acme/tiny is complete" in up.err
        assert not docker("image", "ls", "-q", "envgentestmodel:prod-base")
        assert project.envgen("up", "web", "--yes", *fresh[:2]).err.count("missing") == 0
    finally:
        project.envgen("down")


def test_what_the_hub_refuses(project: Project, hub: Hub, reach: dict[str, str]) -> None:
    hub.token = "hf_right"
    try:
        closed = project.envgen("model", "pull", "--set", "services.web.model.revision=main", env=reach, code=7)
        assert "could not be downloaded" in closed.err and "export HF_TOKEN" in closed.err
        project.envgen("model", "pull", env={**reach, "HF_TOKEN": "hf_right"})
    finally:
        hub.token = ""
    none = project.envgen("model", "pull", "--set", "services.web.model.repo=acme/none", env=reach, code=7)
    assert "check services.SERVICE.model.repo" in none.err
    away = project.envgen("model", "check", "nothing", code=2)
    assert "profile prod has no service 'nothing'; it has: web" in away.err


def test_the_lock_pins_the_commit(project: Project, hub: Hub, reach: dict[str, str]) -> None:
    project.envgen("lock", env=reach)
    text = (project.root / "envgen.lock").read_text()
    try:
        assert f"  acme/tiny main: {COMMIT}\n" in text
        assert project.envgen("model", "check").code == 0
        (project.root / "envgen.lock").write_text(text.replace(COMMIT, "f" * 40))
        assert project.envgen("model", "check", "--json", code=1).json["state"] == "absent"
    finally:
        (project.root / "envgen.lock").unlink(missing_ok=True)
