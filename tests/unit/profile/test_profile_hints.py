"""A hint that names what to write is right when it is followed: the changed file is accepted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bad_project_files import HEAD

from envgen.errors import Problem, ProjectError
from envgen.profile import hints
from envgen.profile.exposure import open_ports
from envgen.profile.load import load_project
from envgen.profile.model import Profile
from envgen.profile.service import Service
from envgen.profile.shape import fields_of
from envgen.profile.unused import warnings
from envgen.profile.values import PortMapping

SERVICE = "    services: {{s: {{command: [x], {}}}}}\n"


def problem_of(folder: Path, body: str) -> Problem:
    (folder / "envgen.yaml").write_text(HEAD + body)
    with pytest.raises(ProjectError) as caught:
        load_project(file=folder / "envgen.yaml")
    (problem,) = caught.value.problems
    return problem


def accepted(folder: Path, body: str) -> Service:
    (folder / "envgen.yaml").write_text(HEAD + body)
    return load_project(file=folder / "envgen.yaml").project.profiles["dev"].services["s"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python3 -m http.server", ("python3", "-m", "http.server")),
        ("vllm serve 'my model' --port 8000", ("vllm", "serve", "my model", "--port", "8000")),
        ("sleep 1 && echo done: [x]", ("sh", "-c", "sleep 1 && echo done: [x]")),
        ("bash", ("bash",)),
    ],
)
def test_a_command_as_text_becomes_its_words(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    body = "    services: {{s: {{command: {}}}}}\n"
    hint = problem_of(tmp_path, body.format(f'"{text}"')).hint
    written = hint.removeprefix("write it as a list: ")
    assert accepted(tmp_path, body.format(written)).command == words


def test_one_port_as_a_number(tmp_path: Path) -> None:
    hint = problem_of(tmp_path, SERVICE.format("ports: 8000")).hint
    found = accepted(tmp_path, SERVICE.format("ports: " + hint.removeprefix("write it as a list: ")))
    assert found.ports == (PortMapping(8000, 8000, "127.0.0.1"),)


def test_a_command_of_two_lines(tmp_path: Path) -> None:
    body = "    services: {{s: {{command: [sh, -c, {}]}}}}\n"
    problem = problem_of(tmp_path, body.format('"echo a\\necho b"'))
    assert "Dockerfile" not in problem.message and "separate the commands by `; `" in problem.hint
    accepted(tmp_path, body.format('"echo a; echo b"'))


def test_each_further_profile_has_a_dockerfile_of_its_own(tmp_path: Path) -> None:
    more = "  debug: {extends: dev}\n  prod: {mode: production, dockerfile: Dockerfile.p}\n  bench: {extends: prod}\n"
    (tmp_path / "envgen.yaml").write_text(HEAD + more)
    loaded = load_project(file=tmp_path / "envgen.yaml")
    assert {name: profile.dockerfile for name, profile in loaded.project.profiles.items()} == {
        "dev": "Dockerfile", "debug": "Dockerfile.debug", "prod": "Dockerfile.p", "bench": "Dockerfile.bench",
    }  # fmt: skip


def test_no_key_of_compose_hides_one_of_ours() -> None:
    assert not set(hints.COMPOSE) & {*fields_of(Service), *fields_of(Profile)}


@pytest.mark.parametrize("word", sorted(hints.COMPOSE))
def test_each_key_of_compose_gets_its_hint(tmp_path: Path, word: str) -> None:
    assert problem_of(tmp_path, SERVICE.format(f"{word}: x")).hint == hints.COMPOSE[word]
    assert problem_of(tmp_path, f"    {word}: x\n").hint == hints.COMPOSE[word]


@pytest.mark.parametrize("word", ["environment", "volumes", "healthcheck", "network_mode", "deploy", "tty"])
def test_what_a_hint_for_a_key_of_compose_names_is_accepted(tmp_path: Path, word: str) -> None:
    key, value = re.findall(r"`(\w+): ([^`]*)`|`(\w+)` here: (\{[^}]*\})", hints.COMPOSE[word])[0][:2]
    if not key:
        key, value = "env", "{NAME: value}"
    value = value.replace("HOST:CONTAINER", "~/a:/b").replace("NAME", "m" if word != "environment" else "A")
    accepted(tmp_path, SERVICE.format(f"{key}: {value}"))


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (SERVICE.format("variants: {}"), "it belongs to the profile"),
        (SERVICE.format("ipc: host"), "it belongs to the profile"),
        (SERVICE.format("arch_list: 12.1a"), "it belongs below `cuda`"),
        ("    command: [x]\n", "it belongs in a service: `services: {NAME: {command: ...}}`"),
        ("    max_jobs: 4\n", "it belongs below `build`"),
        ("mode: production\n", "it belongs below `defaults:` or below a profile"),
    ],
)
def test_the_hint_for_a_key_in_the_wrong_place_names_the_right_one(tmp_path: Path, body: str, hint: str) -> None:
    assert problem_of(tmp_path, body).hint == hint


def test_what_begins_with_x_is_for_anchors(tmp_path: Path) -> None:
    top = "x-mounts: &m {models: ~/models:/models:ro}\nx-note: [anything, {goes: 1}]\n"
    (tmp_path / "envgen.yaml").write_text(top + HEAD + SERVICE.format("mounts: *m"))
    (tmp_path / "envgen.local.yaml").write_text("x-mine: 1\n")
    found = load_project(file=tmp_path / "envgen.yaml").project.profiles["dev"].services["s"]
    assert found.mounts["models"].read_only and str(found.mounts["models"].host) == "~/models"


def test_this_machine_names_another_folder_for_a_mount(tmp_path: Path) -> None:
    body = SERVICE.format("mounts: {models: ~/models:/models:ro}")
    accepted(tmp_path, body)
    (tmp_path / "envgen.local.yaml").write_text("profiles: {dev: {services: {s: {mounts: {models: {host: /big}}}}}}\n")
    found = accepted(tmp_path, body).mounts["models"]
    assert (str(found.host), str(found.path), found.read_only) == ("/big", "/models", True)
    (tmp_path / "envgen.local.yaml").unlink()
    sets = ["services.s.mounts.models=/other:/models"]
    varied = load_project(file=tmp_path / "envgen.yaml", sets=sets).project.profiles["dev"]
    assert str(varied.services["s"].mounts["models"].host) == "/other"


def test_a_server_on_the_host_network_is_open_unless_it_listens_here(tmp_path: Path) -> None:
    keys = "network: host, ready: {port: 8000}, args: {host: %s}"
    assert open_ports(accepted(tmp_path, SERVICE.format(keys % "0.0.0.0"))) == (8000,)
    assert open_ports(accepted(tmp_path, SERVICE.format(keys % "127.0.0.1"))) == ()


def test_variables_as_a_list(tmp_path: Path) -> None:
    """As Compose has them, too."""
    hint = problem_of(tmp_path, "    env: [A=1, B=x y]\n").hint
    (tmp_path / "envgen.yaml").write_text(HEAD + f"    env: {hint.partition(': ')[2]}\n")
    found = load_project(file=tmp_path / "envgen.yaml").project.profiles["dev"].env
    assert found == {"A": "1", "B": "x y"}


@pytest.mark.parametrize(
    "body",
    [
        "labels: [a=b]",
        "container_name: vllm-dev",
        "cpus: 2",
        "extra_hosts: ['db:10.0.0.1']",
        "tmpfs: /run/x",
        "mem_limit: 10g",
        "devices: [/dev/fuse]",
    ],
)
def test_a_key_of_compose_goes_into_a_file_of_compose(tmp_path: Path, body: str) -> None:
    hint = problem_of(tmp_path, SERVICE.format(body)).hint
    line = hint.partition("into the file over.yaml: ")[2]
    assert "write `compose: over.yaml` in the profile" in hint
    assert line == f"services: {{s: {{{body.partition(':')[0]}: ...}}}}"
    (tmp_path / "over.yaml").write_text(f"services: {{s: {{{body}}}}}\n")
    accepted(tmp_path, SERVICE.format("interactive: true") + "    compose: over.yaml\n")


def test_a_limit_as_compose_writes_it(tmp_path: Path) -> None:
    (tmp_path / "envgen.yaml").write_text(HEAD + "    ulimits: {memlock: -1, nofile: 1}\n")
    (tmp_path / "envgen.local.yaml").write_text("profiles: {dev: {ulimits: {nofile: 3}}}\n")
    found = load_project(file=tmp_path / "envgen.yaml", sets=["ulimits.stack=9"]).project.profiles["dev"].ulimits
    assert found == {"memlock": -1, "nofile": 3, "stack": 9}


@pytest.mark.parametrize("origin", ["{wheel: vllm==0.32.0}", "{checkout: ../vllm}"])
def test_a_source_without_a_mount(tmp_path: Path, origin: str) -> None:
    text = HEAD + f"    sources: {{vllm: {{origin: {origin}, package: vllm, distribution: vllm}}}}\n"
    (tmp_path / "envgen.yaml").write_text(text)
    loaded = load_project(file=tmp_path / "envgen.yaml")
    assert str(loaded.project.profiles["dev"].sources["vllm"].mount) == "/workspace/vllm"
    # Of the mount, only that its folder hides the package, where python_path does not name it.
    assert [one for one in warnings(loaded) if "namespace package" not in one.message] == []


def test_a_number_where_words_are_listed(tmp_path: Path) -> None:
    assert problem_of(tmp_path, "    apt: {runtime: 5}\n").hint == 'write it as a list: ["5"]'
    assert problem_of(tmp_path, "    python_path: 5\n").hint == "write it as a list: [/workspace/vllm]"
