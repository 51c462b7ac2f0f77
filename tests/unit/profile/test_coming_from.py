"""Public `docker run` lines and Compose files with a vLLM server, unchanged, and docs/coming-from.md's form of them.

coming_from/NAME.sh and NAME.yaml are the originals; NAME.envgen.yaml was written with the page's rows alone. The
rendered service has the original's words, one by one, its ports, variables, mounts and limits; and each key and option
of the originals has its row.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from envgen.errors import ProjectError
from envgen.profile.flags import SHORT, plain_name
from envgen.profile.load import load_project
from envgen.profile.values import ByteSize
from envgen.recipes.command import read_command
from envgen.render.compose import compose_files

PAGE = Path(__file__).parents[3] / "docs" / "coming-from.md"
FILES = Path(__file__).parent / "coming_from"
PLAYBOOKS = "github.com/NVIDIA/dgx-spark-playbooks/blob/main/nvidia"
ADDRESSES = {
    "built": "github.com/Cloud-Linuxer/gpt-oss/blob/95a63a32/vllm/docker-compose.yml",
    "coder-next": "github.com/dollardeploy/templates/blob/207e9597/vllm/docker-compose.yml",
    "coding-tasks": "github.com/D-Hank/coding-tasks/blob/17a9eb5b/src/run.sh",
    "eugr": "github.com/eugr/spark-vllm-docker/blob/74c02c37/README.md",
    "gemma": "github.com/zbhavyai/containers/blob/0047904a/vllm/compose.yaml",
    "playbook-gemma": f"{PLAYBOOKS}/vllm/README.md",
    "playbook-nvfp4": f"{PLAYBOOKS}/nvfp4-quantization/README.md",
    "playbook-omni": f"{PLAYBOOKS}/nemotron/README.md",
    "playbook-super": f"{PLAYBOOKS}/nemotron/README.md",
    "router": "github.com/stelterlab/kong-simple-model-router/blob/c685d114/vllm/docker-compose.yml",
    "spark-coder": "github.com/LePhanFF/MyOpenclawAgent/blob/3de215c0/qwen3-80b-a3b/vl-32code.sh",
    "spark-qwen": "github.com/amasu/dgx-spark-qwen38/blob/f67c8232/docker-compose.vllm.yml",
}
GIVEN = {"HF_MODEL_HANDLE": "google/diffusiongemma-26B-A4B-it"}  # variables of the originals that have no default
# What has another place by the page; what is refused; what goes into a Compose file of one's own.
DROPPED = {"CUDA_VISIBLE_DEVICES", "HUGGING_FACE_HUB_TOKEN"}
REFUSED = {"--api-key", "--api_key"}
OVER = ("container_name", "networks")
NO_VALUE = {"-d", "-i", "-t", "-it", "--rm", "--init", "--privileged"}


@dataclass
class Theirs:
    """A service of an original. ``keys``: what it is written with."""

    words: list[str]
    ports: list[str] = field(default_factory=list)
    env: dict[str, str | None] = field(default_factory=dict)  # None: from the shell
    targets: list[str] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)  # ipc, shm_size, restart, network_mode
    keys: set[str] = field(default_factory=set)


def of_run(text: str) -> Theirs:
    """A `docker run` line."""
    words = shlex.split(text.replace("\\\n", " "))[2:]
    theirs = Theirs([])
    while words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        theirs.keys.add(name)
        if name in NO_VALUE:
            continue
        value = value or words.pop(0)
        if name == "-p":
            theirs.ports.append(value)
        elif name in ("-e", "--env"):
            variable, _, given = value.partition("=")
            theirs.env[variable] = None if "$" in given else given
        elif name == "-v":
            theirs.targets.append(re.split(r":(?=/)", value)[1].removesuffix(":ro"))
        elif name in ("--ipc", "--shm-size", "--network"):
            theirs.settings[name[2:].replace("-", "_").replace("network", "network_mode")] = value
    words.pop(0)  # the image
    if words[0] in ("-c", "bash"):  # a shell: what it installs first, and the server
        words = shlex.split(words[-1])
        words = words[words.index("vllm") :]
    theirs.words = words
    return theirs


def of_compose(text: str) -> dict[str, Theirs]:
    """The services of a Compose file."""
    services: dict[str, Theirs] = {}
    for name, node in yaml.safe_load(text)["services"].items():
        command, env = node.get("command", []), node.get("environment", [])
        words = node.get("entrypoint", []) + (shlex.split(command) if isinstance(command, str) else command)
        pairs = (entry.partition("=")[::2] for entry in env)
        services[name] = Theirs(
            words, [str(port) for port in node["ports"]],
            {key: None if "$" in value else value for key, value in pairs},
            [entry.split(":")[1] for entry in node["volumes"]],
            {key: node[key] for key in ("ipc", "shm_size", "restart") if key in node}, set(node),
        )  # fmt: skip
    return services


def originals(name: str) -> dict[str, Theirs]:
    """The services of an original, by the names that the profile has for them."""
    if (FILES / f"{name}.sh").exists():
        return {"serve": of_run((FILES / f"{name}.sh").read_text())}
    return of_compose((FILES / f"{name}.yaml").read_text())


def plain(words: list[str]) -> list[str]:
    """Words of a server: variables by their values, flags by their long names, apart from values; JSON as such."""
    text = [re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", lambda m: m[2] or GIVEN.get(m[1], m[0]), word) for word in words]
    if text[0] == "vllm":
        del text[:2]
    elif "--model" in text:  # the image's own entry point
        at = text.index("--model")
        text = [text[at + 1], *text[:at], *text[at + 2 :]]
    apart: list[str] = []
    for word in text:
        flag, equals, value = word.partition("=")
        flag = f"--{SHORT[flag[1:]]}" if flag.startswith("-") and flag[1:] in SHORT else flag
        apart += [flag, *([value] if equals else [])] if flag.startswith("--") else [word]
    return [json.dumps(json.loads(word)) if word.startswith("{") else word for word in apart]


@pytest.mark.parametrize("name", ADDRESSES)
def test_what_is_rendered_is_the_original(name: str, tmp_path: Path) -> None:
    (tmp_path / "envgen.yaml").write_text((FILES / f"{name}.envgen.yaml").read_text())
    theirs = originals(name)
    if "compose: over.yaml" in (tmp_path / "envgen.yaml").read_text():
        document = yaml.safe_load((FILES / f"{name}.yaml").read_text())
        over = {at: {key: node[key] for key in OVER if key in node} for at, node in document["services"].items()}
        (tmp_path / "over.yaml").write_text(json.dumps({"services": over, "networks": document.get("networks", {})}))
    profile = load_project(file=tmp_path / "envgen.yaml").project.profiles["p"]
    rendered = yaml.safe_load(compose_files(profile)["compose/p.yaml"])["services"]
    assert set(theirs) == set(rendered)
    for service, wanted in theirs.items():
        got = rendered[service]
        command = [word.replace("$$", "$") for word in got["command"]]
        words = plain(wanted.words)
        for flag in REFUSED & set(words):
            del words[words.index(flag) : words.index(flag) + 2]
        assert plain(command[command.index("vllm") :]) == words
        assert got.get("ports", []) == wanted.ports
        env = {key: value for key, value in wanted.env.items() if key not in DROPPED}
        assert {key: got["environment"].get(key, "missing") for key in env} == env
        mounted = [mount["target"] for mount in got.get("volumes", ())]
        assert all(any(path == at or path.startswith(f"{at}/") for path in mounted) for at in wanted.targets), mounted
        settings = dict(wanted.settings)
        if "shm_size" in settings:
            settings["shm_size"] = str(ByteSize.parse(settings["shm_size"]).bytes)
        assert {key: got.get(key) for key in settings} == settings


TWO = """\
version: 1
name: mine
profiles:
  p:
    mode: production
    base: {image: nvcr.io/nvidia/vllm:26.10-py3}
    cuda: {arch_list: 12.1a}
    compose: over.yaml
    caches: {huggingface: {path: /root/.cache/huggingface, host: HOST}}
    services:
      FIRST: {command: [vllm, serve, org/A], args: {port: 8000}, ports: ['8000:8000']}
      second: {command: [vllm, serve, org/B], args: {port: 8001}, ports: ['8001:8001'], KEYS}
