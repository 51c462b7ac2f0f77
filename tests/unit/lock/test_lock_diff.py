"""`envgen diff` of one lock, and of an image and a lock: the side that it takes of a lock."""

from __future__ import annotations

from envgen.cli.build.diff import _comparable
from envgen.lock.image import Manifest
from envgen.lock.model import GitLock, ProfileLock, _sum, facts_of

IMAGE = Manifest("prod", "", {"image base:1": "a", "linux/arm64 pip deps six": "1"}, ())
LOCK = Manifest(
    "",
    "",
    {
        "image base:1": "b",
        "image other:1": "c",
        "prod linux/arm64 pip deps six": "2",
        "prod linux/amd64 pip deps six": "3",
        "dev linux/arm64 pip deps six": "4",
    },
    (),
)
SHARED = {"image base:1": "b", "linux/arm64 pip deps six": "2"}


def test_a_lock_is_reduced_to_the_profile_and_platform_of_the_image_beside_it() -> None:
    assert _comparable(IMAGE, LOCK) == (IMAGE.inputs, SHARED)
    assert _comparable(LOCK, IMAGE) == (SHARED, IMAGE.inputs)
    assert _comparable(LOCK, LOCK) == (LOCK.inputs, LOCK.inputs)


def test_a_profile_without_a_base_has_the_rest_of_its_facts() -> None:
    part = ProfileLock(None, {"vllm": GitLock("https://h/v", "main", "c" * 40, "branch")}, {})
    assert any("c" * 40 in fact for fact in facts_of(part).values())
    assert not any(name.startswith("image") for name in facts_of(part))


def test_the_sum_of_packages_does_not_depend_on_their_order() -> None:
    sets = {"sets": {"pip": ["b==1", "a==1"]}, "assumes": ["torch==2", "python==3.12"]}
    same = {"sets": {"pip": ["a==1", "b==1"]}, "assumes": ["python==3.12", "torch==2"]}
    assert _sum(sets) == _sum(same) != _sum({"sets": sets["sets"]})
