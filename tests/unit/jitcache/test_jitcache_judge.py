"""States and evidence, against real files in the layouts of the releases."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jitcache_asking import answer
from jitcache_layouts import RELEASES, SHARED_LOG, Shelf, elf, put, snapshot
from test_jitcache_ninja import record

from envgen.binding import bind
from envgen.inside.jit import clear, judge, libraries, tree
from envgen.inside.jit.shapes import Cleared, Inventory, Module, RecordedBaseline

STEMS = {"page": ("page",), "rope": ("rope",)}


class Lab:
    """A package, a cache with `page` and `rope` compiled from it, and who imports which package."""

    def __init__(self, folder: Path, version: str = "0.5.3") -> None:
        self.folder = folder
        self.version = version
        self.root = folder / ".cache/flashinfer"
        self.package = self.make_package("site/flashinfer")
        self.imported = self.package
        self.providers: list[tuple[str, list[str], set[str]]] = []
        self.shelf = Shelf(self.root, version)
        self.environ = {"CUDA_HOME": str(folder / "cuda")}
        (folder / "cuda-13.0").mkdir()
        (folder / "cuda").symlink_to("cuda-13.0")
        self.deps: dict[str, list[str]] = {}
        for name in STEMS:
            self.compile(name)

    def make_package(self, path: str) -> Path:
        root = self.folder / path
        for name in ("csrc/page.cu", "csrc/rope.cu", "include/flashinfer/page.cuh", "include/flashinfer/math.cuh"):
            put(root / "data" / name, f"// {name}\n")
        return root

    def compile(self, name: str) -> None:
        """What a build leaves behind: the files are older than the library."""
        ops = self.shelf.ops
        shared = self.version in SHARED_LOG
        source = f"{self.package}/data/csrc/{name}.cu"
        headers = [f"{self.package}/data/include/flashinfer/math.cuh"]
        if name == "page":
            headers.append(f"{self.package}/data/include/flashinfer/page.cuh")
        out = f"{name}/{name}.cuda.o" if shared else f"{ops}/{name}/csrc_{name}.cuda.o"
        text = (
            f"name = {name}\ncuda_home = {self.environ['CUDA_HOME']}\n"
            f"common_cflags = -isystem $cuda_home/include $\n    -isystem {self.package}/data/include\n"
            f"cuda_cflags = $common_cflags $\n    -gencode=arch=compute_121a,code=sm_121a $\n    -O3\n"
            f"build {out.replace(name + '/', '$name/', 1) if shared else out}: cuda_compile {source}\n"
        )
        put(ops / name / "build.ninja", text)
        put(ops / name / Path(out).name)
        if shared:
            self.deps[out] = [source, *headers]
            put(ops / ".ninja_deps", record(self.deps))
        else:
            put(ops / name / ".ninja_deps", record({out: [source, *headers]}))
        time.sleep(0.02)
        put(ops / name / f"{name}.so", elf())

    def ask(self, operation: str, *patterns: str, **more: Any) -> Any:
        request = {"operation": operation, "root": str(self.root), "patterns": list(patterns),
                   "expected_archs": ["121a"], "environ": self.environ, **more}  # fmt: skip
        document = answer(request)
        assert document["ok"], document
        return document["result"]

    def list(self, *patterns: str, **more: Any) -> dict[str, Module]:
        return {module.name: module for module in bind(Inventory, self.ask("list", *patterns, **more)).modules}

    def why(self, name: str, **more: Any) -> Module:
        (found,) = bind(Inventory, self.ask("list", name, thorough=True, **more)).modules
        return found

    def baseline(self, *patterns: str, **more: Any) -> RecordedBaseline:
        return bind(RecordedBaseline, self.ask("baseline", *patterns, **more))

    def clear_stale(self) -> Cleared:
        return bind(Cleared, self.ask("clear", stale=True))

    def header(self, name: str = "page.cuh") -> Path:
        return self.package / "data/include/flashinfer" / name


def forge(path: Path, text: str = "// other bytes\n") -> None:
    path.write_text(text)
    os.utime(path, (1_500_000_000, 1_500_000_000))


@pytest.fixture(params=RELEASES)
def lab(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    for name in (
        "CUDA_HOME", "CUDA_PATH", "FLASHINFER_EXTRA_CUDAFLAGS", "FLASHINFER_EXTRA_CFLAGS", "FLASHINFER_JIT_DEBUG",
        "FLASHINFER_JIT_VERBOSE", "FLASHINFER_JIT_LINEINFO", "FLASHINFER_NVCC_THREADS",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    found = Lab(tmp_path, request.param)

    def package() -> libraries.InstalledPackage:
        root = found.imported
        return libraries.InstalledPackage(str(root), found.version, f"{root}/data/aot", found.providers)

    for module in (judge, clear):
        monkeypatch.setattr(module, "package_of", package)
    return found


def states(lab: Lab) -> Mapping[str, tuple[str, bool]]:
    return {name: (module.state, module.guess) for name, module in lab.list().items()}


def causes_of(module: Module) -> list[str]:
    return sorted(reason.kind for reason in module.reasons)


def kinds(found: Module) -> dict[str, tuple[str, ...]]:
    return {reason.kind: tuple(reason.files) for reason in found.reasons}


def test_a_guess_until_a_baseline_is_recorded(lab: Lab) -> None:
    assert states(lab) == {"page": ("fresh", True), "rope": ("fresh", True)}
    assert lab.why("page").baseline == "none"
    before = snapshot(lab.shelf.base)
    assert [module.recorded for module in lab.baseline().modules] == [True, True]
    assert snapshot(lab.shelf.base) == before  # ours lies beside FlashInfer's folders
    assert states(lab) == {"page": ("fresh", False), "rope": ("fresh", False)}
    assert lab.why("page").checked == 3


def test_trap_1_other_bytes_under_an_old_time(lab: Lab) -> None:
    lab.baseline()
    forge(lab.header())
    assert states(lab) == {"page": ("stale", False), "rope": ("fresh", False)}
    assert kinds(lab.why("page")) == {"other bytes": (str(lab.header()),)}
    assert [(module.name, module.gone) for module in lab.clear_stale().modules] == [("page", True)]
    lab.compile("page")
    assert lab.why("page").baseline == "outdated"
    assert lab.list()["page"].guess


def flags(lab: Lab, name: str, old: str, new: str) -> None:
    """The module as if it had been compiled with other flags."""
    path = lab.shelf.ops / name / "build.ninja"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def imports(lab: Lab, path: str) -> None:
    """Another package is imported: a copy, or the same one through a link."""
    (lab.folder / "linked").symlink_to("site")
    lab.imported = lab.folder / path if path.startswith("linked") else lab.make_package(path)


def cuda(lab: Lab, name: str) -> None:
    (lab.folder / name).mkdir(exist_ok=True)
    lab.environ["CUDA_HOME"] = str(lab.folder / name)


def same_time(lab: Lab) -> None:
    """A header gets the time of the library: ninja compiles only what is older."""
    when = (lab.shelf.ops / "page/page.so").stat().st_mtime_ns
    os.utime(lab.header(), ns=(when, when))


def cuda_path(lab: Lab, **environ: str) -> None:
    """CUDA_PATH, too: it counts only where CUDA_HOME is not set."""
    (lab.folder / "cuda-12.9").mkdir()
    lab.environ = {name: str(lab.folder / folder) for name, folder in environ.items()}


def at_the_tick(lab: Lab) -> None:
    """A header changes in the tick of the clock in which the library is written."""
    lab.header().write_text("// other bytes\n")
    when = lab.header().stat().st_ctime_ns
    os.utime(lab.shelf.ops / "page/page.so", ns=(when, when))


def touch(lab: Lab) -> None:
    """git switch and back: the bytes are the same, and yet ninja compiles again for half an hour."""
    time.sleep(0.02)
    lab.header().write_text(lab.header().read_text())


def replace_library(lab: Lab, data: bytes) -> None:
    """Other bytes in a library of the same time."""
    library = lab.shelf.ops / "page/page.so"
    before = library.stat()
    library.write_bytes(data)
    os.utime(library, ns=(before.st_atime_ns, before.st_mtime_ns))


def date(lab: Lab) -> None:
    os.utime(lab.shelf.ops / "page/page.so", (4_000_000_000, 4_000_000_000))


OTHER = "aarch64" if os.uname().machine == "x86_64" else "x86_64"
# What happens -> whether `page` was recorded before, its state and whether that is a guess, and each kind of reason
# with words of its message or its file.
CHANGES: dict[str, tuple[Callable[[Lab], object], bool, tuple[str, bool], dict[str, str]]] = {
    "another package of the same version": (
        lambda lab: imports(lab, "checkout/flashinfer"), True, ("stale", False), {"another package": "checkout/"}),
    "the same package through a link": (lambda lab: imports(lab, "linked/flashinfer"), False, ("fresh", True), {}),
    "flags that are asked for": (
        lambda lab: lab.environ.update(FLASHINFER_EXTRA_CUDAFLAGS="-O3 -DNEW=1"), False, ("stale", False),
        {"other flags": "asks for -DNEW=1;"}),
    "the same CUDA, spelled otherwise": (
        lambda lab: cuda(lab, "cuda-13.0"), True, ("fresh", False), {}),
    "another CUDA": (lambda lab: cuda(lab, "cuda-12.9"), True, ("stale", False), {"CUDA_HOME": "cuda-12.9"}),
    "CUDA_PATH alone": (
        lambda lab: cuda_path(lab, CUDA_PATH="cuda-12.9"), True, ("stale", False), {"CUDA_HOME": "cuda-12.9"}),
    "CUDA_PATH beside CUDA_HOME": (
        lambda lab: cuda_path(lab, CUDA_PATH="cuda-12.9", CUDA_HOME="cuda"), True, ("fresh", False), {}),
    "an edit at the time of the library": (
        at_the_tick, False, ("stale", True), {"files changed": "flashinfer/page.cuh"}),
    "an edited build.ninja": (
        lambda lab: flags(lab, "page", "-O3", "-O1 -fast"), True, ("stale", False),
        {"other flags": "cuda_cflags: --O3 +-O1 +-fast"}),
    "a header that is gone": (
        lambda lab: lab.header().unlink(), False, ("stale", False), {"files gone": "flashinfer/page.cuh"}),
    "a header that is touched": (touch, True, ("fresh", False), {"touched files": "flashinfer/page.cuh"}),
    "a header of the library's time": (same_time, True, ("fresh", False), {}),
    "a library of another machine": (
        lambda lab: replace_library(lab, elf(OTHER)), False, ("foreign", False), {"foreign": f"is for {OTHER}"}),
    "a library from the future": (date, False, ("fresh", True), {}),
}  # fmt: skip


def test_which_modules_were_compiled_from_a_file(lab: Lab) -> None:
    """By its name and its folder's: a checkout is at another place in a container."""
    for file, names in (
        ("flashinfer/page.cuh", {"page"}), ("flashinfer/math.cuh", set(STEMS)), ("csrc/page.cu", {"page"}),
        ("flashinfer/age.cuh", set()), ("fer/page.cuh", set()),
    ):  # fmt: skip
        assert set(lab.list(files=[file], thorough=True)) == names, file


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_has_a_state_and_a_reason(lab: Lab, what: str) -> None:
    change, recorded, state, reasons = CHANGES[what]
    if recorded:
        lab.baseline()
    change(lab)
    found = lab.why("page")
    assert (found.state, found.guess) == state == states(lab)["page"]
    assert set(kinds(found)) == set(reasons)
    for reason in found.reasons:
        assert reasons[reason.kind] in " ".join([reason.message, *reason.files])


