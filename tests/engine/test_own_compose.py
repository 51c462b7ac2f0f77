"""A Compose file of one's own: what it changes is spoken of, and whatever its state, containers can be stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from local import free_port
from projects import Project, docker

pytestmark = pytest.mark.engine

NAME = "envgentestown"
CONTAINER = f"{NAME}-prod-web-1"
EXAMPLE = Path(__file__).parents[2] / "examples/open-webui"
SERVER = "[python3, -m, http.server, '8000', --bind, 0.0.0.0]"


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project]) -> Iterator[Project]:
    port = free_port()
    made = make_project(
        NAME,
        f"""
profiles:
  prod:
    mode: production
    compose: over.yaml
    services:
      web:
        command: {SERVER}
        ports: ["127.0.0.1:{port}:8000"]
        health: {{http: /, interval: 1s, complete: 0s}}
""",
    )
    (made.root / "over.yaml").write_text("services: {web: {labels: {a: b}}}\n")
    (made.root / "port").write_text(str(port))
    made.envgen("build")
    yield made
    (made.root / "over.yaml").write_text("services: {}\n")
    made.envgen("down", code=None)


def over(project: Project, text: str) -> None:
    (project.root / "over.yaml").write_text(text)


def test_what_it_changes_is_spoken_of(project: Project) -> None:
    port = (project.root / "port").read_text()
    over(project, "services: {web: {labels: {a: b}}}\n")
    assert "over.yaml changes labels" in project.envgen("up", "web").err
    over(project, f'services: {{web: {{privileged: true, ports: !override ["0.0.0.0:{port}:8000"]}}}}\n')
    refused = project.envgen("up", "web", code=6).err
    assert "privileged: False is now True" in refused
    started = project.envgen("up", "web", "--recreate")
    assert "reachable from the network" in started.err and "(reachable from the network)" in started.out
    assert "over.yaml changes ports, privileged" in started.err
    ps = project.envgen("ps")
    assert "current" in ps.out and f"port {port} is reachable from the network" in ps.err
    over(project, "services: {web: {scale: 2, ports: !reset []}}\n")
    assert "over.yaml starts 2 containers of web" in project.envgen("up", "web", "--recreate", code=6).err
    assert docker("ps", "--format", "{{.Names}}", "--filter", f"name={NAME}") == CONTAINER
    project.envgen("down")


BROKEN = (
    "services: {web: {labels: [",  # no YAML
    "services: {web: {nope: 1}}",
    'services: {web: {image: "${ENVGENTEST_UNSET:?x}"}}',
    "services: {web: {extends: {file: gone.yaml, service: x}}}",
    "name: other",
    None,
)


def test_one_that_is_broken_keeps_nothing_from_being_stopped(project: Project) -> None:
    over(project, "services: {web: {labels: {a: b}}}\n")
    project.envgen("up", "web")
    for text in BROKEN:
        if text is None:
            (project.root / "over.yaml").unlink()
        else:
            over(project, text)
        assert "over.yaml" in project.envgen("up", "web", code=2).err, text
        assert CONTAINER in project.envgen("ps").out
        project.envgen("stop", "web")
        assert docker("ps", "-q", "--filter", f"name={NAME}") == "", text
        docker("start", CONTAINER)
    project.envgen("logs", "web")
    project.envgen("exec", "web", "--", "true")
    project.envgen("down")
    assert docker("ps", "-aq", "--filter", f"name={NAME}") == ""


def test_a_file_beside_it_is_named_from_compose(project: Project) -> None:
    """As a Compose file beside it would have it: `env_file: [.env]`."""
    (project.root / ".env").write_text("A_LEVEL=3\n")
    over(project, "services: {web: {env_file: [.env]}}\n")
    assert "hint: paths in it start at compose/: ../FILE" in project.envgen("up", "web", code=2).err
    over(project, "services: {web: {env_file: [../.env]}}\n")
    project.envgen("up", "web")
    assert docker("exec", CONTAINER, "printenv", "A_LEVEL") == "3"
    project.envgen("down")


def test_a_service_beside_the_server_is_known(project: Project) -> None:
    """The one of examples/open-webui, whose image is not here: started with it, or by its name."""
    beside = yaml.safe_load((EXAMPLE / "over.yaml").read_text("utf-8"))
    service = beside["services"].pop("webui")
    service |= {"image": f"{NAME}:prod", "ports": [], "entrypoint": ["sleep", "infinity"], "init": True}
    over(project, yaml.safe_dump({**beside, "services": {"chat": service}}))
    project.envgen("up")
    rows = {row["service"]: row for row in project.envgen("ps", "--json").json}
    assert (rows["chat"]["state"], rows["chat"]["image"], rows["web"]["image"]) == ("running", None, "current")
    project.envgen("stop", "chat")
    assert docker("ps", "--format", "{{.Names}}", "--filter", f"name={NAME}") == CONTAINER
    project.envgen("up", "chat")
    assert "chat" in docker("ps", "--format", "{{.Names}}", "--filter", f"name={NAME}")
    assert "chat" in project.envgen("status").out
    project.envgen("logs", "chat")
    assert "no service 'chta'" in project.envgen("up", "chta", code=2).err
    project.envgen("down")
    assert docker("ps", "-aq", "--filter", f"name={NAME}") == ""