"""


def test_two_servers_beside_another_program(tmp_path: Path) -> None:
    """What is typed from such a Compose file is refused with the line that works."""
    (tmp_path / "over.yaml").write_text("services: {ollama: {image: ollama/ollama, ports: ['11434:11434']}}\n")
    file = tmp_path / "envgen.yaml"
    text = TWO.replace("HOST", "/opt/hf").replace("FIRST", "vllm-qwen3-32b")
    file.write_text(text.replace("KEYS", "privileged: true, env_file: .env"))
    with pytest.raises(ProjectError) as refused:
        load_project(file=file)
    hints = [problem.hint for problem in refused.value.problems]
    assert any(hint.startswith("write vllm_qwen3_32b: ") for hint in hints)
    assert any("services: {second: {privileged: ...}}" in hint for hint in hints)
    assert any(hint.startswith("write `secrets: [NAME]`") for hint in hints)
    file.write_text(text.replace("vllm-qwen3-32b", "vllm_qwen3_32b").replace(", KEYS", ""))
    with pytest.raises(ProjectError, match="is an absolute path; this file is shared"):
        load_project(file=file)
    file.write_text(file.read_text().replace("/opt/hf", "~/hf"))
    (tmp_path / "envgen.local.yaml").write_text("defaults: {caches: {huggingface: {host: /opt/hf}}}\n")
    profile = load_project(file=file).project.profiles["p"]
    assert str(profile.caches["huggingface"].host) == "/opt/hf"
    assert yaml.safe_load(compose_files(profile)["compose/p.yaml"])["services"].keys() == profile.services.keys()


OTHERS = (  # of files that are none of the twelve
    "count: 1", "device_ids", "nvidia.com/gpu", "depends_on", "-tp 2", "privileged", "network_mode: host", "--restart",
    "--flag=value", "--no-FLAG", "/opt/models", "--task embed", "extra_hosts", "-O3",
)  # fmt: skip


def test_each_key_and_option_has_its_row() -> None:
    page = PAGE.read_text(encoding="utf-8")
    quoted = " ".join(re.findall(r"`([^`\n]+)`", "\n".join(row for row in page.splitlines() if row.startswith("| "))))
    keys = {key for name in ADDRESSES for theirs in originals(name).values() for key in theirs.keys}
    for name in ADDRESSES:
        keys |= yaml.safe_load(path.read_text()).keys() if (path := FILES / f"{name}.yaml").exists() else set()
    rows = {key: re.search(rf"(?<![\w-]){re.escape(key)}(?![\w-])", quoted) for key in keys - {"services"}}
    assert all(rows.values()), sorted(key for key, row in rows.items() if not row)
    assert not [word for word in OTHERS if word not in page]


def test_each_file_is_compared() -> None:
    names = {path.name.partition(".")[0] for path in FILES.iterdir()}
    assert names == set(ADDRESSES) and len(names) == 12


def test_recipe_add_reads_the_originals_or_says_why_not() -> None:
    refused, words = {}, {}
    for path in sorted(FILES.iterdir()):
        name, _, ending = path.name.partition(".")
        if ending != "envgen.yaml":
            try:
                recipe = read_command(path.read_text(), path.name)
            except ProjectError as error:
                refused[name] = error.problems[0].message
            else:
                assert recipe is not None
                words[name] = recipe
    assert refused == {
        "playbook-gemma": "${HF_MODEL_HANDLE} depends on your machine: write its value",
        "playbook-nvfp4": "${LATEST_VLLM_VERSION} depends on your machine: write its value",
        "router": "has no single service with vLLM; leave one of: vllm1, vllm2",
    }
    for name, recipe in words.items():
        profile = load_project(file=FILES / f"{name}.envgen.yaml", local=False).project.profiles
        services = [one for found in profile.values() for one in found.services.values()]
        flags = {plain_name(flag) for one in services for flag in one.args}
        assert flags - recipe.args.keys() <= {"host", "port", "revision"}, name
        assert recipe.env.keys() >= {key for one in services for key in one.env}, name
