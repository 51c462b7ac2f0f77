"""Settings that reach nobody: each is named with its place and the reason, and no other is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envgen.__main__ import main
from envgen.profile.load import load_project
from envgen.profile.unused import warnings

HEAD = """\
version: 1
name: demo
defaults:
  mode: production
  base: {image: debian:12}
  gpu: none
profiles:
  p:
    services:
      web:
        command: [x]
"""


def told(folder: Path, text: str, *sets: str, variant: str = "", profile: str = "p", **environ: str) -> list[str]:
    """`KEY: MESSAGE` of each warning."""
    (folder / "envgen.yaml").write_text(text)
    variables = {f"ENVGEN_{name}": value for name, value in environ.items()}
    loaded = load_project(file=folder / "envgen.yaml", sets=sets, environ=variables, profile=profile, variant=variant)
    found = warnings(loaded, variables)
    return [f"{(one.place and one.place.key) or (one.place and one.place.file)}: {one.message}" for one in found]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("        ready: {port: 80, prompt: Hello, expect_text: Hi}\n        ports: ['80:80']\n", []),
        ("        ready: {prompt: Hello}\n",
         ["services.web.ready.prompt: nothing is asked: no port is known to answer HTTP (ready.port)"]),
        ("        args: {host: 127.0.0.1, port: 80}\n        ports: ['80:80']\n",
         ["services.web.ports: the server listens on its container's own loopback, where nothing reaches it"]),
        ("        args: {host: 127.0.0.1, port: 80}\n        network: host\n", []),
        ("        health: {http: /health, complete: 5s}\n",
         ["services.web.health.complete: no token is asked for without ready.model"]),
        ("    ipc: host\n    shm_size: 1GiB\n", ["shm_size: with ipc: host, /dev/shm is the machine's"]),
        ("    caches: {torch: {path: /opt/t, namespace: false}}\n",
         ["caches.torch.namespace: only the cache `flashinfer` has namespaces"]),
        ("    nodes: {a: {address: 10.0.0.1, interface: eth0}}\n",
         ["nodes.a: no service runs there: none has it in `cluster.nodes`"]),
        ("    shm_size: null\n    env: {A: }\n",
         [f"{key}: null removes nothing: no weaker layer sets it" for key in ("shm_size", "env.A")]),
        ("    sources: {v: {origin: {wheel: v==1}, package: v, distribution: v, install: {requires: [cmake],\n"
         "      env: {A: 1}, prepare: [x]}, mount: /workspace/v}}\n",
         ["sources.v.install.requires: a wheel is installed as it is, not built",
          "sources.v.install.env: a wheel is installed as it is, not built",
          "sources.v.install.prepare: a wheel is installed as it is, not built",
          "sources.v.mount: only a checkout is mounted"]),
    ],
    ids=lambda value: value.strip()[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_what_reaches_nobody(tmp_path: Path, body: str, expected: list[str]) -> None:
    assert told(tmp_path, HEAD + body) == expected


def test_what_another_profile_shares_is_no_mistake_of_this_one(tmp_path: Path) -> None:
    text = HEAD.replace("  gpu: none\n", "  gpu: none\n  ipc: host\n  shm_size: 1GiB\n")
    assert told(tmp_path, text + "  q: {ipc: private, gpu: none}\n") == []
    message = ["shm_size: with ipc: host, /dev/shm is the machine's"]
    assert told(tmp_path, text) == told(tmp_path, text + "  q: {shm_size: 2GiB}\n") == message
    assert told(tmp_path, HEAD + "  q: {extends: p, ipc: host, shm_size: 1GiB}\n", profile="q") == message


@pytest.mark.parametrize(
    ("mount", "more", "told_of"),
    [
        ("/workspace/vllm", "", True),
        ("/workspace/vllm", "    python_path: [/workspace/vllm]\n", False),
        ("/workspace/source", "", False),
        ("/workspace/vllm", "    working_dir: /srv\n", False),
    ],
)
def test_a_checkout_that_hides_its_package(tmp_path: Path, mount: str, more: str, told_of: bool) -> None:
    body = HEAD.replace("mode: production", "mode: development") + more
    source = f"{{origin: {{checkout: ../v}}, package: vllm, distribution: vllm, mount: {mount}}}"
    found = told(tmp_path, body + f"    sources: {{vllm: {source}}}\n")
    where = "sources.vllm.origin.checkout: in /workspace, `import vllm` may give an empty namespace package"
    assert [line.startswith(where) for line in found] == [True] * told_of


@pytest.mark.parametrize("name", ["ENVGEN_BUILD__CCACHE", "ENVGEN_GPU", "ENVGEN_PROFIL", "ENVGEN_CACHES__VLLM__PATH"])
def test_a_variable_that_nothing_reads(tmp_path: Path, name: str) -> None:
    (tmp_path / "envgen.yaml").write_text(HEAD)
    loaded = load_project(file=tmp_path / "envgen.yaml")
    names = ("ENVGEN_BUILD__MAX_JOBS", "ENVGEN_CACHES__VLLM__HOST", "ENVGEN_MEMORY_FLOOR", "ENVGEN_HF_OFFLINE")
    (one,) = warnings(loaded, {name: "1", "ENVGEN_EMPTY": "", **dict.fromkeys(names, "1")})
    assert one.place is not None
    assert (one.place.file, one.message) == (name, "nothing reads this variable")
    assert "--set KEY=VALUE" in one.hint


@pytest.mark.parametrize("words", [["config"], ["config", "--explain"], ["render"], ["render", "--check"]])
def test_commands_that_say_it(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    (tmp_path / "envgen.yaml").write_text(HEAD + "    ipc: host\n    shm_size: 1GiB\n")
    main([*words, "-f", str(tmp_path / "envgen.yaml")])
    assert "warning: " in (text := capsys.readouterr().err)
    assert "shm_size: with ipc: host, /dev/shm is the machine's" in text


def test_config_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "envgen.yaml").write_text(HEAD + "    ipc: host\n    shm_size: 1GiB\n")
    assert main(["config", "--json", "-f", str(tmp_path / "envgen.yaml")]) == 0
    (one,) = json.loads(capsys.readouterr().out)["warnings"]
    assert (one["key"], one["line"]) == ("shm_size", 13)


@pytest.mark.parametrize("words", [["prune", "-n"], ["render", "--check"], ["lock", "--check"], ["status"]])
def test_a_profile_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """Also where a command is about all profiles."""
    (tmp_path / "envgen.yaml").write_text(HEAD)
    assert main([*words, "-f", str(tmp_path / "envgen.yaml"), "-p", "nope"]) == 2
    assert "envgen.yaml has no profile 'nope'" in capsys.readouterr().err


def test_binaries_null_takes_its_default_away(tmp_path: Path) -> None:
    """The wheel of the extended profile is no value of the file, so a null there is not one that removes nothing."""
    text = """\
