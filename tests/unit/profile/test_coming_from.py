"""Twelve public Compose files and `docker run` lines with a vLLM server, rewritten with docs/coming-from.md alone.

Of each only the facts are here: the words of its server, what else it sets, and the profile that the page's rows make
of it. The rendered command has the original's words, one by one: a flag's value joined by = or apart, short or long.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from envgen.__main__ import main
from envgen.errors import ProjectError
from envgen.profile.flags import SHORT
from envgen.profile.load import load_project
from envgen.render.compose import compose_files

TOP = Path(__file__).parents[3]


@dataclass(frozen=True)
class Theirs:
    """``words``: of the original, after the image; ``service``, ``profile``: what is written instead.

    ``given``: variables of the original's command, by their values there; ``refused``: flags with a reason on the page.
    ``compose``: what the rendered service has besides.
    """

    words: str
    service: str
    profile: str = ""
    local: str = ""
    given: dict[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    compose: dict[str, Any] = field(default_factory=dict)
    over: str = ""


GPU = ("deploy", "resources", "reservations", "devices")
HF = "caches: {huggingface: {path: /root/.cache/huggingface, host: ~/.cache/huggingface}}"
FILES = {
    # docker run --gpus '"device=0"' --shm-size=16g -p 8356:8356 -v "$HOME/.cache/huggingface:..." IMAGE vllm serve ...
    "one GPU, vllm serve": Theirs(
        "vllm serve org/Coder-30B-NVFP4 --port 8356 --max-model-len 256000 --gpu-memory-utilization 0.90"
        " --trust-remote-code --enable-auto-tool-choice --tool-call-parser qwen3_coder",
        "{command: [vllm, serve, org/Coder-30B-NVFP4], gpu: [0], shm_size: 16g, ports: ['8356:8356'],"
        " args: {port: 8356,"
        " max-model-len: 256000, gpu-memory-utilization: 0.90, trust-remote-code: true, enable-auto-tool-choice: true,"
        " tool-call-parser: qwen3_coder}}",
        HF,
        compose={"ports": ["8356:8356"], "shm_size": str(16 << 30)},
    ),
    # docker run -it --name N --rm --gpus='"device=0"' --ipc=host --ulimit memlock=-1 -v $(pwd):/workspace -e A=1 ...
    "vllm-openai's entry point, underscores": Theirs(
        "--model /workspace/vllm-models/vllm-11 --tool-call-parser hermes --enable-auto-tool-choice --quantization"
        " bitsandbytes --load-format bitsandbytes --gpu-memory-utilization 0.8 --port 8000 --max_model_len 2048",
        "{command: [vllm, serve, /workspace/vllm-models/vllm-11], gpu: [0], ports: ['8000:8000'],"
        " mounts: {work: './models:/workspace/vllm-models'}, env: {NCCL_P2P_DISABLE: 1, NCCL_SHM_DISABLE: 1}, args:"
        " {tool-call-parser: hermes, enable-auto-tool-choice: true, quantization: bitsandbytes,"
        " load-format: bitsandbytes,"
        " gpu-memory-utilization: 0.8, port: 8000, max_model_len: 2048}}",
        "ipc: host, ulimits: {memlock: -1, stack: 67108864}",
        compose={"environment": {"NCCL_P2P_DISABLE": "1"}, "ipc": "host"},
    ),
    # docker run -d --runtime nvidia --gpus all -p 9898:8000 --ipc=host vllm/vllm-openai --api-key KEY
    "an API key in the command": Theirs(
        "--model Qwen/Qwen2.5-7B-Instruct --max_model_len 1024 --api-key KEY --gpu_memory_utilization 0.7",
        "{command: [vllm, serve, Qwen/Qwen2.5-7B-Instruct], ports: ['9898:8000'],"
        " args: {max_model_len: 1024, gpu_memory_utilization: 0.7}}",
        f"ipc: host, secrets: [VLLM_API_KEY], {HF}",
        refused=("api-key",),
        compose={"environment": {"VLLM_API_KEY": None}},
    ),
    # Compose: env_file: [../.env], container_name, "80:8000", command as one text, restart, count: all
    "env_file and a command as text": Theirs(
        "--model /models/Devstral.gguf --trust-remote-code --tensor-parallel-size 2 --gpu-memory-utilization 0.9",
        "{command: [vllm, serve, /models/Devstral.gguf], ports: ['80:8000'], restart: unless-stopped,"
        " mounts: {models: '~/vllm/llm/models:/models'},"
        " args: {trust-remote-code: true, tensor-parallel-size: 2, gpu-memory-utilization: 0.9}}",
        f"ipc: host, secrets: [HF_TOKEN], compose: over.yaml, {HF}",
        compose={"environment": {"HF_TOKEN": None}, "restart": "unless-stopped"},
        over="services: {serve: {container_name: vllm-devstral}}",
    ),
    # Compose: ${MODEL:-x} and three more in the command, ${HF_HOME:-~/.cache/huggingface}, networks, ulimits
    "variables in the command": Theirs(
        "--model ${MODEL:-google/gemma-2-9b-it} --gpu-memory-utilization ${UTILIZATION:-1.0} --tensor-parallel-size"
        " ${SIZE:-4} --host 0.0.0.0 --port 8000",
        "{command: [vllm, serve], model: {repo: google/gemma-2-9b-it}, ports: ['8000:8000'],"
        " args: {gpu-memory-utilization: 1.0, tensor-parallel-size: 4, host: 0.0.0.0, port: 8000}}",
        f"ipc: host, ulimits: {{memlock: -1, stack: 67108864}}, secrets: [HF_TOKEN], compose: over.yaml, {HF}",
        over="services: {serve: {networks: [vllm_network]}}\nnetworks: {vllm_network: {}}",
    ),
    # Compose: device_ids, shm_size: '32g', --disable-log-requests, a pipeline
    "device_ids and two kinds of ranks": Theirs(
        "--model org/Llama-70B-FP8 --host 0.0.0.0 --port 8000 --tensor-parallel-size ${TP:-2} --pipeline-parallel-size"
        " ${PP:-1} --max-model-len ${LEN:-8000} --gpu-memory-utilization 0.95 --disable-log-requests"
        " --trust-remote-code"
        " --max-num-seqs ${SEQS:-128}",
        "{command: [vllm, serve, org/Llama-70B-FP8], gpu: [0, 1], shm_size: 32g, ports: ['8000:8000'], args: {host:"
        " 0.0.0.0, port: 8000, tensor-parallel-size: 2, pipeline-parallel-size: 1, max-model-len: 8000,"
        " gpu-memory-utilization: 0.95, disable-log-requests: true, trust-remote-code: true, max-num-seqs: 128}}",
        compose={"shm_size": str(32 << 30)},
    ),
    # Compose: network_mode: host, ports, devices: [nvidia.com/gpu=all], count: 1, CUDA_VISIBLE_DEVICES
    "the machine's network and count: 1": Theirs(
        "--model org/Small --served-model-name a b -tp 1",
        "{command: [vllm, serve, org/Small], network: host, gpu: [0],"
        " args: {served-model-name: [a, b], tensor-parallel-size: 1}}",
        f"gpu: cdi, {HF}",
        compose={"network_mode": "host"},
    ),
    # Compose: entrypoint: python3, command: -m vllm.entrypoints.openai.api_server ..., healthcheck with curl
    "another entry point": Theirs(
        "python3 -m vllm.entrypoints.openai.api_server --port=5000 --host=0.0.0.0 --model=/models/m",
        "{command: [python3, -m, vllm.entrypoints.openai.api_server], ports: ['5000:5000'], mounts:"
        " {models: {path: /models,"
        " host: ./unset}}, args: {port: 5000, host: 0.0.0.0, model: /models/m},"
        " health: {http: /v1/models, port: 5000, interval: 30s, timeout: 5s, retries: 20}}",
        "ipc: host",
        local="profiles: {p: {services: {serve: {mounts: {models: {host: /storage/models}}}}}}",
    ),
    # Compose: a list with --model=..., --dtype=half, and a second service that waits for service_healthy
    "another service that depends on it": Theirs(
        "--model=TinyLlama/TinyLlama-1.1B-Chat-v1.0 --dtype=half",
        "{command: [vllm, serve, TinyLlama/TinyLlama-1.1B-Chat-v1.0], ports: ['8000:8000'], args: {dtype: half},"
        " health: {http: /v1/models, interval: 20s, timeout: 20s, retries: 30}}",
        "compose: over.yaml, caches: {huggingface: {path: /root/.cache/huggingface, host: ./model}}",
        over="services: {app: {image: example/app, ports: ['8550:8550'], depends_on: {serve: {condition:"
        " service_healthy}}}}",
    ),
    # docker run --gpus '"device=0,1"' ... --api_key EMPTY --task embed
    "an embedding model on two GPUs": Theirs(
        "--model Qwen/Qwen3-Embedding-4B --tensor-parallel-size 2 --api_key EMPTY --port 8002 --task embed",
        "{command: [vllm, serve, Qwen/Qwen3-Embedding-4B], gpu: [0, 1], ports: ['8002:8002'],"
        " args: {tensor-parallel-size: 2, port: 8002, task: embed}, ready: {port: 8002}}",
        f"ipc: host, secrets: [VLLM_API_KEY], {HF}",
        refused=("api_key",),
    ),
    # Compose: env_file: .env, runtime: nvidia, a list with JSON joined by =
    "JSON in a word": Theirs(
        "--model=org/gemma-12b --reasoning-parser=deepseek_r1 --cpu-offload-gb=2"
        """ '--speculative-config={"method":"ngram","num_speculative_tokens":5}' --no-enable-prefix-caching -O3""",
        "{command: [vllm, serve, org/gemma-12b], ports: ['8000:8000'], args: {reasoning-parser:"
        " deepseek_r1, cpu-offload-gb:"
        " 2, speculative-config: {method: ngram, num_speculative_tokens: 5}, enable-prefix-caching: false,"
        " optimization-level: 3}}",
        f"ipc: host, {HF}",
    ),
    # docker run -it --gpus all -p 8000:8000 nvcr.io/nvidia/vllm:TAG vllm serve ..., with dotted flags
    "NVIDIA's image and dotted flags": Theirs(
        "vllm serve nvidia/M-NVFP4 --default-chat-template-kwargs.thinking=true"
        " --compilation-config.cudagraph_mode none"
        " --max-num-batched-tokens 8k -dcp 1",
        "{command: [vllm, serve, nvidia/M-NVFP4], ports: ['127.0.0.1:8000:8000'], args:"
        " {default-chat-template-kwargs.thinking: true, compilation-config.cudagraph_mode: none,"
        " max-num-batched-tokens: 8k, decode-context-parallel-size: 1}}",
        HF,
    ),
}  # fmt: skip


def words_of(text: str) -> list[str]:
    """The words of a server's command: variables by their defaults, flags by their long names, apart from values."""
    words = shlex.split(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))
    if words[0] == "vllm":
        del words[:2]
    elif words[0].startswith("-"):  # the image's own entry point
        at = next(number for number, word in enumerate(words) if word.split("=")[0] == "--model")
        found = words[at].partition("=")[2] or words.pop(at + 1)
        del words[at]
        words.insert(0, found)
    apart: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        level = re.fullmatch(r"-O(\d)", word)
        flag = f"--{SHORT[flag[1:]]}" if flag[1:] in SHORT and flag.startswith("-") else flag
        apart += (
            ["--optimization-level", level[1]]
            if level
            else [flag, *([value] if equals else [])]
            if (flag.startswith("--"))
            else [word]
        )
    return apart


