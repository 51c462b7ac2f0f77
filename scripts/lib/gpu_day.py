"""The steps of scripts/gpu-day, and its report."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import functools
import getpass
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))

from envgen import files  # noqa: E402
from envgen.errors import EnvgenError  # noqa: E402
from envgen.profile.load import load_project  # noqa: E402
from envgen.recipes.shipped import models as shipped_models  # noqa: E402
from envgen.redact import redact  # noqa: E402
from envgen.serve.launch import service_url  # noqa: E402
from envgen.text import visible  # noqa: E402

DESCRIPTION = """\
Serve a model on this machine's GPU with everything that envgen does, and write one report of what was seen.

Needs an NVIDIA GPU, a Docker Engine that gives it to containers, 40 GB of disk, and the network or --wheels. Takes 15
to 40 minutes. It works in a folder of its own, under the project name `gpu-day`, and touches nothing of anybody else.
"""
EPILOG = """\
Each step can be run alone and again; without names, all of them run in this order:
{steps}
  clean        removes its containers, images, volumes and folder

examples:
  scripts/gpu-day
  scripts/gpu-day up doctor
  scripts/gpu-day --wheels ~/wheels --tokenizer ~/gpt-oss     # without a network
  scripts/gpu-day --repo openai/gpt-oss-120b                  # real weights, from your Hugging Face cache
"""
NAME = "gpu-day"
MARKER = ".gpu-day"
# All that it writes into its folder, and all that `clean` removes from it.
OWN = ("project", "huggingface", "logs", "steps", "gpu-day.json", "gpu-day.md", MARKER)
MODEL = "openai/gpt-oss-120b"
COMMIT = "0" * 39 + "1"
INSIDE = "/root/.cache/huggingface"  # of the containers
OURS = f"{INSIDE}/{NAME}"
# What a server's log says of its choices and its memory.
CHOICES = {
    "attention": r"Using (?:AttentionBackendEnum\.)?(\w+)(?: attention)? backend",
    "moe": r"Using '?(\w+)'? (?:\w+ )?MoE backend",
    "linear": r"(?:Selected|Using) (\w*Kernel\w*) for",
    "mamba": r"Using (\S+) (?:GDN prefill kernel|Mamba SSU backend)",
}
FIGURES = {
    "model_gib": r"Model loading took ([\d.]+) GiB",
    "available_gib": r"Available KV cache memory: ([\d.]+) GiB",
    "tokens": r"KV cache size: ([\d,]+) tokens",
    "length": r"Maximum concurrency for ([\d,]+) tokens per request: [\d.]+x",
    "sequences": r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x",
}
STARTED = "Application startup complete"
# Figures of a cell of `bench` and `accept`.
SPEEDS = {"prefill_tps": ("prefill", "t/s"), "decode_tps": ("decode", "t/s"), "ttft_ms": ("first token", "ms")}


@dataclasses.dataclass
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def document(self) -> Any:
        """Its JSON; {} for none."""
        try:
            return json.loads(self.out)
        except ValueError:
            return {}

    @property
    def last(self) -> str:
        """Its last lines, for a report."""
        # A secret that is cut has no shape any more: it is removed before.
        return redact(" | ".join((self.err or self.out).strip().splitlines()[-3:]))[-400:]


class NotRun(Exception):
    """A step can't be run here; the message says why."""


