"""b12x's kernels in `cache`, by manifests that b12x 1.5.1 wrote for sm_121a; the objects beside them are stand-ins."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jitcache_asking import answer, bad, good, hold
from jitcache_engine import ROOT, LocalEngine, cache
from jitcache_layouts import lost, put, release, snapshot

from envgen.__main__ import main
from envgen.binding import bind
from envgen.inside.jit import kernels
from envgen.inside.jit.shapes import Inventory, Module

MERGE, MOE = "attention.paged.merge", "integration.tp_moe.micro_direct"
MANIFESTS = {name: json.loads((Path(__file__).parent / f"manifests/{name}.json").read_text()) for name in (MERGE, MOE)}
OBJECT = b"a stand-in for an object"


class Lab:
    """FlashInfer's cache, b12x's with a kernel of each manifest, and the b12x that they were compiled by."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        release(folder / "flashinfer", "0.7.2.post1")
        self.package = put(folder / "site/b12x/__init__.py", "import sys\n").parent
        put(self.package / "_lib/compiler.py", "FORMAT = 7\n")
        for name in MANIFESTS:
            self.kernel(name, package_fingerprint=kernels.fingerprint(str(self.package)))

    def path(self, name: str, end: str = "json") -> Path:
        key = MANIFESTS[name]["cache_key"]
        return self.folder / f"b12x/{key[:2]}/{key}.{end}"

    def kernel(self, name: str, **changed: Any) -> None:
        found = {"object_bytes": len(OBJECT), "object_sha256": hashlib.sha256(OBJECT).hexdigest(), **changed}
        put(self.path(name), json.dumps({**MANIFESTS[name], **found}))
        put(self.path(name, "o"), OBJECT)
        put(self.path(name, "lock"), b"")

    @property
    def request(self) -> dict[str, Any]:
        return {"b12x": str(self.folder / "b12x"), "expected_archs": ["121a"]}

    def list(self, *patterns: str, **more: Any) -> dict[str, Module]:
        request = {"operation": "list", "root": str(self.folder / "flashinfer"), "patterns": list(patterns)}
        document = answer({**request, **self.request, **more})
        assert document["ok"], document
        return {module.name: module for module in bind(Inventory, document["result"]).modules}

    def clear(self, *patterns: str, **more: Any) -> dict[str, Any]:
        return good(self.folder / "flashinfer", *patterns, **self.request, **more)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    found = Lab(tmp_path)
    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    monkeypatch.setattr(kernels, "folder_of", lambda name: str(found.package) if name == "b12x" else "")
    monkeypatch.setattr(kernels, "version_of", {"b12x": "1.5.1", "nvidia-cutlass-dsl": "4.8.0"}.get)
    return found


def test_kernels_are_listed_by_operation_beside_flashinfers(lab: Lab) -> None:
    found = lab.list()
    assert {"page", MERGE, MOE} <= found.keys()
    one = found[MERGE]
    assert (one.version, one.arch, one.kind, one.objects, one.state) == ("b12x-1.5.1", "121a", "b12x", 1, "fresh")
    assert one.bytes == len(OBJECT) and one.modified == lab.path(MERGE, "o").stat().st_mtime
    assert list(lab.list("attention.*", "page")) == ["page", MERGE]
    assert lab.list(version="b12x-1.5.1").keys() == {MERGE, MOE} and MERGE not in lab.list(archs=["90a"])
    assert [reason.message for reason in lab.list(MERGE, thorough=True)[MERGE].reasons] == [kernels.UNCOMPARED]


def edit(lab: Lab) -> None:
    put(lab.package / "attention/paged.py", "# a patch, a checkout or another version\n")


def cut(lab: Lab) -> None:
    put(lab.path(MERGE, "o"), OBJECT[:-1])


def elsewhere(lab: Lab) -> None:
    lab.kernel(MERGE, compile_environment=[["CUTE_DSL_ARCH", "sm_120a"]],
               package_fingerprint=kernels.fingerprint(str(lab.package)))  # fmt: skip


def unset(lab: Lab) -> None:
    """On the GPU itself nobody sets the variable: the device is in the key."""
    lab.kernel(MERGE, compile_environment=[["CUTE_DSL_ARCH", ""]],
               package_fingerprint=kernels.fingerprint(str(lab.package)))  # fmt: skip


def embedded(lab: Lab) -> None:
    """FlashInfer's b12x/__init__.py has won: its own copy runs, which is not here."""
    put(lab.package / "__init__.py", "from flashinfer.experimental import b12x\n")


@pytest.mark.parametrize(
    ("change", "state", "kinds"),
    [
        (edit, "stale", {"another b12x"}),
        (cut, "stale", {"broken library"}),
        (lambda lab: lab.path(MERGE, "o").unlink(), "stale", {"broken library"}),
        (lambda lab: put(lab.path(MERGE, "o"), OBJECT[::-1]), "stale", {"broken library"}),
        (elsewhere, "foreign", {"foreign"}),
        (unset, "fresh", {"uncompared"}),
        (embedded, "unknown", {"unseen"}),
    ],
)
def test_a_change_that_b12x_would_see_is_seen(
    lab: Lab, change: Callable[[Lab], object], state: str, kinds: set[str]
) -> None:
    change(lab)
    found = lab.list(MERGE, thorough=True)[MERGE]
    assert (found.state, found.guess, {reason.kind for reason in found.reasons}) == (state, False, kinds)


