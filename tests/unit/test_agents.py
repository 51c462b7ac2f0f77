"""AGENTS.md: of a profile, and of this repository."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from envgen import cli
from envgen.app.agents import BEGIN, END, agents, renewed
from envgen.errors import RefusedError
from envgen.profile.load import load_project

ROOT = Path(__file__).resolve().parents[2]
FILE = """
version: 1
name: lab
default_profile: dev
defaults: {base: {image: base:1}, cuda: {arch_list: 12.1a}, secrets: [HF_TOKEN]}
profiles:
  prod:
    mode: production
    sources: {vllm: {origin: {wheel: vllm==0.30.0}, package: vllm, distribution: vllm}}
    caches: {huggingface: {path: /root/.cache/huggingface}}
    services:
      serve:
        model: {repo: a/model}
        command: [vllm, serve]
        ports: ["127.0.0.1:8000:8000"]
        ready: {port: 8000, expect: {kernel: Using MARLIN}}
  dev:
    mode: development
    caches: {triton: {path: /root/.triton/cache}, mine: {path: /x, host: ~/x}}
    sources: {lib: {origin: {checkout: ../lib}, package: lib, distribution: lib, mount: /code/lib}}
    services: {web: {command: [web]}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envgen.yaml").write_text(FILE)
    return tmp_path


def export(*words: str) -> int:
    done = CliRunner().invoke(cli.main, ["export", "agents", *words], standalone_mode=False)
    if done.exception:
        raise done.exception
    return int(done.return_value)


def test_that_of_this_repository_is_as_its_profile_says() -> None:
    text = (ROOT / "AGENTS.md").read_text("utf-8")
    profile = load_project(file=ROOT / "envgen.yaml").project.profiles["dev"]
    assert renewed(text, agents(profile, "envgen.yaml", {})) == text, "scripts/regenerate"


def test_what_it_says_of_a_profile(folder: Path) -> None:
    profiles = load_project(file=folder / "envgen.yaml").project.profiles
    dev, prod = (agents(profiles[name], "envgen.yaml", {"vllm": "0.30.1"}) for name in ("dev", "prod"))
    for said in (
        "Image `lab:dev` on `base:1`, development", "compiled for `12.1a`", "`../lib` is `/code/lib` in containers",
        "| `triton` | `/root/.triton/cache` | a volume | compiled by Triton |", "| `mine` | `/x` | `~/x` | downloads |",
        "`envgen up web --profile dev`", "(`HF_TOKEN`)", "`compose/dev.yaml`",
    ):  # fmt: skip
        assert said in dev
    assert "wheel `vllm==0.30.0`, locked 0.30.1." in prod and "model `a/model`" in prod
    assert "The log of `serve` must match `Using MARLIN` (kernel)" in prod and "A change needs `envgen build`" in prod
    assert "| `using kv cache scaling factor 1.0` |" in prod


def test_what_is_ones_own_stays(folder: Path) -> None:
    assert export("-o", "AGENTS.md") == 0 and export("-o", "AGENTS.md", "--check") == 0
    file = folder / "AGENTS.md"
    file.write_text(f"# Mine\n\n{file.read_text()}\nMore.\n")
    assert export("-o", "AGENTS.md", "--check") == 0
    (folder / "envgen.yaml").write_text(FILE.replace("12.1a", "9.0a"))
    before = file.read_text()
    assert export("-o", "AGENTS.md", "--check") == 1 and file.read_text() == before
    assert export("-o", "AGENTS.md") == 0
    text = file.read_text()
    assert text.startswith("# Mine\n\n") and text.endswith("\nMore.\n") and "`9.0a`" in text and "12.1a" not in text


def test_a_file_without_its_part_is_refused_and_the_lines_are_named(folder: Path) -> None:
    (folder / "AGENTS.md").write_text("# Mine\n")
    with pytest.raises(RefusedError) as error:
        export("-o", "AGENTS.md")
    assert BEGIN in str(error.value.problems[0].hint) and END in str(error.value.problems[0].hint)
    (folder / "AGENTS.md").write_text(f"# Mine\n{BEGIN}\n{END}\n")
    assert export("-o", "AGENTS.md") == 0


def test_nothing_of_this_machine_is_in_it(folder: Path) -> None:
    local = "profiles: {dev: {sources: {lib: {origin: {checkout: /home/me/lib}}}}}\n"
    (folder / "envgen.local.yaml").write_text(local)
    done = CliRunner().invoke(cli.main, ["export", "agents"], standalone_mode=False)
    assert done.exception is None and "/home/me" not in done.output and "`../lib`" in done.output