class Rows:
    """What a step has seen: rows of the report, and the documents behind them."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.data: dict[str, Any] = {}

    def add(self, what: str, held: bool | None, seen: object, expected: str = "", seconds: float | None = None) -> bool:
        """A row; ``held`` None: noted, not judged."""
        row: dict[str, Any] = {"what": what, "held": held, "seen": redact(str(seen))[:600], "expected": expected}
        if seconds is not None:
            row["seconds"] = round(seconds, 1)
        self.rows.append(row)
        mark = {True: "ok  ", False: "FAIL", None: "note"}[held]
        print(visible(f"  {mark} {what}: {row['seen'][:160]}"), file=sys.stderr, flush=True)
        return bool(held)


class Day:
    """The options, the folder and the project."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work = Path(options.work).expanduser().resolve()
        self.foreign = options.project is not None  # a project of the user's own
        self.project = Path(options.project).resolve() if self.foreign else self.work / "project"
        self.profile: str = options.profile
        self.service: str = options.service
        self.hub = self.work / "huggingface"
        self._gpus: list[dict[str, str]] | None = None

    # Commands

    def run(self, words: Sequence[str], *, timeout: float = 1800, stdin: str = "") -> Done:
        """Run a program in the project's folder."""
        began = time.monotonic()
        try:
            done = subprocess.run(
                list(words), cwd=self.project if self.project.is_dir() else None, input=stdin, capture_output=True,
                text=True, errors="replace", timeout=timeout, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Done(124, "", f"no end within {timeout:.0f} s", time.monotonic() - began)
        except OSError as error:
            return Done(127, "", str(error), time.monotonic() - began)
        return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - began)

    def envgen(self, *words: str, timeout: float = 1800, stdin: str = "") -> Done:
        """Run an envgen command with this profile; its output is kept in the folder `logs`."""
        command, *rest = words
        group = [command, *rest[:1]] if command in ("cache", "nodes") else [command]
        rest = rest[len(group) - 1 :]
        done = self.run(
            [sys.executable, "-m", "envgen", *group, "-p", self.profile, *rest], timeout=timeout, stdin=stdin
        )
        logs = self.work / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.-]+", "-", " ".join(words))[:60]
        text = f"$ envgen {' '.join(words)}\n{done.out}\n{done.err}\n(exit {done.code}, {done.seconds:.1f} s)\n"
        (logs / f"{int(time.time() * 1000)}-{name}.log").write_text(text)
        return done

    def docker(self, *words: str, timeout: float = 600) -> Done:
        return self.run(["docker", *words], timeout=timeout)

    def container(self, service: str) -> str:
        """The id of a service's container; "" without one."""
        label = f"label=com.docker.compose.service={service}"
        project = f"label=com.docker.compose.project={self.settings.compose_name}"
        return self.docker("ps", "-aq", "--no-trunc", "--filter", label, "--filter", project).out.split("\n")[0]

    def log(self, service: str) -> str:
        container = self.container(service)
        if not container:
            return ""
        done = self.docker("logs", container)
        return done.out + done.err

    @property
    def settings(self) -> Any:
        """The profile as envgen reads it."""
        return load_project(file=self.project / "envgen.yaml").project.profiles[self.profile]

    @property
    def url(self) -> str:
        """Where this machine reaches the server: the published port, which need not be the container's."""
        return service_url(self.settings.services[self.service], "unix://")

    @property
    def served(self) -> str:
        return str(self.settings.services[self.service].ready.model)

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The server's answer as JSON."""
        data = None if body is None else json.dumps({"model": self.served, **body}).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as reply:
            return json.load(reply)

    # The machine

    def gpus(self) -> list[dict[str, str]]:
        """The GPUs that nvidia-smi shows."""
        if self._gpus is not None:
            return self._gpus
        names = ("name", "driver_version", "compute_cap", "memory.total", "clocks.max.sm", "power.limit", "power.draw")
        done = self.run(["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"])
        rows = [line.split(", ") for line in done.out.splitlines()] if done.code == 0 else []
        self._gpus = [dict(zip(names, row, strict=False)) for row in rows]
        return self._gpus

    @property
    def two(self) -> bool:
        """With two GPUs the service has the first, and the models that are compared have the second."""
        return len(self.gpus()) > 1 and not self.foreign

    def require(self) -> None:
        """End with one sentence if this machine lacks what the day needs."""
        lacking = []
        if not self.options.without_gpu and not self.gpus():
            lacking.append("an NVIDIA GPU (nvidia-smi finds none)")
        if self.docker("version").code:
            lacking.append("a Docker Engine that answers")
        if lacking:
            sys.exit(f"gpu-day: needs {' and '.join(lacking)}")

    def claim(self) -> None:
        """Make the folder, or end with one sentence: what is in another's folder would be overwritten."""
        try:
            if not (self.work / MARKER).is_file() and self.work.exists() and any(self.work.iterdir()):
                sys.exit(f"gpu-day: {self.work} has files that are not its own; name an empty folder with --work")
            self.work.mkdir(parents=True, exist_ok=True)
            (self.work / MARKER).touch()
        except OSError as error:
            sys.exit(f"gpu-day: {self.work} can't be its folder: {error.strerror}; name another with --work")

    # The project

    def write_project(self, expect: Mapping[str, str] | None = None) -> None:
        """The shipped project under another name; what only this machine needs is in its local file."""
        if self.foreign:
            return
        self.project.mkdir(parents=True, exist_ok=True)
        shipped = yaml.safe_load((TOP / "envgen.yaml").read_text())
        # The other profiles extend this one: what only this machine needs would reach them, too.
        only = {self.profile: shipped["profiles"][self.profile]}
        shipped |= {"name": NAME, "default_profile": self.profile, "profiles": only}
        (self.project / "envgen.yaml").write_text(yaml.safe_dump(shipped, sort_keys=False))
        for name in ("patches", "checks"):
            if not (self.project / name).exists():
                shutil.copytree(TOP / name, self.project / name)
        local = self.project / "envgen.local.yaml"
        if expect is None and local.exists():
            ready = yaml.safe_load(local.read_text())["profiles"][self.profile]["services"]["serve"].get("ready", {})
            expect = ready.get("expect", {})
        own = self.local(dict(expect or {}))
        if self.options.local:
            merge(own, yaml.safe_load(Path(self.options.local).expanduser().read_text()))
        local.write_text(yaml.safe_dump({"profiles": {self.profile: own}}, sort_keys=False))

    def local(self, expect: dict[str, Any]) -> dict[str, Any]:
        options, own = self.options, dict[str, Any]()
        capability = next((one["compute_cap"] for one in self.gpus()), "12.1")
        own["cuda"] = {"arch_list": capability + ("a" if int(capability.split(".")[0]) >= 9 else "")}
        if options.base:
            own["base"], own["apt"] = {"image": options.base, "apt": []}, {"runtime": []}
            own["pip"] = {"protect": list(options.protect), "override": list(options.override)}
            own["tiktoken"] = None
        if options.wheels:
            own["build"] = {"wheelhouse": str(Path(options.wheels).expanduser().resolve())}
        served: dict[str, Any] = {"needs_memory": None, **({"gpu": ["0"]} if self.two else {})}
        args = {"profiler-config": {"profiler": "torch", "torch_profiler_dir": "/tmp/traces", "max_iterations": 3}}
        if not options.repo:
            own["caches"] = {"huggingface": {"path": INSIDE, "host": str(self.hub)}}
            # Two layers load in seconds; the rest of the memory is the cache's.
            args |= {"gpu-memory-utilization": options.utilization}
        own["services"] = {"serve": {**served, "args": args, "ready": {"expect": expect}}, **self.candidates()}
        if own["cuda"]["arch_list"] != "12.1a":
            own["services"]["serve"]["ready"]["expect"] = {
                "attention": None,
                "moe": None,
                "quantization": None,
                **expect,
            }
        return own

    def candidates(self) -> dict[str, Any]:
        """A service for each model whose prediction is compared with its log: a few layers of its published shape."""
        found: dict[str, Any] = {}
        for number, (name, extra) in enumerate(MODELS.items()):
            args = {
                "load-format": "dummy", "enforce-eager": True, "max-model-len": 8192, "max-num-seqs": 8,
                "kv-cache-memory-bytes": 2 << 30, "gpu-memory-utilization": 0.05,
                "served-model-name": name, "host": "0.0.0.0", "port": 8000, **extra,
            }  # fmt: skip
            found[service_of(name)] = {
                "command": ["vllm", "serve", f"{OURS}/{name}"],
                "args": {key: value for key, value in args.items() if value is not None},
                "env": {"VLLM_NO_USAGE_STATS": 1, "HF_HUB_OFFLINE": 1},
                "ports": [f"127.0.0.1:{8101 + number}:8000"],
                **({"gpu": ["1"]} if self.two else {}),
            }
        return found


