"""`envgen cache` on the real FlashInfer 0.5.3 and 0.7.2.post1, compiled by the real nvcc, in a container without a GPU.

Each test starts from a copy of what the image compiled, so that only what a test is about is compiled in it.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from jit_lab import CACHE, SITE, Envgen, Lab
from projects import docker

from envgen.jitcache.place import arch_folders
from envgen.profile.values import CudaArchList

pytestmark = pytest.mark.engine


@pytest.fixture
def lab(jit_lab: Lab) -> Lab:
    return jit_lab


@pytest.fixture
def envgen(cache_command: Envgen) -> Envgen:
    return cache_command


def test_the_stale_header_from_first_to_last(lab: Lab, envgen: Envgen) -> None:
    """A header changed under an old time; found, named, cleared by cause, compiled again, and nothing else is.

    While it is compiled, `clear` refuses it.
    """
    lab.start()
    foreign = {"0.7.2.post1 page": "foreign"}
    assert envgen.states() == {"0.5.3 page": "fresh?", "0.5.3 vllm_comm": "fresh?", **foreign}
    built = lab.stamps("page")
    printed = envgen("warm", "page", "vllm_comm")
    assert lab.stamps("page") == built, printed  # nothing to compile: what they were compiled from is recorded
    assert envgen.states() == {"0.5.3 page": "fresh", "0.5.3 vllm_comm": "fresh", **foreign}

    # Headers are shared; the binding's source is page's alone.
    source = f"{SITE}/data/csrc/flashinfer_page_binding.cu"
    lab.sh(f"echo 'int envgen_was_here;' >> {source} && touch -d 2001-01-01 {source}")
    page, vllm_comm = lab.stamps("page"), lab.stamps("vllm_comm")
    lab.build("page", "vllm_comm")
    assert lab.stamps("page") == page  # FlashInfer itself says that it is up to date
    assert envgen.states() == {"0.5.3 page": "stale", "0.5.3 vllm_comm": "fresh", **foreign}
    why = envgen("why", "page", "vllm_comm", "--version", "0.5.3", code=1)
    assert f"1 file: has other bytes than when it was compiled\n    {source}\n" in why
    assert "vllm_comm (0.5.3/121a): fresh" in why

    assert "removed page (0.5.3/121a)" in envgen("clear", "--stale")
    assert lab.stamps("page") == {}
    words = [sys.executable, "-m", "envgen", "cache", "warm", "page", "-j", "2"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as warm:
        for _ in range(600):
            if lab.sh("pgrep -f '[n]vcc' || true"):
                break
            time.sleep(0.1)
        # Meanwhile it is not cleared, and the refusal says who builds it.
        refused = envgen("clear", "page", "--version", "0.5.3", code=6)
        assert "page (0.5.3/121a) is being built" in refused
        assert envgen.states()["0.5.3 page"] == "building"
        printed = warm.communicate(timeout=900)[0]
    assert warm.returncode == 0, printed
    assert "page: compiled in" in printed
    assert "page: 3/3 page.so" in printed
    assert lab.stamps("vllm_comm") == vllm_comm
    assert envgen.states() == {"0.5.3 page": "fresh", "0.5.3 vllm_comm": "fresh", **foreign}
    assert int(lab.sh(f"grep -c envgen_was_here {CACHE}/0.5.3/121a/cached_ops/page/page.so")) > 0


def test_what_exec_compiles_is_recorded(lab: Lab, envgen: Envgen) -> None:
    lab.start()
    envgen("clear", "page", "--version", "0.5.3")
    words = [sys.executable, "-m", "envgen", "exec", "dev", "--", "python3", "/build.py", "page"]
    subprocess.run(words, check=True)
    states = envgen.states()  # not of what was compiled before it: a file may have changed since under its old time
    assert (states["0.5.3 page"], states["0.5.3 vllm_comm"]) == ("fresh", "fresh?")


def test_from_the_wheel_to_a_checkout_of_the_same_version(lab: Lab, envgen: Envgen) -> None:
    """0.5.3 keeps build.ninja: edits in the checkout would never be compiled. The issue's second trap."""
    lab.start()
    envgen("warm", "page", "vllm_comm")
    lab.start("checkout")
    page = lab.stamps("page")
    lab.build("page")
    assert lab.stamps("page") == page
    assert envgen.states()["0.5.3 page"] == "stale"
    why = envgen("why", "page", "--version", "0.5.3", code=1)
    assert f"was compiled from {SITE}; Python imports /workspace/flashinfer/flashinfer" in why


