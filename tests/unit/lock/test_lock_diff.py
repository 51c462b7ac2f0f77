"""`envgen diff` of one lock, and of an image and a lock: the side that it takes of a lock."""

from __future__ import annotations

from envgen.cli.build.diff import _comparable
from envgen.lock.image import Manifest

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
