"""A lock that a stranger, a merge or a hand has changed: refused, out of date, or harmless."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envgen.errors import LockError, ProjectError
from envgen.lock import ask, model
from envgen.lock.model import GitLock, ImageLock, Lock, Pinned, ProfileLock, PythonLock
from envgen.profile.load import load_project
from envgen.profile.model import Profile
from envgen.render.locking import base_image, git_words, requirements

PROJECT = """\
version: 1
name: demo
profiles:
  prod:
    mode: production
    base: {image: "example.org/base:1"}
    cuda: {arch_list: 12.1a}
    pip: {deps: [six==1.17.0], tools: [numpy], override: [nvidia-cudnn]}
    sources:
      fi:
        origin: {git: "https://h/fi.git", ref: v1}
        package: flashinfer
        distribution: flashinfer-python
        mount: /w/fi
        install: {dependencies: true}
      vllm: {origin: {wheel: vllm==0.33.0}, package: vllm, distribution: vllm, mount: /w/v, install: {dependencies: true}}
"""
DIGEST, HASH, COMMIT = "sha256:" + "a" * 64, "b" * 64, "c" * 40
SETS = {
    "uv": (Pinned("uv", "0.9.0", (HASH,)),),
    "deps": (Pinned("six", "1.17.0", (HASH,)), Pinned("numpy", "2.1.0", (HASH, "d" * 64))),
    "install.vllm": (Pinned("vllm", "0.33.0+cu130", (HASH,)), Pinned("anyio", "4.1", (HASH,))),
}
OPEN = {"install.fi": "no release"}


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    path = tmp_path_factory.mktemp("p") / "envgen.yaml"
    path.write_text(PROJECT)
    return load_project(file=path, local=False).project.profiles["prod"]


@pytest.fixture(scope="module")
def document(profile: Profile) -> dict[str, Any]:
    python = PythonLock(ask.python_asks(profile, DIGEST), "3.12.3", SETS, OPEN)
    lock = Lock(
        {"example.org/base:1": ImageLock("", DIGEST, {"linux/arm64": DIGEST})},
        {"https://h/fi.git v1": GitLock("", "", COMMIT, "tag")},
        {"prod": {"linux/arm64": python}},
        {"a/b main": COMMIT},
    )
    found: dict[str, Any] = yaml.load(model.lock_text(lock), yaml.BaseLoader)
    return found


def outcome(document: Any, profile: Profile, folder: Path, *, summed: bool) -> ProfileLock | str:
    """The profile's part, or why it is not used. ``summed``: as by somebody who knows how `sum` is made."""
    python = document["python"].get("prod", {})
    for entry in python.values() if summed else ():
        entry["sum"] = model._sum(entry)
    path = folder / "envgen.lock"
    path.write_text(yaml.safe_dump(document))
    try:
        mine = ask.locked(profile, model.read_lock(path))
    except ProjectError as error:
        return str(error)
    return "stale" if ask.stale(profile, mine) else mine


Edit = Callable[[dict[str, Any]], object]


def entry(change: Callable[[dict[str, Any]], object]) -> Edit:
    return lambda document: change(document["python"]["prod"]["linux/arm64"])


def pins(step: str, *texts: str) -> Edit:
    return entry(lambda one: one["sets"].update({step: list(texts)}))