@pytest.mark.parametrize(("after", "recorded"), [(None, True), (1, True), (0, False), (-1, False)])
def test_what_changed_while_it_was_compiled_is_no_baseline(lab: Lab, after: int | None, recorded: bool) -> None:
    """The compiler may have read it before or after. ``after``: the start of the compilation, as seen from the edit."""
    lab.header().write_text("// an edit\n")
    edited = lab.header().stat().st_ctime_ns
    time.sleep(0.02)
    put(lab.shelf.ops / "page/page.so", elf())
    since = {} if after is None else {"since": edited + after}
    (one,) = lab.baseline("page", **since).modules
    assert (one.recorded, str(lab.header()) in one.changed) == (recorded, not recorded)


def test_a_file_with_the_recorded_stamp_is_not_read(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of modules share a hundred thousand headers. `cache why` reads them."""
    lab.baseline()
    read = list[str]()
    digest = tree.digest_of

    def digested(path: str) -> str:
        read.append(path)
        return digest(path)

    monkeypatch.setattr(tree, "digest_of", digested)
    assert states(lab)["page"] == ("fresh", False) and read == []
    assert lab.why("page").checked == 3 and len(read) == 3


def test_flags_that_are_no_longer_asked_for(lab: Lab) -> None:
    lab.environ["FLASHINFER_EXTRA_CFLAGS"] = "-O3"
    lab.baseline()
    assert states(lab)["page"] == ("fresh", False)
    del lab.environ["FLASHINFER_EXTRA_CFLAGS"]
    assert "not set" in lab.why("page").reasons[0].message


def test_what_is_gone_means_nothing_without_the_mounts_of_a_service(lab: Lab) -> None:
    lab.header().unlink()
    assert lab.list(blind=True)["page"].state == "unknown"


def test_an_edit_after_a_library_from_the_future_is_seen(lab: Lab) -> None:
    date(lab)
    time.sleep(0.02)
    lab.header().write_text("// an edit")
    assert states(lab)["page"] == ("stale", True)


def test_code_for_another_gpu(lab: Lab) -> None:
    """Up to 0.6.10 it stays so; later FlashInfer sees it itself."""
    flags(lab, "page", "arch=compute_121a,code=sm_121a", "arch=compute_90a,code=sm_90a")
    lab.baseline()
    assert lab.list()["page"].state == ("stale" if lab.version in SHARED_LOG else "fresh")


def test_the_same_bytes_again_are_fresh(lab: Lab) -> None:
    text = lab.header().read_text()
    lab.header().write_text("// changed\n")
    lab.header().write_text(text)
    assert states(lab)["page"] == ("stale", True)
    cleared = lab.clear_stale()
    assert (cleared.modules, cleared.guesses) == ((), ("page",))
    (refused,) = lab.baseline("page").modules
    assert not refused.recorded
    assert refused.changed == [str(lab.header())]


def test_partial_masked_and_foreign(lab: Lab) -> None:
    (lab.shelf.ops / "rope/rope.so").unlink()
    put(lab.package / "data/aot/page/page.so")
    assert {name: state for name, (state, _) in states(lab).items()} == {"page": "masked", "rope": "partial"}
    (lab.package / "data/aot/page/page.so").unlink()
    other = Shelf(lab.root, "0.4.0")
    other.module("page")
    wrong = Shelf(lab.root, lab.version, "90a")
    wrong.module("page")
    found = bind(Inventory, lab.ask("list", "page")).modules
    assert {(m.version, m.arch): m.state for m in found} == {
        ("0.4.0", "121a"): "foreign", (lab.version, "90a"): "foreign", (lab.version, "121a"): "fresh"
    }  # fmt: skip


def long(data: bytes) -> bytes:
    """A header that says: three sections of 64 bytes, at 4096."""
    return data[:40] + (4096).to_bytes(8, "little") + data[48:58] + b"\x40\0\x03\0" + data[62:]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is cut short: 0 bytes"),
        (elf()[:40], "is cut short: 40 bytes"),
        (long(elf()), "is cut short: 64 bytes of 4288"),
        (b"garbage" * 30, "is no shared library"),
        (b"#!/bin/sh\n" * 30, "is no shared library"),
        (elf()[:16] + b"\2" + elf()[17:], "is no shared library"),  # a program
    ],
)
@pytest.mark.parametrize("recorded", [False, True])
def test_a_library_that_cannot_be_loaded_is_stale(lab: Lab, data: bytes, why: str, recorded: bool) -> None:
    """A full disk or a kill leaves one; FlashInfer then ends with "file too short"."""
    if recorded:
        lab.baseline("page")
    replace_library(lab, data)
    assert states(lab)["page"] == ("stale", False)
    assert f"its library {why}" in [reason.message for reason in lab.why("page").reasons]
    assert [m.name for m in lab.clear_stale().modules] == ["page"]


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/etc/passwd"), os.mkfifo])
def test_a_library_that_is_no_file_is_never_fresh(lab: Lab, make: Callable[[Path], None]) -> None:
    library = lab.shelf.ops / "page/page.so"
    library.unlink()
    make(library)
    assert states(lab)["page"][0] in ("stale", "partial")


def test_the_release_that_compiles_again_when_its_flags_change() -> None:
    known = {"0.5.3": False, "0.6.11": False, "0.6.11.post1": True, "0.7.2.post1": True, "0.0.0+unknown": True}
    assert {version: judge.rewrites(version) for version in known} == known


GENERATOR = 'def gen_page_module():\n    return gen_jit_spec("page", ["page.cu"], extra_cflags=FLAGS)\n'


@pytest.mark.parametrize("place", ["jit/page.py", "jit/deep/page.py", "page.py"])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_generator_that_changed(lab: Lab, place: str, recorded: bool) -> None:
    """Neither ninja nor FlashInfer before 0.6.11 notices; what it does not name is a guess, too."""
    generator = put(lab.package / place, GENERATOR)
    put(lab.package / "core.py", "import torch\n")
    for name in STEMS:
        lab.compile(name)
    if recorded:
        lab.baseline()
        assert states(lab) == {"page": ("fresh", False), "rope": ("fresh", False)}
    forge(generator, GENERATOR.replace("FLAGS", "OTHER_FLAGS"))
    forge(lab.package / "core.py", "import torch, os\n")
    again = judge.rewrites(lab.version)
    assert states(lab) == {"page": ("fresh" if again else "stale", True), "rope": ("fresh", True)}
    why = lab.why("rope")
    assert kinds(why)["generator changed"] == (str(generator),) and not any(reason.stale for reason in why.reasons)
    assert lab.clear_stale().guesses == (() if again else ("page",))


def test_what_is_certainly_stale_is_no_guess(lab: Lab) -> None:
    """Though a generator that may concern it changed, too."""
    core = put(lab.package / "jit/core.py", "import torch\n")
    for name in STEMS:
        lab.compile(name)
    lab.baseline()
    forge(lab.header())
    forge(core, "import torch, os\n")
    assert states(lab) == {"page": ("stale", False), "rope": ("fresh", True)}


def test_a_generator_of_the_time_of_the_library(lab: Lab) -> None:
    """It may have been written after it, in the same tick of the clock."""
    generator = put(lab.package / "jit/page.py", GENERATOR)
    when = generator.stat().st_ctime_ns
    time.sleep(0.02)
    for later, files in ((1, ()), (0, (str(generator),))):
        os.utime(lab.shelf.ops / "page/page.so", ns=(when + later, when + later))
        assert kinds(lab.why("page")).get("generator changed", ()) == files


def test_what_flashinfer_writes_while_it_compiles_is_no_edit() -> None:
    """Its sources in the cache, which are younger than the start of the compilation."""
    written, edited = "/c/0.7.2/121a/generated/page.cu", "/p/generated/page.cu"
    shelf = SimpleNamespace(root="/c")
    recipe: Any = SimpleNamespace(library=1, linked=100, shelf=shelf, inputs=[written, edited])
    files: Any = SimpleNamespace(stamp=lambda _path: (0, 0, 0, 50))
    assert judge._changed_since(recipe, files, {"since": 40}) == [edited]
    assert judge._changed_since(recipe, files, {"since": 60}) == []


def test_a_damaged_record_is_reported_and_not_used(lab: Lab) -> None:
    place = lab.shelf.ops / (".ninja_deps" if lab.version in SHARED_LOG else "page/.ninja_deps")
    place.write_bytes(b"\xff" * 100)
    found = lab.why("page")
    assert found.state == "unknown"
    (outcome,) = lab.baseline("page").modules
    assert not outcome.recorded
    assert lab.clear_stale().modules == ()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": 1}', '{"format": 1, "files": {"a": 1}, "library": []}', "[" * 100_000]
)
def test_a_damaged_baseline_counts_as_none(lab: Lab, text: str) -> None:
    lab.baseline()
    (path,) = lab.root.glob(".envgen/baseline/*/121a/page.json")
    path.write_text(text)
    assert lab.list()["page"].guess


def test_a_baseline_is_never_written_through_a_link(lab: Lab) -> None:
    (lab.folder / "elsewhere").mkdir()
    (lab.root / ".envgen").symlink_to(lab.folder / "elsewhere")
    document = answer({"operation": "baseline", "root": str(lab.root), "patterns": ["page"]})
    assert document["kind"] == "refused"
    assert not list((lab.folder / "elsewhere").iterdir())


@pytest.mark.parametrize("debug", ["-O0 $\n    -G", "-O0 $\n    --device-debug"])  # 0.5.3; from 0.6 on
def test_debug_kernels_have_a_state_of_their_own(lab: Lab, debug: str) -> None:
    flags(lab, "page", "-O3", debug)
    lab.baseline()
    assert states(lab) == {"page": ("debug", False), "rope": ("fresh", False)}
    (reason,) = lab.why("page").reasons
    assert "10 to 100 times slower" in reason.message
    assert lab.clear_stale().modules == ()


@pytest.mark.parametrize(
    ("name", "code", "folder"),
    [
        ("fp4_quantization_121", "121a", "121f"),
        ("fp4_quantization_120", "120a", "121a"),
        ("fused_moe_90", "90a", "121a"),
        ("fused_moe_120", "120f", "121a"),
        ("gemm_sm120", "120a", "121a"),
        ("page", "120f", "121a"),
        ("page", "90", "90a"),
    ],
)
def test_archs_that_generators_fix(tmp_path: Path, name: str, code: str, folder: str) -> None:
    """fp4_quantization_121 is sm_121a in a folder 121f: cleared for that, it came back the same at each run."""
    for version in RELEASES:
        shelf = Shelf(tmp_path / version, version, folder)
        path = shelf.module(name) / "build.ninja"
        path.write_text(f"cuda_cflags = -gencode=arch=compute_{code},code=sm_{code}\n" + path.read_text())
        request = {"operation": "list", "root": str(tmp_path / version), "expected_archs": [folder]}
        (found,) = bind(Inventory, answer(request)["result"]).modules
        assert "other GPU" not in causes_of(found), version


def test_libraries_of_providers_mask(lab: Lab) -> None:
    """FlashInfer 0.7: wheels for one GPU each, found by a small flashinfer-jit-cache."""
    wheel = lab.folder / "provider/jit_cache"
    lab.providers = [
        (str(wheel), ["90a"], {"page"}),
        (str(wheel), ["120f"], {"rope"}),
        (str(wheel), ["121a"], {"page"}),
    ]
    assert states(lab)["page"][0] == "fresh"  # named, but not there
    put(wheel / "page/page.so")
    put(wheel / "rope/rope.so")
    assert {name: state for name, (state, _) in states(lab).items()} == {"page": "masked", "rope": "masked"}
    assert str(wheel / "page/page.so") in lab.why("page").reasons[-1].message
    lab.providers = [(str(wheel), ["90a", "121f"], {"rope"})]
    assert {name: state for name, (state, _) in states(lab).items()} == {"page": "fresh", "rope": "masked"}
    lab.providers = [(str(wheel), ["90a"], {"rope"})]
    assert states(lab)["rope"][0] == "fresh"  # not for this GPU: FlashInfer compiles


def test_every_target_needs_a_library(tmp_path: Path) -> None:
    wheel = put(tmp_path / "wheel/page/page.so").parents[1]
    found = libraries.InstalledPackage("/x", "0.7.2.post1", "/x/data/aot", [(str(wheel), ["120f"], {"page"})])
    assert found.masking("page", ["120f", "121a"]) == str(wheel / "page/page.so")
    assert found.masking("page", ["90a", "121a"]) == ""
    assert found.masking("page", []) == ""


# What a driver decides, and FlashInfer's own log (0.7.4)

CUTE = "moe_gated_sm121_cute_dsl"


@pytest.fixture
def cute(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Module]:
    """A module of CuTe DSL, and what is said of it with this driver and these backends."""
    put(lab.shelf.ops / CUTE / "meta.json", "{}")
    put(lab.shelf.ops / CUTE / "kernel_1.o")

    def with_driver(driver: str, *installed: str) -> Module:
        monkeypatch.setattr(judge, "driver_of", lambda: driver)
        monkeypatch.setattr(judge, "backends", lambda: list(installed))
        return lab.why(CUTE)

    return with_driver


def test_a_driver_that_switches_the_backend_makes_it_stale(lab: Lab, cute: Callable[..., Module]) -> None:
    both = ("cu12", "cu13")
    assert (cute("575.57.08", *both).state, lab.why(CUTE).baseline) == ("unknown", "none")
    (noted,) = lab.baseline(CUTE).modules
    assert noted.recorded, noted.reason
    assert cute("575.57.08", *both).baseline == "recorded"
    for driver, installed in (
        ("570.1.1", both),  # the same backend
        ("580.142", ("cu13",)),  # the only one
        ("", both),  # none is seen from here
    ):
        module = cute(driver, *installed)
        assert (module.state, module.reasons[0].message) == ("unknown", "was compiled with driver 575.57.08")
    module = cute("580.142", *both)
    assert (module.state, module.guess) == ("stale", False)
    assert "575.57.08 and CuTe DSL's cu12; with driver 580.142 it picks cu13" in module.reasons[0].message
    assert cute("590.44.01", "cu13", "cu14").state == "stale"  # a backend that envgen does not know
    assert [one.name for one in lab.clear_stale().modules] == [CUTE]
    assert (lab.shelf.ops / "page").exists() and not (lab.shelf.ops / CUTE).exists()


def test_the_driver_is_noted_once_and_only_where_it_is_known(lab: Lab, cute: Callable[..., Module]) -> None:
    cute("")
    assert [one.reason for one in lab.baseline(CUTE).modules] == ["its driver is not known"]
    cute("580.95.05")
    os.utime(lab.shelf.ops / CUTE / "meta.json", (1, 1))
    assert "older than this start" in lab.baseline(CUTE).modules[0].reason
    put(lab.shelf.ops / CUTE / "meta.json", "{ }")
    lab.baseline(CUTE)
    cute("590.44.01")
    lab.baseline(CUTE)
    assert lab.why(CUTE).reasons[0].message == "was compiled with driver 580.95.05"
    put(lab.shelf.ops / CUTE / "meta.json", "{  }")  # FlashInfer compiled it again
    assert lab.why(CUTE).baseline == "none"


def test_seconds_are_those_of_the_log(lab: Lab) -> None:
    """As FlashInfer 0.7.4 wrote them with a real nvcc: a library that was up to date is logged again."""
    built = (lab.shelf.ops / "page/page.so").stat().st_mtime
    line = '{{"toolchain": "nvcc", "name": "{}", "seconds": {}, "pid": 69, "time": {}}}\n'
    lines = [
        line.format("page", 99.5, built - 500), line.format("page", 41.309, built + 0.1), "{", "[]", "\xff",
        line.format("page", 0.015, built + 60), line.format("rope", '"x"', built),
    ]  # fmt: skip
    put(lab.root / "jit-builds.jsonl", "".join(lines))
    assert {name: module.seconds for name, module in lab.list().items()} == {"page": 41.309, "rope": 0.0}


@pytest.mark.parametrize(
    ("whole", "version", "gpu", "said"),
    [
        ("0.7.4+cu130", "0.7.4+cu130", "sm121a", ["jit-cache-x 0.7.4+cu130: 2 modules for 121a"]),
        ("0.7.2+cu130", "0.7.2+cu130", "sm121a", ["FlashInfer 0.7.4 ignores flashinfer-jit-cache 0.7.2+cu130"]),
        ("0.7.4+cu130", "0.7.4+cu134", "sm121a", ["FlashInfer ignores jit-cache-x 0.7.4+cu134 beside its 0.7.4+cu130"]),
        ("0.7.4", "0.7.4", "sm90a", ["jit-cache-x 0.7.4: 2 modules for 90a",
                                     "FlashInfer compiles all, because none of them is for 121a"]),
        ("0.7.4+cu129", "0.7.4+cu129", "sm120f", ["jit-cache-x 0.7.4+cu129: 2 modules for 120f, which need "
                                                  "libcudart.so.12: FlashInfer compiles those that it can't load"]),
    ],
)  # fmt: skip
def test_prebuilt_packages_are_named_and_who_refuses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: str, version: str, gpu: str, said: list[str]
) -> None:
    """Read in FlashInfer 0.7.4; tests/process/test_prebuilt.py asks the real one."""
    put(tmp_path / "lib64/libcudart.so.13")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    one = SimpleNamespace(
        distribution="jit-cache-x", version=version, jit_cache_dir="/x", cuda_architectures={gpu}, modules=["a", "b"]
    )
    shim = SimpleNamespace(__version__=whole, get_jit_cache_providers=lambda: [one])
    monkeypatch.setitem(sys.modules, "flashinfer_jit_cache", shim)
    package = libraries.InstalledPackage("/site", "0.7.4")
    libraries.find_providers(package)
    assert package.prebuilt + judge._no_use(package, ["121a"]) == said
    assert judge._no_use(package, None) == [] and bool(package.providers) == ("ignores" not in said[0])
