"""`envgen init --from`, then `envgen diff --with`: Compose's own reading of both. Nothing is built or started."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from envgen import cli

SETUPS = Path(__file__).parents[1] / "unit" / "move_in" / "setups"
CACHE = "volume /root/.cache/flashinfer"  # envgen keeps a separate folder for each version
# What is left to differ: what the list of `init --from` names, and no more.
LEFT = {
    "seed_dev": {("dev", CACHE), ("serve", CACHE), ("dev", "user"), ("serve", "user")},
    "seed_prod": {("vllm", key) for key in ("gpu", "health retries", "restart", "shm_size")},
    "eugr": {("serve", CACHE)},
    "sparkrun": {("serve", CACHE)},
    "vllm_gb10": {
        ("vllm_serve", key)
        for key in ("cap_drop", "environment NCCL_SOCKET_IFNAME", "pids_limit", "security_opt", "shm_size")
    },
    "vllm_docs": {("vllm", "command --api-key"), ("vllm", "environment VLLM_API_KEY")},
    "proxy": {
        ("web", "service"),
        *(("llm", key) for key in ("environment VLLM_CONFIG", "networks", "restart", "volume /models")),
    },
    "cpu": {("embed", "volume /models")},
}


def run(*words: str) -> Result:
    return CliRunner().invoke(cli.main, list(words), standalone_mode=False)


def moved(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A set-up that has moved in, entered; the name of its file."""
    folder = Path(shutil.copytree(SETUPS / name, tmp_path / name))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_TOKEN", "a-value-of-mine")
    source = next(path.name for path in folder.iterdir() if path.suffix in (".yaml", ".yml"))
    for missing in (".env", "missing.env"):
        Path(missing).touch()
    assert run("init", "--from", source).return_value == 0
    return source


@pytest.mark.parametrize("name", sorted(LEFT))
def test_only_what_was_listed_differs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = moved(name, tmp_path, monkeypatch)
    done = run("diff", "--with", source, "--json")
    assert done.return_value == 1, done.exception or done.output
    found = json.loads(done.stdout)["differences"]
    assert {(one["service"], one["key"]) for one in found} == LEFT[name]
    assert "a-value-of-mine" not in done.output


def test_a_change_of_the_profile_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = moved("cpu", tmp_path, monkeypatch)
    path = Path("envgen.yaml")
    path.write_text(
        path.read_text().replace("OMP_NUM_THREADS: 8", "OMP_NUM_THREADS: 4").replace("8080:8080", "81:8080")
    )
    done = run("diff", "--with", source)
    assert "embed\n" in done.stdout
    assert "  environment OMP_NUM_THREADS: 8 -> 4\n" in done.stdout
    assert "  port 8080/tcp: 127.0.0.1:8080 -> 127.0.0.1:81\n" in done.stdout


def test_services_go_together_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = moved("cpu", tmp_path, monkeypatch)
    Path(source).write_text(Path(source).read_text().replace("  embed:", "  other:"))
    alone = json.loads(run("diff", "--with", source, "--json").stdout)["differences"]
    assert {(one["service"], one["key"]) for one in alone} == {("embed", "service"), ("other", "service")}


def test_what_compose_refuses_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = moved("proxy", tmp_path, monkeypatch)
    Path("missing.env").unlink()
    done = run("diff", "--with", source)
    assert "Compose does not accept compose.yaml" in str(done.exception)
    assert "missing.env" in str(done.exception)
    Path("missing.env").write_text("hf_abcdefghijklmnopqrst uvw\n")
    assert "hf_abcdefgh" not in str(run("diff", "--with", source).exception)