version: 1
name: demo
defaults:
  base: {image: debian:12}
  gpu: none
  sources: {vllm: {package: vllm, distribution: vllm, install: {dependencies: true}}}
profiles:
  prod: {mode: production, sources: {vllm: {origin: {wheel: vllm==0.33.0}}}}
  dev:
    extends: prod
    mode: development
    sources: {vllm: {origin: {checkout: ../vllm}, binaries: null}}
"""
    assert not [line for line in told(tmp_path, text, profile="dev") if "null removes nothing" in line]


SERVED = """\
version: 1
name: demo
profiles:
  p:
    mode: production
    base: {image: debian:12}
    cuda: {arch_list: ARCH}
    sources: {vllm: {package: vllm, distribution: vllm, origin: {ORIGIN}}}
    env: {VLLM_ATTENTION_BACKEND: X, VLLM_USE_CUDA_GRAPH: "1", VLLM_USE_FLASHINFER_MOE_MXFP4_BF16: "1"}
    services: {serve: {command: [vllm, serve, a/b], ARGS, env: {VLLM_FLASHINFER_MOE_BACKEND: throughput}}}
"""


def served(folder: Path, args: str = "args: {}", arch: str = "12.1a", origin: str = "wheel: vllm==0.33.0") -> list[str]:
    text = SERVED.replace("ARCH", arch).replace("ORIGIN", origin).replace("ARGS", args)
    return told(folder, text)


def test_a_variable_that_the_release_no_longer_reads_is_told_where_it_is_set(tmp_path: Path) -> None:
    assert served(tmp_path) == [
        "env.VLLM_ATTENTION_BACKEND: vLLM no longer reads it",
        "env.VLLM_USE_CUDA_GRAPH: vLLM no longer reads it",
        "env.VLLM_USE_FLASHINFER_MOE_MXFP4_BF16: vLLM no longer reads it",
        "services.serve.env.VLLM_FLASHINFER_MOE_BACKEND: vLLM no longer reads it",
    ]
    for origin in ("wheel: vllm==0.14.0", "git: 'https://h/fork.git', ref: mine"):
        assert served(tmp_path, origin=origin) == ["env.VLLM_USE_CUDA_GRAPH: vLLM no longer reads it"]


@pytest.mark.parametrize(
    ("args", "arch", "seen"),
    [
        ("args: {tensor-parallel-size: 4}", "12.1a", "services.serve.args.tensor-parallel-size: 4 ranks"),
        ("args: {pipeline_parallel_size: 3}", "12.1a", "services.serve.args.pipeline_parallel_size: 3 ranks"),
        ("args: {tensor-parallel-size: 2, data-parallel-size: 2}, gpu: [0, 1]", "9.0a", "size: 4 ranks"),
        ("args: {tensor-parallel-size: 2}, gpu: [0, 1]", "9.0a", ""),
        ("args: {tensor-parallel-size: 8}", "9.0a", ""),  # nothing says how many GPUs that machine has
        ("args: {tensor-parallel-size: 1}", "12.1a", ""),
    ],
)  # fmt: skip
def test_more_ranks_than_gpus_without_a_cluster(tmp_path: Path, args: str, arch: str, seen: str) -> None:
    found = [line for line in served(tmp_path, args, arch) if "ranks" in line]
    assert len(found) == bool(seen) and all(seen in line for line in found)
