"""What a service may ask for beyond the usual (mounts, devices, rights, the host's network), as Docker has it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from projects import Project, docker

pytestmark = pytest.mark.engine

NAME = "envgentestkeys"
CONTAINER = f"{NAME}-fixed-name"
FILE = """
x-mounts: &mounts
  texts: ./texts:/texts:ro
  scratch: {host: ./scratch, path: /scratch}
profiles:
  prod:
    gpu: auto
    mode: production
    compose: over.yaml
    dockerfile_extra:
      base: ["ENV ENVGENTEST_BASE=yes"]
      end: ["COPY --chmod=0755 own/ /opt/own/", 'RUN /opt/own/say >/etc/said', COPY src/mine /opt/mine]
    python_path: [/opt/mine]
    services:
      server:
        command: [sleep, infinity]
        mounts: *mounts
        network: host
        shm_size: 80MiB
      plain: {command: [sleep, infinity]}
"""

FILES = {
    "over.yaml": "services: {server: {hostname: envgentesthost, environment: {OVER: '1'}, container_name: "
    + CONTAINER
    + ", devices: ['/dev/zero:/dev/envgenzero:r'], cap_add: [SYS_PTRACE]}}\n",
    "own/say": '#!/bin/sh\necho "base: $ENVGENTEST_BASE"\n',
    "own/__pycache__/x.pyc": "no",
    "src/mine/mine/__init__.py": "ANSWER = 1\n",
}


@pytest.fixture(scope="module")
def project(make_project: Callable[..., Project]) -> Iterator[Project]:
    made = make_project(NAME, FILE)
    for folder in ("texts", "scratch"):
        (made.root / folder).mkdir()
    for name, text in FILES.items():
        (made.root / name).parent.mkdir(parents=True, exist_ok=True)
        (made.root / name).write_text(text)
    (made.root / "texts/hello").write_text("hello\n")
    made.envgen("build")
    yield made
    made.envgen("down")


def test_a_container_has_what_its_service_asks_for(project: Project) -> None:
    started = project.envgen("up", "server")
    assert "starts without a GPU" in started.err  # gpu: auto, where the engine has none
    found = json.loads(docker("inspect", CONTAINER))[0]
    host = found["HostConfig"]
    assert host["NetworkMode"] == "host" and host["ShmSize"] == 80 << 20
    assert [cap.removeprefix("CAP_") for cap in host["CapAdd"]] == ["SYS_PTRACE"]
    assert project.envgen("exec", "server", "--", "cat", "/texts/hello").out == "hello\n"
    project.envgen("exec", "server", "--", "sh", "-c", "test -c /dev/envgenzero && echo mine >/scratch/file")
    assert (project.root / "scratch/file").read_text() == "mine\n"
    refused = project.envgen("exec", "server", "--", "sh", "-c", "echo no >/texts/hello", code=None)
    assert refused.code and "Read-only file system" in refused.err
    # The Compose file of the user's own, laid over the rendered one:
    assert found["Config"]["Hostname"] == "envgentesthost" and "OVER=1" in found["Config"]["Env"]
    assert "was running already" in project.envgen("up", "server").out  # nothing of it makes Compose replace it


def test_the_other_service_has_none_of_it(project: Project) -> None:
    project.envgen("up", "plain")
    (name,) = docker("ps", "--format", "{{.Names}}", "--filter", f"name={NAME}-prod-plain").split()
    found = json.loads(docker("inspect", name))[0]
    assert found["HostConfig"]["NetworkMode"] != "host" and not found["HostConfig"]["CapAdd"]
    assert "/texts" not in [mount["Destination"] for mount in found["Mounts"]]


def test_a_mount_that_is_not_there_starts_nothing(project: Project) -> None:
    done = project.envgen("up", "plain", "--set", "services.plain.mounts={m: './gone:/m'}", code=6)
    assert f"services.plain.mounts.m: {project.root}/gone does not exist" in done.err


def test_lines_and_code_of_ones_own_are_in_the_image(project: Project) -> None:
    project.envgen("up", "plain")
    show = "cat /etc/said; ls -A /opt/own; python3 -c 'import mine; print(mine.ANSWER, mine.__file__)'"
    from_base, names, answer = project.envgen("exec", "plain", "--", "sh", "-c", show).out.splitlines()
    assert (from_base, names) == ("base: yes", "say")
    assert answer.startswith("1 ") and "/workspace" not in answer  # copied, not mounted


def test_an_edit_of_ones_own_code_makes_the_image_outdated(project: Project) -> None:
    (project.root / "src/mine/mine/__init__.py").write_text("ANSWER = 2\n")
    (project.root / "own/more").write_text("")
    assert "differs from the profile" in project.envgen("up", "plain", code=6).err
    project.envgen("build")
    (project.root / "own/more").unlink()
    project.envgen("build")  # what is gone is not copied any more
    project.envgen("up", "plain", "--recreate")
    show = "ls -A /opt/own; python3 -c 'import mine; print(mine.ANSWER)'"
    assert project.envgen("exec", "plain", "--", "sh", "-c", show).out.split() == ["say", "2"]
