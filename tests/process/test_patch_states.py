"""Every state of a patch, on real releases of vLLM and FlashInfer."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from patch_sources import BUILD, TOP, files, mirrored, project, tree
from projects import Project

from envgen.errors import Place
from envgen.patches.dry_run import PatchVerdict, State, dry_run
from envgen.patches.series import Series, load_series, make_patch

MXFP4 = "vllm/model_executor/layers/quantization/mxfp4.py"
DECORATORS = "vllm/compilation/decorators.py"
LOADER = "vllm/model_executor/model_loader/weight_utils.py"


def judge(source: str, version: str, *texts: str) -> tuple[PatchVerdict, ...]:
    patches = tuple(
        make_patch(f"{number}.patch", f"patches/x/{number}.patch", text.encode(), Place("series"))
        for number, text in enumerate(texts, 1)
    )
    series = Series("patches/x", patches) if texts else load_series(TOP, source)
    return dry_run(tree(source, version), series).verdicts


def shipped(number: str) -> str:
    return next((TOP / "patches/vllm").glob(f"{number}-*.patch")).read_text()


def upstream(old: str, new: str, *names: str) -> str:
    """What changed between two releases, as a patch: what a backport looks like."""
    text = ""
    for name in names:
        sides = [files("vllm", version)[name].data.decode().splitlines(keepends=True) for version in (old, new)]
        text += "".join(difflib.unified_diff(sides[0], sides[1], f"a/{name}", f"b/{name}"))
    return text


@pytest.mark.parametrize(
    ("source", "version", "states"),
    [
        ("vllm", "0.13.0", ["fits", "out of range", "fits", *["out of range"] * 2]),
        ("vllm", "0.14.0", ["fits"] * 5),
        ("vllm", "0.16.0", ["fits"] * 4 + ["out of range"]),
        ("vllm", "0.20.2", ["out of range"] * 5),
        ("flashinfer", "0.5.3", ["fits"]),
        ("flashinfer", "0.6.18.post1", ["out of range"]),
    ],
)
def test_the_shipped_patches(source: str, version: str, states: list[str]) -> None:
    found = judge(source, version)
    assert [verdict.state.value for verdict in found] == states
    assert all(verdict.ok for verdict in found)


def test_a_backport_is_already_applied_where_it_came_from() -> None:
    backport = upstream("0.14.0", "0.16.0", DECORATORS)
    assert judge("vllm", "0.14.0", backport)[0].state is State.FITS
    found = judge("vllm", "0.16.0", backport)[0]
    assert (found.state, found.ok) == (State.ALREADY, False)


def test_changed_context_does_not_fit() -> None:
    text = shipped("0001").replace("Using FlashInfer MXFP4 MXFP8 CUTLASS backend for SM100", "Using another backend")
    found = judge("vllm", "0.14.0", text)[0]
    assert (found.state, found.ok) == (State.CONFLICT, False)
    assert any(line.startswith(f"patch failed: {MXFP4}:") for line in found.messages)


def test_each_patch_stands_on_those_before_it() -> None:
    second = shipped("0003").replace("rank counts over", "RANK COUNTS OVER")
    assert [v.state for v in judge("vllm", "0.14.0", shipped("0003"), second)] == [State.FITS, State.CONFLICT]
    follow = (
        f"--- a/{LOADER}\n+++ b/{LOADER}\n@@ -798,3 +798,3 @@\n"
        "         # The rank counts over all hosts; a device number counts on one.\n"
        "-        device = get_world_group().device\n+        device = get_world_group().device  # ours\n     else:\n"
    )
    assert [v.ok for v in judge("vllm", "0.14.0", shipped("0003"), follow)] == [True, True]


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path) -> Project:
    return project(tmp_path)


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return mirrored(
        tmp_path_factory.mktemp("mirror"), vllm=("0.13.0", "0.14.0", "0.16.0", "0.20.2"), flashinfer=("0.5.3",)
    )


def test_patches_of_a_wheel_are_tried_on_what_it_carries(tmp_path: Path, mirror: dict[str, str]) -> None:
    """The real wheel of vLLM, of which the package index is asked for its list and for the patched files."""
    made = project(tmp_path, vllm="wheel: vllm==0.14.0")
    done = made.envgen("patch", "check", "vllm", env=mirror, code=1)
    assert done.out.startswith("the wheel of vllm 0.14.0 (patches/vllm)\n") and done.out.count(": fits\n") == 3
    assert "BAD 0004-marlin-for-sm12x.patch: not in the wheel\n        CMakeLists.txt" in done.out
    assert "BAD 0005-fa3-for-hopper-only.patch: not in the wheel\n        setup.py" in done.out
    closed = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    offline = {**mirror, **closed, "NO_PROXY": "", "no_proxy": ""}
    made.envgen("patch", "check", "vllm", env=offline, code=1)  # what was read once is kept


def test_patches_of_a_release_are_tried_on_its_tag(made: Project, mirror: dict[str, str]) -> None:
    (found,) = made.envgen("patch", "check", "vllm", "--json", env=mirror).json["rehearsals"]
    assert found["tree"] == "v0.14.0 of https://github.com/vllm-project/vllm.git"
    assert (found["version"], [one["state"] for one in found["patches"]]) == ("0.14.0", ["fits"] * 5)
    (found,) = made.envgen("patch", "check", "vllm", "--ref", "v0.16.0", "--json", env=mirror).json["rehearsals"]
    assert [one["state"] for one in found["patches"]] == ["fits"] * 4 + ["out of range"]


def test_a_package_whose_repository_is_not_known(tmp_path: Path, mirror: dict[str, str]) -> None:
    made = project(tmp_path, vllm="wheel: vllm-own==0.14.0")
    text = (made.root / "envgen.yaml").read_text()
    (made.root / "envgen.yaml").write_text(text.replace("distribution: vllm", "distribution: vllm-own"))
    own = {**mirror, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "DOCKER_HOST": f"unix://{made.root}/nobody.sock"}
    found = made.envgen("patch", "check", "vllm", env=own, code=2).err
    assert "the git repository of vllm is not known" in found and "git apply --check" in found
    found = made.envgen(*BUILD, code=3, env=own).err
    assert "patches/vllm is not tried: the git repository of vllm is not known" in found


def test_check_says_what_a_build_would_meet(made: Project, mirror: dict[str, str]) -> None:
    assert made.envgen("patch", "check", env=mirror).out.count(" ok ") == 6
    patch = next((made.root / "patches/vllm").glob("0002-*"))
    patch.write_text(patch.read_text().replace("<0.17", "<1"))
    found = made.envgen("patch", "check", "vllm", "--ref", "v0.20.2", code=1, env=mirror)
    assert "BAD 0002-assume-32bit-indexing-if-there.patch: does not fit" in found.out
    assert f"patch failed: {DECORATORS}:521" in found.out
    assert "0001-mxfp4-sm12x-flashinfer-cutlass.patch: out of range, skipped" in found.out


def test_a_conflict_stops_a_build_before_docker(made: Project, tmp_path: Path, mirror: dict[str, str]) -> None:
    text = (made.root / "envgen.yaml").read_text()
    (made.root / "envgen.yaml").write_text(text.replace("ref: v0.14.0", "ref: v0.13.0"))
    patch = next((made.root / "patches/vllm").glob("0002-*"))
    patch.write_text(patch.read_text().replace(">=0.14.0", ">=0.13.0"))
    nobody = {**mirror, "DOCKER_HOST": f"unix://{tmp_path}/nobody.sock"}
    found = made.envgen(*BUILD, code=4, env=nobody)
    assert "patches do not fit, so nothing was built: patches/vllm/0002-" in found.err
    assert f"patch failed: {DECORATORS}:" in found.err
    assert not (made.root / ".envgen/logs").exists()
    patch.write_text(patch.read_text().replace(">=0.13.0", ">=0.14.0"))
    found = made.envgen(*BUILD, code=3, env=nobody)  # now it is Docker's turn
    assert "2 patches fit v0.13.0 of https://github.com/vllm-project/vllm.git (3 skipped, not for this" in found.err
    assert "left out, because they are not for 0.13.0: 0002-" in found.err
