"""The day: its options, its folder and project, what a step has seen, and the list of steps."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from envgen.deployment.service import url_of
from envgen.profile.load import load_project
from envgen.redact import redact
from envgen.text import visible
from gpu_day.models import INSIDE, MODELS, NAME, OURS, TOP, service_of

MARKER = ".gpu-day"
SMALL_MOE = "moe90.patch"
# All that it writes into its folder, and all that `clean` removes from it.
OWN = ("project", "huggingface", "logs", "steps", "gpu-day.json", "gpu-day.md", MARKER)

# Not `-m envgen`: that would run the Python files of the project's folder.
ENVGEN = (sys.executable, str(Path(__file__).with_name("launch.py")))


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

    def add(
        self,
        what: str,
        held: bool | None,
        seen: object,
        expected: str = "",
        seconds: float | None = None,
    ) -> bool:
        """A row; ``held`` None: noted, not judged."""
        row: dict[str, Any] = {
            "what": what,
            "held": held,
            "seen": redact(str(seen))[:600],
            "expected": expected,
        }
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
        group = [command, *rest[:1]] if command in ("cache", "nodes", "patch") else [command]
        rest = rest[len(group) - 1 :]
        done = self.run([*ENVGEN, *group, "-p", self.profile, *rest], timeout=timeout, stdin=stdin)
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
        return self.docker(
            "ps", "-aq", "--no-trunc", "--filter", label, "--filter", project
        ).out.split("\n")[0]

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
        """Where this machine reaches the server: the published port, which need not be the
        container's.
        """
        return url_of(self.settings.services[self.service], "unix://")

    @property
    def served(self) -> str:
        return str(self.settings.services[self.service].ready.model)

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The server's answer as JSON."""
        data = None if body is None else json.dumps({"model": self.served, **body}).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            return json.load(reply)

    # The machine

    def gpus(self) -> list[dict[str, str]]:
        """The GPUs that nvidia-smi shows."""
        if self._gpus is not None:
            return self._gpus
        names = (
            "name",
            "driver_version",
            "compute_cap",
            "memory.total",
            "clocks.max.sm",
            "power.limit",
            "power.draw",
        )
        done = self.run(["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"])
        rows = [line.split(", ") for line in done.out.splitlines()] if done.code == 0 else []
        self._gpus = [dict(zip(names, row, strict=False)) for row in rows]
        return self._gpus

    @property
    def two(self) -> bool:
        """With two GPUs the service has the first, and the models that are compared have the
        second.
        """
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
        """Make the folder, or end with one sentence: what is in another's folder would be
        overwritten.
        """
        try:
            if (
                not (self.work / MARKER).is_file()
                and self.work.exists()
                and any(self.work.iterdir())
            ):
                sys.exit(
                    f"gpu-day: {self.work} has files that are not its own; name an empty folder with --work"
                )
            self.work.mkdir(parents=True, exist_ok=True)
            (self.work / MARKER).touch()
        except OSError as error:
            sys.exit(
                f"gpu-day: {self.work} can't be its folder: {error.strerror}; name another with --work"
            )

    # The project

    def write_project(self, expect: Mapping[str, str] | None = None) -> None:
        """The shipped project under another name; what only this machine needs is in its local
        file.
        """
        if self.foreign:
            return
        self.project.mkdir(parents=True, exist_ok=True)
        shipped = yaml.safe_load((TOP / "envgen.yaml").read_text())
        # The other profiles extend this one: what only this machine needs would reach them, too.
        only = {self.profile: shipped["profiles"][self.profile]}
        shipped |= {"name": NAME, "default_profile": self.profile, "profiles": only}
        if self.options.small_moe:
            only[self.profile]["sources"]["flashinfer"]["patches"] = "gpu_day_moe"
        (self.project / "envgen.yaml").write_text(yaml.safe_dump(shipped, sort_keys=False))
        for name in ("patches", "checks"):
            if not (self.project / name).exists():
                shutil.copytree(TOP / name, self.project / name)
        small = self.project / "patches/gpu_day_moe"
        small.mkdir(exist_ok=True)
        shutil.copyfile(Path(__file__).with_name(SMALL_MOE), small / SMALL_MOE)
        (small / "series").write_text(f"{SMALL_MOE}\n")
        local = self.project / "envgen.local.yaml"
        if expect is None and local.exists():
            ready = yaml.safe_load(local.read_text())["profiles"][self.profile]["services"][
                "serve"
            ].get("ready", {})
            expect = ready.get("expect", {})
        own = self.local(dict(expect or {}))
        if self.options.local:
            merge(own, yaml.safe_load(Path(self.options.local).expanduser().read_text()))
        local.write_text(yaml.safe_dump({"profiles": {self.profile: own}}, sort_keys=False))

    def local(self, expect: dict[str, Any]) -> dict[str, Any]:
        options, own = self.options, dict[str, Any]()
        capability = next((one["compute_cap"] for one in self.gpus()), "12.1")
        own["cuda"] = {
            "arch_list": capability + ("a" if int(capability.split(".")[0]) >= 9 else "")
        }
        if options.base:
            own["base"], own["apt"] = {"image": options.base, "apt": []}, {"runtime": []}
            own["pip"] = {"protect": list(options.protect), "override": list(options.override)}
            own["tiktoken"] = None
        if options.wheels:
            own["build"] = {"wheelhouse": str(Path(options.wheels).expanduser().resolve())}
        # A server that hangs ends itself; the step waits until Docker has started it again.
        served: dict[str, Any] = {"needs_memory": None, "restart": "unless-stopped"}
        if self.two:
            served["gpu"] = ["0"]
        args: dict[str, Any] = {}
        if not options.repo:
            own["caches"] = {"huggingface": {"path": INSIDE, "host": str(self.hub)}}
            # Two layers load in seconds; the rest of the memory is the cache's.
            args |= {"gpu-memory-utilization": options.utilization}
        own["services"] = {
            "serve": {**served, "args": args, "ready": {"expect": expect}},
            **self.candidates(),
        }
        if own["cuda"]["arch_list"] != "12.1a":
            own["services"]["serve"]["ready"]["expect"] = {
                "attention": None,
                "moe": None,
                "quantization": None,
                **expect,
            }
        return own

    def candidates(self) -> dict[str, Any]:
        """A service for each model whose prediction is compared with its log: a few layers of its
        published shape.
        """
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


Step = Callable[[Day, Rows], None]
STEPS: dict[
    str, tuple[str, Step]
] = {}  # as they register; main.ORDER is the order in which they run


def step(name: str, title: str) -> Callable[[Step], Step]:
    """Register a step."""

    def wrapper(function: Step) -> Step:
        STEPS[name] = (title, function)
        return function

    return wrapper


def start(day: Day, rows: Rows, what: str, *words: str) -> bool:
    """`envgen up` of the service, as a row."""
    done = day.envgen("up", day.service, "--json", *words, timeout=3600)
    found = done.document
    phases = ", ".join(
        f"{name} {seconds:.0f} s" for name, seconds in found.get("phases", {}).items()
    )
    chats = "; ".join(f"{name}: {one['seen']}" for name, one in found.get("chats", {}).items())
    seen = f"{found.get('completion', '')!r}; {chats}; {phases}" if done.code == 0 else done.last
    rows.data[what] = found
    return rows.add(what, done.code == 0, seen, "ready, with its phases", done.seconds)


def kept(day: Day, name: str) -> dict[str, Any]:
    """What a step has left; {} if it was not run."""
    path = day.work / "steps" / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found