def test_flags_and_the_spelling_of_cuda_home(lab: Lab, envgen: Envgen) -> None:
    """0.5.3 ignores other flags; another spelling of the same folder makes nothing stale."""
    lab.start("wheel", "-e", "FLASHINFER_EXTRA_CUDAFLAGS=-DENVGEN=1")
    page = lab.stamps("page")
    lab.build("page")
    assert lab.stamps("page") == page
    assert "-DENVGEN=1" in envgen("why", "page", "--version", "0.5.3", code=1)
    lab.start("new", "-e", "CUDA_HOME=/usr/local/cuda-13.0")
    assert envgen.states() == {"0.5.3 page": "foreign", "0.5.3 vllm_comm": "foreign", "0.7.2.post1 page": "fresh?"}


def test_warm_says_the_compilers_own_first_error(lab: Lab, envgen: Envgen) -> None:
    lab.start()
    lab.sh(f"sed -i '1i #error envgen broke this' {SITE}/data/csrc/flashinfer_page_binding.cu")
    # The other object is there: compiling it again would tell nothing.
    lab.sh(f"cd {CACHE}/0.5.3/121a/cached_ops/page && rm page.so flashinfer_page_binding.cuda.o")
    printed = envgen("warm", "page", "nonsense", code=1)
    assert "page: failed\n" in printed
    assert "error: #error envgen broke this" in printed
    assert "nonsense: cannot be compiled by name; compiled on first use" in printed
    assert envgen.states()["0.5.3 page"] in ("partial", "building")


@pytest.mark.nightly
def test_without_a_service_in_a_temporary_container(lab: Lab, envgen: Envgen) -> None:
    """Of a cleared module alone the objects are compiled."""
    lab.start()
    others = lab.stamps("vllm_comm")
    lab.stop()
    # The image's own Python has no FlashInfer; a mounted one is installed in a service alone.
    wheel = "sources.flashinfer.origin={wheel: flashinfer-python==0.5.3}"
    python = ("--set", "base.python=/venv/wheel/bin/python3", "--set", wheel)
    envgen("clear", "page", "--version", "0.5.3", *python)
    assert "nothing to compile" in envgen("warm", *python), "what is gone is not partial"
    printed = envgen("warm", "page", "vllm_comm", *python)
    assert "page: compiled in" in printed and f"compiling in a temporary container of {lab.image}" in printed
    assert docker("ps", "-aq", "--filter", f"ancestor={lab.image}") == ""
    lab.start()
    assert envgen.states()["0.5.3 page"] == "fresh"
    assert len(others) > 2 and lab.stamps("vllm_comm") == others


# The jit-cache of 0.7 is not on the package index. This stands in for it: the functions that FlashInfer 0.7 asks, as in
# flashinfer-ai/flashinfer#4514. The libraries are empty files: which one would be loaded is asked, none is.
SHIM = """
from pathlib import Path
from types import SimpleNamespace
__version__ = "VERSION+cu130"
def get_jit_cache_dir():
    return str(Path(__file__).parent / "jit_cache")
def get_jit_cache_providers():
    return (SimpleNamespace(provider_id="ARCH", distribution="flashinfer-jit-cache-ARCH", version="PROVIDER+cu130",
                            jit_cache_dir=Path("/provider"), cuda_architectures=frozenset({"ARCH"}),
                            modules=frozenset({"page"})),)
"""


# FlashInfer, the provider, its architecture, and whether its library takes the module's place.
PROVIDERS = (
    ("0.7.2.post1", "0.7.2.post1", "sm121a", True),
    ("0.7.2.post1", "0.7.2.post1", "sm120f", True),
    ("0.7.2.post1", "0.7.2.post1", "sm120a", False),
    ("0.7.2.post1", "0.7.1", "sm121a", False),
    ("0.6.18.post1", "0.6.18.post1", "sm121a", False),  # a left-over one is ignored
)


# FlashInfer's own answer with each of them, in one process: its module looks for them when it is imported.
ASK_PROVIDERS = f"""
import importlib, sys
from flashinfer.jit import env
sys.path.insert(0, "")
for number in range({len(PROVIDERS)}):
    sys.path[0] = f"/shims/{{number}}"
    sys.modules.pop("flashinfer_jit_cache", None)
    importlib.reload(env)
    print("artifacts", len(env.get_aot_artifacts("page")))
"""


