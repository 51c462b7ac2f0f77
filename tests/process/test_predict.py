"""`envgen predict` against the real code of releases: the shipped profiles fit a GB10.

The reports are those of the command itself, the releases those of tests/support/releases.py. Most questions go to a
process that has imported the release before; one question to each release shows that the answer is the same.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import pytest
from releases import CACHE, FILES, NOT_HERE, PROFILES, SHIPPED, SHIPPED_PROFILES, TOP, Warm, environment, with_path

from envgen.app.predict import vllm_words
from envgen.profile.load import load_project
from envgen.render.environment import compose_env, service_env


def _question(name: str, variant: str, service: str) -> str:
    """All that a release is asked and judged by; a user's own home is none of it."""
    project = load_project(file=FILES[name], environ={}, local=False, profile=name, variant=variant).project
    profile = project.profiles[name]
    asked, derived = profile.services[service], {*service_env(profile), "HOME", "USER", "LOGNAME"}
    own = sorted(item for item in compose_env(profile, service).items() if item[0] not in derived)
    return repr((PROFILES[name], profile.sources["vllm"].patches, vllm_words(asked), own, asked.ready))


# Who works on a checkout of a release asks what those ask who run it: such twins are asked once.
QUESTIONS: dict[str, list[tuple[str, str, str]]] = {}
for _shipped in SHIPPED:
    QUESTIONS.setdefault(_question(*_shipped), []).append(_shipped)
NIGHTLY = [pytest.mark.nightly]


def daily(twins: list[tuple[str, str, str]]) -> bool:
    """What is asked each day: the release of `prod`, as it ships and with its other kernels, which `dev` serves."""
    return any(name == "prod" and variant in ("", "cutlass", "native") for name, variant, _ in twins)


def kernels(name: str, variant: str) -> tuple[str, str]:
    """Attention and MoE. Development profiles serve FlashInfer's, but in their variant `prod`."""
    edited = name in ("dev", "source_dev") and variant != "prod"
    attention = (name == "dev" and edited) or variant in ("flashinfer", "native")
    moe = "SM100_FI_MXFP4_MXFP8_CUTLASS" if name.startswith("source") else "FLASHINFER_CUTLASS_MXFP4_MXFP8"
    cutlass = edited or variant in ("cutlass", "native")
    return "FLASHINFER" if attention else "TRITON_ATTN", moe if cutlass else "MARLIN"


SIZE = "services.serve.args.tensor-parallel-size"

Predict = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="session")
def predict(nowhere: dict[str, str]) -> Predict:
    """`envgen predict`: (exit code, the JSON report)."""

    def ask(python: Path, *words: str) -> tuple[int, dict[str, Any]]:
        asked = ["predict", *words, "--gpu", "gb10", "--python", str(python), "--json"]
        if "-p" in words:
            asked += ["-f", str(FILES[words[words.index("-p") + 1]])]
        done = forked.run(asked, TOP, {**os.environ, **nowhere})
        assert done.stdout, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return done.returncode, document

    return ask


def test_all_but_the_forks_are_asked() -> None:
    assert {"fork", "fork_dev"} == NOT_HERE and {name for name, _, _ in SHIPPED} == set(PROFILES) - NOT_HERE


@pytest.fixture(scope="session")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with vLLM 0.14.0's source and the patches that `source` applies."""
    python = environment("0.14.0")
    tree = tmp_path_factory.mktemp("patched") / "vllm"
    shutil.copytree(CACHE / "0.14.0" / "src", tree, ignore=shutil.ignore_patterns(".git", "csrc", "tests", "docs"))
    for patch in sorted((TOP / "patches" / "vllm").glob("*.patch")):
        subprocess.run(["patch", "-p1", "-s", "-i", patch], cwd=tree, check=True)
    return with_path(python, tree, tmp_path_factory.mktemp("program"))


@pytest.mark.nightly
def test_a_flag_of_a_fork_is_refused_in_the_release_s_own_words(hot: Warm, predict: Predict) -> None:
    code, report = predict(
        hot(environment("0.14.0")), "serve", "-p", "source", "--set", "services.serve.args.mxfp4-backend=CUTLASS"
    )
    assert (code, report["verdict"]) == (1, "refused")
    assert report["refusals"][0]["message"].startswith("unrecognized arguments: --mxfp4-backend CUTLASS")


@pytest.mark.parametrize(
    "twins",
    [
        pytest.param(twins, id="+".join("-".join(one) for one in twins), marks=[] if daily(twins) else NIGHTLY)
        for twins in QUESTIONS.values()
    ],
)
def test_what_is_shipped_fits_a_gb10(
    hot: Warm, predict: Predict, patched: Path, twins: list[tuple[str, str, str]]
) -> None:
    """Every profile, variant and server of envgen.yaml and of examples/from-source."""
    profile, variant, service = twins[0]
    words = [service, "-p", profile, *(["--variant", variant] if variant else [])]
    python = patched if SHIPPED_PROFILES[profile].sources["vllm"].patches else environment(PROFILES[profile])
    code, report = predict(hot(python), *words)
    shown = json.dumps({name: report[name] for name in report if name != "lines"}, indent=1)
    assert (code, report["verdict"]) == (0, "fits"), shown
    for name, variant, _ in twins:
        assert (report["attention"]["backend"], report["moe"]["backend"]) == kernels(name, variant)
    compiles = report["compiles"] and report["compiles"]["module"]
    assert compiles == (None if report["moe"]["backend"] == "MARLIN" else "fused_moe_120")
    assert set(report["shown"]) >= {"attention", "moe", "quantization"} and report["model"]["from"] == "envgen"
    assert report["release"]["version"] == PROFILES[profile] and report["gpu"]["capability"] == [12, 1]


