"""A package index of small packages in several releases, and the server that they make.

`toyserver` answers like a vLLM, as far as `up`, `answers` and `bench` ask; `llama-benchy` here is a STAND-IN that
prints the rate which the server declares, so that no test depends on how busy the machine is.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import http.server
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from local import free_port, serving
from projects import Project, docker, lean_base

SERVER = '''
import argparse, json, os, time, zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import toyanswer, toyspeed, toystart

def step(prefix):
    """The likeliest tokens after a text."""
    first = zlib.crc32(repr(list(prefix)[-4:]).encode()) % 1000
    other = toyanswer.SEED == 2 and first % 16 == 0
    return {(first + n) % 1000: -0.2 - 2 * (n ^ 1 if other else n) for n in range(8)}

def ids(prompt):
    return list(prompt) if isinstance(prompt, list) else [b for b in prompt.encode()][-400:]

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        card = {"id": "test/toy", "root": "/toy", "max_model_len": 512}
        self.reply({"data": [card]} if "models" in self.path else {"rate": toyspeed.RATE})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        chat = "messages" in asked
        prompt = ids(asked["messages"][-1]["content"] if chat else asked["prompt"])
        text, tops = list(prompt), []
        for _ in range(min(asked.get("max_tokens", 8), 32)):
            tops.append(step(text))
            text.append(max(tops[-1], key=tops[-1].get))
        new = text[len(prompt):]
        words = "".join(" %d" % token for token in new)
        choice = {"index": 0, "token_ids": new, "prompt_token_ids": prompt, "finish_reason": "length"}
        choice.update({"message": {"role": "assistant", "content": words}} if chat else {"text": words})
        choice["logprobs"] = {"top_logprobs": [{"token_id:%d" % k: v for k, v in one.items()} for one in tops]}
        if asked.get("prompt_logprobs"):
            rows = [{str(k): {"logprob": v} for k, v in step(prompt[:n]).items()} for n in range(1, len(prompt))]
            choice["prompt_logprobs"] = [None, *rows]
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(new)}
        document = {"model": "test/toy", "prompt_token_ids": prompt, "choices": [choice], "usage": usage}
        self.stream(document) if asked.get("stream") else self.reply(document)

    def stream(self, document):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        (choice,) = document["choices"]
        part = {"delta": choice["message"]} if "message" in choice else {"text": choice["text"], "logprobs": None}
        for event in ({"choices": [part]}, {"choices": [{"finish_reason": "length"}]}):
            self.wfile.write(b"data: " + json.dumps({"model": "test/toy", **event}).encode() + b"\\n\\n")
        self.wfile.write(b"data: [DONE]\\n\\n")

    def reply(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

def make_arg_parser(parser):
    parser.add_argument("--port", type=int)
    parser.add_argument("words", nargs="*")
    for name in ("tensor-parallel-size", "distributed-executor-backend", "nnodes", "master-port", "node-rank",
                 "master-addr", "served-model-name"):
        parser.add_argument("--" + name)
    parser.add_argument("--headless", action="store_true")
    FLAGS
    return parser

def main():
    parser = make_arg_parser(argparse.ArgumentParser())
    parser.parse_args()
    print("RELEASE", flush=True)
    while parser.parse_args().headless:
        time.sleep(1)
    time.sleep(float(os.environ.get("TOY_START", "0")))
    ThreadingHTTPServer(("0.0.0.0", parser.parse_args().port), Handler).serve_forever()

if __name__ == "__main__":
    main()
'''
# As much of a vLLM as `envgen predict` asks; in each wheel of toyserver.
VLLM = {
    "vllm/__init__.py": "",
    "vllm/logger.py": "",
    "vllm/utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser",
    "vllm/entrypoints/openai/cli_args.py": "from vllm.parser import make_arg_parser",
    "vllm/entrypoints/openai/api_server.py": "import toyserver\ntoyserver.main()\n",
}
SCRIPT = "[console_scripts]\nvllm = toyserver:main\n"
FLAGS = 'parser.add_argument("--greeting")'
BENCH = """
import argparse, json, urllib.request
parser = argparse.ArgumentParser()
parser.add_argument("--base-url"); parser.add_argument("--save-result"); parser.add_argument("--runs", type=int)
parser.add_argument("--pp", type=int); parser.add_argument("--tg", type=int)
given = parser.parse_known_args()[0]
rate = json.load(urllib.request.urlopen(given.base_url + "/rate"))["rate"]
values = {"values": [rate] * given.runs}
row = {"prompt_size": given.pp, "response_size": given.tg, "pp_throughput": values, "tg_throughput": values}
json.dump({"benchmarks": [{**row, "e2e_ttft": values}]}, open(given.save_result, "w"))
"""

CHANGES = "https://toy.example.com/changes"  # of toyspeed
BESIDE = ("speed", "answer", "start", *(f"fill{letter}" for letter in "abcdef"))
# Package, version, what it requires, its one module.
RELEASES = [
    ("llama-benchy", "0.0.1", [], BENCH),
    ("toyspeed", "1.0", [], "RATE = 100.0\n"),
    ("toyspeed", "2.0", [], "RATE = 50.0\n"),
    ("toyanswer", "1.0", [], "SEED = 1\n"),
    ("toyanswer", "2.0", [], "SEED = 2\n"),
    ("toystart", "1.0", [], ""),
    ("toystart", "2.0", [], "raise RuntimeError('this release does not start')\n"),
    *[(f"toyfill{letter}", version, [], "") for letter in "abcde" for version in ("1.0", "2.0")],
    ("toyfillf", "1.0", ["toyfille<2"], ""),
    ("toyfillf", "2.0", ["toyfille>=2"], ""),  # the two move together
    ("toyserver", "3.0", [f"toy{name}" for name in BESIDE], SERVER.replace("FLAGS", FLAGS)),
    *[
        ("toyserver", version, requires, SERVER.replace("FLAGS", flags).replace("RELEASE", f"toyserver {version}"))
        for version, requires, flags in (
            ("1.0", ["toyspeed<2", "toyanswer<2", "toystart<2"], FLAGS),
            ("1.1", ["toyspeed<2", "toyanswer<2", "toystart<2"], FLAGS),
            ("1.2", ["toyspeed<2", "toyanswer>=2", "toystart<2"], FLAGS),
            ("1.3", ["toyspeed<2", "toyanswer<2", "toystart>=2"], FLAGS),
            ("1.4", ["toyspeed>=2", "toyanswer<2", "toystart<2"], FLAGS),
            ("1.5", ["toyspeed<2", "toyanswer<2", "toystart<2"], "pass"),  # a flag is gone
        )
    ],
]


def wheel(folder: Path, name: str, version: str, requires: list[str], text: str) -> None:
    """Write a wheel with one module."""
    module = name.replace("-", "_")
    stem = f"{module}-{version}"
    info = f"{stem}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    changes = f"Project-URL: Changelog, {CHANGES}\n" if name == "toyspeed" else ""
    parser = text[text.find("def make_arg_parser") : text.find("def main")]
    held = {
        f"{module}.py": text,
        **({**VLLM, "vllm/parser.py": parser, f"{info}/entry_points.txt": SCRIPT} if name == "toyserver" else {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}{changes}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={_digest(content)},{len(content)}" for path, content in held.items()]
    held[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for path, content in held.items():
            archive.writestr(zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0)), content)


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        """A part of a file, too."""
        part, path = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")), self.translate_path(self.path)
        if not part:
            super().do_GET()
            return
        data, first, last = Path(path).read_bytes(), int(part[1]), int(part[2])
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.end_headers()
        self.wfile.write(data[first : last + 1])


def write_index(top: Path, releases: list[tuple[str, str, list[str], str]] = RELEASES) -> None:
    """The pages and files of an index below ``top``, in place of what it had."""
    shutil.rmtree(top / "simple", ignore_errors=True)
    for name in dict.fromkeys(one[0] for one in releases):
        folder = top / "simple" / name
        folder.mkdir(parents=True, exist_ok=True)
        for release in releases:
            if release[0] == name:
                wheel(folder, *release)
        files = sorted(folder.glob("*.whl"))
        digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        links = "".join(f'<a href="{file}#sha256={digest}">{file}</a>\n' for file, digest in digests.items())
        (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")


PROJECT = """\
profiles:
  prod:
    # the base without compilers
    mode: production
    base: {image: "BASE"}
    pip: {extra_indexes: ["INDEX"], tools: [llama-benchy]}
    sources:
      toy:
        package: vllm
        distribution: toyserver
        mount: /workspace/toy
        origin: {wheel: toyserver==1.0}  # a new release is this line
        install: {dependencies: true}
    targets:
      another box: {model: test/toy, source: a test, figures: {decode: 80}}
    services:
      serve:
        command: [python3, -m, vllm.entrypoints.openai.api_server]
        args: {port: 8000, greeting: hello}
        ports: ["127.0.0.1:PORT:8000"]
        ready: {port: 8000, model: test/toy, prompt: one}
"""


@contextlib.contextmanager
def toy_project(make: Callable[..., Project], name: str, top: Path, base: str = "") -> Iterator[Project]:
    """A project that serves toyserver from an index below ``top``; its base and images go with it."""
    base = base or lean_base(f"{name}base:1")
    gateway = docker("network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}")
    with index(top, gateway) as address:
        yield make(name, PROJECT.replace("BASE", base).replace("INDEX", address).replace("PORT", str(free_port())))
        ends = ("before", "candidate", "bisect")
        docker("image", "rm", "-f", *(f"{name}:prod-{end}" for end in ends), base, check=False)


@contextlib.contextmanager
def index(top: Path, host: str, releases: list[tuple[str, str, list[str], str]] = RELEASES) -> Iterator[str]:
    """An index of ``releases`` at ``host``; gives its address."""
    write_index(top, releases)
    server = http.server.ThreadingHTTPServer((host, 0), functools.partial(_Handler, directory=str(top)))
    with serving(server) as address:
        yield f"{address}/simple"
