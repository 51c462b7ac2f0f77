"""A project that serves a small model of the hub with the real vLLM for CPUs, for what starts from nothing."""

from __future__ import annotations

from pathlib import Path

import yaml
from projects import BASE

QUICKSTART = Path(__file__).parents[2] / "examples/quickstart/envgen.yaml"


def project_file(name: str, port: int, interval: str = "2s", **env: object) -> str:
    """The text of envgen.yaml: that of the quickstart, so that the engine's build cache has its steps, but with a model
    of the hub. Its server answers on 127.0.0.1:``port``. ``interval``: of its health check; ``env``: of its service."""
    file = yaml.safe_load(QUICKSTART.read_text(encoding="utf-8"))
    profile = file["profiles"]["cpu"]
    serve = profile["services"]["serve"]
    for place, key in ((profile, "description"), (profile, "dockerfile"), (profile, "env"),
                       (serve["args"], "disable-access-log-for-endpoints")):  # fmt: skip
        del place[key]
    profile["caches"] = {"huggingface": {"path": "/root/.cache/huggingface", "host": "huggingface"}}
    serve |= {
        "model": {"repo": "acme/tiny"}, "args": {**serve["args"], "model": "acme/tiny"},
        "env": {"VLLM_NO_USAGE_STATS": 1, "TORCHDYNAMO_DISABLE": 1, **env}, "ports": [f"127.0.0.1:{port}:8000"],
        "health": {**serve["health"], "interval": interval},
    }  # fmt: skip
    file |= {"name": name, "default_profile": "prod", "profiles": {"prod": profile}}
    file["defaults"]["base"]["image"] = BASE
    return str(yaml.safe_dump(file, sort_keys=False))