@pytest.mark.parametrize(
    "edit",
    [
        pins("deps", f"six@http://10.0.0.1/six-1.17.0-py3-none-any.whl#x==1.17.0 {HASH}"),
        pins("deps", f"--extra-index-url=http://evil/x==1.17.0 {HASH}"),
        pins("deps", f"-r/etc/evil==1.17.0 {HASH}"),
        pins("deps", f"six==1.17.0@evil {HASH}"),
        pins("deps", "six==1.17.0 evil"),
        pins("deps", f"six==1.17.0 {HASH.upper()}"),
        pins("deps", f"Six==1.17.0 {HASH}"),
        pins("deps", f"\u017fix==1.17.0 {HASH}"),
        pins("deps", "six==1.17.0"),
        pins("deps", f"six==1.16.0 {HASH}"),
        pins("deps", f"six==1.17.0 {HASH}", f"six==1.17.0 {HASH}"),
        pins("deps", f"six==1.17.0 {HASH}", f"nvidia-cudnn==9 {HASH}"),
        pins("deps", f"six==1.17.0 {HASH}", f"vllm==0.32.0 {HASH}"),
        pins("install.vllm", f"vllm==0.32.0 {HASH}"),
        pins("uv"),
        pins("uv", f"evil==1.0 {HASH}"),
        pins("uv", f"uv==0.9.0 {HASH}", f"evil==1.0 {HASH}"),
        pins("more", f"evil==1.0 {HASH}"),
        entry(lambda one: one["sets"].clear()),
        entry(lambda one: one["sets"].pop("deps")),
        entry(lambda one: (one["sets"].pop("deps"), one["open"].update(deps="because"))),
        entry(lambda one: one["open"].update(more="because")),
        entry(lambda one: one["open"].clear()),
        entry(lambda one: one.update(python="3.8.1; evil")),
        lambda document: document["images"]["example.org/base:1"].update(platforms={}),
        lambda document: document["images"]["example.org/base:1"].update(created=99999999999),
        lambda document: document["images"]["example.org/base:1"].update(created=-1),
        lambda document: document["images"]["example.org/base:1"].update(digest="sha256:evil"),
        lambda document: document["git"]["https://h/fi.git v1"].update(commit="--upload-pack=evil"),
        lambda document: document["git"]["https://h/fi.git v1"].update(kind="evil"),
        lambda document: document["models"].update({"a/b main": "evil"}),
    ],
)  # fmt: skip
def test_what_no_resolver_gives_is_not_used(
    edit: Edit, document: dict[str, Any], profile: Profile, tmp_path: Path
) -> None:
    mine = yaml.safe_load(yaml.safe_dump(document))
    assert isinstance(outcome(mine, profile, tmp_path, summed=True), ProfileLock)
    edit(mine)
    assert isinstance(outcome(mine, profile, tmp_path, summed=True), str)


@pytest.mark.parametrize(
    "edit",
    [
        pins("deps"),
        pins("install.vllm", f"vllm==0.33.0 {HASH}"),
        pins("deps", f"six==1.17.0 {HASH}", f"numpy==2.1.0 {HASH}", f"evil==1.0 {HASH}"),
        entry(lambda one: one.update(python="3.8.1")),
        entry(lambda one: one.pop("sum")),
    ],
)
def test_packages_that_were_not_resolved_together_are_out_of_date(
    edit: Edit, document: dict[str, Any], profile: Profile, tmp_path: Path
) -> None:
    mine = yaml.safe_load(yaml.safe_dump(document))
    edit(mine)
    assert outcome(mine, profile, tmp_path, summed=False) == "stale"


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], bool]]:
    """Each text of a document: its path, and whether it is a key."""
    pairs = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    for key, value in pairs:
        if isinstance(node, Mapping):
            yield (*path, key), True
        yield from places(value, (*path, key)) if isinstance(value, (dict, list)) else [((*path, key), False)]


HOSTILE = (
    "x@http://evil/x.whl#==1 " + HASH,
    "--index-url=http://evil==1 " + HASH,
    "-r evil",
    "\nRUN evil",
    "",
    "\uff11",
)
LINE = re.compile(r"[a-z0-9-]+===[0-9a-z.+!]+( --hash=sha256:[0-9a-f]{64})+")


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_text_of_a_lock_reaches_a_rendered_file_as_it_is(
    data: st.DataObject, document: dict[str, Any], profile: Profile, tmp_path: Path
) -> None:
    mine = yaml.safe_load(yaml.safe_dump(document))
    path, is_key = data.draw(st.sampled_from(list(places(mine))))
    old = str(path[-1]) if is_key else ""
    text = data.draw(st.sampled_from(HOSTILE) | st.text(max_size=30) | st.sampled_from(HOSTILE).map(old.__add__))
    node = mine
    for key in path[:-1]:
        node = node[key]
    if is_key:
        node[text] = node.pop(path[-1])
    else:
        node[path[-1]] = text
    if "python" not in mine or "prod" not in mine["python"]:
        return
    try:
        found = outcome(mine, profile, tmp_path, summed=True)
    except AttributeError:  # the helper of this test expects mappings
        found = outcome(mine, profile, tmp_path, summed=False)
    if isinstance(found, str):
        return
    assert base_image(profile.base.image, found) in {"example.org/base:1@" + DIGEST, "example.org/base:1"}
    assert re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", git_words(found.git["fi"], "v1")[0])
    for line in "".join(requirements(profile, found).values()).splitlines():
        assert LINE.fullmatch(line), line


def test_an_answer_that_no_lock_may_hold_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(LockError, match="not what a lock holds"):
        model.save(tmp_path / "envgen.lock", Lock(models={"a/b main": "evil"}))
    assert not (tmp_path / "envgen.lock").exists()