def test_another_cute_dsl_is_named_with_both_versions(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "version_of", {"nvidia-cutlass-dsl": "4.9.0", "torch": "2.13.0+cpu"}.get)
    (reason,) = lab.list()[MOE].reasons
    assert reason.message == "was compiled with other tools: cutlass-dsl was 4.8.0, and is 4.9.0"


def test_without_the_mounts_of_a_service_another_b12x_is_a_guess(lab: Lab) -> None:
    edit(lab)
    assert lab.list(blind=True, mounted=True)[MERGE].guess and not lab.list(blind=True)[MERGE].guess
    assert set(lab.clear(stale=True, blind=True, mounted=True)["guesses"]) == {MERGE, MOE}


def gone(before: dict[str, tuple[str, bytes]], lab: Lab) -> set[str]:
    return {path.partition(".")[2] for path in lost(before, lab.folder)}


def test_one_operation_is_cleared_and_nothing_else(lab: Lab) -> None:
    before = snapshot(lab.folder)
    plan = lab.clear("attention.paged.*", dry_run=True)
    assert snapshot(lab.folder) == before and plan["freed"] == len(OBJECT)
    done = lab.clear("attention.paged.*")
    assert [(one["name"], one["gone"]) for one in done["modules"]] == [(MERGE, True)]
    assert lost(before, lab.folder) == {str(lab.path(MERGE, end).relative_to(lab.folder)) for end in ("o", "json")}


def test_what_is_stale_goes_with_what_flashinfer_has(lab: Lab) -> None:
    lab.kernel(MOE)  # by the real b12x, which is not this one
    assert [one["name"] for one in lab.clear(stale=True)["modules"]] == [MOE]
    assert MERGE in lab.list()
    assert len(lab.clear(all=True)["modules"]) > 5 and lab.list() == {}


def test_a_held_lock_stops_all_of_it(lab: Lab) -> None:
    fd = hold(lab.path(MERGE, "lock"))
    found = bad("refused", lab.folder / "flashinfer", "page", MERGE, **lab.request)
    assert [one["lock"] for one in found["data"]["held"]] == [MERGE] and lab.path(MERGE, "o").exists()
    os.close(fd)
    assert len(lab.clear("page", MERGE)["modules"]) == 2


def test_neither_links_nor_what_is_no_manifest_lead_anywhere(lab: Lab) -> None:
    outside = put(lab.folder / "outside/ab/x").parent
    (lab.folder / "b12x/ab").symlink_to(outside)
    put(lab.folder / f"b12x/cd/{'0' * 64}.json", "[]")
    lab.path(MERGE).unlink()
    lab.path(MERGE).symlink_to(outside / "x")
    request = {"operation": "list", "root": str(lab.folder / "flashinfer"), **lab.request}
    assert MERGE not in lab.list() and len(answer(request)["result"]["problems"]) == 3
    lab.clear(all=True)
    assert (outside / "x").exists()


VALUES = st.recursive(
    st.none() | st.integers() | st.just(10**63) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(key=st.sampled_from(sorted(MANIFESTS[MERGE])), value=VALUES)
def test_whatever_a_manifest_says_it_is_read_or_left_out(lab: Lab, key: str, value: Any) -> None:
    lab.kernel(MERGE, **{key: value})
    assert MOE in lab.list("*", thorough=True)
    lab.clear("*", dry_run=True)


def test_from_the_command_line(lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    engine = LocalEngine(lab.folder / "flashinfer")
    b12x = "/root/.cache/b12x"
    jit = cache(lab.folder, engine, f"flashinfer: {{path: {ROOT}, namespace: false}}, b12x: {{path: {b12x}}}")
    volume = jit.deployment.caches["b12x"].source
    (lab.folder / "volume").mkdir()
    (lab.folder / "volume/compile").symlink_to(lab.folder / "b12x")
    engine.folders[volume] = lab.folder / "volume"
    monkeypatch.setattr("envgen.deployment.host.connect", lambda *_: engine)
    monkeypatch.chdir(lab.folder / "project")
    assert main(["cache", "list", MERGE]) == 1  # no start has made its volume
    engine.volumes_.add(volume)
    assert main(["cache", "list"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if MERGE in line]
    assert line.split()[:3] == ["b12x-1.5.1", "121a", MERGE]
    edit(lab)
    assert main(["cache", "why", MERGE]) == 1
    assert "was compiled by other files of b12x than those of b12x-1.5.1" in capsys.readouterr().out
    assert main(["cache", "clear", "--stale"]) == 0
    assert "removed attention.paged.merge (b12x-" in capsys.readouterr().out and not lab.path(MERGE).exists()
