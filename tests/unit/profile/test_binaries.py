"""A new release is one line: what checkouts take from the profile that theirs extends."""

from __future__ import annotations

from pathlib import Path

import pytest

from envgen.errors import ProjectError
from envgen.lock.model import Pinned, ProfileLock, PythonLock, with_version
from envgen.profile.load import load_project
from envgen.profile.model import Profile
from envgen.profile.values import Pin
from envgen.render.locking import key_parts
from envgen.render.plan import ImagePlan

TEXT = """\
version: 1
name: lab
defaults:
  gpu: none
  sources:
    fi: {package: flashinfer, distribution: flashinfer-python, mount: /w/fi, install: {dependencies: true}}
    vllm: {package: vllm, distribution: vllm, mount: /w/vllm, install: {dependencies: true}}
profiles:
  prod:
    mode: production
    base: {image: "debian:13"}
    sources:
      fi: {origin: {wheel: flashinfer-python}}
      vllm: {origin: {wheel: vllm==0.33.0}}
  dev:
    extends: prod
    mode: development
    sources: {fi: {origin: {checkout: ../fi}}, vllm: {origin: {checkout: ../vllm}}}
  deep:
    extends: dev
"""


def load(folder: Path, text: str = TEXT, *sets: str, profile: str = "dev") -> Profile:
    (folder / "envgen.yaml").write_text(text)
    return load_project(file=folder / "envgen.yaml", sets=sets, profile=profile).project.profiles[profile]


def pins(profile: Profile) -> dict[str, str]:
    return {name: str(source.binaries) for name, source in profile.sources.items()}


@pytest.mark.parametrize("profile", ["dev", "deep"])
def test_checkouts_take_the_wheels_of_the_profile_above(tmp_path: Path, profile: str) -> None:
    assert pins(load(tmp_path, profile=profile)) == {"fi": "flashinfer-python", "vllm": "vllm==0.33.0"}
    later = TEXT.replace("0.33.0", "0.34.0")
    assert pins(load(tmp_path, later, profile=profile))["vllm"] == "vllm==0.34.0"


def test_what_is_written_wins_and_null_takes_away(tmp_path: Path) -> None:
    vllm = "vllm: {origin: {checkout: ../vllm}"
    assert pins(load(tmp_path, TEXT.replace(vllm, f"{vllm}, binaries: vllm==0.1")))["vllm"] == "vllm==0.1"
    text = TEXT.replace(vllm, f"{vllm}, binaries: null")
    assert pins(load(tmp_path, text)) == {"fi": "flashinfer-python", "vllm": "None"}


def test_a_checkout_without_a_wheel_above_is_compiled(tmp_path: Path) -> None:
    text = TEXT.replace("{wheel: vllm==0.33.0}", "{git: https://example.org/v.git, ref: main}")
    assert pins(load(tmp_path, text))["vllm"] == "None"


@pytest.mark.parametrize(
    "text", ["a==", "==1", "a=1", "a>=1", "a b", "a==1 b", "-a", "a-", "a==v1", "a[]==1", "a[b", "a[b,]", "a==1[b]"]
)
def test_a_wheel_is_a_name_or_a_name_at_one_version(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="write it like"):
        Pin.parse(text)
    with pytest.raises(ProjectError):
        load(tmp_path, TEXT.replace("vllm==0.33.0", f'"{text}"'))


@pytest.mark.parametrize("text", ["vllm[b12x]==0.33.0", "vllm[b12x,audio]", "a==1.0"])
def test_a_wheel_keeps_its_extras(text: str) -> None:
    pin = Pin.parse(text)
    assert str(pin) == text and str(with_version(pin, None)) == text and "[" not in pin.name + pin.version


def test_a_mounted_checkout_gets_what_an_extra_of_its_wheel_needs(tmp_path: Path) -> None:
    text = TEXT.replace("vllm==0.33.0", '"vllm[b12x]==0.33.0"')
    assert ImagePlan(load(tmp_path, text, profile="prod")).installs[0].words[-1] == "vllm[b12x]==0.33.0"
    _, needs = ImagePlan(load(tmp_path, text)).installs
    assert needs.words[-4:] == ("--needs-of", "/opt/envgen/wheels", "--extra", "vllm[b12x]")


def lock_with(version: str) -> ProfileLock:
    pin = Pinned("flashinfer-python", version, ("0" * 64,))
    python = PythonLock("3.12.0", "asks", {"install.fi": (pin,)}, {})
    return ProfileLock(None, {}, {"linux/amd64": python})


def test_the_lock_decides_the_version(tmp_path: Path) -> None:
    pin, lock = Pin("flashinfer-python", ""), lock_with("0.7.2.post1")
    assert str(with_version(pin, lock)) == "flashinfer-python==0.7.2.post1"
    assert str(with_version(pin, None)) == "flashinfer-python"
    assert str(with_version(Pin("flashinfer-python", "0.5"), lock)) == "flashinfer-python==0.5"


def test_one_step_resolves_the_wheels_together(tmp_path: Path) -> None:
    """Without a lock, uv must see what vLLM asks for when it chooses FlashInfer."""
    (step,) = ImagePlan(load(tmp_path, profile="prod")).installs
    assert step.words[-3:] == ("--", "flashinfer-python", "vllm==0.33.0")
    keeps, needs = ImagePlan(load(tmp_path)).installs
    assert keeps.words == ("--keep", "/opt/envgen/wheels", "--", "flashinfer-python", "vllm==0.33.0")
    assert needs.words[-2:] == ("--needs-of", "/opt/envgen/wheels")


def test_a_moved_release_is_another_kernel_cache(tmp_path: Path) -> None:
    text = (
        TEXT.replace("    fi: ", "    flashinfer: ")
        .replace("      fi: ", "      flashinfer: ")
        .replace("{fi: ", "{flashinfer: ")
    )
    profile = load(tmp_path, text, profile="prod")
    found = {key_parts(profile, lock_with(one), {})["flashinfer"] for one in ("1.0", "2.0")}
    assert found == {"flashinfer-python==1.0", "flashinfer-python==2.0"}
