"""Runs inside the base image: resolves packages for it, and changes nothing outside the container.

uv resolves them as a build would: with the same indexes, constraints and overrides, on top of the
packages of the base image.
"""

from __future__ import annotations

import concurrent.futures
import importlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from contextlib import suppress
from typing import Any, Callable, Dict, Iterator, Tuple

from envgen.inside.common import Doc, normal

Present = Dict[str, Tuple[str, Any]]  # name -> version, distribution
File = Tuple[str, str]  # name, sha256

ARCHS = {"x86_64": "amd64", "aarch64": "arm64"}


class Failed(Exception):
    """Something could not be resolved; the message is the tool's."""


def run(argv: list[str], **options: Any) -> str:
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )
    out: str = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        output = done.stderr.decode("utf-8", "replace").strip() or out.strip()
        how = f"ended with {done.returncode} and printed nothing"
        if done.returncode in (-9, 137):
            how = "was killed: memory ran out, or somebody stopped it"
        raise Failed("\n".join(output.splitlines()[-12:]) or f"{os.path.basename(argv[0])} {how}")
    return out


# --- Python
# -----------------------------------------------------------------------------------------------------------


def installed() -> Present:
    """The packages of the base image."""
    packages: Present = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            packages.setdefault(normal(name), (distribution.version, distribution))
    return packages


