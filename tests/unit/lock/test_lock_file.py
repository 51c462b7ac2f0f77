"""envgen.lock as text: what is written is read back, diffs well, and what is wrong with it is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from envgen.errors import ProjectError
from envgen.lock import model
from envgen.lock.model import (
    GitLock,
    ImageLock,
    Lock,
    Pinned,
    ProfileLock,
    PythonLock,
    changes,
    facts,
    load,
)

A, B = "a" * 64, "b" * 64
WHOLE = Lock(
    images={
        "host:5000/x/y:1": ImageLock("host:5000/x/y:1", f"sha256:{A}", {"linux/arm64": f"sha256:{B}"}, "registry", 7)
    },
    git={"https://h/r.git v1": GitLock("https://h/r.git", "v1", "c" * 40, "tag")},
    python={
        "prod": {
            "linux/arm64": PythonLock(
                "123456", "3.12.3", {"deps": (Pinned("numpy", "2.1", (A, B)),), "uv": ()}, {"install.x": 'no "release"'}
            )
        }
    },
)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    assert model.save(tmp_path / "envgen.lock", WHOLE)
    assert load(tmp_path) == WHOLE


def test_the_same_lock_is_not_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "envgen.lock"
    model.save(path, WHOLE)
    before = path.stat().st_mtime_ns
    assert not model.save(path, WHOLE)
    assert path.stat().st_mtime_ns == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["envgen.lock"]


def test_other_yaml_readers_read_it_too() -> None:
    found = yaml.safe_load(model.lock_text(WHOLE))
    assert found["format"] == 1
    assert found["python"]["prod"]["linux/arm64"]["python"] == "3.12.3"


def test_entries_are_sorted_whatever_order_they_came_in() -> None:
    images = {name: ImageLock(name, f"sha256:{A}") for name in ("b:1", "a:1")}
    assert model.lock_text(Lock(images=images)) == model.lock_text(Lock(images=dict(reversed(images.items()))))


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("created: 7", "created: seven", "an entry does not have its form"),
        (f"commit: {'c' * 40}", "x: 1", "git.https://h/r.git v1.commit is missing"),
        ("numpy==2.1", "numpy", "an entry does not have its form"),
        ("asks: '123456'", "asks: {}", "python.prod.linux/arm64.asks is not str"),
    ],
)
def test_what_no_lock_has_is_named(tmp_path: Path, before: str, after: str, why: str) -> None:
    text = model.lock_text(WHOLE)
    assert before in text, text
    (tmp_path / "envgen.lock").write_text(text.replace(before, after, 1))
    with pytest.raises(ProjectError) as caught:
        load(tmp_path)
    (problem,) = caught.value.problems
    assert problem.message == f"is not what `envgen lock` writes: {why}"
    assert "git checkout HEAD -- envgen.lock" in problem.hint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "format: 2\n",
        "[1]\n",
        "format: 1\nimages: [1]\n",
        "format: 1\npython: {p: 3}\n",
        "format: 1\ngit: {a: 3}\n",
        "\0",
    ],
)
def test_a_foreign_file_is_refused_with_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "envgen.lock").write_text(text)
    with pytest.raises(ProjectError, match=r"envgen\.lock|lock"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("format: 1\n<<<<<<< HEAD\nfiles: {a: x}\n=======\nfiles: {a: y}\n>>>>>>> other\n", 3),
        ("format: 1\nfiles:\n  a: x\n  a: y\n", 4),
        ("format: 1\nfiles: &f\n  a: *f\n", 2),
        ("- format: 1\n", 1),
        ("format: 1\n" + "#" * (4 << 20), 0),
    ],
)
def test_what_is_no_lock_at_all_is_restored_by_a_command_that_works_in_a_conflict(
    tmp_path: Path, text: str, line: int
) -> None:
    (tmp_path / "envgen.lock").write_text(text)
    with pytest.raises(ProjectError) as caught:
        load(tmp_path)
    (problem,) = caught.value.problems
    assert problem.place and problem.place.line == line
    assert problem.hint == "`git checkout HEAD -- envgen.lock`; or remove the file and run `envgen lock`"


def test_a_lock_that_is_a_folder_keeps_its_own_hint(tmp_path: Path) -> None:
    (tmp_path / "envgen.lock").mkdir()
    with pytest.raises(ProjectError, match="is a folder") as caught:
        load(tmp_path)
    assert "is a folder, not a file" in str(caught.value) and "git checkout" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "shown"), [("2", "2"), ("[1]", "a list"), ("{a: 1}", "a mapping"), (f"'{'x' * 900}'", "x" * 40)]
)
def test_another_format_is_shown_in_short(tmp_path: Path, value: str, shown: str) -> None:
    (tmp_path / "envgen.lock").write_text(f"format: {value}\n")
    with pytest.raises(ProjectError) as caught:
        load(tmp_path)
    assert caught.value.problems[0].message == f"this envgen reads lock files of format 1, not {shown}"


def test_no_file_is_no_lock(tmp_path: Path) -> None:
    assert load(tmp_path) is None


def test_changes_in_words() -> None:
    other = Lock(
        images={"host:5000/x/y:1": ImageLock("host:5000/x/y:1", f"sha256:{B}")},
        python={
            "prod": {"linux/arm64": PythonLock("1", "3.12.3", {"deps": (Pinned("numpy", "2.2", (B,)),), "uv": ()})}
        },
    )
    changed = [str(change) for change in changes(facts(WHOLE), facts(other))]
    assert f"image host:5000/x/y:1: sha256:{A[:12]} → sha256:{B[:12]}" in changed
    assert "prod linux/arm64 pip deps numpy: 2.1 → 2.2" in changed
    assert not [line for line in changed if "numpy sha256" in line]
    assert "git https://h/r.git v1: cccccccccccc → nothing" in changed


def test_passwords_in_addresses_are_not_among_the_facts() -> None:
    url = "https://user:hunter2@h/r.git"
    lock = Lock(git={f"{url} v1": GitLock(url, "v1", "c" * 40)})
    assert "hunter2" not in str(facts(lock))


def test_the_version_of_a_package_is_one_for_all_platforms() -> None:
    def lock(*versions: str) -> model.ProfileLock:
        pins = {str(at): (Pinned("a-b", one, (A,)), Pinned("c", "9", (A,))) for at, one in enumerate(versions)}
        return model.ProfileLock(None, {}, {at: PythonLock("", "", {"deps": own}) for at, own in pins.items()})

    for versions, found in ((("1",), "1"), (("1", "1"), "1"), (("1", "2"), ""), ((), "")):
        assert lock(*versions).version("A_b") == found, versions
    assert [pin.version for pin in lock("1", "2").pins("a.b")] == ["1", "2"]
    assert re.search(r"(?m)^ +sum: \'?[0-9a-f]{16}\'?$", model.lock_text(WHOLE))


def test_a_lock_that_may_not_be_read_is_not_to_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "envgen.lock"
    file.write_text("{")
    for may, restores in ((True, True), (False, False)):
        monkeypatch.setattr("os.access", lambda *_, may=may: may)
        with pytest.raises(ProjectError) as caught:
            model.read_lock(file)
        assert ("git checkout" in caught.value.problems[0].hint) is restores


def test_a_build_is_a_second_younger_than_its_base() -> None:
    for created, epoch in ((0, model.EPOCH), (model.EPOCH, model.EPOCH + 1)):
        assert ProfileLock(ImageLock("x:1", f"sha256:{A}", created=created), {}, {}).epoch == epoch
    assert ProfileLock(None, {}, {}).epoch == model.EPOCH
