"""A real vLLM whose API server, engine and worker are processes of their own, as on a GPU, with faults to be made."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu_server import CpuServer, free_port
from projects import docker

SITE = "/usr/local/lib/python3.11/dist-packages"  # of the stand-in base
PLUGIN = Path(__file__).with_name("data") / "lab_faults.py"
ABOUT = {
    "METADATA": "Metadata-Version: 2.1\nName: lab-faults\nVersion: 1\n",
    "entry_points.txt": "[vllm.general_plugins]\nlab_faults = lab_faults:load\n",
}


@dataclass(frozen=True)
class Faulty:
    """Service ``name`` of the server's profile."""

    server: CpuServer
    name: str
    port: int

    @classmethod
    def described(cls, server: CpuServer, name: str, **settings: Any) -> Faulty:
        """Written into the local file. ``settings``: of the service."""
        made = cls(server, name, free_port())
        about = made.folder / "lab_faults-1.dist-info"
        (made.folder / "on").mkdir(parents=True, exist_ok=True)
        about.mkdir(exist_ok=True)
        shutil.copy(PLUGIN, made.folder)
        for file, text in ABOUT.items():
            (about / file).write_text(text)
        made.write(**settings)
        return made

    def write(self, **settings: Any) -> None:
        service = {
            "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
            # bfloat16 on a CPU with AMX needs a right that only the first process asks for.
            "args": {
                "model": "/models/tiny", "served-model-name": "tiny", "port": 8000, "dtype": "float32",
                "max-model-len": 512, "enforce-eager": True, "kv-cache-memory-bytes": 64 << 20,
                "disable-access-log-for-endpoints": "/health,/metrics", **settings.pop("args", {}),
            },
            "env": {"VLLM_ENABLE_V1_MULTIPROCESSING": 1, **settings.pop("env", {})},
            "mounts": {
                "plugin": f"./faults/{PLUGIN.name}:{SITE}/{PLUGIN.name}:ro",
                "about": f"./faults/lab_faults-1.dist-info:{SITE}/lab_faults-1.dist-info:ro",
                "faults": "./faults/on:/faults:ro",
            },
            "ports": [f"127.0.0.1:{self.port}:8000"],
            "ready": {"model": "tiny", "port": 8000, "timeout": "900s"},
            **settings,
        }  # fmt: skip
        self.server.write_local({self.name: service})

    @property
    def folder(self) -> Path:
        return self.server.project.root / "faults"

    @property
    def container(self) -> str:
        return f"{self.server.project.name}-cpu-{self.name}-1"

    @property
    def restarts(self) -> int:
        return int(docker("inspect", "-f", "{{.RestartCount}}", self.container))

    @property
    def log(self) -> str:
        """What the container has logged since it was created."""
        path = docker("inspect", "-f", "{{.LogPath}}", self.container)
        rows = Path(path).read_text(encoding="utf-8").splitlines()
        return "".join(json.loads(row)["log"] for row in rows)

    def fault(self, name: str, *, on: bool) -> None:
        if on:
            (self.folder / "on" / name).touch()
        else:
            (self.folder / "on" / name).unlink(missing_ok=True)

    def pid(self, title: str) -> int:
        """On this machine. ``title``: what the command line has: EngineCore, Worker, api_server, libexec/server."""
        rows = docker("top", self.container, "-eo", "pid,args").splitlines()[1:]
        found = [int(row.split()[0]) for row in rows if title in row and "docker-init" not in row]
        return found[-1]

    def send(self, title: str, number: signal.Signals) -> None:
        os.kill(self.pid(title), number)

    def ask(self, path: str, body: Any = None, seconds: float = 60) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=seconds) as reply:
            text = reply.read()
        return json.loads(text) if text.startswith(b"{") else text.decode()

    def completes(self, seconds: float = 20, prompt: str | list[int] = "The", tokens: int = 4) -> bool:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0}
        with contextlib.suppress(OSError, ValueError, KeyError):
            return bool(self.ask("/v1/completions", body, seconds)["choices"])
        return False
