"""`envgen init --from`: what people have, as a profile that loads; what has no place, with its line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from envgen import cli
from envgen.app.move_in import draft_of, write
from envgen.errors import EnvgenError, UsageError
from envgen.move_in.compose import split_command
from envgen.profile.load import load_project
from envgen.profile.model import Profile, Service
from envgen.render.outputs import render_project

SETUPS = Path(__file__).parent / "setups"
NAMES = sorted(path.name for path in SETUPS.iterdir())


def moved(tmp_path: Path, compose: str, **others: str) -> tuple[Profile, list[str], str]:
    """The profile of a Compose file, what is listed, and envgen.yaml itself."""
    (tmp_path / "compose.yaml").write_text(compose)
    for name, text in others.items():
        path = tmp_path / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    draft = draft_of(tmp_path / "compose.yaml", [], tmp_path, "unit")
    found = write(draft, "compose.yaml", tmp_path)
    assert not found.broken
    project = load_project(file=tmp_path / "envgen.yaml").project
    text = (tmp_path / "envgen.yaml").read_text()
    return project.profiles[project.default_profile], [str(one) for one in found.unplaced], text


def service(text: str, *, top: str = "") -> str:
    """A Compose file with one service that has these lines."""
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    command = "" if "command:" in text else "    command: [sleep, infinity]\n"
    return f"services:\n  one:\n    image: example/image:1\n{command}{lines}{top}"


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.main, ["init", *words], standalone_mode=False)


@pytest.fixture(params=NAMES)
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(SETUPS / request.param, tmp_path / request.param))


def test_each_setup_becomes_a_project_that_renders(setup: Path) -> None:
    source = next(path for path in setup.iterdir() if path.suffix in (".yaml", ".yml"))
    dockerfiles = [str(path) for path in setup.glob("Dockerfile*")]
    done = run("--from", str(source), *dockerfiles, "--json")
    assert done.return_value == 0, done.output
    found = json.loads(done.stdout)
    assert found["broken"] == ""
    project = load_project(file=setup / "envgen.yaml", local=False).project
    profile = next(iter(project.profiles.values()))
    assert profile.services, "a set-up without a service tests nothing"
    assert set(found["services"].values()) >= set(profile.services)
    assert render_project(project)


def test_the_listed_lines_are_those_of_the_file(setup: Path) -> None:
    source = next(path for path in setup.iterdir() if path.suffix in (".yaml", ".yml"))
    run("--from", str(source))
    for line in (setup / "envgen.yaml").read_text().splitlines():
        found = re.fullmatch(r"#   ([\w.-]+):(\d+): (?:services\.\w+\.|env\.\w+\.)?(\w+)\b.*", line)
        if found and found[3] not in ("services", "networks", "volumes"):
            word = {"stage": "FROM"}.get(found[3], found[3])
            word = line.rpartition(".")[2] if word == "environment" else word
            assert word in (setup / found[1]).read_text().splitlines()[int(found[2]) - 1], line


def test_the_seeds_dev_file_has_checkouts_and_two_services(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SETUPS / "seed_dev", tmp_path / "s"))
    done = run("--from", str(folder / "docker-compose.dev.yml"))
    assert done.return_value == 0, done.output
    profile = load_project(file=folder / "envgen.yaml").project.profiles["dev"]
    assert {name: str(one.origin.checkout) for name, one in profile.sources.items()} == {
        "vllm": "~/projects/vllm",
        "flashinfer": "~/projects/flashinfer",
    }
    assert [str(path) for path in profile.python_path] == ["/workspace/flashinfer", "/workspace/vllm"]
    assert set(profile.caches) == {"huggingface", "flashinfer", "vllm", "torch"}
    assert profile.secrets == ("HF_TOKEN",)
    assert profile.services["dev"].interactive
    assert profile.services["serve"].env == {"VLLM_LOGGING_LEVEL": "DEBUG"}
    assert profile.services["serve"].args["gpu-memory-utilization"] == "0.70"
    assert profile.apt.runtime == ("ccache", "ninja-build")
    assert profile.ulimits["memlock"].soft == -1


def test_a_recipe_gets_what_its_runner_gives(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SETUPS / "eugr", tmp_path / "e"))
    assert run("--from", str(folder / "recipe.yaml")).return_value == 0
    serve = load_project(file=folder / "envgen.yaml").project.profiles["main"].services["serve"]
    assert serve.command == ("vllm", "serve", "example-org/small-model")
    assert serve.args["hf-overrides"] == '{"rope_theta": 10000}'
    assert serve.args["tensor-parallel-size"] == "1"
    folder = Path(shutil.copytree(SETUPS / "sparkrun", tmp_path / "r"))
    assert run("--from", str(folder / "recipe.yaml")).return_value == 0
    serve = load_project(file=folder / "envgen.yaml").project.profiles["main"].services["serve"]
    assert serve.args["trust-remote-code"] is True
    assert "enforce-eager" not in serve.args
    assert serve.args["revision"] == "0123456789abcdef0123456789abcdef01234567"


@given(st.lists(st.sampled_from(["vllm", "serve", "a/b", "--port", "--x", "8000", "-1", "true", "null", "--y", "{}"])))
def test_a_command_is_the_same_words_again(words: list[str]) -> None:
    command, args = split_command(words)
    values = {name: tuple(one) if isinstance(one, list) else one for name, one in args.items()}
    assert list(Service(tuple(command), values).argv) == words


def test_flags_that_cannot_be_named_stay_words() -> None:
    assert split_command(["p", "--a", "1", "--a", "2"]) == (["p", "--a", "1", "--a", "2"], {})
    assert split_command(["p", "--max-x", "1", "--max_x", "2"])[1] == {}
    assert split_command(["p", "-v", "--a"])[1] == {}
    assert split_command(["vllm", "-tp", "2", "--bb=3"]) == (["vllm"], {"tensor-parallel-size": "2", "bb": "3"})


def test_secrets_are_never_copied(tmp_path: Path) -> None:
    token = "hf_abcdefghijklmnopqrstuvwx"
    text = service(
        f"environment:\n  HF_TOKEN: {token}\n  MY_PASSWORD: hunter2x\n  URL: https://me:pass@host/x\n"
        f"labels:\n  com.example.token: {token}\n"
        f"healthcheck: {{test: 'curl -H \"Authorization: Bearer {token}\" http://localhost:8000/health'}}\n"
        "command: vllm serve a/b --api-key hunter2x --port 8000\n"
    )  # fmt: skip
    profile, listed, written = moved(tmp_path, text)
    for shown in (written, "\n".join(listed)):
        assert token not in shown and "hunter2x" not in shown and "pass@" not in shown
    assert set(profile.secrets) == {"HF_TOKEN", "MY_PASSWORD", "URL", "VLLM_API_KEY"}
    assert "api-key" not in profile.services["one"].args


def test_an_env_file_is_named_and_not_read(tmp_path: Path) -> None:
    _, listed, written = moved(tmp_path, service("env_file: [my.env, gone.env]"), my_env="INNER=visible-value\n")
    assert "visible-value" not in written and "INNER" not in written
    assert [line for line in listed if "env_file my.env:" in line]
    assert [line for line in listed if "env_file gone.env (there is no such file)" in line]


def test_dot_env_does_not_fill_variables(tmp_path: Path) -> None:
    text = service("environment: {A: '${X:-default}', B: '${X}', C: $$X}")
    profile, listed, written = moved(tmp_path, text, _env="X=from-dot-env\n")
    assert profile.env == {"settings": {"A": "default", "C": "$X"}}
    assert "from-dot-env" not in written
    assert any("environment.B" in line and "${X} has no default" in line for line in listed)


def test_what_is_in_another_place_is_listed(tmp_path: Path) -> None:
    text = (
        "include: [more.yaml]\n"
        "services:\n"
        "  base:\n    image: example/image:1\n    command: [a]\n"
        "  one:\n    extends: {service: base}\n    environment: {B: '2'}\n"
        "  far:\n    extends: {file: more.yaml, service: x}\n    image: example/image:1\n    command: [a]\n"
    )
    more = "services: {more: {image: 'example/other:1', command: [m]}, x: {command: [x]}}\n"
    profile, listed, _ = moved(tmp_path, text, more_yaml=more)
    assert set(profile.services) == {"base", "far"}
    assert any("compose.yaml:1: include: is not followed: `docker compose config" in line for line in listed)
    assert any("compose.yaml:10: services.far.extends: is not followed" in line for line in listed)
    assert any("compose.yaml:7: services.one.extends: is not followed" in line for line in listed)


def test_dockerfiles_outside_of_the_folder_are_listed(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM evil:1\n")
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "Dockerfile.link").symlink_to(tmp_path / "Dockerfile")
    for place in ("..", "/etc", "{dockerfile: Dockerfile.link}"):
        _, listed, written = moved(folder, f"services: {{one: {{build: {place}, command: [a]}}}}\n")
        assert any("outside of this folder: name it behind the Compose file" in line for line in listed), place
        assert "evil" not in written
        (folder / "envgen.yaml").unlink()


def test_merge_keys_and_tags_are_read(tmp_path: Path) -> None:
    text = (
        "x-a: &a {image: 'example/image:1', command: [a], ports: ['1:1']}\nx-b: &b {command: [b]}\n"
        "services:\n  one:\n    <<: [*b, *a]\n    ports: !reset []\n"
    )
    profile, _, _ = moved(tmp_path, text)
    assert profile.services["one"].command == ("b",)
    assert profile.services["one"].ports == ()


def test_absolute_folders_go_into_the_local_file(tmp_path: Path) -> None:
    volumes = "volumes: ['/mnt/hf:/root/.cache/huggingface', '/mnt/sets:/sets:ro', './own:/own']"
    profile, _, written = moved(tmp_path, service(volumes))
    assert "/mnt" not in written
    assert str(profile.caches["huggingface"].host) == "/mnt/hf"
    mounts = profile.services["one"].mounts
    assert (str(mounts["sets"].host), mounts["sets"].read_only, str(mounts["own"].host)) == ("/mnt/sets", True, "own")


def test_what_does_not_load_is_left_out_and_listed_with_its_line(tmp_path: Path) -> None:
    text = service(
        "volumes: ['/etc/localtime:/etc/localtime:ro', './x:/etc/x']\n"
        "ports: ['1:1', '1:2', '3:3', 'x:4']\n"
        "restart: always\n"
        "user: '1000'\n"
    )
    profile, listed, _ = moved(tmp_path, text)
    one = profile.services["one"]
    assert (one.mounts, list(map(str, one.ports)), one.restart, one.user) == ({}, ["1:1", "3:3"], "no", "1000")
    whys = {line.split(": ")[0]: line for line in listed}
    assert "services.one.restart: 'always' is not accepted here" in whys["compose.yaml:7"]
    assert sum("/etc belongs to the image's own system" in line for line in listed) == 2
    assert any("compose.yaml:6: services.one.ports: 1:2: the host's port 1 is published twice" in x for x in listed)
    assert any("compose.yaml:6: services.one.ports: x:4: 'x:4' is not a port mapping" in line for line in listed)


def test_a_command_is_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    text = service('command: [run, "a\\nb"]') + "  two:\n    image: example/image:1\n    command: [b]\n"
    profile, listed, _ = moved(tmp_path, text)
    assert set(profile.services) == {"two"}
    assert any("services.one.command: contains the control character" in line for line in listed)


def test_ports_in_all_their_forms(tmp_path: Path) -> None:
    ports = "ports: ['8000', '127.0.0.1:81:81', {target: 82, published: '8082'}, '9000-9001:9000-9001', '53:53/udp']"
    profile, listed, _ = moved(tmp_path, service(ports))
    assert list(map(str, profile.services["one"].ports)) == ["auto:8000", "127.0.0.1:81:81", "8082:82"]
    assert sum("is not a port mapping" in line for line in listed) == 2


def test_other_images_are_listed(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SETUPS / "proxy", tmp_path / "p"))
    done = run("--from", str(folder / "compose.yaml"))
    assert "compose.yaml:3: services.web: runs another image (nginx:1.27)" in done.stdout


def test_a_folder_that_has_a_project_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(service("tty: true"))
    (tmp_path / "envgen.yaml").write_text("mine")
    with pytest.raises(EnvgenError, match=r"envgen\.yaml is there already"):
        draft = draft_of(tmp_path / "compose.yaml", [], tmp_path, "unit")
        write(draft, "compose.yaml", tmp_path)
    assert (tmp_path / "envgen.yaml").read_text() == "mine"


@pytest.mark.parametrize("text", ["", "a: [", "- a\n", "\x00", "services: 3", "services: {a: 3}", "a: b\n"])
def test_what_is_no_compose_file_is_an_error_or_a_list(tmp_path: Path, text: str) -> None:
    (tmp_path / "compose.yaml").write_text(text)
    done = run("--from", str(tmp_path / "compose.yaml"))
    assert isinstance(done.exception, (EnvgenError, type(None)))


@pytest.mark.parametrize("words", [["a"], ["a", "b", "--with", "x"]])
def test_diff_wants_two_inputs_or_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x").write_text(service("tty: true"))
    done = CliRunner().invoke(cli.main, ["diff", *words], standalone_mode=False)
    assert isinstance(done.exception, UsageError)


KEYS = ("image", "build", "command", "entrypoint", "environment", "env_file", "ports", "volumes", "deploy", "devices",
        "healthcheck", "ulimits", "user", "labels", "extends", "ipc", "shm_size", "restart", "gpus", "cap_add",
        "network_mode", "profiles", "working_dir", "cpuset", "tty", "container_name")  # fmt: skip
WORDS = st.sampled_from(
    ["a", "", "8000:8000", "/x:/y", "${A}", "${A:-b}", "A=b", "host", "-1", "1", "true", "\n", '"', "é", "${}", "²",
     "1.2.3s", "\0", "x" * 300]
)  # fmt: skip
INNER = (*KEYS, "test", "interval", "retries", "source", "target", "type", "file", "service", "args", "soft", "path")
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(INNER), inner, max_size=3),
    max_leaves=8,
)
CHECKS = st.fixed_dictionaries({"test": ANY}, optional={"interval": WORDS, "retries": WORDS})
GPUS = st.fixed_dictionaries({"capabilities": st.just(["gpu"])}, optional={"count": WORDS, "device_ids": ANY})


@given(st.dictionaries(st.sampled_from(KEYS), ANY, max_size=6), st.dictionaries(WORDS, ANY, max_size=2), CHECKS, GPUS)
def test_any_compose_file_gives_a_project_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, one: dict[str, Any], top: dict[str, Any], check: Any, gpu: Any
) -> None:
    folder = tmp_path_factory.mktemp("any")
    one = {"healthcheck": check, "deploy": {"resources": {"reservations": {"devices": [gpu]}}}, **one}
    (folder / "compose.yaml").write_text(
        json.dumps({**top, "services": {"one": {"image": "a:1", "command": "a", **one}}})
    )
    try:
        found = write(draft_of(folder / "compose.yaml", [], folder, "unit"), "compose.yaml", folder)
    except EnvgenError:
        return
    assert not found.broken, (folder / "envgen.yaml").read_text()
