"""The host's side of the cache, on an engine that runs the agent right here."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from jitcache_engine import PROJECT, ROOT, VOLUME, LocalEngine, cache, container
from jitcache_layouts import put, release

from envgen.__main__ import main
from envgen.engine.values import ContainerMount, ExecResult
from envgen.errors import EngineError, NotFoundError, RefusedError
from envgen.inside.warm import MARK
from envgen.jitcache.place import BASE, Query, arch_folders
from envgen.jitcache.warm import Warm
from envgen.profile.values import CudaArchList


def test_a_running_service_is_preferred_and_asked_as_root(tmp_path: Path) -> None:
    release(tmp_path / "cache", "0.5.3")
    engine = LocalEngine(tmp_path / "cache", [container("c1", service="dev", mounts=[VOLUME])])
    found = cache(tmp_path, engine).inventory(Query())
    assert engine.asked == [("c1", "0:0")]
    assert found.place == "service dev"
    assert len(found.modules) == 7


def test_without_one_the_image_on_the_same_mount(tmp_path: Path) -> None:
    release(tmp_path / "cache", "0.5.3")
    engine = LocalEngine(tmp_path / "cache", [container("c1", service="dev", state="exited", mounts=[VOLUME])])
    cache(tmp_path, engine).clear(Query(("page",)))
    assert engine.asked == [("demo:dev", "0:0")]
    assert engine.mounts == (VOLUME,)
    engine = LocalEngine(tmp_path / "cache", images=["base:1"])
    cache(tmp_path, engine).clear(Query(("rope",)))
    assert engine.asked[0][0] == "base:1"
    assert engine.mounts == (VOLUME,)


def test_a_host_folder_is_mounted_as_it_is(tmp_path: Path) -> None:
    release(tmp_path / "project" / "cache", "0.5.3")
    engine = LocalEngine(tmp_path / "project" / "cache")
    jit = cache(tmp_path, engine, f"flashinfer: {{path: {ROOT}, namespace: false, host: cache}}")
    assert jit.inventory(Query()).modules
    assert engine.mounts == (ContainerMount(str(tmp_path / "project" / "cache"), ROOT, "bind"),)


def test_the_containers_own_variable_decides_the_root(tmp_path: Path) -> None:
    release(tmp_path / "cache", "0.5.3")
    env = {BASE: "/data"}
    mount = ContainerMount("v", "/data", "volume")
    engine = LocalEngine(tmp_path / "cache", [container("c1", service="dev", mounts=[mount], env=env)])
    with pytest.raises(NotFoundError):
        cache(tmp_path, engine).inventory(Query(("page",)))
    assert engine.requests[0]["root"] == "/data/.cache/flashinfer"


def test_neither_container_nor_image(tmp_path: Path) -> None:
    jit = cache(tmp_path, LocalEngine(tmp_path, images=[]))
    with pytest.raises(EngineError, match="envgen build --profile dev"):
        jit.inventory(Query())


def test_no_volume_yet_is_an_empty_cache(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path)
    engine.volumes_.clear()
    assert not cache(tmp_path, engine).inventory(Query()).exists
    with pytest.raises(NotFoundError):
        cache(tmp_path, engine).clear(Query(("page",)))
    assert not engine.asked


def test_a_profile_without_a_cache(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="has no FlashInfer cache"):
        cache(tmp_path, LocalEngine(tmp_path), "").inventory(Query())


def test_unknown_names_come_with_near_matches(tmp_path: Path) -> None:
    release(tmp_path / "cache", "0.5.3")
    jit = cache(tmp_path, LocalEngine(tmp_path / "cache"))
    with pytest.raises(NotFoundError, match="did you mean `fused_moe_120`") as error:
        jit.clear(Query(("fused_moe_121",)))
    assert error.value.exit_code == 1
    with pytest.raises(NotFoundError, match="did you mean `fused_moe_90`, `fused_moe_120`"):
        jit.clear(Query(("fused_moe",)))


def test_a_held_lock_names_its_module(tmp_path: Path) -> None:
    shelf = release(tmp_path / "cache", "0.5.3")
    engine = LocalEngine(tmp_path / "cache", [container("c1", service="serve", mounts=[VOLUME])])
    fd = os.open(shelf.ops / "tmp/page.lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with pytest.raises(RefusedError) as error:
            cache(tmp_path, engine).clear(Query(("page",)))
        assert str(error.value).splitlines()[0] == "nothing was changed: page (0.5.3/121a) is being built"
    finally:
        os.close(fd)


def test_a_batch_build_is_named_as_such(tmp_path: Path) -> None:
    held = "0.5.3/121a/cached_ops/tmp/flashinfer_jit.lock"
    engine = LocalEngine(tmp_path)
    engine.answers = {"demo:dev": {"ok": False, "kind": "refused", "message": "", "data": {"held": [held]}}}
    with pytest.raises(RefusedError, match=r"a batch build runs in 0\.5\.3/121a"):
        cache(tmp_path, engine).clear(Query(("page",)))


def test_services_with_the_cache_must_be_restarted(tmp_path: Path) -> None:
    release(tmp_path / "cache", "0.5.3")
    services = [container(name, service=name, mounts=[VOLUME]) for name in ("dev", "serve")]
    others = [container("stranger", mounts=[VOLUME]), container("elsewhere")]
    engine = LocalEngine(tmp_path / "cache", [*services, *others])
    cleared = cache(tmp_path, engine).clear(Query(("page",)))
    assert cleared.restart == ("dev", "serve", "stranger")
    assert cache(tmp_path, engine).clear(Query(()), stale=True).restart == ()


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"ok": True, "result": {"root": 3}},
        [],
        ExecResult(126, b"", b"exec: no python3\n"),
        ExecResult(1, b"Traceback", b"SyntaxError: invalid syntax\n"),
    ],
)
def test_an_answer_of_another_shape_is_an_error_for_people(tmp_path: Path, document: Any) -> None:
    engine = LocalEngine(tmp_path)
    engine.answers = {"demo:dev": document}
    for ask in (cache(tmp_path, engine).inventory, cache(tmp_path, engine).clear):
        with pytest.raises(EngineError):
            ask(Query(("page",)))


@pytest.mark.parametrize(
    ("text", "folders"),
    [
        ("12.1a", ("121a",)),
        ("12.1", ("121", "121a")),
        ("12.0", ("120", "120f", "120a")),
        ("12.0 12.1", ("120_121", "120f_121a", "120a_121a")),
        ("9.0 12.1", ("90_121", "90a_121a")),
        ("8.0 12.1", ("80_121", "80_121a")),
        ("9.0 12.1a", ("90_121a", "90a_121a")),
        ("9.0a 12.1a", ("90a_121a",)),
        ("", ("",)),
    ],
)
def test_folders_of_archs(text: str, folders: tuple[str, ...]) -> None:
    archs = CudaArchList.parse(text) if text else CudaArchList(())
    assert arch_folders(archs) == folders


# The command line


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalEngine:
    release(tmp_path / "cache", "0.5.3")
    put(tmp_path / "project/envgen.yaml", PROJECT.format(caches=f"flashinfer: {{path: {ROOT}, namespace: false}}"))
    monkeypatch.chdir(tmp_path / "project")
    engine = LocalEngine(tmp_path / "cache")
    monkeypatch.setattr("envgen.deployment.host.connect", lambda *_: engine)
    return engine


def test_list_as_table_and_json(shell: LocalEngine, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "list"]) == 0
    out = capsys.readouterr().out
    assert "0.5.3    121a  page " in out
    assert "7 modules, " in out
    assert main(["cache", "list", "p*", "--json"]) == 0
    (module,) = json.loads(capsys.readouterr().out)["modules"]
    assert module["name"] == "page"


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["../x"], 6),  # the unit tests of clear have more of these
        (["nope"], 1),
        (["page", "--version", ""], 2),
        ([], 2),
        (["*"], 2),
        (["--all"], 2),
        (["--all", "page", "--yes"], 2),
        (["page", "--dry-run"], 0),
        (["--all", "--dry-run"], 0),
        (["--all", "--yes", "--json"], 0),
    ],
)
def test_exit_codes(shell: LocalEngine, capsys: pytest.CaptureFixture[str], argv: list[str], code: int) -> None:
    before = sorted(path for path in shell.folder.rglob("*.so"))
    assert main(["cache", "clear", *argv]) == code
    assert "Traceback" not in capsys.readouterr().err
    if code or "--dry-run" in argv:
        assert sorted(path for path in shell.folder.rglob("*.so")) == before


def test_all_asks_on_a_terminal(
    shell: LocalEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)

    def interrupted(_prompt: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("click.termui.visible_prompt_func", interrupted)
    assert main(["cache", "clear", "--all"]) == 130
    printed = capsys.readouterr()
    assert "would remove page" in printed.out and printed.err.endswith("envgen: interrupted\n")

    def ended(_prompt: str) -> str:
        raise EOFError

    for answer in (lambda _prompt: "n", ended):  # neither is an interruption
        monkeypatch.setattr("click.termui.visible_prompt_func", answer)
        assert main(["cache", "clear", "--all"]) == 130
        assert capsys.readouterr().err.endswith("envgen: cancelled\n")
    monkeypatch.setattr("click.confirm", lambda *_a, **_k: True)
    assert main(["cache", "clear", "--all"]) == 0
    assert not list(shell.folder.rglob("*.so"))


# Compiling


def event(name: str, **more: str) -> str:
    return MARK + json.dumps({"event": name, **more})


STARTED = (event("import", version="0.5.3"), event("start", module="page"))


def warmed(lines: Sequence[str], code: int = 0) -> tuple[Warm, list[str]]:
    """What is made of the output of FlashInfer's builds, and what is printed of it."""
    printed: list[str] = []

    def run_lines(_argv: Sequence[str], on_line: Callable[[str], None], _env: Mapping[str, str]) -> int:
        for line in lines:
            on_line(line)
        return code

    run = Warm(run_lines, "python3", "here", printed.append, "envgen build")
    run.run(["page"], None)
    return run, printed