@pytest.mark.nightly
def test_variables_that_a_release_no_longer_reads(hot: Warm, predict: Predict) -> None:
    """The release warns itself of those that its own list does not have."""
    names = {"VLLM_FLASHINFER_MOE_BACKEND": "throughput", "VLLM_LOGING_LEVEL": "DEBUG", "VLLM_LOGGING_LEVEL": "INFO"}
    sets = [word for name, value in names.items() for word in ("--set", f"services.serve.env.{name}={value}")]
    _, report = predict(hot(environment(PROFILES["prod"])), "serve", "-p", "prod", *sets)
    told = {one.partition(": ")[2] for one in report["caveats"] if one.startswith("Unknown vLLM environment variable")}
    assert told == {"VLLM_FLASHINFER_MOE_BACKEND", "VLLM_LOGING_LEVEL"}


@pytest.mark.nightly
def test_flashinfer_attention_without_its_variable_and_without_network(hot: Warm, predict: Predict) -> None:
    """The caveat that a user has to read; the variant has the variable."""
    backend = 'services.serve.args.attention-config={"backend": "FLASHINFER"}'
    words = ("serve", "-p", "prod", "--set", backend)
    _, report = predict(environment(PROFILES["prod"]), *words)
    [caveat] = [one for one in report["caveats"] if "otherwise: " in one]
    assert "VLLM_HAS_FLASHINFER_CUBIN=1" in caveat and "attention sinks not supported" in caveat
    _, again = predict(hot(environment(PROFILES["prod"])), *words)
    same = ("verdict", "attention", "moe", "memory", "kv_cache", "gpu")
    assert [again[part] for part in same] == [report[part] for part in same]


@pytest.mark.parametrize(
    ("rust", "code"),
    [("0", 1), ("1", 0)],
)
def test_a_parser_of_the_rust_front_end_is_not_refused(hot: Warm, predict: Predict, rust: str, code: int) -> None:
    """Python's server does not have it."""
    parser = "services.serve.args.tool-call-parser=none_of_python"
    words = (parser, f"services.serve.env.VLLM_USE_RUST_FRONTEND={rust}")
    sets = (part for word in words for part in ("--set", word))
    done, _report = predict(hot(environment("0.33.0")), "serve", "-p", "prod", *sets)
    assert done == code


def test_a_python_without_vllm_can_not_be_asked(predict: Predict) -> None:
    code, report = predict(Path(sys.executable), "serve", "-p", "source")
    assert (code, report["verdict"]) == (1, "unknown")
    assert "No module named 'vllm'" in report["unasked"][0]


def test_two_ranks_are_asked_with_as_many_gpus(hot: Warm, predict: Predict) -> None:
    code, report = predict(hot(environment(PROFILES["prod"])), "serve", "-p", "prod", "--set", f"{SIZE}=2")
    assert (code, report["verdict"], report["gpu"]["count"]) == (0, "fits", 2)


@pytest.mark.parametrize("nodes", [1, 2])
def test_machines_with_one_gpu_each_are_asked_as_they_are_started(
    hot: Warm, nowhere: dict[str, str], nodes: int
) -> None:
    """The GPU is there: nothing is assumed about how many a machine has."""
    machines = {f"n{n}": {"context": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2)}
    sets = [f"{SIZE}=2"]
    if nodes > 1:
        sets.append(f"nodes={json.dumps(machines)}")
        sets.append(f"services.serve.cluster={json.dumps({'nodes': list(machines)})}")
    words = ["predict", "serve", "-p", "prod", "--python", str(hot(environment(PROFILES["prod"]))), "--json"]
    words += [word for one in sets for word in ("--set", one)]
    done = forked.run(words, TOP, {**os.environ, **nowhere})
    report = json.loads(done.stdout)
    assert "gpu" in report, done.stdout
    assert (report["gpu"]["real"], report["gpu"]["count"]) == (True, 1)
    if nodes > 1:
        assert (done.returncode, report["verdict"]) == (0, "fits"), report["refusals"] + report["unasked"]
    else:
        assert "larger than the number of available GPUs (1)" in report["refusals"][0]["message"]


@pytest.mark.nightly
def test_heads_that_cannot_be_shared_are_refused_in_the_release_s_own_words(hot: Warm, predict: Predict) -> None:
    code, report = predict(hot(environment(PROFILES["prod"])), "serve", "-p", "prod", "--set", f"{SIZE}=3")
    assert (code, report["verdict"]) == (1, "refused")
    assert "(64) must be divisible by tensor parallel size (3)" in report["refusals"][0]["message"]
