"""What services lack before they can start (lock, image, weights): found, listed, and made side by
side.

The image needs the lock. Weights need neither: a small image, the first stage of the build,
downloads them while the rest is built.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace

from envgen.app import build as builds
from envgen.app import lock as locks
from envgen.app import weights
from envgen.app.images import remember
from envgen.app.session import Session
from envgen.deployment import Deployment, LiveService
from envgen.engine import buildx
from envgen.engine.gpu import NO_GPU
from envgen.engine.process import in_background
from envgen.errors import EnvgenError
from envgen.jitcache.place import CACHE, Query
from envgen.jitcache.service import JitCache
from envgen.live import doing, moving, now_doing
from envgen.lock.servers import size_of
from envgen.profile.model import GpuMode, Mode
from envgen.profile.service import ModelRef
from envgen.render.outputs import BASE_STAGE
from envgen.text import GIB, duration, first_of, is_terminal, progress, step_line, visible

MEGABITS = 100  # of the connection by which the time of a download is estimated
EVERY = 30.0  # seconds between two lines about a download that nothing else is printed beside


@dataclass(frozen=True)
class Download:
    """A model or a draft that is not whole. ``total``, ``present``: bytes; ``total`` is 0 where no
    hub answered.
    """

    model: ModelRef
    total: int
    present: int
    unknown: str = ""  # why the hub did not tell the total

    @property
    def repo(self) -> str:
        """The repository on the hub."""
        return self.model.repo

    def __str__(self) -> str:
        if not self.total:
            return f"{self.repo}: of unknown size ({self.unknown or 'the hub names none'})"
        left = max(0, self.total - self.present)
        minutes = left * 8 / (MEGABITS * 1e6) / 60
        begun = (
            f",\n            {self.present / GIB:.1f} GiB of it downloaded already"
            if self.present
            else ""
        )
        return f"{self.repo}: {self.total / GIB:.1f} GiB{begun}; {max(1, round(minutes))} min at {MEGABITS} Mbit/s"


@dataclass(frozen=True)
class MissingInputs:
    """What services of a deployment lack. ``image``: what is wrong with it; "" if nothing is.
    ``replaces``: those that run, and would be replaced by containers of another image.
    """

    deployment: Deployment
    lock: bool = False
    image: str = ""
    downloads: tuple[Download, ...] = ()
    replaces: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lock or self.image or self.downloads)

    def lines(self) -> Iterator[str]:
        """For the user: what is made, how large it is, and how long it takes, as far as that is
        known.
        """
        if self.deployment.gpu is GpuMode.NONE and self.deployment.profile.gpu is GpuMode.AUTO:
            yield f"  no GPU    {NO_GPU}:"
            yield "            what needs one will be made, and will not start here"
            yield "            (docs/tutorial.md has a profile that needs none)"
        if self.lock:
            yield "  lock      resolves every version into envgen.lock (1 to 2 minutes)"
        if self.image:
            what = self.image.removeprefix("the image ").replace("; ", ";\n            ")
            yield f"  image     {what}"
            if self.deployment.image is None:
                size = " (vLLM: several GB)" * ("vllm" in self.deployment.profile.sources)
                yield f"            a first build downloads all that it installs{size}"
        for download in self.downloads:
            yield f"  weights   {download}"


def look(deployment: Deployment, names: Sequence[str], *, build: bool = False) -> MissingInputs:
    """What the services ``names`` (default: all) of the profile lack. Asks the engine and the hub.
    ``build``: the image is built in any case; BuildKit decides what of it.

    Services with `cluster` are left out: their image and weights are copied from the first machine.
    """
    profile = deployment.profile
    downloads = list[Download]()
    replaces = []
    image = next((problem.message for problem in deployment.image_problems), "")
    for name in names or profile.services:
        service = LiveService(deployment, name)
        if service.described.cluster is not None:
            continue
        downloads += _downloads(service)
        if image and any(one.health != "unhealthy" for one in service.containers()):
            replaces.append(name)
    lock = False
    if (image or build) and profile.mode is Mode.PRODUCTION:
        lock = bool(builds.lock_problems(deployment.to_build()))
    if build:
        image = image or "is built again where an input changed"
    return MissingInputs(deployment, lock, image, tuple(downloads), tuple(replaces))


def _downloads(service: LiveService) -> Iterator[Download]:
    """The weights of a service that does not run, as far as they are not whole."""
    if service.containers():
        return
    for model, held in zip(service.described.models, weights.look(service), strict=True):
        if held.whole:
            continue
        try:
            yield Download(model, size_of(model), held.bytes)
        except EnvgenError as error:
            why = error.message.rpartition(": ")[2]
            yield Download(model, 0, held.bytes, why)


def record_compiled(deployment: Deployment, since: float) -> None:
    """Record what the modules were compiled from that a command has compiled since then."""
    if CACHE not in deployment.profile.caches:
        return
    with suppress(EnvgenError, OSError):
        cache = JitCache(deployment)
        modules = cache.inventory().modules
        names = [one.name for one in modules if one.guess and one.modified > since]
        if names:
            cache.baseline(Query(tuple(names)), since=int(since * 1e9))


def record_sources(deployment: Deployment, seconds: float) -> None:
    """Record what fresh modules were compiled from, and with which driver, so that later answers of
    `envgen cache` are certain.

    A start that ended well has just compiled or loaded them. What FlashInfer's log says of the
    last ``seconds`` is printed.
    """
    if deployment.gpu is GpuMode.NONE or CACHE not in deployment.profile.caches:
        return
    with suppress(EnvgenError, OSError):
        cache = JitCache(deployment)
        inventory = cache.inventory()
        modules = inventory.modules
        for line in inventory.package.prebuilt:
            progress(f"  prebuilt: {visible(line)}")
        since = time.time() - seconds
        compiled = [one for one in modules if one.modified > since and one.seconds >= 1]
        took = [f"{visible(one.name)} {duration(one.seconds)}" for one in compiled]
        if took:
            progress(f"  FlashInfer compiled {', '.join(first_of(took, 5))}")
        fresh = [one.name for one in modules if one.state == "fresh" and one.guess]
        fresh += [one.name for one in modules if one.kind == "cute_dsl" and one.baseline == "none"]
        if fresh:
            cache.baseline(Query(tuple(fresh)))


# --- making it
# --------------------------------------------------------------------------------------------------------


@dataclass
class Fetching:
    """Downloads in the background. ``status``: how far they are, and the share that is done, for a
    display.
    """

    status: tuple[str, float | None] = "", None
    future: Future[None] | None = None

    def start(self, deployment: Deployment, downloads: Sequence[Download], image: str) -> None:
        """Fetch with an ``image`` that has Python; "": the profile's own."""

        def note(line: str, share: float) -> None:
            self.status = line, share

        def work() -> None:
            for download in downloads:
                weights.fetch(deployment, download.model, image=image, say=note)
                progress(f"{download.repo} is complete")

        self.future = in_background(work)

    def wait(self) -> None:
        """Wait for the end; a terminal has a bar, everything else a line now and then. Raises what
        it raised.
        """
        if self.future is None:
            return
        printed = time.monotonic()
        with moving("weights"), doing("weights", "downloading"):
            while not self.future.done():
                wait([self.future], 1)
                line, share = self.status
                now_doing("weights", line, share)
                if line and not is_terminal() and time.monotonic() - printed > EVERY:
                    progress(line)
                    printed = time.monotonic()
        self.future.result()


