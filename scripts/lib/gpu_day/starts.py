"""Steps: what a start spends its time on, vLLM's Rust front end, and several GPUs."""

from __future__ import annotations

import re

from gpu_day.comparing import compare, logged
from gpu_day.day import Day, NotRun, Rows, start, step

# What both processes of a server import first, thrice: the first time the files are read from disk.
IMPORTS = """
import subprocess, sys, time
for _ in range(3):
    began = time.monotonic()
    code = "import vllm.entrypoints.openai.api_server, vllm.v1.engine.core"
    done = subprocess.run([sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:") and "[us]" not in line]
    own = {}
    for row in (line.split("|") for line in lines):
        top = row[2].strip().split(".")[0]
        own[top] = own.get(top, 0) + int(row[0].split(":")[1])
    most = sorted(own.items(), key=lambda item: -item[1])[:6]
    print(f"{time.monotonic() - began:.1f} s:", ", ".join(f"{name} {us / 1e6:.1f}" for name, us in most), flush=True)
"""


@step("imports", "what Python imports before a server begins to load, by package")
def imports(day: Day, rows: Rows) -> None:
    done = day.envgen("run", "-T", day.service, "--", "python3", "-c", IMPORTS, timeout=900)
    rows.add(
        "imports in a new container, three times",
        done.code == 0,
        done.out.strip() or done.last,
        "",
        done.seconds,
    )


@step("rust", "vLLM's Rust front end: what it refuses, and a server with it")
def rust(day: Day, rows: Rows) -> None:
    place = f"services.{day.service}"
    chosen = ("--set", f"{place}.env.VLLM_USE_RUST_FRONTEND=1")
    refused = day.envgen("up", day.service, "--recreate", *chosen)
    held = refused.code == 6 and "Rust front end" in refused.err
    rows.add(
        "its refusal of Python's parsers is told before a start",
        held,
        refused.last,
        "exit 6",
        refused.seconds,
    )
    without = [
        word
        for name in ("tool-call-parser", "reasoning-parser", "enable-auto-tool-choice")
        for word in ("--set", f"{place}.args.{name}=null")
    ]
    # With 0.33.0 it completes gpt-oss's prompts and answers its chats with 500.
    if not start(day, rows, "envgen up with the Rust front end", "--recreate", *chosen, *without):
        rows.add("explain", None, day.envgen("explain", day.service).out.strip()[:400])
        return
    chat = day.ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "Capital of France?"}],
                                            "max_tokens": 24})  # fmt: skip
    rows.add(
        "chat",
        bool(chat["choices"][0]["message"]["content"]),
        chat["choices"][0]["message"],
        "a text",
    )
    found = day.envgen("doctor", day.service, "--json", *chosen, *without).document.get(
        "findings", []
    )
    bad = [
        f"{one['check']}: {one['title']}"
        for one in found
        if one["severity"] in ("warning", "error")
    ]
    rows.add(
        "envgen doctor",
        not any(one["severity"] == "error" for one in found),
        bad or f"{len(found)} findings",
    )
    rows.add(
        "its log",
        None,
        [line for line in day.log(day.service).splitlines() if "RustFrontend" in line][-3:],
    )


@step("several-gpus", "tensor parallel over 2 and 4 GPUs in one container")
def several_gpus(day: Day, rows: Rows) -> None:
    most = len(day.gpus())
    if most < 2:
        raise NotRun("one GPU")
    day.envgen("down", day.service)
    place = f"services.{day.service}"
    for size in (size for size in (2, 4) if size <= most):
        numbers = ", ".join(f'"{number}"' for number in range(size))
        sets = (
            "--set",
            f"{place}.args.tensor-parallel-size={size}",
            "--set",
            f"{place}.gpu=[{numbers}]",
        )
        if start(day, rows, f"tensor-parallel-size {size}", "--recreate", *sets):
            text = day.log(day.service)
            seen = re.findall(r"world_size=(\d+)", text)
            rows.add(
                "its log: world_size",
                str(size) in seen,
                f"{sorted(set(seen))}; {logged(text)}",
                str(size),
            )
            answer = day.envgen("predict", day.service, "--json", *sets).document
            compare(rows, f"tensor-parallel-size {size}", answer, logged(text), text)