def test_what_the_gate_prints_is_progress_and_not_the_output_of_a_module() -> None:
    failed = event("failed", module="page", message="boom")
    run, printed = warmed([*STARTED, "compilers: 1 running, 2 waiting", failed], 1)
    assert printed == ["compilers: 1 running, 2 waiting"]
    assert (run.version, run.built["page"].lines, run.built["page"].error) == ("0.5.3", [], "boom")


def test_an_image_without_flashinfer_is_the_profile_s_fault_and_not_docker_s() -> None:
    with pytest.raises(NotFoundError, match=r"here has no FlashInfer .* No module named 'flashinfer'") as raised:
        warmed(["ModuleNotFoundError: No module named 'flashinfer'"], 1)
    assert (raised.value.exit_code, raised.value.problems[0].hint) == (1, "envgen build")


@pytest.mark.parametrize(
    ("ends", "hint"), [(True, "has ended meanwhile: run the command again"), (False, "Python 3.8")]
)
def test_a_container_that_ends_while_it_is_asked(tmp_path: Path, ends: bool, hint: str) -> None:
    class Ending(LocalEngine):
        def exec(self, container_id: str, argv: Sequence[str], **_: Any) -> ExecResult:
            if ends:
                self.remove_container(container_id)
            return ExecResult(137, b"", b"")

    engine = Ending(tmp_path, [container("c1", service="dev", mounts=[VOLUME])])
    with pytest.raises(EngineError, match="gave no answer") as caught:
        cache(tmp_path, engine).inventory(Query())
    assert hint in caught.value.problems[0].hint
