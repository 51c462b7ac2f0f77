"""What is kept is not compiled again: saved and restored caches, namespaces, switching there and back. And which GPU
code real libraries hold. Real FlashInfer, real ninja, real nvcc, a real engine; see jit_lab.py."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from jit_lab import CACHE, Envgen, Lab
from projects import docker

from envgen.profile.load import load_project, select
from envgen.render.locking import lock_of
from envgen.render.outputs import render_profile

pytestmark = pytest.mark.engine


@pytest.fixture
def lab(jit_lab: Lab) -> Lab:
    return jit_lab


@pytest.fixture
def envgen(cache_command: Envgen) -> Envgen:
    return cache_command


def would_build(lab: Lab, module: str, version: str) -> bool:
    """Asks the container's ninja, dry, as FlashInfer would ask it to build."""
    ops = f"{CACHE}/{version}/121a/cached_ops"
    folder = ops if version == "0.5.3" else f"{ops}/{module}"
    said = lab.sh(f"ninja -n -C {folder} -f {ops}/{module}/build.ninja")
    assert "no work to do" in said or "cuda_compile" in said or "nvcc" in said or "[1/" in said, said
    return "no work to do" not in said


def empty(lab: Lab) -> None:
    """Another machine: the same image, an empty cache."""
    lab.stop()
    docker("volume", "rm", lab.volume)
    lab.prebuilt = False


def test_a_restored_cache_is_not_compiled_again(lab: Lab, envgen: Envgen, tmp_path: Path) -> None:
    """FlashInfer 0.5.3 (one record for all modules) and 0.7.2 (absolute paths, one each), by its own build."""
    lab.start()
    before = {version: lab.times("page", version) for version in ("0.5.3", "0.7.2.post1")}
    envgen("save", "kernels.tar.gz")
    assert (tmp_path / "kernels.tar.gz").stat().st_size > 100_000
    empty(lab)
    said = envgen("load", "kernels.tar.gz")
    assert "loaded from kernels.tar.gz: 3 modules" in said

    lab.start()
    assert lab.times("page") == before["0.5.3"]
    lab.build("page", "vllm_comm")
    assert lab.times("page") == before["0.5.3"]
    assert not would_build(lab, "page", "0.5.3")
    states = envgen.states()
    assert (states["0.5.3 page"], states["0.5.3 vllm_comm"]) == ("fresh", "fresh")  # saved with their baselines

    lab.start("new")
    lab.build("page")
    assert lab.times("page", "0.7.2.post1") == before["0.7.2.post1"]


def test_with_times_of_its_own_it_would_be(lab: Lab, envgen: Envgen) -> None:
    """Why times are kept: unpacked with new ones, ninja compiles all again; cut to whole seconds, the baseline no
    longer knows the library."""
    lab.start()
    envgen("baseline", "page", "--version", "0.5.3")
    assert not would_build(lab, "page", "0.7.2.post1")
    ops = f"{CACHE}/0.5.3/121a/cached_ops"
    lab.sh(f"touch -d @$(stat -c %Y {ops}/page/page.so) {ops}/page/page.so")
    assert "its baseline is of an earlier build" in envgen("why", "page", "--version", "0.5.3")
    lab.sh(f"find {CACHE} -type f -exec touch {{}} +")
    assert would_build(lab, "page", "0.5.3")
    assert would_build(lab, "page", "0.7.2.post1")


def test_an_archive_of_a_stranger(lab: Lab, envgen: Envgen, tmp_path: Path) -> None:
    """Through the whole way into the container, as root there: nothing comes, nothing leaves."""
    lab.start()
    inside = lab.sh(f"find {CACHE} | sort | md5sum")
    head = b'{"format": 2, "key": "", "root": "/root/.cache/flashinfer"}'
    for name, kind, target in (
        ("../../../etc/evil", tarfile.REGTYPE, ""),
        ("/etc/evil", tarfile.REGTYPE, ""),
        ("0.5.3/121a/cached_ops/evil", tarfile.SYMTYPE, "/etc"),
        ("0.5.3/121a/cached_ops/evil/null", tarfile.CHRTYPE, ""),
        ("0.5.3/121a/cached_ops/evil/hard", tarfile.LNKTYPE, "/etc/passwd"),
    ):
        with tarfile.open(tmp_path / "evil.tar", "w:gz") as tar:
            first = tarfile.TarInfo("envgen-cache.json")
            first.size = len(head)
            tar.addfile(first, io.BytesIO(head))
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.devmajor, info.devminor = kind, target, 1, 3
            tar.addfile(info)
        assert "the archive is not taken" in envgen("load", "evil.tar", code=6)
    (tmp_path / "cut.tar").write_bytes((tmp_path / "evil.tar").read_bytes()[:-20])
    envgen("load", "cut.tar", code=6)
    assert lab.sh(f"find {CACHE} | sort | md5sum") == inside