@pytest.mark.nightly
def test_prebuilt_libraries_of_providers(lab: Lab, envgen: Envgen) -> None:
    lab.start("new")
    site = "/venv/new/lib/python3.11/site-packages"
    lab.sh("mkdir -p /provider/page && touch /provider/page/page.so")
    for number, (version, provider, arch, _) in enumerate(PROVIDERS):
        folder = f"/shims/{number}/flashinfer_jit_cache"
        shim = SHIM.replace("VERSION", version).replace("PROVIDER", provider).replace("ARCH", arch)
        lab.sh(f"mkdir -p {folder}/jit_cache/page && touch {folder}/jit_cache/page/page.so")
        lab.sh(f"cat > {folder}/__init__.py <<'END'\n{shim}\nEND")
    printed = docker("exec", "-i", lab.container, "python3", "-", stdin=ASK_PROVIDERS).splitlines()
    asked = [line.split()[1] != "0" for line in printed if line.startswith("artifacts ")]
    assert asked == [masked for *_, masked in PROVIDERS], printed
    for number, (_, provider, arch, masked) in enumerate(PROVIDERS):
        lab.sh(f"rm -rf {site}/flashinfer_jit_cache && cp -r /shims/{number}/flashinfer_jit_cache {site}/")
        state = envgen.states()["0.7.2.post1 page"]
        assert (state.rstrip("?") == "masked") == masked, (provider, arch)
        assert ("/provider/page/page.so" in envgen("why", "page", "--version", "0.7.2.post1")) == masked


ARCH_LISTS = ("12.1", "12.0", "12.0 12.1", "9.0 12.1", "8.0 12.1", "9.0a 12.1a", "12.1f")
# FlashInfer reads the list when this module of its own is imported.
ASK_FOLDERS = f"""
import importlib, os
from flashinfer.jit import env
for archs in {ARCH_LISTS!r}:
    os.environ["FLASHINFER_CUDA_ARCH_LIST"] = archs
    importlib.reload(env)
    print(archs, os.path.basename(env.FLASHINFER_WORKSPACE_DIR), sep=":")
"""


@pytest.mark.nightly
def test_the_names_of_arch_folders(lab: Lab) -> None:
    """FlashInfer's own folder is among those that envgen expects, so that nothing live is called foreign."""
    lab.start()
    for python in ("wheel", "new"):
        printed = docker("exec", "-i", lab.container, f"/venv/{python}/bin/python3", "-", stdin=ASK_FOLDERS)
        found = dict(line.split(":") for line in printed.splitlines() if line.partition(":")[0] in ARCH_LISTS)
        assert tuple(found) == ARCH_LISTS, printed
        assert {
            archs: name for archs, name in found.items() if name not in arch_folders(CudaArchList.parse(archs))
        } == {}


# Has FlashInfer write the build.ninja of `page` twice, with other variables, into files of these names.
WRITE = """
import os, sys
from flashinfer.page import gen_page_module
for name, debug in (("verbose", ""), ("both", "0")):
    os.environ.update({"FLASHINFER_JIT_VERBOSE": "1", **({"FLASHINFER_JIT_DEBUG": debug} if debug else {})})
    os.unlink(sys.argv[1])
    gen_page_module().write_ninja()
    open("/tmp/" + name, "w").write(open(sys.argv[1]).read())
"""


@pytest.mark.nightly
def test_debug_kernels_by_the_real_build(lab: Lab, envgen: Envgen) -> None:
    """FLASHINFER_JIT_VERBOSE alone makes them; build.ninja as FlashInfer writes it is enough to tell."""
    for python, version in (("wheel", "0.5.3"), ("new", "0.7.2.post1")):
        lab.start(python)
        ninja = f"{CACHE}/{version}/121a/cached_ops/page/build.ninja"
        assert envgen.states()[f"{version} page"] == "fresh?"
        docker("exec", "-i", lab.container, "python3", "-", ninja, stdin=WRITE)
        lab.sh(f"cp /tmp/verbose {ninja}")
        assert envgen.states()[f"{version} page"].rstrip("?") == "debug"
        printed = envgen("why", "page", "--version", version)
        assert "10 to 100 times slower" in printed and "fix: envgen cache clear page" in printed
        lab.sh(f"cp /tmp/both {ninja}")
        assert envgen.states()[f"{version} page"].rstrip("?") == "fresh"
