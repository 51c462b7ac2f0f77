"""Steps: the machine, the image, a model, and a server with what envgen says of it."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import time
from pathlib import Path

import yaml

from envgen.recipes.shipped import models as shipped_models
from gpu_day.comparing import predicted
from gpu_day.day import Day, Done, NotRun, Rows, start, step
from gpu_day.models import COMMIT, EAGLE, INSIDE, MODEL, MODELS, NAME, OURS, TOP, draft, shape

# Figures of a cell of `bench` and `smoke --full`.
SPEEDS = {
    "prefill_tps": ("prefill", "t/s"),
    "decode_tps": ("decode", "t/s"),
    "ttft_ms": ("first token", "ms"),
}


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
    given = (
        f"runtimes {', '.join(sorted(info.get('Runtimes', {})))}; CDI {', '.join(cdi) or 'none'}"
    )
    rows.add("Docker", None, f"{info.get('ServerVersion')}, {info.get('Driver')}, {given}")
    rows.data["gpus"] = found


@step("image", "the image of the profile, by its own Dockerfile")
def image(day: Day, rows: Rows) -> None:
    if day.foreign:
        raise NotRun("the project is your own: its image is built already")
    day.write_project()
    if day.options.base:
        rows.add(
            "base",
            None,
            f"a stand-in, {day.options.base}: {day.options.base_note or 'not NVIDIA image'}",
        )
    unlocked = bool(day.options.base or day.options.wheels)
    if not unlocked:
        locked = day.envgen("lock")
        rows.add("envgen lock", locked.code == 0, locked.last, "exit 0", locked.seconds)
    done = day.envgen("build", "--json", *(["--unlocked"] if unlocked else []), timeout=3600)
    rows.add(
        "envgen build",
        done.code == 0,
        done.last if done.code else day.settings.image_name,
        "exit 0",
        done.seconds,
    )
    listed = "import importlib.metadata as m\nfor n in ('vllm','flashinfer-python','torch','triton','nvidia-nccl-cu13'):\n"
    listed += " print(n, m.version(n))"
    versions = day.envgen("run", "-T", day.service, "--", "python3", "-c", listed)
    rows.add(
        "releases in it",
        versions.code == 0,
        ", ".join(versions.out.split("\n")).strip(", "),
        "vllm, flashinfer",
    )


@step("model", "a model of gpt-oss's width with random weights, which answers Paris")
def model(day: Day, rows: Rows) -> None:
    if day.foreign or day.options.repo:
        raise NotRun("the model is your own")
    day.write_project()
    ours = day.hub / NAME
    ours.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(TOP / "scripts/lib/gpu_model.py", ours / "gpu_model.py")
    (ours / "config.json").write_text(json.dumps(shipped_models()[MODEL]["config"]))
    words = ours / "tokenizer"
    words.mkdir(exist_ok=True)
    if day.options.tokenizer:
        for path in Path(day.options.tokenizer).expanduser().iterdir():
            if path.name != "config.json":  # of a whole model; each of ours has its own
                shutil.copyfile(path, words / path.name)
    elif not (words / "o200k_base.tiktoken").exists():
        entry = yaml.safe_load((TOP / "envgen.yaml").read_text())["defaults"]["tiktoken"][
            "encodings"
        ]["o200k_base"]
        fetch = [
            sys.executable,
            str(TOP / "docker/build/fetch"),
            "file",
            str(words / "o200k_base.tiktoken"),
        ]
        done = day.run([*fetch, entry["sha256"], entry["url"]])
        if done.code:
            raise NotRun(
                f"its vocabulary can't be fetched ({done.last}); name a folder with it: --tokenizer FOLDER"
            )
    for name in MODELS:
        place = ours / name
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps(shape(name)))
        for path in words.glob("*.json"):
            shutil.copyfile(path, place / path.name)
        vision = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16, "temporal_patch_size": 2,
                  "merge_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
                  "size": {"shortest_edge": 65536, "longest_edge": 16777216}}  # fmt: skip
        if name.startswith(("qwen3.6", "qwen3.8")):
            (place / "preprocessor_config.json").write_text(json.dumps(vision))
    for name, config in (
        ("gpt-oss-eagle3", EAGLE),
        ("qwen3.8-dflash2", draft("qwen3.8-27b-dflash2")),
    ):
        (ours / name).mkdir(exist_ok=True)
        (ours / name / "config.json").write_text(json.dumps(config))
    snapshot = f"{INSIDE}/hub/models--{MODEL.replace('/', '--')}/snapshots/{COMMIT}"
    words_ = [
        "python3",
        f"{OURS}/gpu_model.py",
        f"{OURS}/config.json",
        f"{OURS}/tokenizer",
        str(day.options.layers),
    ]
    # In production the weights are mounted read-only, unless the service goes to the hub itself.
    writable = ("--set", "services.serve.env.HF_HUB_OFFLINE=1")
    making = ("run", "-T", *writable, "serve", "--", *words_, snapshot)
    done = day.envgen(*making, timeout=1800)
    rows.add(
        "the model",
        done.code == 0,
        done.last if done.code else done.out.strip().split("\n")[-1],
        "",
        done.seconds,
    )


@step("predict", "what the release would choose on this GPU, before anything starts")
def predict(day: Day, rows: Rows) -> None:
    done = day.envgen("predict", day.service, "--json")
    found = done.document
    if not found.get("gpu"):
        rows.add(
            "envgen predict",
            None if day.options.without_gpu else False,
            done.last or "no answer",
            "an answer",
        )
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
        (
            "completion",
            "/v1/completions",
            {"prompt": "The capital of France is", "max_tokens": 12, "temperature": 0},
        ),
        ("chat", "/v1/chat/completions", {"messages": words, "max_tokens": 24, "temperature": 0}),
    ):
        began = time.monotonic()
        try:
            choice = day.ask(path, body)["choices"][0]
        except OSError as error:
            rows.add(name, False, error, "an answer")
            continue
        text = choice.get("text") or (choice.get("message") or {}).get("content") or ""
        wanted = "" if day.foreign or day.options.repo else "Paris"
        rows.add(
            name,
            wanted in text and bool(text),
            repr(text),
            wanted or "a text",
            time.monotonic() - began,
        )


@step("doctor", "does the container run the code that it should")
def doctor(day: Day, rows: Rows) -> None:
    done = day.envgen("doctor", day.service, "--json")
    found = done.document.get("findings", [])
    counts = {
        name: sum(one["severity"] == name for one in found)
        for name in ("ok", "info", "warning", "error")
    }
    bad = [
        f"{one['check']}: {one['title']}"
        for one in found
        if one["severity"] in ("warning", "error")
    ]
    text = ", ".join(f"{many} {name}" for name, many in counts.items()) + "".join(
        f"; {one}" for one in bad
    )
    # Without a container doctor checks little, and finds no error.
    inside = any(one["check"] == "import.truth" for one in found)
    wanted = "no error, imports checked"
    rows.add("envgen doctor", done.code == 0 and inside, text, wanted, done.seconds)
    rows.data["doctor"] = bad


def measured(day: Day, rows: Rows, *words: str) -> Done:
    done = day.envgen(*words, "--json", timeout=1800)
    found = done.document
    lacking = [one for one in found.get("criteria", []) if one["verdict"] != "passed"]
    told = [
        f"{one['name']} {one['verdict']}: {one['seen']}, wanted {one['wanted']}" for one in lacking
    ]
    cells = []
    for cell in found.get("cells", []):
        figures = [
            f"{name} {cell[key]['median']:.0f} {unit}"
            for key, (name, unit) in SPEEDS.items()
            if cell.get(key)
        ]
        cells.append(f"{cell['test']}: {', '.join(figures)}")
    seen = "; ".join([str(found.get("outcome", "")), *cells, *told]).strip("; ") or done.last
    # The model that is made here calls no tool, which `smoke --full` does not let pass.
    made = not (day.foreign or day.options.repo)
    good = done.code == 0 or (
        made
        and bool(lacking)
        and all(one["name"] == "tool call" and one["verdict"] == "not checked" for one in lacking)
    )
    rows.add(
        f"envgen {' '.join(words)}",
        good,
        seen,
        "passed" + ", but for the tool call" * made,
        done.seconds,
    )
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


@step("load", "smoke --full: 200 requests, 8 at once")
def load(day: Day, rows: Rows) -> None:
    measured(day, rows, "smoke", day.service, "--full")