def test_there_and_back_compiles_nothing(lab: Lab, envgen: Envgen, tmp_path: Path) -> None:
    """Another arch list is another namespace; back on the first, its modules are as they were. gc takes the other."""
    file = tmp_path / "envgen.yaml"
    file.write_text(file.read_text().replace(", namespace: false", ""))
    volumes = {arch: rendered_volume(file, arch) for arch in ("12.1a", "12.0f")}
    assert len(set(volumes.values())) == 2
    try:
        lab.start(volume=volumes["12.1a"])
        page = lab.times("page")
        lab.stop()
        lab.prebuilt = False
        lab.start(volume=volumes["12.0f"])
        assert lab.times("page") == {}
        held = envgen.json("gc", "--keep", "1")
        assert [(one["source"], one["fate"]) for one in held] == [(v, "kept") for v in volumes.values()]
        lab.stop()
        # Nothing runs: a throw-away container looks into the namespace of the profile as it stands now.
        found = envgen.json("list", "--version", "0.5.3")["modules"]
        assert [module["name"] for module in found] == ["page", "vllm_comm"]
        assert envgen.json("list", "--set", "cuda.arch_list=12.0f")["modules"] == []

        lab.start(volume=volumes["12.1a"])
        lab.build("page")  # by its unchanged times, ninja had nothing to do
        assert lab.times("page") == page
        said = envgen("gc", "--keep", "1", "--dry-run")
        assert "would go" in said
        assert "removed" in envgen("gc", "--keep", "1")
        left = docker("volume", "ls", "-q", "--filter", f"name={lab.name}-dev-cache-flashinfer").split()
        assert left == [volumes["12.1a"]]
    finally:
        lab.stop()
        docker("volume", "rm", "-f", *volumes.values(), check=False)


def rendered_volume(file: Path, arch: str) -> str:
    """What Compose would mount, from the rendered file."""
    import yaml

    project = load_project(file=file, sets=(f"cuda.arch_list={arch}",)).project
    profile = select(project, None)
    text = render_profile(profile, lock_of(profile, project.root), root=project.root).files["compose/dev.yaml"]
    return str(yaml.safe_load(text)["volumes"]["cache-flashinfer"]["name"])


def test_audit_of_real_libraries(lab: Lab, envgen: Envgen) -> None:
    """Both modules as compiled for 12.1a; libraries of three kinds by the real nvcc; torch's own, without GPU code."""
    lab.start()
    site = "/venv/wheel/lib/python3.11/site-packages"
    code = {
        "_old": "-gencode arch=compute_90,code=sm_90 -gencode arch=compute_100a,code=sm_100a",
        "_ptx": "-gencode arch=compute_90,code=compute_90",
        "_fit": "-gencode arch=compute_90,code=sm_90 -gencode arch=compute_120f,code=sm_120f",
    }
    lab.sh(f"mkdir -p {site}/vllm && touch {site}/vllm/__init__.py && echo '__global__ void k() {{}}' > /tmp/k.cu")
    for name, flags in code.items():
        lab.sh(f"nvcc -shared -Xcompiler -fPIC -cudart none {flags} -o {site}/vllm/{name}.so /tmp/k.cu")
    lab.sh(f"echo 'int f(void) {{ return 1; }}' | gcc -shared -fPIC -x c - -o {site}/vllm/_host.so")
    lab.sh(f"cd {CACHE}/0.5.3 && mkdir -p 90a/cached_ops && cp -a 121a/cached_ops/page 90a/cached_ops/")

    found = {one["path"].rpartition("/")[2]: one for one in envgen.json("audit", code=1)["libraries"]}
    assert found["page.so"]["archs"] == found["vllm_comm.so"]["archs"] == ["sm_121a"]
    assert found["page.so"]["verdict"] == found["vllm_comm.so"]["verdict"] == "ok"
    assert (found["_old.so"]["archs"], found["_old.so"]["verdict"]) == (["sm_100a", "sm_90"], "error")
    assert (found["_ptx.so"]["archs"], found["_ptx.so"]["verdict"]) == (["compute_90"], "ptx")
    assert (found["_fit.so"]["archs"], found["_fit.so"]["verdict"]) == (["sm_120f", "sm_90"], "ok")
    assert "_host.so" not in found
    lab.sh(f"rm {site}/vllm/_old.so")
    assert "all of which the profile's GPU can run" in envgen("audit")
    said = envgen("audit", "--set", "cuda.arch_list=9.0a", code=1)
    assert "page: holds sm_121a: nothing that a GPU of 9.0 can run" in said


def test_a_damaged_record_in_the_container(lab: Lab, envgen: Envgen) -> None:
    """Cut off, then garbage: said, nothing claimed, and the module can be cleared."""
    lab.start("new")
    record = f"{CACHE}/0.7.2.post1/121a/cached_ops/page/.ninja_deps"
    lab.sh(f"truncate -s -10 {record}")
    assert ".ninja_deps is cut off or damaged" in envgen("why", "page", "--version", "0.7.2.post1")
    lab.sh(f"head -c 5000 /dev/urandom > {record}")
    assert envgen.states()["0.7.2.post1 page"] == "unknown"
    assert "removed page" in envgen("clear", "page", "--version", "0.7.2.post1")


def test_a_service_that_is_not_root_on_a_cache_that_is(lab: Lab, envgen: Envgen) -> None:
    """Root wrote it and the service's user can't even look: envgen is root inside, without sudo on the host."""
    lab.start()
    lab.prebuilt = False
    lab.start("wheel", "--user", "1000:1000")
    assert "Permission denied" in lab.sh(f"ls {CACHE} 2>&1 || true")
    ops = f"{CACHE}/0.5.3/121a/cached_ops"
    assert docker("exec", "-u", "0", lab.container, "ls", ops).split() == ["page", "tmp", "vllm_comm"]
    assert "removed page" in envgen("clear", "page", "--version", "0.5.3")
    assert docker("exec", "-u", "0", lab.container, "ls", ops).split() == ["tmp", "vllm_comm"]