@pytest.mark.parametrize("name", FILES)
def test_the_rendered_command_has_the_original_s_words(name: str, tmp_path: Path) -> None:
    theirs = FILES[name]
    (tmp_path / "envgen.yaml").write_text(
        "version: 1\nname: mine\nprofiles:\n  p: {mode: production, base: {image: vllm/vllm-openai:v0.33.0},"
        f" cuda: {{arch_list: 9.0a}}, {theirs.profile + ', ' if theirs.profile else ''}services:"
        f" {{serve: {theirs.service}}}}}\n"
    )
    if theirs.local:
        (tmp_path / "envgen.local.yaml").write_text(theirs.local)
    if theirs.over:
        (tmp_path / "over.yaml").write_text(theirs.over)
    profile = load_project(file=tmp_path / "envgen.yaml").project.profiles["p"]
    service = yaml.safe_load(compose_files(profile)["compose/p.yaml"])["services"]["serve"]
    command = [word.replace("$$", "$") for word in service["command"]]
    rendered = words_of(shlex.join(command[command.index("vllm" if "vllm" in command else "python3") :]))
    original = words_of(theirs.words)
    for flag in theirs.refused:
        at = original.index(f"--{flag}")
        del original[at : at + 2]
    assert rendered == original
    for key, value in theirs.compose.items():
        seen = service.get(key)
        assert (seen | value == seen) if isinstance(value, dict) else seen == value, (key, seen)


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
    assert any("services: {second: {privileged: true}}" in hint for hint in hints)
    assert any(hint.startswith("write `secrets: [NAME]`") for hint in hints)
    file.write_text(text.replace("vllm-qwen3-32b", "vllm_qwen3_32b").replace(", KEYS", ""))
    with pytest.raises(ProjectError, match="is an absolute path; this file is shared"):
        load_project(file=file)
    file.write_text(file.read_text().replace("/opt/hf", "~/hf"))
    (tmp_path / "envgen.local.yaml").write_text("defaults: {caches: {huggingface: {host: /opt/hf}}}\n")
    profile = load_project(file=file).project.profiles["p"]
    assert str(profile.caches["huggingface"].host) == "/opt/hf"
    assert yaml.safe_load(compose_files(profile)["compose/p.yaml"])["services"].keys() == profile.services.keys()


def test_each_fact_has_its_row() -> None:
    page = (TOP / "docs" / "coming-from.md").read_text(encoding="utf-8")
    for word in (
        "count: 1", "device_ids", "runtime: nvidia", "nvidia.com/gpu", "env_file", "depends_on", "${MODEL:-x}",
        "-tp 2", "container_name", "networks", "privileged", "network_mode: host", "entrypoint", "--model M",
        "--api-key", "-e NAME", "--ulimit", "--shm-size", "--rm", "--restart", "healthcheck", "--flag=value",
        "--no-FLAG", "CUDA_VISIBLE_DEVICES", "version:", "build:", "$(pwd)", "/opt/models", "--task embed", "`restart`",
        "extra_hosts", "-O3",
    ):  # fmt: skip
        assert word in page, word


@pytest.mark.parametrize("text", ["services: {vllm: {image: vllm/vllm-openai}}\n", "version: '3'\nservices: {}\n"])
def test_recipe_add_of_a_compose_file_names_the_page(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("compose.yaml").write_text(text)
    assert main(["recipe", "show", "compose.yaml"]) == 2
    printed = capsys.readouterr().err
    assert "is a Compose file, not a recipe" in printed and "docs/coming-from.md" in printed