def merge(target: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Put ``other`` into ``target``, mapping by mapping."""
    for key, value in other.items():
        if isinstance(value, dict) and isinstance(target.get(key), dict):
            merge(target[key], value)
        else:
            target[key] = value


# Models whose published shape is in tests/support/shapes or in a recipe, with what differs in their command line.
_DRAFT = {"method": "eagle3", "model": f"{OURS}/gpt-oss-eagle3", "num_speculative_tokens": 3}
MODELS: dict[str, dict[str, Any]] = {
    "gpt-oss": {},
    "gpt-oss-draft": {"speculative-config": _DRAFT},
    "llama-3.3-70b-fp8": {},
    "qwen3-30b-a3b-fp8": {},
    "qwen3-30b-a3b-bf16": {},
    "glm-4.5-air-fp8": {},
    "glm-4.7-flash": {},
    "minimax-m2.7-nvfp4": {},
    "nemotron-3-nano-30b-fp8": {},
    "nemotron-3-super-120b": {},
    "qwen3.6-35b-a3b": {"language-model-only": True},
    "qwen3.6-27b-fp8": {"language-model-only": True},
    "gemma-4-26b": {"language-model-only": True},
    "deepseek-v4-flash": {"kv-cache-dtype": "fp8"},
    # Whole, with all of the memory: what the server says of it against the estimate. Not started with the others.
    "gpt-oss-whole": {"enforce-eager": None, "kv-cache-memory-bytes": None, "max-model-len": 131072, "max-num-seqs": 2,
                      "max-num-batched-tokens": 8192, "gpu-memory-utilization": 0.9, "async-scheduling": True,
                      "attention-config": {"backend": "TRITON_ATTN"}},
}  # fmt: skip
WHOLE = "gpt-oss-whole"
_RECIPES = {
    "gpt-oss": MODEL, "gpt-oss-draft": MODEL, WHOLE: MODEL,
    "nemotron-3-super-120b": "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
    "qwen3.6-35b-a3b": "nvidia/Qwen3.6-35B-A3B-NVFP4", "qwen3.6-27b-fp8": "Qwen/Qwen3.6-27B-FP8",
    "gemma-4-26b": "nvidia/Gemma-4-26B-A4B-NVFP4",
}  # fmt: skip
# Layers of a model that is compared: the fewest with one of each kind.
LAYERS = {"nemotron_h": 8, "gemma4": 6}
FEWEST = 4


def service_of(name: str) -> str:
    """The service of a model that is compared."""
    return "m_" + re.sub(r"[-.]+", "_", name)


def shape(name: str) -> dict[str, Any]:
    """The config.json of a model, cut to a few layers unless it is the whole one."""
    if name in _RECIPES:
        config: dict[str, Any] = json.loads(json.dumps(shipped_models()[_RECIPES[name]]["config"]))
        return config if name == WHOLE else cut(config)
    bf16 = name.endswith("-bf16")
    path = TOP / "tests/support/shapes" / f"{name.replace('-bf16', '-fp8')}.json"
    config = json.loads(path.read_text())
    if bf16:
        config.pop("quantization_config")
    return config


def cut(config: dict[str, Any]) -> dict[str, Any]:
    """The same with its first layers; their kinds in turn."""
    text = config.get("text_config") or config
    most = LAYERS.get(str(config.get("model_type")), FEWEST)
    text["num_hidden_layers"] = min(int(text["num_hidden_layers"]), most)
    for key in ("layer_types", "layers_block_type"):
        if isinstance(text.get(key), list):
            text[key] = text[key][: text["num_hidden_layers"]]
    if isinstance(text.get("hybrid_override_pattern"), str):
        text["hybrid_override_pattern"] = text["hybrid_override_pattern"][: text["num_hidden_layers"]]
    return config


EAGLE = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 2880, "head_dim": 64,
    "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 1, "intermediate_size": 17280,
    "vocab_size": 201088, "draft_vocab_size": 201088, "max_position_embeddings": 131072, "rms_norm_eps": 1e-05,
    "rope_theta": 150000, "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    # The old model runner reads the one, the new one the other.
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}, "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
}  # fmt: skip

# --- the steps --------------------------------------------------------------------------------------------------------

Step = Callable[[Day, Rows], None]
STEPS: dict[str, tuple[str, Step]] = {}


def step(name: str, title: str) -> Callable[[Step], Step]:
    """Register a step."""

    def wrapper(function: Step) -> Step:
        STEPS[name] = (title, function)
        return function

    return wrapper


@step("facts", "the machine: GPU, driver, clocks, kernel, Docker")
def facts(day: Day, rows: Rows) -> None:
    found = day.gpus()
    for number, gpu in enumerate(found):
        rows.add(f"GPU {number}", None, ", ".join(f"{key} {value}" for key, value in gpu.items()))
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    system = dict(
        line.rstrip().replace('"', "").split("=", 1)
        for line in Path("/etc/os-release").read_text().splitlines()
        if "=" in line
    )
    gib = int(memory[1]) / (1 << 20) if memory else 0
    text = f"{system.get('PRETTY_NAME')}, Linux {platform.release()}, {platform.machine()}, {os.cpu_count()} cores"
    rows.add("machine", None, f"{text}, {gib:.0f} GiB")
    info = json.loads(day.docker("info", "--format", "{{json .}}").out or "{}")
    cdi = [one["ID"] for one in info.get("DiscoveredDevices") or [] if one.get("Source") == "cdi"]
    given = f"runtimes {', '.join(sorted(info.get('Runtimes', {})))}; CDI {', '.join(cdi) or 'none'}"
    rows.add("Docker", None, f"{info.get('ServerVersion')}, {info.get('Driver')}, {given}")
    rows.data["gpus"] = found


@step("image", "the image of the profile, by its own Dockerfile")
def image(day: Day, rows: Rows) -> None:
    if day.foreign:
        raise NotRun("the project is your own: its image is built already")
    day.write_project()
    if day.options.base:
        rows.add("base", None, f"a stand-in, {day.options.base}: {day.options.base_note or 'not NVIDIA image'}")
    unlocked = bool(day.options.base or day.options.wheels)
    if not unlocked:
        locked = day.envgen("lock")
        rows.add("envgen lock", locked.code == 0, locked.last, "exit 0", locked.seconds)
    done = day.envgen("build", "--json", *(["--unlocked"] if unlocked else []), timeout=3600)
    rows.add(
        "envgen build", done.code == 0, done.last if done.code else day.settings.image_name, "exit 0", done.seconds
    )
    listed = (
        "import importlib.metadata as m\nfor n in ('vllm','flashinfer-python','torch','triton','nvidia-nccl-cu13'):\n"
    )
    listed += " print(n, m.version(n))"
    versions = day.envgen("run", "-T", day.service, "--", "python3", "-c", listed)
    rows.add("releases in it", versions.code == 0, ", ".join(versions.out.split("\n")).strip(", "), "vllm, flashinfer")


@step("model", "a model of gpt-oss's width with random weights, which answers Paris")
def model(day: Day, rows: Rows) -> None:
    if day.foreign or day.options.repo:
        raise NotRun("the model is your own")
    day.write_project()
    ours = day.hub / NAME
    ours.mkdir(parents=True, exist_ok=True)
    for name in ("gpu_model.py", "gpu_kernels.py"):
        shutil.copyfile(TOP / "scripts/lib" / name, ours / name)
    (ours / "config.json").write_text(json.dumps(shipped_models()[MODEL]["config"]))
    words = ours / "tokenizer"
    words.mkdir(exist_ok=True)
    if day.options.tokenizer:
        for path in Path(day.options.tokenizer).expanduser().iterdir():
            shutil.copyfile(path, words / path.name)
    elif not (words / "o200k_base.tiktoken").exists():
        entry = yaml.safe_load((TOP / "envgen.yaml").read_text())["defaults"]["tiktoken"]["encodings"]["o200k_base"]
        fetch = [sys.executable, str(TOP / "docker/build/fetch"), "file", str(words / "o200k_base.tiktoken")]
        done = day.run([*fetch, entry["sha256"], entry["url"]])
        if done.code:
            raise NotRun(f"its vocabulary can't be fetched ({done.last}); name a folder with it: --tokenizer FOLDER")
    for name in MODELS:
        place = ours / name
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps(shape(name)))
        for path in words.glob("*.json"):
            shutil.copyfile(path, place / path.name)
        vision = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16, "temporal_patch_size": 2,
                  "merge_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
                  "size": {"shortest_edge": 65536, "longest_edge": 16777216}}  # fmt: skip
        if name.startswith("qwen3.6"):
            (place / "preprocessor_config.json").write_text(json.dumps(vision))
    draft = ours / "gpt-oss-eagle3"
    draft.mkdir(exist_ok=True)
    (draft / "config.json").write_text(json.dumps(EAGLE))
    snapshot = f"{INSIDE}/hub/models--{MODEL.replace('/', '--')}/snapshots/{COMMIT}"
    words_ = ["python3", f"{OURS}/gpu_model.py", f"{OURS}/config.json", f"{OURS}/tokenizer", str(day.options.layers)]
    done = day.envgen("run", "-T", "serve", "--", *words_, snapshot, timeout=1800)
    rows.add(
        "the model", done.code == 0, done.last if done.code else done.out.strip().split("\n")[-1], "", done.seconds
    )


@step("predict", "what the release would choose on this GPU, before anything starts")
def predict(day: Day, rows: Rows) -> None:
    done = day.envgen("predict", day.service, "--json")
    found = done.document
    if not found.get("gpu"):
        rows.add("envgen predict", None if day.options.without_gpu else False, done.last or "no answer", "an answer")
        return
    gpu = found["gpu"]
    rows.add("the GPU that is asked", day.options.without_gpu or gpu["real"],
             f"{gpu['count']} x {gpu['name']}, {gpu['memory'] / (1 << 30):.1f} GiB, real: {gpu['real']}",
             "the real one, without a running container", done.seconds)  # fmt: skip
    rows.add("chosen", None, ", ".join(f"{key} {value}" for key, value in predicted(found).items()))
    rows.data["predict"] = found
    if not day.foreign:
        named = ("attention", "moe", "quantization")
        day.write_project({name: text for name, text in found["patterns"].items() if name in named})


@step("up", "start the service: phases, completion, chat, a tool call")
def up(day: Day, rows: Rows) -> None:
    start(day, rows, "envgen up", "--recreate")
    words = [{"role": "user", "content": "Capital of France?"}]
    for name, path, body in (
        ("completion", "/v1/completions", {"prompt": "The capital of France is", "max_tokens": 12, "temperature": 0}),
        ("chat", "/v1/chat/completions", {"messages": words, "max_tokens": 24}),
    ):
        began = time.monotonic()
        try:
            choice = day.ask(path, body)["choices"][0]
        except OSError as error:
            rows.add(name, False, error, "an answer")
            continue
        text = choice.get("text") or (choice.get("message") or {}).get("content") or ""
        wanted = "" if day.foreign or day.options.repo else "Paris"
        rows.add(name, wanted in text and bool(text), repr(text), wanted or "a text", time.monotonic() - began)


def start(day: Day, rows: Rows, what: str, *words: str) -> bool:
    """`envgen up` of the service, as a row."""
    done = day.envgen("up", day.service, "--json", *words, timeout=3600)
    found = done.document
    phases = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in found.get("phases", {}).items())
    chats = "; ".join(f"{name}: {one['seen']}" for name, one in found.get("chats", {}).items())
    seen = f"{found.get('completion', '')!r}; {chats}; {phases}" if done.code == 0 else done.last
    rows.data[what] = found
    return rows.add(what, done.code == 0, seen, "ready, with its phases", done.seconds)


@step("doctor", "does the container run the code that it should")
def doctor(day: Day, rows: Rows) -> None:
    for words in (("doctor",), ("doctor", "--deep")):
        done = day.envgen(words[0], day.service, *words[1:], "--json")
        found = done.document.get("findings", [])
        counts = {name: sum(one["severity"] == name for one in found) for name in ("ok", "info", "warning", "error")}
        bad = [f"{one['check']}: {one['title']}" for one in found if one["severity"] in ("warning", "error")]
        text = ", ".join(f"{many} {name}" for name, many in counts.items()) + "".join(f"; {one}" for one in bad)
        # Without a container doctor checks little, and finds no error.
        inside = any(one["check"] == "import.truth" for one in found)
        wanted = "no error, imports checked"
        rows.add(f"envgen {' '.join(words)}", done.code == 0 and inside, text, wanted, done.seconds)
        rows.data[" ".join(words)] = bad


def measured(day: Day, rows: Rows, *words: str) -> Done:
    done = day.envgen(*words, "--json", timeout=1800)
    found = done.document
    lacking = [one for one in found.get("criteria", []) if one["verdict"] != "passed"]
    told = [f"{one['name']} {one['verdict']}: {one['seen']}, wanted {one['wanted']}" for one in lacking]
    cells = []
    for cell in found.get("cells", []):
        figures = [f"{name} {cell[key]['mean']:.0f} {unit}" for key, (name, unit) in SPEEDS.items() if cell.get(key)]
        cells.append(f"{cell['test']}: {', '.join(figures)}")
    seen = "; ".join([str(found.get("outcome", "")), *cells, *told]).strip("; ") or done.last
    # The model that is made here calls no tool, which accept does not let pass.
    made = not (day.foreign or day.options.repo)
    good = done.code == 0 or (
        made
        and bool(lacking)
        and all(one["name"] == "tool call" and one["verdict"] == "not checked" for one in lacking)
    )
    rows.add(f"envgen {' '.join(words)}", good, seen, "passed" + ", but for the tool call" * made, done.seconds)
    rows.data[words[0]] = {key: value for key, value in found.items() if key != "record"}
    return done


@step("smoke", "quick checks")
def smoke(day: Day, rows: Rows) -> None:
    measured(day, rows, "smoke", day.service)


@step("bench", "speed")
def bench(day: Day, rows: Rows) -> None:
    shorter = day.options.bench.split()
    if measured(day, rows, "bench", day.service, *shorter).code:
        measured(day, rows, "bench", day.service, "--tool", "vllm", *shorter)


@step("accept", "the acceptance test: 200 requests, 8 at once")
def accept(day: Day, rows: Rows) -> None:
    limits = ["--max-ttft", "10000", "--max-per-token", "2000", "--reference", "latest"]
    measured(day, rows, "accept", day.service, *limits, *day.options.bench.split(), *day.options.accept.split())


@step("trace", "one request under vLLM's profiler")
def trace(day: Day, rows: Rows) -> None:
    done = day.envgen("trace", day.service, "--json")
    files = done.document.get("files", [])
    rows.add("envgen trace", done.code == 0 and bool(files), files or done.last, "files of the profiler", done.seconds)


# Prediction against log


def predicted(found: Mapping[str, Any]) -> dict[str, str]:
    """What `predict` answered, by step."""
    return {
        name: found[name]["backend"] for name in ("attention", "moe", "linear", "mamba", "draft") if found.get(name)
    }


def logged(text: str) -> dict[str, Any]:
    """What a server's log says of its choices and its memory."""
    found: dict[str, Any] = {}
    for name, pattern in CHOICES.items():
        if seen := list(dict.fromkeys(re.findall(pattern, text))):
            found[name] = seen
    for name, pattern in FIGURES.items():
        if match := re.search(pattern, text):
            found[name] = float(match[1].replace(",", ""))
    return found


def compare(rows: Rows, name: str, found: Mapping[str, Any], seen: Mapping[str, Any], text: str) -> None:
    """A row for each choice that the log shows, one for the lines and one for the cache."""
    expected = predicted(found)
    if not seen.get("attention") and not seen.get("moe") and not seen.get("tokens"):
        first = [line for line in text.splitlines() if re.search(r"Error|error:", line)]
        told = [one.get("message", "") for one in found.get("refusals", [])]
        why = (first[-1] if first else text[-200:])[-300:]
        rows.add(
            f"{name}: started", bool(told), why, "a start, unless predict names a refusal" + f": {told}" * bool(told)
        )
        return
    # A draft's attention has a line like the model's.
    for key, line in {**dict(zip(CHOICES, CHOICES, strict=True)), "draft": "attention"}.items():
        if line in seen and key in expected:
            named = set(re.split(r"[,\s/]+", expected[key].lower()))
            logged_ = {word for one in seen[line] for word in one.lower().split("/")}
            rows.add(f"{name}: {key}", bool(named & logged_), f"log {', '.join(seen[line])}", expected[key])
        elif key in seen:
            rows.add(f"{name}: {key}", None, f"log {', '.join(seen[key])}", "unknown")
    memory = found.get("memory") or {}
    room = seen.get("available_gib", 0) * (1 << 30)
    if room and seen.get("tokens") and memory.get("sequence"):
        tokens = room / memory["sequence"] * memory["context"]
        off = tokens / seen["tokens"] - 1
        rows.add(f"{name}: KV tokens in the memory that the server found", abs(off) <= 0.1,
                 f"{seen['tokens']:.0f} in the log", f"{tokens:.0f} ({off:+.1%}), within 10 %")  # fmt: skip
    if memory.get("room") and seen.get("tokens") and memory.get("sequence"):
        tokens = memory["room"] / memory["sequence"] * memory["context"]
        off = tokens / seen["tokens"] - 1
        rows.add(f"{name}: KV tokens as estimated", abs(off) <= 0.1, f"{seen['tokens']:.0f} in the log; model "
                 f"{seen.get('model_gib')} GiB, free for the cache {seen.get('available_gib')} GiB",
                 f"{tokens:.0f} ({off:+.1%}), within 10 %; weights {(memory.get('weights') or 0) / (1 << 30):.2f} GiB, "
                 f"room {memory['room'] / (1 << 30):.2f} GiB")  # fmt: skip


@step("log", "what was predicted, against the server's log")
def log(day: Day, rows: Rows) -> None:
    before = kept(day, "predict").get("data", {}).get("predict")
    if not before:
        raise NotRun("no prediction: run the step predict first")
    text = day.log(day.service)
    seen = logged(text)
    compare(rows, day.service, before, seen, text)
    rows.data["log"] = seen


@step("models", "predict against the log, model by model")
def models(day: Day, rows: Rows) -> None:
    if day.foreign or not (day.hub / NAME / "gpt-oss/config.json").exists():
        raise NotRun("no models: run the step model first")
    chosen = day.options.models or [name for name in MODELS if name != WHOLE]
    answers, texts = dict[str, Any](), dict[str, str]()
    if not day.two:
        day.envgen("down", day.service)  # its memory is needed
    batches = [chosen[at : at + day.options.at_once] for at in range(0, len(chosen), day.options.at_once)]
    for batch in batches:
        with ThreadPoolExecutor(len(batch)) as pool:
            asked = {name: pool.submit(day.envgen, "predict", service_of(name), "--json") for name in batch}
            texts |= started(day, batch)
            answers |= {name: one.result().document for name, one in asked.items()}
        for name in batch:
            (day.work / "logs" / f"server-{name}.log").write_text(texts[name])
    for name in chosen:
        seen = logged(texts[name])
        compare(rows, name, answers[name], seen, texts[name])
        rows.data[name] = {"log": seen, "predict": predicted(answers[name]), "memory": answers[name].get("memory")}


def started(day: Day, names: Sequence[str], limit: float = 400) -> dict[str, str]:
    """Start servers without waiting for an answer; their logs once they serve or have ended. They are removed."""
    services = [service_of(name) for name in names]
    begun = day.envgen("up", "--no-wait", "--no-predict", *services)
    until, open_ = time.monotonic() + limit, dict.fromkeys(names, "")
    waiting = set(names)
    while waiting and time.monotonic() < until:
        time.sleep(2)
        for name in sorted(waiting):
            text = day.log(service_of(name))
            container = day.container(service_of(name))
            state = day.docker("inspect", "--format", "{{.State.Running}}", container).out.strip() if container else ""
            open_[name] = text or begun.last
            if STARTED in text or state != "true":
                waiting.discard(name)
    day.envgen("down", *services)
    return open_


@step("whole", "all 36 layers in all of the memory: the estimate against the log")
def whole(day: Day, rows: Rows) -> None:
    if day.foreign or not (day.hub / NAME / WHOLE / "config.json").exists():
        raise NotRun("no models: run the step model first")
    if not day.two:
        day.envgen("down", day.service)
    answer = day.envgen("predict", service_of(WHOLE), "--json").document
    text = started(day, [WHOLE])[WHOLE]
    (day.work / "logs" / f"server-{WHOLE}.log").write_text(text)
    seen = logged(text)
    # A path, not a repository: the published size of its weights is added here.
    memory = answer.get("memory") or {}
    compare(rows, WHOLE, answer, seen, text)
    rows.data["whole"] = {"log": seen, "memory": memory}
    if memory.get("sequence") and seen.get("tokens") and seen.get("model_gib") and answer.get("gpu"):
        room = int(answer["gpu"]["memory"] * 0.9) - int(seen["model_gib"] * (1 << 30)) - memory["engine"]
        tokens = room / memory["sequence"] * memory["context"]
        off = tokens / seen["tokens"] - 1
        rows.add("KV tokens from the size of the loaded model", abs(off) <= 0.1, f"{seen['tokens']:.0f} in the log; "
                 f"model {seen['model_gib']} GiB, free for the cache {seen.get('available_gib')} GiB",
                 f"{tokens:.0f} ({off:+.1%}), within 10 %")  # fmt: skip


# The kernel's day


@step("kernel", "a FlashInfer kernel: compiled, edited, stale, cleared, compiled again, running")
def kernel(day: Day, rows: Rows) -> None:
    if day.foreign:
        raise NotRun("it edits FlashInfer in the container of the service dev of gpu-day's own project")
    begun = day.envgen("up", "dev", "--recreate")
    if begun.code:
        raise NotRun(f"the service dev does not start: {begun.last}")

    def kernels(*words: str) -> dict[str, Any]:
        done = day.envgen("exec", "-T", "dev", "--", "python3", f"{OURS}/gpu_kernels.py", *words, timeout=900)
        found: dict[str, Any] = json.loads(done.out.strip().split("\n")[-1]) if done.code == 0 else {}
        return found or {"failed": done.last}

    first = kernels()
    good = all(first.get(name, {}).get("right") for name in ("quantization", "silu_and_mul"))
    if not rows.add("two kernels are compiled at first use and agree with torch", good, first):
        return
    again = kernels()
    quick = sum(again[name]["seconds"] for name in ("quantization", "silu_and_mul"))
    rows.add("a second process loads them", quick < 5, f"{quick:.1f} s", "seconds")
    states = {one["name"]: one for one in day.envgen("cache", "list", "--json").document.get("modules", [])}
    listed = {name: one["state"] + ("?" if one.get("guess") else "") for name, one in states.items()}
    rows.add(
        "cache list",
        all(listed.get(name) in ("fresh", "fresh?") for name in ("quantization", "silu_and_mul")),
        listed,
        "fresh",
    )
    warmed = day.envgen("cache", "warm", "quantization", "--json")
    rows.add("cache warm of what is there", warmed.code == 0, warmed.document.get("modules", warmed.last), "",
             warmed.seconds)  # fmt: skip
    header = Path(kernels("edit").get("header", "?")).name
    trapped = kernels()
    old = trapped.get("quantization", {}).get("right") is True
    rows.add("the header is edited under an old time: FlashInfer runs the old kernel", old, trapped, "the trap")
    why = day.envgen("cache", "why", "quantization")
    rows.add(
        "cache why names the header", why.code == 1 and header in why.out, why.out.strip()[:300], f"exit 1, {header}"
    )
    cleared = day.envgen("cache", "clear", "--stale", "--json")
    names = [one["name"] for one in cleared.document.get("modules", [])]
    rows.add("cache clear --stale", names == ["quantization"], names or cleared.last, "quantization alone")
    warmed = day.envgen("cache", "warm", "quantization")
    rows.add("cache warm quantization", warmed.code == 0, warmed.last, "exit 0", warmed.seconds)
    edited = kernels()
    ratio = edited.get("quantization", {}).get("ratio")
    rows.add("the new code runs: its values are 0", ratio == 0.0, edited, "ratio 0.0")
    rows.add("the other kernel is untouched", edited.get("silu_and_mul", {}).get("right") is True, "right", "right")
    kernels("undo")
    day.envgen("cache", "clear", "quantization")
    last = kernels()
    rows.add(
        "edit undone, quantization cleared by name: right again",
        last.get("quantization", {}).get("right") is True,
        last,
        "right",
    )


# Trouble


@step("crash", "a wrong flag, too little memory, a killed engine: what explain says, and the bundle")
def crash(day: Day, rows: Rows) -> None:
    service = f"services.{day.service}.args"
    if not day.options.without_gpu:
        done = day.envgen("up", day.service, "--recreate", "--set", f"{service}.no-such-flag=1")
        rows.add("a wrong flag is refused before a start", done.code == 6 and "no-such-flag" in done.err, done.last,
                 "exit 6", done.seconds)  # fmt: skip
    flag = day.envgen("up", day.service, "--recreate", "--no-predict", "--set", f"{service}.no-such-flag=1")
    failed(day, rows, "a wrong flag, not asked before", flag)
    little = ["gpu-memory-utilization=0.03"] if not day.options.without_gpu else ["kv-cache-memory-bytes=4096"]
    small = day.envgen(
        "up", day.service, "--recreate", "--no-predict", *(w for one in little for w in ("--set", f"{service}.{one}"))
    )
    failed(day, rows, "too little memory", small)
    if not start(day, rows, "up again"):
        return
    container = day.container(day.service)
    kill = (
        "import os, signal\nfor p in os.listdir('/proc'):\n try: t = open(f'/proc/{p}/cmdline').read()\n"
        " except OSError: continue\n if p.isdigit() and 'EngineCore' in t: os.kill(int(p), signal.SIGKILL); print(p)"
    )
    killed = day.docker("exec", container, "python3", "-c", kill)
    began = time.monotonic()
    while time.monotonic() < began + 90:
        if day.docker("inspect", "--format", "{{.State.Running}}", container).out.strip() != "true":
            break
        time.sleep(0.5)
    after = time.monotonic() - began
    told = day.run([sys.executable, "-m", "envgen", "explain", "-", "--json"], stdin=day.log(day.service))
    found = [one["rule"] for one in told.document.get("explanations", [])]
    why = ", ".join(found) or told.document.get("first_exception")
    ended = bool(killed.out.strip()) and after < 90
    rows.add("the engine is killed: the server ends", ended, f"{after:.1f} s; explain: {why}", "it ends", after)
    day.envgen("down", day.service)


def failed(day: Day, rows: Rows, what: str, done: Done) -> None:
    """A start that had to fail: exit 5, a bundle with its parts, and what explain says."""
    match = re.search(r"(\S+\.tar\.gz)", done.err)
    bundle = (day.project / match[1]) if match else None
    told = day.run([sys.executable, "-m", "envgen", "explain", str(bundle), "--json"]) if bundle else None
    found = [f"{one['cause']} ({one['rule']})" for one in told.document.get("explanations", [])] if told else []
    seen = f"explain: {'; '.join(found) or (told.document.get('first_exception') if told else 'no bundle')}"
    rows.add(what, done.code == 5 and bool(found), f"exit {done.code}; {seen}", "exit 5, a known cause", done.seconds)
    if bundle:
        members = day.run(["tar", "tzf", str(bundle)]).out.split()
        parts = sorted({Path(one).name for one in members})
        lacking = {"server.log", "gpu.txt"} - set(parts)
        rows.add(f"{what}: the bundle", not lacking, ", ".join(parts), "server.log, gpu.txt, ...")
    plain = day.run([sys.executable, "-m", "envgen", "explain"])
    rows.add(f"{what}: explain without a name", None, (plain.out or plain.err).strip()[:300])


@step("debug", "the variant debug: each kernel launch waits, no CUDA graphs")
def debug(day: Day, rows: Rows) -> None:
    if "debug" not in day.settings.variants:
        raise NotRun("the profile has no variant debug")
    if start(day, rows, "envgen up --variant debug", "--variant", "debug", "--recreate"):
        seen = day.docker("exec", day.container(day.service), "sh", "-c", "echo $CUDA_LAUNCH_BLOCKING").out.strip()
        rows.add("CUDA_LAUNCH_BLOCKING in it", seen == "1", seen, "1")


@step("two-gpus", "tensor parallel over two GPUs in one container")
def two_gpus(day: Day, rows: Rows) -> None:
    if len(day.gpus()) < 2:
        raise NotRun("one GPU")
    day.envgen("down", day.service)
    place = f"services.{day.service}"
    sets = ("--set", f"{place}.args.tensor-parallel-size=2", "--set", f'{place}.gpu=["0", "1"]')
    if start(day, rows, "tensor-parallel-size 2", "--recreate", *sets):
        text = day.log(day.service)
        seen = re.findall(r"world_size=(\d+)", text)
        rows.add("its log: world_size", "2" in seen, f"{sorted(set(seen))}; {logged(text)}", "2")
        answer = day.envgen("predict", day.service, "--json", *sets).document
        compare(rows, "tensor-parallel-size 2", answer, logged(text), text)


@step("down", "stop, and remove what was started")
def down(day: Day, rows: Rows) -> None:
    done = day.envgen("down", *(() if day.foreign else ("--volumes",)))
    left = day.docker(
        "ps", "-aq", "--filter", f"label=com.docker.compose.project={day.settings.compose_name}"
    ).out.split()
    rows.add("envgen down", done.code == 0 and not left, f"{len(left)} containers left", "none", done.seconds)


def clean(day: Day) -> None:
    """Remove everything of the day, and nothing else that lies in its folder."""
    if day.foreign:
        sys.exit("gpu-day: the project is your own; `envgen down` stops it")
    if not (day.work / MARKER).is_file():
        sys.exit(f"gpu-day: {day.work} is not a folder that it made; nothing was removed")
    if (day.project / "envgen.yaml").exists():
        day.envgen("down", "--volumes")
        image_name = day.settings.image_name
        # What containers wrote may belong to root.
        empty = ("-v", f"{day.hub}:/hub", image_name, "-rf", "/hub/hub", f"/hub/{NAME}")
        day.docker("run", "--rm", "--entrypoint", "rm", *empty)
        day.docker("image", "rm", "-f", image_name)
    for path in (day.work / name for name in OWN):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    if any(day.work.iterdir()):
        print(f"gpu-day: {day.work} stays: it has files that are not its own", file=sys.stderr)
    else:
        day.work.rmdir()


# --- the report -------------------------------------------------------------------------------------------------------


def kept(day: Day, name: str) -> dict[str, Any]:
    """What a step has left; {} if it was not run."""
    path = day.work / "steps" / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


@contextlib.contextmanager
def noted(day: Day, name: str, rows: Rows) -> Iterator[None]:
    """Write the step's result, however it ends."""
    title, _ = STEPS[name]
    began, why, outcome, stopped = time.monotonic(), "", "passed", False
    print(f"== {name}: {title}", file=sys.stderr, flush=True)
    try:
        yield
    except NotRun as reason:
        outcome, why = "not run", str(reason)
    except KeyboardInterrupt:
        stopped = not rows.add("the step itself", False, "interrupted")
    except Exception as error:  # whatever a server answers, the other steps run
        rows.add("the step itself", False, f"{type(error).__name__}: {error}")
    if any(row["held"] is False for row in rows.rows):
        outcome = "failed"
    document = {
        "step": name, "title": title, "outcome": outcome, "why": why, "seconds": round(time.monotonic() - began, 1),
        "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "rows": rows.rows,
        "data": rows.data,
    }  # fmt: skip
    folder = day.work / "steps"
    folder.mkdir(parents=True, exist_ok=True)
    files.write(folder / f"{name}.json", json.dumps(document, indent=1, default=str).encode())
    print(visible(f"   {outcome} after {document['seconds']} s {why}"), file=sys.stderr, flush=True)
    if stopped:
        raise KeyboardInterrupt


def anonymous(day: Day, text: str) -> str:
    """``text`` without secrets and names of this machine, its users and its folders."""
    names = {str(day.work): "~/gpu-day", str(TOP): "envgen", str(Path.home()): "~", socket.gethostname(): "host"}
    with contextlib.suppress(KeyError, OSError):
        names[f"/home/{getpass.getuser()}"] = "~"
    for name in sorted(names, key=len, reverse=True):
        if len(name) > 3 and name != "/root":
            text = text.replace(name, names[name])
    return redact(text)


def anonymous_values(day: Day, value: Any) -> Any:
    """``value`` with each text made anonymous by itself: a secret that has no end would take the rest along."""
    if isinstance(value, dict):
        return {key: anonymous_values(day, one) for key, one in value.items()}
    if isinstance(value, list):
        return [anonymous_values(day, one) for one in value]
    return anonymous(day, value) if isinstance(value, str) else value


def report(day: Day) -> str:
    """Write gpu-day.json and gpu-day.md; the latter's text."""
    done = [kept(day, name) for name in STEPS]
    found = [anonymous_values(day, one) for one in done if one]
    absent = [name for name in STEPS if not kept(day, name)]
    text = json.dumps({"format": 1, "without_gpu": bool(day.options.without_gpu), "steps": found}, indent=1)
    (day.work / "gpu-day.json").write_text(anonymous(day, text) + "\n")
    lines = ["# gpu-day" + (" WITHOUT A GPU: a trial of the script" if day.options.without_gpu else "")]
    lines += ["", f"envgen, profile `{day.profile}`, {found[0]['at'][:10] if found else ''}", ""]
    lines += ["| step | | seconds | seen | expected |", "| --- | --- | --- | --- | --- |"]

    def cell(value: object) -> str:
        return visible(re.sub(r"\s+", " ", str(value))).replace("|", "\\|")

    for one in found:
        lines.append(f"| **{one['step']}** | {one['outcome']} | {one['seconds']} | {cell(one['why'])} | |")
        for row in one["rows"]:
            mark = {True: "ok", False: "FAILED", None: "note"}[row["held"]]
            seconds = row.get("seconds", "")
            lines.append(
                f"| {cell(row['what'])} | {mark} | {seconds} | {cell(row['seen'])} | {cell(row['expected'])} |"
            )
    lines += ["", "Not run: " + (", ".join(absent) or "nothing") + "."]
    page = anonymous(day, "\n".join(lines) + "\n")
    (day.work / "gpu-day.md").write_text(page)
    return page


def main(words: Sequence[str]) -> int:
    """Run the steps that are named, or all; 0 if none failed."""
    titles = "\n".join(f"  {name:<12} {title}" for name, (title, _) in STEPS.items())
    parser = argparse.ArgumentParser(
        prog="scripts/gpu-day", description=DESCRIPTION, epilog=EPILOG.format(steps=titles),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state") / "envgen/gpu-day"
    parser.add_argument("steps", nargs="*", metavar="STEP", help="the steps to run (default: all)")
    parser.add_argument("--work", default=str(state), metavar="FOLDER", help=f"its folder (default: {state})")
    parser.add_argument("--wheels", metavar="FOLDER", help="wheels, for a machine without a package index")
    parser.add_argument("--tokenizer", metavar="FOLDER", help="o200k_base.tiktoken, or gpt-oss's tokenizer")
    parser.add_argument("--repo", metavar="REPO", help="serve the real weights from your Hugging Face cache")
    parser.add_argument("--layers", type=int, default=2, help="layers of the model that is made (default: 2)")
    parser.add_argument("--utilization", type=float, default=0.7, help="the server's share of the memory (0.7)")
    parser.add_argument("--local", metavar="FILE", help="YAML with changes of your own to the profile")
    parser.add_argument("--base", metavar="IMAGE", help="a stand-in for the base image, which the report names as such")
    parser.add_argument("--base-note", default="", help="what the stand-in is made of")
    names = functools.partial(str.split, sep=",")
    parser.add_argument("--protect", type=names, default=[], metavar="NAME,...",
                        help="with --base: packages that it has and keeps")  # fmt: skip
    parser.add_argument("--override", type=names, default=[], metavar="NAME,...",
                        help="with --base: dependencies that are left out")  # fmt: skip
    parser.add_argument("--bench", default="", help="options for bench and accept, such as '--pp 512 --runs 2'")
    parser.add_argument("--accept", default="", help="options for accept alone, such as '--requests 50'")
    parser.add_argument("--models", type=names, default=[], metavar="NAME,...",
                        help=f"those of the step models (default: all): {', '.join(MODELS)}")  # fmt: skip
    parser.add_argument("--at-once", type=int, default=7, help="servers at once in the step models (default: 7)")
    parser.add_argument("--project", metavar="FOLDER", help="the day of a project of your own, built already")
    parser.add_argument("--profile", default="prod", help="its profile (default: prod)")
    parser.add_argument("--service", default="serve", help="its service (default: serve)")
    parser.add_argument("--without-gpu", action="store_true", help="try this script without a GPU; the report says so")
    day = Day(parser.parse_args(words))
    if day.options.steps == ["clean"]:
        try:
            clean(day)
        except (EnvgenError, OSError) as error:
            sys.exit(f"gpu-day: {error}")
        return 0
    if strange := set(day.options.models) - set(MODELS):
        parser.error(f"no model {', '.join(sorted(strange))}; models: {', '.join(MODELS)}")
    unknown = [name for name in day.options.steps if name not in (*STEPS, "report")]
    if unknown:
        parser.error(f"no step {', '.join(unknown)}; steps: {', '.join(STEPS)}, report, clean")
    day.require()
    day.claim()
    chosen = [name for name in STEPS if name in day.options.steps] if day.options.steps else list(STEPS)
    try:
        for name in chosen:
            rows = Rows()
            with noted(day, name, rows):
                STEPS[name][1](day, rows)
            report(day)
    except KeyboardInterrupt:
        report(day)
        print("gpu-day: interrupted; what was started still runs: `scripts/gpu-day clean` removes it", file=sys.stderr)
        return 130
    print(report(day))
    print(f"gpu-day: {day.work / 'gpu-day.md'}, {day.work / 'gpu-day.json'}", file=sys.stderr)
    return int(any(kept(day, name).get("outcome") == "failed" for name in chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