def stand_ins(folder: str, present: Present) -> None:
    """A folder of empty wheels for the installed packages, so that uv can choose them though no
    index has them.
    """
    os.makedirs(folder, exist_ok=True)
    for name, (version, distribution) in present.items():
        stem = f"{name.replace('-', '_')}-{version}"
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [
            f"Requires-Dist: {' '.join(text.split())}" for text in distribution.requires or ()
        ]
        lines += [
            f"Provides-Extra: {text}"
            for text in distribution.metadata.get_all("Provides-Extra") or ()
        ]
        with zipfile.ZipFile(f"{folder}/{stem}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{stem}.dist-info/METADATA", "\n".join(lines) + "\n")
            wheel.writestr(
                f"{stem}.dist-info/WHEEL",
                "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            )
            wheel.writestr(f"{stem}.dist-info/RECORD", "")


def tags_module() -> Any:
    try:
        return importlib.import_module("pip._vendor.packaging.tags")
    except ImportError:  # an environment without pip
        return importlib.import_module("packaging.tags")


def fits(filename: str, tags: set[Any]) -> bool:
    """True for a wheel with one of these tags: this Python could install it."""
    last = filename[: -len(".whl")].split("-")[-3:]
    return not tags.isdisjoint(tags_module().parse_tag("-".join(last)))


def hashes_of(files: list[Doc]) -> Iterator[File]:
    """(filename, sha256) of each of a package's files in a pylock.toml."""
    for file in files:
        digest = file.get("hashes", {}).get("sha256")
        if digest:
            place = file.get("name") or file.get("url") or file["path"]
            yield place.rpartition("/")[2], digest


def stays(name: str) -> bool:
    """True for a step whose packages stay in the finished image."""
    return name == "deps" or name.startswith("install.")


class PackageSets:
    """Resolves the sets of one profile, one after the other, on top of the base image."""

    def __init__(self, folder: str, uv: str, present: Present, request: Doc) -> None:
        removed = set(map(normal, request["removed"]))
        self.folder = folder
        self.uv = uv
        self.request = request
        self.present = {name: found for name, found in present.items() if name not in removed}
        os.makedirs(folder, exist_ok=True)
        self.links = f"{os.path.dirname(folder)}/stand-ins"
        self.used: set[str] = set()  # packages of the base image that a step relies on

    def python(self) -> list[str]:
        """uv's options for the Python that packages are resolved for."""
        return ["--python", sys.executable]

    def tags(self) -> set[Any]:
        """The tags of the wheels that it can install."""
        return set(tags_module().sys_tags())

    def resolve(self) -> Doc:
        kept: dict[str, dict[str, str]] = self.request["keep"]
        done = {}
        opened = {}
        protected = [name for name in map(normal, self.request["protect"]) if name in self.present]
        off = sorted(set(protected) | set(map(normal, self.request["off"])))
        later: dict[str, str] = {}  # packages of earlier steps
        together, clash = self.together(off, kept)
        for item in self.request["sets"]:
            if not item["words"]:
                opened[item["name"]] = "no release has metadata on its dependencies"
                continue
            try:
                prefer = kept.get(item["name"], {})
                if stays(item["name"]) or item["name"].startswith("binaries."):
                    # A name without a version gets what the other steps ask for.
                    prefer = {**prefer, **together}
                pins = self.one(item, off, prefer, later)
            except Failed as failure:
                if not item["needs_metadata"]:
                    raise Failed(f"{item['name']}: {failure}") from None
                opened[item["name"]] = str(failure).splitlines()[0][:200]
                continue
            done[item["name"]] = pins
            if stays(item["name"]):
                later.update({pin["name"]: pin["version"] for pin in pins})
        return {"python": platform.python_version(), "sets": done, "open": opened, "clash": clash}

    def together(
        self, off: list[str], kept: dict[str, dict[str, str]]
    ) -> tuple[dict[str, str], str]:
        """(name -> version for all steps together, ""), or ({}, the reason).

        With these versions no step replaces a package of an earlier one, which would leave both in
        the image's layers, and a whiteout, whose time can't be set.
        """
        items = [item for item in self.request["sets"] if stays(item["name"]) and item["words"]]
        if len(items) < 2:
            return {}, ""
        insisted = f"{self.folder}/together.forced"
        options = ["--find-links", self.links, "--override", insisted]
        present = {name: version for name, (version, _) in self.present.items()}
        never = set(off)
        words = set()
        forced = []
        for item in items:
            present.update(kept.get(item["name"], {}))
            never.update(map(normal, item["never"]))
            own = normal(item["own"])
            if item["dependencies"]:
                words.update(item["words"])
            if item["needs_metadata"]:
                options += ["--only-binary", own]
            if own in off:  # overridden, with its own line: what others ask of it does not count
                forced.append(item["words"][0])
        never.difference_update(normal(item["own"]) for item in items)
        self.write(insisted, forced)
        try:
            return self.choose("together", sorted(words), never, present, options), ""
        except Failed as failure:
            return {}, " ".join(str(failure).split())[:400]

    def choose(
        self,
        name: str,
        words: list[str],
        never: set[str],
        prefer: dict[str, str],
        options: list[str],
    ) -> dict[str, str]:
        """name -> version, as uv resolves ``words`` without the packages ``never``."""
        stem = f"{self.folder}/{name}"
        self.write(f"{stem}.in", words)
        self.write(
            f"{stem}.override", [f'{one} ; sys_platform == "never"' for one in sorted(never)]
        )
        # uv prefers the versions in an existing output file.
        self.write(f"{stem}.txt", ["%s==%s" % pair for pair in sorted(prefer.items())])
        options = ["--override", f"{stem}.override", *options]
        chosen = self.compiled(stem, options)
        # For a preferred 1.0 it takes 1.0+local, too.
        held = [
            "%s===%s" % (package, prefer[package])
            for package, version in chosen.items()
            if version.startswith(prefer.get(package, version) + "+")
        ]
        if held:
            self.write(f"{stem}.held", held)
            with suppress(Failed):  # somebody asks for the local one
                chosen = self.compiled(stem, ["--constraint", f"{stem}.held", *options])
        return chosen

    def compiled(self, stem: str, options: list[str]) -> dict[str, str]:
        self.compile(f"{stem}.in", f"{stem}.txt", options)
        with open(f"{stem}.txt", encoding="utf-8") as file:
            pins = [line.split(" ")[0].strip() for line in file if "==" in line]
        return dict(pin.split("==") for pin in pins)

    def one(
        self, item: Doc, off: list[str], kept: dict[str, str], later: dict[str, str]
    ) -> list[Doc]:
        name = item["name"]
        own = normal(item["own"])
        never = {*off, *map(normal, item["never"])} - {own}
        present = {}
        if name != "uv":
            present = {package: version for package, (version, _) in self.present.items()}
        if present:
            present.update(later)
        options = ["--find-links", self.links] if present else []
        if not item["dependencies"]:
            options.append("--no-deps")
        drop = set()
        if item["needs_metadata"]:
            options += ["--only-binary", own]
            drop.add(own)
        chosen = self.choose(name, item["words"], never, {**present, **kept}, options)
        wanted = {}
        for package, version in chosen.items():
            if package in drop:
                continue
            if present.get(package) != version:
                wanted[package] = version
            elif package not in later:
                self.used.add(f"{package}=={version}")
        if not wanted:
            return []
        source = f"{self.folder}/{name}.pins"
        self.write(source, ["%s===%s" % pair for pair in sorted(wanted.items())])
        plain = re.sub(r"[^a-z0-9]", "", name)
        target = f"{self.folder}/pylock.{plain}.toml"
        self.compile(source, target, ["--no-deps", "--format", "pylock.toml"])
        return self.pins(target, wanted)

    def compile(self, source: str, target: str, options: list[str]) -> None:
        # Without constraints and overrides from outside: the request has them.
        outside = ("UV_CONSTRAINT", "UV_OVERRIDE", "PIP_CONSTRAINT")
        environment = {name: value for name, value in os.environ.items() if name not in outside}
        argv = [
            self.uv,
            "pip",
            "compile",
            source,
            "-o",
            target,
            *self.python(),
            "--quiet",
        ]
        # An option --find-links replaces the variable; for no-index uv has none.
        for links in filter(None, environment.get("UV_FIND_LINKS", "").split(",")):
            argv += ["--find-links", links]
        argv += ["--no-index"] if environment.get("PIP_NO_INDEX") == "1" else []
        run(
            [*argv, "--no-header", "--no-annotate", "--no-emit-find-links", *options],
            env=environment,
        )

    def pins(self, path: str, wanted: dict[str, str]) -> list[Doc]:
        try:
            toml = importlib.import_module("tomllib")
        except ImportError:  # before Python 3.11
            toml = importlib.import_module("pip._vendor.tomli")
        with open(path, encoding="utf-8") as file:
            packages = toml.loads(file.read()).get("packages", [])
        pins = []
        tags = self.tags()
        for package in packages:
            name = normal(package["name"])
            wheels = hashes_of(package.get("wheels", []))
            fitting = [digest for file, digest in wheels if fits(file, tags)]
            sources = [package[key] for key in ("sdist", "archive") if key in package]
            hashes = fitting or [digest for _, digest in hashes_of(sources)]
            if not hashes:
                raise Failed(f"the index has no sha256 of a fitting file of {name}=={wanted[name]}")
            sizes = [wheel.get("size", 0) for wheel in package.get("wheels", [])]
            pin = {
                "name": name,
                "version": wanted[name],
                "hashes": sorted(set(hashes)),
                "size": max(sizes, default=0),
            }
            pins.append(pin)
        missing = sorted(set(wanted) - {pin["name"] for pin in pins})
        if missing:
            raise Failed(f"uv gave no hashes for {', '.join(missing)}")
        return pins

    @staticmethod
    def write(path: str, lines: list[str]) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))


