"""`docker run` and `vllm serve` lines and Compose services, in the style of public READMEs, become profiles."""

from __future__ import annotations

import io
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from envgen.__main__ import main
from envgen.errors import ProjectError
from envgen.profile.flags import parsed
from envgen.profile.load import load_project
from envgen.profile.model import Profile
from envgen.profile.values import ByteSize
from envgen.recipes.command import read_command

TOP = Path(__file__).parents[3]
BASE = "version: 1\nname: t\nprofiles:\n  prod:\n    mode: production\n    base: {image: debian:12}\n" + (
    "    cuda: {arch_list: 12.1a}\n    services:\n      serve:\n        command: [vllm, serve]\n"
    "        model: {repo: x/y}\n        args: {host: 0.0.0.0, port: 8000, seed: 1}\n"
    '        ports: ["127.0.0.1:8000:8000"]\n        ready: {port: 8000}\n'
    "    caches: {huggingface: {path: /root/.cache/huggingface, host: ~/.cache/huggingface}}\n"
)
IMAGE = "vllm/vllm-openai:v0.33.0"
MODEL = "names no model: the command is not `vllm serve MODEL ...`"
COMPOSE = f"""\
services:
  llm: {{image: {IMAGE}, command: "--model o/m --max-model-len ${{LEN:-4096}} --api-key abcdef", networks: [a],
    environment: {{A: "1", HF_TOKEN: }}, ports: ["8000:8000"], volumes: ["./m:/m:ro"], shm_size: 2gb,
    ulimits: {{memlock: {{soft: -1, hard: -1}}, stack: 9}},
    deploy: {{resources: {{reservations: {{devices: [{{device_ids: ["1"]}}]}}}}}}}}
  web: {{image: open-webui, depends_on: [llm]}}
"""
# Each: the text, its words after `vllm serve`, and what else must be there.
GOOD: dict[str, tuple[str, str, dict[str, Any]]] = {
    "readme": (
        "docker run --runtime nvidia --gpus all \\\n"
        "    -v ~/.cache/huggingface:/root/.cache/huggingface \\\n"
        '    --env "HF_TOKEN=$HF_TOKEN" \\\n    -p 8000:8000 --ipc=host \\\n'
        f"    {IMAGE} \\\n    --model mistralai/Mistral-7B-v0.1\n",
        "mistralai/Mistral-7B-v0.1",
        {"ports": ["8000:8000"], "secrets": ["HF_TOKEN"], "ipc": "host"},
    ),
    "spark": (
        "# on a DGX Spark\nsudo docker run -d --name qwen --restart unless-stopped --gpus all --network host \\\n"
        "  --ulimit memlock=-1 --ulimit stack=67108864 -v $HOME/.cache/huggingface:/root/.cache/huggingface \\\n"
        f"  {IMAGE} Qwen/Qwen3-8B --port 8888 -tp 1 -O3 --gpu-memory-utilization 0.5\n",
        "Qwen/Qwen3-8B --port 8888 --tensor-parallel-size 1 --optimization-level 3 --gpu-memory-utilization 0.5",
        {"network": "host", "ulimits": {"memlock": -1, "stack": 67108864}, "restart": "unless-stopped"},
    ),
    "ngc": (
        "docker run --rm -it --gpus '\"device=0,1\"' --shm-size=16g -p 127.0.0.1:9000:8000 -e VLLM_LOGGING_LEVEL=DEBUG"
        " nvcr.io/nvidia/vllm:26.10-py3 vllm serve o/m --reasoning-parser qwen3 --enable-prefix-caching",
        "o/m --reasoning-parser qwen3 --enable-prefix-caching",
        {"ports": ["127.0.0.1:9000:8000"], "gpu": ["0", "1"], "shm": "16g", "env": {"VLLM_LOGGING_LEVEL": "DEBUG"}},
    ),
    "json": (
        f"docker run --gpus=all -p 8000:8000 {IMAGE} --model=o/m --speculative-config"
        ' \'{"method": "mtp", "num_speculative_tokens": 2}\' --served-model-name a b',
        'o/m --speculative-config \'{"method":"mtp","num_speculative_tokens":2}\' --served-model-name a b',
        {},
    ),
    "shell": (
        f'docker run --gpus all --entrypoint bash {IMAGE} -c "pip install vllm[audio] && exec vllm serve o/m --seed 7"',
        "o/m --seed 7",
        {"left": ["`pip install vllm[audio]` before the server: `pip: {tools: [...]}`"]},
    ),
    "module": (
        f"podman run -p 8000:8000 --entrypoint python3 {IMAGE} -m vllm.entrypoints.openai.api_server"
        " --model o/m --trust-remote-code",
        "o/m --trust-remote-code",
        {},
    ),
    "mounts": (
        "docker run --gpus all -v $(pwd)/chat.jinja:/app/chat.jinja:ro -v hub:/data -v /mnt/x:/x"
        f" --cap-add SYS_NICE --memory 68g {IMAGE} o/m --chat-template /app/chat.jinja",
        "o/m --chat-template /app/chat.jinja",
        {
            "mounts": ["./chat.jinja:/app/chat.jinja"],
            "left": ["cap-add SYS_NICE: ", "memory 68g: ", "volumes /mnt/x:/x: "],
        },
    ),
    "attached": (
        f"docker run -p8000:8000 -dP -eA=1 --gpus '\"device=GPU-0a1b,1\"' {IMAGE} o/m --seed=1",
        "o/m --seed 1",
        {"ports": ["8000:8000"], "env": {"A": "1"}, "gpu": ["GPU-0a1b", "1"]},
    ),
    "block": (
        f"services:\n  v:\n    image: {IMAGE}\n    gpus: [{{driver: nvidia, count: 2}}]\n    command: |\n"
        "      o/m \\\n      --seed 1 \\\n      --max-model-len 9\n",
        "o/m --seed 1 --max-model-len 9",
        {"gpu": ["0", "1"]},
    ),
    "entry points of a list": (
        f"services: {{v: {{image: {IMAGE}, entrypoint: [bash, -c, 'pip install a && exec vllm serve o/m --seed 2']}}}}",
        "o/m --seed 2",
        {"left": ["`pip install a` before the server"]},
    ),
    # In the long form, as Compose's own documentation has it.
    "long form": (
        f"services:\n  vllm:\n    image: {IMAGE}\n    gpus: all\n    command: o/m --chat-template /app/chat.jinja\n"
        "    ports: [{target: 8000, published: '9000', host_ip: 127.0.0.1, protocol: tcp}]\n    volumes:\n"
        "      - {type: bind, source: ./chat.jinja, target: /app/chat.jinja, read_only: true}\n"
        "      - {type: bind, source: ~/.cache/huggingface, target: /root/.cache/huggingface}\n"
        "      - {type: tmpfs, target: /tmp}\n",
        "o/m --chat-template /app/chat.jinja",
        {
            "ports": ["127.0.0.1:9000:8000"],
            "mounts": ["./chat.jinja:/app/chat.jinja"],
            "caches": {"huggingface": "~/.cache/huggingface"},
            "left": ["volumes type=tmpfs,target=/tmp: "],
        },
    ),
    "folder": (
        f"docker run --gpus all -v ./weights:/models/w {IMAGE} --model /models/w --served-model-name w",
        "/models/w --served-model-name w",
        {"ready": "w"},
    ),
    "serve": (
        "$ uv run vllm serve openai/gpt-oss-20b --port 8123 --max-model-len 32768 --no-enable-prefix-caching\n",
        "openai/gpt-oss-20b --port 8123 --max-model-len 32768 --no-enable-prefix-caching",
        {"ports": ["127.0.0.1:8123:8123"]},
    ),
    # argparse takes what names one flag
    "abbreviated": (
        "vllm serve o/m --gpu-memory-util 0.8 --tensor_par=2 --max-model-le 4096 --served-model x\n",
        "o/m --gpu-memory-utilization 0.8 --tensor-parallel-size 2 --max-model-len 4096 --served-model-name x",
        {"ready": "x"},
    ),
}
GOOD["compose"] = (
    COMPOSE, "o/m --max-model-len 4096",
    {"env": {"A": "1"}, "secrets": ["HF_TOKEN"], "gpu": ["1"], "shm": "2gb", "ulimits": {"memlock": -1, "stack": 9},
     "mounts": ["./m:/m"], "left": ["service web: ", "networks a: ", "api-key: write"]},
)  # fmt: skip


