"""scripts/gpu-day on a machine without a GPU, and what it reads from logs. Its steps need a GPU."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_day import comparing, main, serving
from gpu_day.day import Day, Done, Rows

SCRIPT = Path(__file__).parents[2] / "scripts/gpu-day"
LOG = """\
(EngineCore pid=1) INFO [mxfp4.py:730] Using 'TRITON' Mxfp4 MoE backend.
(EngineCore pid=1) INFO [cuda.py:448] Using AttentionBackendEnum.TRITON_ATTN backend.
(EngineCore pid=1) INFO [fp8.py:1] Selected CutlassFP8ScaledMMLinearKernel for Fp8LinearMethod
(EngineCore pid=1) INFO [model_runner.py:428] Model loading took 61.43 GiB memory and 6.118112 seconds
(EngineCore pid=1) INFO [gpu_worker.py:772] Available KV cache memory: 7.92 GiB
(EngineCore pid=1) INFO [kv_cache_utils.py:1147] GPU KV cache size: 204,827 tokens, Maximum concurrency for 131,072 \
tokens per request: 1.56x
"""


def run(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "GPU_DAY_PYTHON": sys.executable, "PATH": f"{tmp_path}:/usr/bin:/bin"}
    return subprocess.run([SCRIPT, *words], env=env, capture_output=True, text=True, timeout=120, check=False)


def test_without_a_gpu_it_says_in_one_sentence_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    done = run(tmp_path, "--work", str(tmp_path / "work"), "facts")
    assert done.returncode == 1 and done.stdout == ""
    assert (
        done.stderr.startswith("gpu-day: needs an NVIDIA GPU (nvidia-smi finds none)") and done.stderr.count("\n") == 1
    )
    assert not (tmp_path / "work").exists()


def test_a_python_without_the_docker_sdk_is_named(tmp_path: Path) -> None:
    """The clone has a folder docker/, which Python takes for a package without content."""
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (tmp_path / "python").chmod(0o755)
    env = {**os.environ, "GPU_DAY_PYTHON": str(tmp_path / "python")}
    done = subprocess.run([SCRIPT, "--help"], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "has no docker.errors, which envgen needs: run `pip install -e .`" in done.stderr


def test_an_unknown_step_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    done = run(tmp_path, "--work", str(tmp_path / "work"), "upp")
    assert done.returncode == 2 and "no step upp; steps: facts, image" in done.stderr


def made(tmp_path: Path, *files: str) -> Path:
    """A folder with files in it."""
    for name in files:
        (tmp_path / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "work" / name).write_text("mine")
    return tmp_path / "work"


@pytest.mark.parametrize("file", ["thesis.txt", "project/envgen.yaml", "logs/a.log"])
def test_a_folder_with_files_of_others_is_neither_used_nor_cleaned(tmp_path: Path, file: str) -> None:
    for name in ("nvidia-smi", "docker"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
        (tmp_path / name).chmod(0o755)
    work = made(tmp_path, file)
    done = run(tmp_path, "--without-gpu", "--work", str(work), "debug")
    assert done.returncode == 1 and "has files that are not its own" in done.stderr
    assert "Traceback" not in done.stderr
    (tmp_path / "called").unlink()
    done = run(tmp_path, "--work", str(work), "clean")
    assert done.returncode == 1 and "nothing was removed" in done.stderr
    assert [path.name for path in work.rglob("*") if path.is_file()] == [Path(file).name]
    assert not (tmp_path / "called").exists()


def test_clean_removes_what_it_made_and_leaves_what_others_put_beside_it(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "weights").write_text("mine")
    work = made(tmp_path, ".gpu-day", "steps/up.json", "gpu-day.md", "notes.txt")
    (work / "huggingface").symlink_to(outside)
    (tmp_path / "link").symlink_to(work)
    done = run(tmp_path, "--work", str(tmp_path / "link"), "clean")
    assert done.returncode == 0 and "it has files that are not its own" in done.stderr
    assert [path.name for path in work.iterdir()] == ["notes.txt"] and (outside / "weights").exists()
    made(tmp_path, ".gpu-day")
    (work / "notes.txt").unlink()
    assert run(tmp_path, "--work", str(work), "clean").returncode == 0 and not work.exists()


PROFILE = {
    "mode": "production", "base": {"image": "nvcr.io/nvidia/pytorch:25.12-py3"}, "cuda": {"arch_list": "12.1a"},
    "sources": {},
}  # fmt: skip


def programs(tmp_path: Path) -> None:
    """Stand-ins that note how they are called: nvidia-smi finds a GPU, docker answers to everything."""
    for name, says in (("nvidia-smi", "NVIDIA H100, 580, 9.0, 81559 MiB, 1980 MHz, 700 W, 90 W"), ("docker", "")):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{tmp_path}/called\necho "{says}"\n')
        (tmp_path / name).chmod(0o755)


def test_no_python_of_the_project_s_folder_or_of_the_working_folder_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path)
    project = tmp_path / "project"
    for name in ("envgen/__init__.py", "envgen/__main__.py", "click.py", "yaml.py", "docker.py", "json.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    services = {
        "serve": {"command": ["serve"], "ready": {"model": "m", "port": 8000}, "ports": ["127.0.0.1:8055:8000"]}
    }
    tree = {"version": 1, "name": "x", "profiles": {"prod": {**PROFILE, "services": services}}}
    (project / "envgen.yaml").write_text(json.dumps(tree))
    monkeypatch.chdir(project)
    done = run(
        tmp_path, "--project", ".", "--without-gpu", "--work", str(tmp_path / "work"), "predict", "down", "crash"
    )
    assert "Traceback" not in done.stderr and "| **predict** |" in done.stdout
    logs = "".join(path.read_text() for path in (tmp_path / "work/logs").iterdir())
    assert "$ envgen down" in logs and not (tmp_path / "ran").exists()


@pytest.mark.parametrize("linked", [True, False])
def test_clean_gives_no_container_a_link_to_remove_through(tmp_path: Path, linked: bool) -> None:
    programs(tmp_path)
    work = made(tmp_path, ".gpu-day", "project/envgen.yaml")
    tree = {"version": 1, "name": "gpu-day", "profiles": {"prod": PROFILE}}
    (work / "project/envgen.yaml").write_text(json.dumps(tree))
    precious = tmp_path / "precious/hub"
    precious.mkdir(parents=True)
    if linked:
        (work / "huggingface").symlink_to(precious.parent)
    else:
        (work / "huggingface/hub").mkdir(parents=True)
    assert run(tmp_path, "--work", str(work), "clean").returncode == 0
    asked = [line for line in (tmp_path / "called").read_text().splitlines() if "--entrypoint rm" in line]
    assert bool(asked) is not linked and precious.exists() and not work.exists()


@pytest.mark.parametrize(
    "error",
    [AttributeError("'list' object has no attribute 'get'"), http.client.BadStatusLine("x"), KeyboardInterrupt()],
)
def test_the_report_is_written_however_a_step_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: BaseException
) -> None:
    def step(_day: Day, rows: Rows) -> None:
        secret = "hf_" + "a1" * 20
        home = "/home/somebody/x"
        rows.add("answer\x1b[2J", None, f"\x1b]0;x\x07 {home} {'x' * 520} token={secret}")
        rows.data["log"] = "-----BEGIN PRIVATE KEY-----\n"
        raise error

    monkeypatch.setattr(main, "STEPS", {"facts": ("a title", step)})
    monkeypatch.setattr(Day, "require", lambda _: None)
    code = main.main(["--work", str(tmp_path / "work")])
    assert code == (130 if isinstance(error, KeyboardInterrupt) else 1)
    page, document = ((tmp_path / "work" / name).read_text() for name in ("gpu-day.md", "gpu-day.json"))
    assert json.loads(document)["steps"][0]["outcome"] == "failed" and "the step itself" in page
    shown = "".join(capfd.readouterr())
    for text in (page, document, shown):
        assert "hf_a1" not in text and "somebody" not in text and "\x1b" not in text


def test_a_log_s_choices_and_figures() -> None:
    found = comparing.logged(LOG)
    assert found["attention"] == ["TRITON_ATTN"] and found["moe"] == ["TRITON"]
    assert found["linear"] == ["CutlassFP8ScaledMMLinearKernel"]
    assert (found["model_gib"], found["available_gib"], found["tokens"]) == (61.43, 7.92, 204827)
    assert (found["length"], found["sequences"]) == (131072, 1.56)


@pytest.mark.parametrize(("chosen", "held"), [("TRITON", [True]), ("MARLIN", [False])])
def test_a_prediction_is_held_against_the_log(chosen: str, held: list[bool]) -> None:
    rows = Rows()
    text = "Using 'TRITON' Mxfp4 MoE backend."
    comparing.compare(rows, "x", {"moe": {"backend": chosen}}, comparing.logged(text), text)
    assert [row["held"] for row in rows.rows] == held


@pytest.mark.parametrize(("refusals", "held"), [([], False), ([{"message": "it refuses"}], True)])
def test_a_model_that_does_not_start_fails_unless_that_was_predicted(
    refusals: list[dict[str, str]], held: bool
) -> None:
    rows = Rows()
    comparing.compare(rows, "x", {"refusals": refusals}, {}, "ValueError: No available memory for the cache blocks")
    assert [(row["what"], row["held"]) for row in rows.rows] == [("x: started", held)]


@pytest.mark.parametrize(
    ("verdict", "repo", "held"),
    [("not checked", None, True), ("failed", None, False), ("not checked", "openai/gpt-oss-120b", False)],
)
def test_only_the_model_that_is_made_need_not_call_a_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: str, repo: str | None, held: bool
) -> None:
    criteria = [{"name": "tool call", "verdict": verdict, "seen": "the model made none", "wanted": "a call"}]
    found = json.dumps({"outcome": "failed", "criteria": criteria})
    options = argparse.Namespace(work=str(tmp_path), project=None, profile="p", service="serve", repo=repo)
    day = Day(options)
    monkeypatch.setattr(day, "run", lambda *_, **__: Done(1, found, "", 15.0))
    rows = Rows()
    serving.measured(day, rows, "smoke", "serve", "--full")
    assert [row["held"] for row in rows.rows] == [held] and "tool call " + verdict in rows.rows[0]["seen"]