def get_uv(folder: str) -> str:
    """Installs uv outside of the base image's packages. The version for builds is locked like
    others.
    """
    target = f"{folder}/uv"
    quiet = ["--quiet", "--disable-pip-version-check", "--root-user-action=ignore"]
    run([sys.executable, "-m", "pip", "install", *quiet, "--no-deps", "--target", target, "uv"])
    return f"{target}/bin/uv"


def attempt(function: Callable[..., Any], *arguments: Any) -> Doc:
    try:
        return {"ok": function(*arguments)}
    except (Failed, OSError) as failure:
        return {"failed": str(failure)}


def answer(request: Doc) -> Doc:
    """Resolve the packages of each profile."""
    arch = ARCHS.get(platform.machine(), platform.machine())
    with tempfile.TemporaryDirectory(
        prefix="envgen-"
    ) as folder, concurrent.futures.ThreadPoolExecutor(8) as pool:
        uv = attempt(get_uv, folder)
        present = installed()
        if "failed" in uv:
            return {"arch": arch, "python": dict.fromkeys(request["python"], uv)}
        stand_ins(f"{folder}/stand-ins", present)
        jobs = {}
        for name, wanted in request["python"].items():
            work = PackageSets(f"{folder}/p-{name}", uv["ok"], present, wanted)
            jobs[name] = pool.submit(attempt, work.resolve)
        return {"arch": arch, "python": {name: job.result() for name, job in jobs.items()}}