PUBLIC: dict[str, tuple[str, str, dict[str, Any]]] = {
    one["from"]: (one["text"], one["words"], one)
    for one in yaml.safe_load(Path(__file__).with_name("public_commands.yaml").read_text())
}


def added(text: str, monkeypatch: pytest.MonkeyPatch) -> Profile:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert main(["recipe", "add", "-", "--yes", "--name", "p"]) == 0
    return load_project(file=Path("envgen.yaml"), local=False).project.profiles["p"]


@pytest.mark.parametrize("name", [*GOOD, *PUBLIC])
def test_a_public_command_arrives_word_for_word(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, words, more = (GOOD | PUBLIC)[name]
    (tmp_path / "envgen.yaml").write_text(BASE)
    monkeypatch.chdir(tmp_path)
    profile = added(text, monkeypatch)
    service = profile.services["serve"]
    flags = {flag.name: flag.values for flag in parsed(shlex.split(words)[1:])}
    arrived = {flag.name: flag.values for flag in parsed(service.argv[3:])}
    assert service.argv[:3] == ("vllm", "serve", shlex.split(words)[0])
    assert arrived == {"host": ("0.0.0.0",), "port": ("8000",), **flags}
    err = capsys.readouterr().err
    assert [one for one in more.get("left", ()) if f"not placed: {one}" not in err] == []
    assert [one for one in more.get("none", ()) if f"not placed: {one}" in err] == []
    found: dict[str, Any] = {
        "ports": [str(port) for port in service.ports],
        "secrets": list(profile.secrets),
        "ipc": profile.ipc,
        "network": service.network,
        "ulimits": dict(profile.ulimits),
        "restart": service.restart,
        "gpu": [str(one) for one in service.gpu or ()],
        "env": dict(service.env),
        "mounts": [f"{one.host}:{one.path}" for one in service.mounts.values()],
        "ready": service.served_name,
        "caches": {key: str(one.host) for key, one in profile.caches.items() if one.host},
    }
    assert {key: found[key] for key in more if key in found} == {key: more[key] for key in more if key in found}
    assert "shm" not in more or service.shm_size == ByteSize.parse(more["shm"])
    has_image = any(word in text for word in ("image:", "docker ", "podman "))
    assert (str(profile.base.image) != "debian:12") == has_image


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/bin/bash\necho hi\n", MODEL),
        (
            "#!/bin/bash\ncd x\nvllm serve o/m\n",
            "is a shell script; envgen reads one `docker run` or `vllm serve` line",
        ),
        (f"docker run {IMAGE} bash -c 'vllm serve o/m | tee log'", "is a shell script; envgen reads one"),
        (f"docker run {IMAGE} o/m | tee log", "is a shell script; envgen reads one"),
        (f"docker run {IMAGE} o/m $(cat flags)", "is a shell script; envgen reads one"),
        (f"docker run {IMAGE} o/m\ndocker run {IMAGE} o/n", "is a shell script; envgen reads one"),
        (f"docker run {IMAGE} 'o/m", "the command can't be read: No closing quotation"),
        (f"docker run {IMAGE} $MODEL", "$MODEL depends on your machine: write its value"),
        (f"docker run {IMAGE} sh -c 'vllm serve $MODEL'", "$MODEL depends on your machine: write its value"),
        (f"docker run {IMAGE}", MODEL),
        ("docker run --rm", MODEL),
        (f"docker run {IMAGE} bash", MODEL),
        (f"docker run {IMAGE} bash bash", MODEL),
        ("docker run --rm debian:12 sleep 1", MODEL),
        ("services: {a: {image: vllm/x}, b: {image: vllm/x}}", "has no single service with vLLM; leave one of: a, b"),
        ("services: {a: [vllm]}", "has no single service with vLLM"),
    ],
)
def test_what_is_no_server_is_refused_in_one_sentence(text: str, message: str) -> None:
    with pytest.raises(ProjectError) as error:
        read_command(text, "x")
    [problem] = error.value.problems
    assert problem.message.startswith(message) and problem.hint == "docs/coming-from.md has a row for each part"


def test_a_secret_stays_out_of_the_file_and_of_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "envgen.yaml").write_text(BASE)
    monkeypatch.chdir(tmp_path)
    line = f"docker run -e HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123 {IMAGE} o/m --api-key sk-12345678"
    assert added(line, monkeypatch).secrets == ("HF_TOKEN",)
    shown = "".join(capsys.readouterr()) + Path("envgen.yaml").read_text()
    assert "abcdefghij" not in shown and "sk-1234" not in shown


def test_other_texts_are_not_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("repo: a/b\n", "model: {model_id: a/b}\n", "", "services: []\n"):
        assert read_command(text, "x.yaml") is None
    shutil.copy(TOP / "envgen.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("start").write_text(f"docker run {IMAGE} o/m\n")  # a file without an ending
    assert main(["recipe", "add", "start", "-n"]) in (0, 2)
