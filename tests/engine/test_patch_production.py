"""The production image: real vLLM 0.14.0 and FlashInfer 0.5.3 with all patches, installed as Python alone."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from lock_servers import git_daemon
from patch_sources import BUILD, checkout, files, mirrored, project
from projects import BASE, Project, docker, run_again

from envgen.engine.client import Engine
from envgen.engine.git import git

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

PATCHES = (
    "flashinfer/0001-rewrite-build-ninja.patch vllm/0001-mxfp4-sm12x-flashinfer-cutlass.patch "
    "vllm/0002-assume-32bit-indexing-if-there.patch vllm/0003-fastsafetensors-own-device.patch "
    "vllm/0004-marlin-for-sm12x.patch vllm/0005-fa3-for-hopper-only.patch"
)
# Prints the digest of each file named on its command line, as it is installed; imports nothing.
SEE = """\
import hashlib, importlib.metadata as meta, importlib.util, json, os, sys
found = {}
for name in sys.argv[1:]:
    package = name.split("/")[0]
    top = os.path.dirname(os.path.dirname(importlib.util.find_spec(package).origin))
    found[name] = hashlib.sha256(open(os.path.join(top, name), "rb").read()).hexdigest()
found["versions"] = [meta.version("vllm"), meta.version("flashinfer-python")]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return mirrored(tmp_path_factory.mktemp("mirror"), vllm=["0.14.0"], flashinfer=["0.5.3"])


@pytest.fixture(scope="module")
def built(engine: Engine, tmp_path_factory: pytest.TempPathFactory, mirror: dict[str, str]) -> Iterator[Project]:
    del engine
    made = project(tmp_path_factory.mktemp("production"))
    try:
        found = made.envgen(*BUILD, env=mirror)
        assert "1 patch fits v0.5.3 of https://github.com/flashinfer-ai" in found.err
        assert "; 5 patches fit v0.14.0 of https://github.com/vllm-project" in found.err
        yield made
    finally:
        made.envgen("down", "--volumes", code=None)
        docker("image", "rm", "-f", f"{made.name}:prod", check=False)


def test_the_patched_files_are_inside(built: Project) -> None:
    import hashlib
    import tempfile
    from pathlib import Path

    from envgen.engine.git import git
    from envgen.patches.series import load_series
    from envgen.patches.source import put

    expected = {}
    for source, version in (("vllm", "0.14.0"), ("flashinfer", "0.5.3")):
        with tempfile.TemporaryDirectory() as folder:
            put(Path(folder), files(source, version))
            series = load_series(built.root, source)
            for patch in series.patches:
                git(["apply", "-"], cwd=Path(folder), stdin=patch.content)
                for name in patch.touches if patch.is_python_only(source) else ():  # the others are in no package
                    expected[name] = hashlib.sha256(Path(folder, name).read_bytes()).hexdigest()
    built.envgen("up", "serve")
    found = json.loads(built.envgen("exec", "serve", "--", "python3", "-c", SEE, *expected).out)
    assert found.pop("versions")[0].startswith("0.14.0")
    assert found == expected
    report = built.envgen("doctor", code=1).out  # neither can be imported: nothing that they depend on is installed
    (claimed,) = (line for line in report.splitlines() if "patches in the imported code" in line)
    names = PATCHES.partition(" vllm/0004")[0].replace(".patch", "").split()
    assert all(f"{name} (" in claimed for name in names) and "vllm/0004" not in claimed
    assert "flashinfer/0001-rewrite-build-ninja (jit/core.py)" in claimed
    where = "import importlib.util, os; print(os.path.dirname(importlib.util.find_spec('vllm').origin))"
    folder = built.envgen("exec", "serve", "--", "python3", "-c", where).out.strip()
    file = f"{folder}/compilation/decorators.py"
    built.envgen("exec", "serve", "--", "sed", "-i", "s/hasattr(torch._inductor.config, /hasattr(object, /", file)
    found = built.envgen("doctor", code=1).out
    assert "patches of the image are not in the imported code: vllm/0002-assume-32bit-indexing-if-there" in found
    assert f"{file}: changed" in found


def test_the_label_names_the_patches(built: Project) -> None:
    labels = json.loads(docker("image", "inspect", f"{built.name}:prod", "--format", "{{json .Config.Labels}}"))
    assert labels["dev.envgen.patches"] == PATCHES


def test_an_edited_python_patch_runs_only_what_comes_after_the_wheels(built: Project, mirror: dict[str, str]) -> None:
    patch = next((built.root / "patches/vllm").glob("0003-*"))
    # Words of its own: what an earlier run built is in the build cache still.
    patch.write_text(patch.read_text().replace("counts on one.", f"counts on one. {uuid.uuid4()}"))
    found = built.envgen(*BUILD, "--json", env=mirror).json
    run = run_again((built.root / found["log"]).read_text())
    assert not [name for name in run if "build-wheel" in name or "envgen/fetch " in name]
    assert [name for name in run if "apply-patches --installed" in name]


def test_build_tries_the_locked_commit(engine: Engine, tmp_path: Path) -> None:
    """The branch has moved to a source that the patches do not fit; the lock has not."""
    del engine
    (tmp_path / "project").mkdir()
    made = project(tmp_path / "project")
    bare = tmp_path / "srv/vllm.git"
    work = checkout(tmp_path / "work", "vllm", "0.14.0")
    git(["clone", "-q", "--bare", str(work), str(bare)], cwd=tmp_path)
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    base = "envgentestcarry:base"
    docker("build", "-q", "-t", base, "-", stdin=f"FROM {BASE}\nLABEL carry=1\n")
    try:
        with git_daemon(bare.parent) as address:
            text = (made.root / "envgen.yaml").read_text()
            text = text.replace("pypi: vllm==0.14.0", f"git: {address}/vllm.git, ref: main")
            start, end = text.index("      flashinfer:"), text.index("      vllm:")
            (made.root / "envgen.yaml").write_text((text[:start] + text[end:]).replace(BASE, base))
            made.envgen("lock", env=own)
            locked = git(["rev-parse", "main"], cwd=bare).text
            for path in (work / "vllm").rglob("*.py"):
                path.write_text("# rewritten\n")
            git(["commit", "-qam", "away"], cwd=work)
            git(["push", "-qf", str(bare), "HEAD:main"], cwd=work)
            moved = made.envgen("build", "--unlocked", env=own, code=4)
            assert "patches do not fit, so nothing was built" in moved.err
            out = made.envgen("patch", "check", "vllm", env=own).out
            assert f"locked at {locked[:12]}" in out
            (made.root / "envgen.yaml").write_text((made.root / "envgen.yaml").read_text() + "\n")
            # What comes after the dry run is stopped at once: the build's own program is not there.
            done = made.envgen("build", env={**own, "DOCKER_CONFIG": str(tmp_path), "PATH": "/usr/bin:/bin"}, code=None)
            assert f"5 patches fit main of {address}/vllm.git, locked at {locked[:12]}" in done.err
    finally:
        docker("image", "rm", "-f", base, f"{made.name}:prod", check=False)
