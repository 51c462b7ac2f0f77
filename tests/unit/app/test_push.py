"""What is sent of an image, and where the first machine is asked to read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from envgen.app.copy import STORE, End, archive, chains
from envgen.app.push import Meter, push_image, shared_layers
from envgen.engine.values import EngineInfo, ExecResult, Image, Mount, image_of
from envgen.errors import EngineError
from envgen.profile.model import Machine

LAYERS = ("sha256:aa", "sha256:bb")
SNAPSHOTS = "/c\\040d/io.containerd.snapshotter.v1.overlayfs/snapshots"
MOUNTINFO = (
    f"501 322 0:84 / / rw - overlay overlay rw,lowerdir={SNAPSHOTS}/1/fs,upperdir={SNAPSHOTS}/2/fs,workdir=/x\n"
    "502 501 0:87 / /proc rw - proc proc rw\n"
)


class Source:
    """An engine that has an image, and is asked to read it."""

    def __init__(self, *, containerd: bool = False, mountinfo: str = MOUNTINFO) -> None:
        self._containerd, self._mountinfo = containerd, mountinfo
        self.mounts: list[Mount] = []
        self.request: dict[str, Any] = {}

    def info(self) -> EngineInfo:
        return EngineInfo("28", "1.51", "arm64", (), (), "/", 0, 0, "", containerd_store=self._containerd)

    def run_once(self, _image: str, _argv: list[str]) -> ExecResult:
        return ExecResult(0, self._mountinfo.encode(), b"")

    def stream_once(self, _image: str, _argv: list[str], *, stdin: bytes, mounts: list[Mount]) -> Iterator[bytes]:
        self.mounts, self.request = mounts, json.loads(stdin)
        yield from (b"one", b"two")


class Target:
    """An engine that has ``images``, and after something was loaded ``arrived``."""

    def __init__(self, *images: Image, arrived: Image, whole: bool = True) -> None:
        self._images, self._arrived, self._whole = images, arrived, whole
        self.loaded: list[bytes] = []
        self.tags: dict[str, str] = {}

    info = Source.info
    _containerd = True

    def image(self, name: str) -> Image | None:
        return self._arrived if self.loaded and name.endswith("-envgen-push") else None

    def images(self) -> tuple[Image, ...]:
        return self._images

    def load_image(self, parts: Iterator[bytes]) -> None:
        self.loaded.append(b"".join(parts))

    def has_whole_image(self, _name: str) -> bool:
        return self._whole

    def tag_image(self, name: str, new: str) -> None:
        self.tags[new] = name

    def remove_image(self, _name: str) -> str:
        return ""


def end(engine: Any, node: str = "spark-1") -> End:
    return End(node, Machine(address="192.168.177.11", interface="eth0", context=node), engine)


def image(*layers: str, **more: Any) -> Image:
    return Image("sha256:id", {}, "", 0, "arm64", (), {}, layers=layers, **more)


def test_layers_are_shared_from_the_lowest_on() -> None:
    one = image("a", "b", "c")
    assert shared_layers(one, []) == 0
    assert shared_layers(one, [image("b", "c")]) == 0  # the same layer on another one is another layer
    assert shared_layers(one, [image("a"), image("a", "b", "x", "y")]) == 2
    assert shared_layers(one, [image("a", "b", "c", "d")]) == 3


def test_what_passes_a_meter_is_counted() -> None:
    meter = Meter("it")
    assert list(meter.through([b"one", b"three"])) == [b"one", b"three"]
    assert meter.bytes == 8


def test_of_dockers_own_store_only_the_folders_of_missing_layers_are_read() -> None:
    data = {"UpperDir": "/d/overlay2/x2/diff", "LowerDir": "/d/overlay2/x1/diff", "MergedDir": "/d/overlay2/x2/merged"}
    found = image_of(
        {"Id": "sha256:id", "RootFS": {"Layers": list(LAYERS)}, "GraphDriver": {"Name": "overlay2", "Data": data}}
    )
    source = Source()
    list(archive(end(source), end(Source(), "spark-2"), found, "demo:dev", "demo:new", "python3", 1))
    assert source.mounts == [
        Mount("/d/image/overlay2/imagedb/content/sha256/id", f"{STORE}/config", read_only=True),
        Mount("/d/image/overlay2/layerdb/sha256", f"{STORE}/layerdb", read_only=True),
        Mount("/d/overlay2/x2/diff", f"{STORE}/1", read_only=True),
    ]
    assert source.request["whole"] == "docker.io/library/demo:new"
    assert source.request["chains"] == chains(LAYERS)
    assert source.request["sizes"] is False


def test_the_name_of_a_layer_in_dockers_own_store() -> None:
    # Of the stand-in base image, as its store named them.
    layers = (
        "sha256:c122eeb68e322c4af911b95e97860184c0e9b812b592d58fe617bb83d63ab91a",
        "sha256:7f6bdf47748668370ed3cd399071e3e7bfbcb5dd1814aee0ca3e9a1067563e53",
    )
    assert chains(layers) == [layers[0], "sha256:adb7e7d45ee9f04dc47a3ac4574a5b5b4a1a29f03fb2ad7d9a0ef09d5deef6f5"]


def test_of_containerd_it_is_the_folder_of_blobs_beside_the_containers_own_root() -> None:
    source = Source(containerd=True)
    list(archive(end(source), end(Source(), "spark-2"), image(*LAYERS), "demo:dev", "demo:new", "python3", 1))
    blobs = "/c d/io.containerd.content.v1.content/blobs/sha256"
    assert source.mounts == [Mount(blobs, f"{STORE}/blobs", read_only=True)]


@pytest.mark.parametrize(
    "source", [Source(), Source(containerd=True, mountinfo="1 2 0:1 / / rw - btrfs /dev/sda rw\n")]
)
def test_another_store_is_an_error_with_the_command_that_works(source: Source) -> None:
    with pytest.raises(EngineError) as caught:
        archive(end(source), end(Source(), "spark-2"), image(*LAYERS), "demo:dev", "demo:new", "python3", 1)
    assert caught.value.problems[0].hint == "docker --context spark-1 save demo:dev | docker --context spark-2 load"


def pushed(target: Target, *, known: int) -> None:
    folders = ("/d/overlay2/x1/diff", "/d/overlay2/x2/diff")
    source, one = Source(), image(*LAYERS, folders=folders)
    found = push_image(end(source), end(target, "spark-2"), one, "demo:dev", "python3", False)
    assert (found.state, found.bytes) == ("sent", 6 * len(target.loaded))
    assert source.request["known"] == known


def test_an_image_gets_its_name_when_it_has_arrived() -> None:
    target = Target(image("sha256:aa"), arrived=image(*LAYERS))
    pushed(target, known=1)
    assert target.tags == {"demo:dev": "demo:dev-envgen-push"}


def test_an_engine_that_cannot_tell_whether_an_image_is_whole_gets_all_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pushed(Target(image("sha256:aa"), arrived=image(*LAYERS), whole=False), known=0)
    assert "in another form" in capsys.readouterr().err.splitlines()[-1]


def test_what_arrives_as_something_else_gets_no_name() -> None:
    target = Target(arrived=image("sha256:aa"))
    with pytest.raises(EngineError, match="other content"):
        pushed(target, known=0)
    assert not target.tags
