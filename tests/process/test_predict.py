"""`envgen predict` against the real code of releases: the shipped profiles fit a GB10, and the old default does not.

The environments are made by scripts/predict-env: vLLM's released Python code with PyTorch's CPU build. The reports are
those of the command itself.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envgen.profile.load import load_project

TOP = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "envgen" / "predict"
# Release -> FlashInfer's release that it pins.
RELEASES = {"0.14.0": "0.5.3", "0.32.0": "0.7.0.post1"}
# Shipped profile -> the release that it builds or takes. dev: a checkout of prod's release, unpatched.
PROFILES = {"prod": "0.14.0", "dev": "0.14.0", "current": "0.32.0"}
# Their source is on no package index: `envgen predict` asks them in the image that a user builds.
NOT_HERE = {"fork"}
PROJECT = load_project(file=TOP / "envgen.yaml", environ={}, local=False).project
SHIPPED = [
    (profile, variant)
    for profile, described in PROJECT.profiles.items()
    if profile not in NOT_HERE
    for variant in ("", *described.variants)
]
# What differs from the rest: TRITON_ATTN, MARLIN, and everything fits.
ATTENTION = {("current", "flashinfer"): "FLASHINFER"}
MOE = {
    ("prod", "cutlass"): "SM100_FI_MXFP4_MXFP8_CUTLASS",
    ("current", "cutlass"): "FLASHINFER_CUTLASS_MXFP4_MXFP8",
}
# An unpatched 0.14.0 takes Marlin, and the variant's description says so.
CONTRADICTED = {("dev", "cutlass")}


def _environment(version: str) -> Path:
    folder = CACHE / version
    subprocess.run([TOP / "scripts" / "predict-env", version, folder, RELEASES[version]], check=True)
    return folder / "bin" / "python"


def _predict(python: Path, *words: str, path: Path | None = None) -> tuple[int, dict[str, Any]]:
    """(exit code, the JSON report) of `envgen predict`."""
    argv = [sys.executable, "-m", "envgen", "predict", *words, "--gpu", "gb10", "--python", str(python), "--json"]
    done = subprocess.run(
        argv, cwd=TOP, env={**os.environ, "PYTHONPATH": str(path or "")}, capture_output=True, text=True
    )
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document


@pytest.fixture(scope="session")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """vLLM 0.14.0's source with the patches that `prod` applies."""
    _environment("0.14.0")
    tree = tmp_path_factory.mktemp("patched") / "vllm"
    shutil.copytree(CACHE / "0.14.0" / "src", tree, ignore=shutil.ignore_patterns(".git", "csrc", "tests", "docs"))
    for patch in sorted((TOP / "patches" / "vllm").glob("*.patch")):
        subprocess.run(["patch", "-p1", "-s", "-i", patch], cwd=tree, check=True)
    return tree


def test_the_old_default_is_refused() -> None:
    """What the first edition shipped: FlashInfer attention on 0.14.0."""
    python = _environment("0.14.0")
    backend = 'services.serve.args.attention-config={"backend": "FLASHINFER"}'
    code, report = _predict(python, "serve", "-p", "prod", "--set", backend)
    assert (code, report["verdict"]) == (1, "refused")
    refusal = report["refusals"][0]
    assert refusal["step"] == "attention" and refusal["reasons"] == ["sink setting not supported"]
    assert "0.28.0" in refusal["first"]
    assert report["moe"]["backend"] == "MARLIN" and report["release"]["version"] == "0.14.0"
    assert report["gpu"]["capability"] == [12, 1] and report["model"]["sinks"]


def test_a_flag_of_a_fork_is_refused_in_the_release_s_own_words() -> None:
    python = _environment("0.14.0")
    code, report = _predict(python, "serve", "-p", "prod", "--set", "services.serve.args.mxfp4-backend=CUTLASS")
    assert (code, report["verdict"]) == (1, "refused")
    assert report["refusals"][0]["message"] == "unrecognized arguments: --mxfp4-backend CUTLASS"
    assert "a fork" in report["refusals"][0]["first"]


@pytest.mark.parametrize(("profile", "variant"), SHIPPED)
def test_what_is_shipped_fits_a_gb10(patched: Path, profile: str, variant: str) -> None:
    """Every profile and variant of envgen.yaml."""
    words = ["serve", "-p", profile, *(["--variant", variant] if variant else [])]
    tree = patched if profile == "prod" else None
    code, report = _predict(_environment(PROFILES[profile]), *words, path=tree)
    shown = json.dumps({name: report[name] for name in report if name != "lines"}, indent=1)
    if (profile, variant) in CONTRADICTED:
        assert (code, report["verdict"]) == (1, "contradicts"), shown
        found = {(one["kind"], one["name"]) for one in report["contradictions"]}
        assert found == {("expect", "moe"), ("forbid", "marlin")}
        assert all("0.19.0" in one["first"] for one in report["contradictions"])
        return
    assert (code, report["verdict"]) == (0, "fits"), shown
    assert report["attention"]["backend"] == ATTENTION.get((profile, variant), "TRITON_ATTN")
    assert report["moe"]["backend"] == MOE.get((profile, variant), "MARLIN")
    assert set(report["shown"]) >= {"attention", "moe", "quantization"}
    assert report["release"]["version"] == PROFILES[profile] and report["gpu"]["capability"] == [12, 1]


def test_flashinfer_attention_of_current_needs_nvidia_s_cubins() -> None:
    """The caveat that a user has to read."""
    _, report = _predict(_environment("0.32.0"), "serve", "-p", "current", "--variant", "flashinfer")
    assert any("without them" in one and "attention sinks not supported" in one for one in report["caveats"])


def test_a_python_without_vllm_can_not_be_asked() -> None:
    code, report = _predict(Path(sys.executable), "serve", "-p", "prod")
    assert (code, report["verdict"]) == (1, "unknown")
    assert "No module named 'vllm'" in report["unasked"][0]