@dataclass
class Provision:
    """Makes what is lacking, as named steps. ``shown`` prints how the build ended, and raises
    BuildError if it failed. ``ask``: what may refuse a build.

    An interrupted run leaves whole parts: the lock file, layers in the build cache, partial
    downloads that continue.
    """

    session: Session
    lacking: MissingInputs
    shown: Callable[[builds.BuildOutcome], None]
    ask: Callable[[], None]
    fetching: Fetching = field(default_factory=Fetching)
    helper: str = ""  # an image that downloads weights while the profile's own is built

    def run(self) -> None:
        """Take the steps that are needed; each has a line when it ends."""
        lacking = self.lacking
        steps = (
            ("lock", self.lock, lacking.lock),
            ("", self.ask, lacking.image),
            ("", self.begin_downloads, lacking.downloads),  # beside the build
            ("image", self.image, lacking.image),
            ("weights", self.weights, lacking.downloads),
        )
        try:
            for name, step, needed in steps:
                began = time.monotonic()
                if needed:
                    step()
                if needed and name:
                    progress(step_line(name, time.monotonic() - began))
        finally:
            if self.helper:
                with suppress(EnvgenError):  # a download that was interrupted may still end in it
                    self.lacking.deployment.engine.remove_image(self.helper)

    def lock(self) -> None:
        """Write envgen.lock for one profile. LockError with all problems."""
        own = self.session.with_(
            profile_name=self.lacking.deployment.profile.name, sets=(), variant=""
        )
        progress("resolving versions")
        locks.update(own, (), upgrade=False)

    def begin_downloads(self) -> None:
        """Begin them now, where an image with Python is there or its first stage can be built."""
        deployment = self.session.deployment()
        if self.lacking.image:
            self.helper = _fetcher(deployment.to_build())
        if self.helper or not self.lacking.image or deployment.image is not None:
            self.fetching.start(deployment, self.lacking.downloads, self.helper)

    def image(self) -> None:
        """Build it."""
        outcome = builds.build(self.session.deployment(), show=is_terminal())
        self.shown(outcome)
        remember(self.session, outcome.deployment)

    def weights(self) -> None:
        """Wait for the downloads, which begin here at the latest."""
        if self.fetching.future is None:
            self.fetching.start(self.session.deployment(), self.lacking.downloads, "")
        self.fetching.wait()


def _fetcher(deployment: Deployment) -> str:
    """Build the first stage, which has Python and pip, as an image that downloads weights; "" where
    that can't be.

    Its layers are those of the build itself.
    """
    rendered = deployment.rendered
    if f" AS {BASE_STAGE}\n".encode() not in rendered.files[rendered.dockerfile]:
        return ""
    progress(f"preparing the download of weights: the stage {BASE_STAGE}")
    tag = f"{deployment.profile.image_name}-{BASE_STAGE}"
    result = buildx.build(
        replace(builds.request_of(deployment), tags=(tag,), target=BASE_STAGE, labels={})
    )
    return tag if result.ok else ""  # the build itself says why
