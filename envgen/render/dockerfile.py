"""A Dockerfile from a plan: which scripts it carries, and the text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count

from envgen.paths import templates_dir
from envgen.render.parts import Pair, Plan
from envgen.render.quote import Quoted
from envgen.render.templating import render

# Stands for the labels until the digest that they contain is known. No quoted text can contain NUL.
LABELS_HERE = Quoted("\0")


@dataclass(frozen=True)
class Script:
    """A file that the Dockerfile itself carries, as a here-document."""

    path: Quoted
    text: Quoted
    delimiter: Quoted


def embed(path: str, text: str) -> Script:
    """``text`` as a here-document whose delimiter is on none of its lines; quoted, so that nothing is expanded."""
    if "\0" in text or "\r" in text:
        raise ValueError(f"{path}: contains NUL or a carriage return, which no here-document can carry")
    text = text if text.endswith("\n") else text + "\n"
    lines = set(text.split("\n"))
    delimiter = "EOF"
    while delimiter in lines:
        delimiter += "_"
    return Script(Quoted(path), Quoted(text), Quoted(delimiter))


def scripts(plan: Plan) -> tuple[Script, ...]:
    """The scripts that this plan's steps run, and those of its image."""
    build = ["with-network", "with-index", "bootstrap", "protect"]
    if plan.apt_build or plan.apt_runtime:
        build.append("apt-install")
    if plan.installs or plan.deps:
        build.append("pip-install")
    if any(source.fetch_git for source in plan.built):
        build.append("fetch-git")
    if any(source.fetch_sdist for source in plan.built):
        build.append("fetch-sdist")
    if any(source.patch_source for source in plan.built):
        build.append("apply-patches")
    if plan.built:
        build.append("build-wheel")
    if plan.patch_installed:
        build.append("patch-installed")
    if plan.encodings:
        build.append("fetch-file")
    folder = templates_dir() / "scripts"
    found = [embed(f"/build/{name}", (folder / name).read_text("utf-8")) for name in build]
    runtime = {"bin/entrypoint": "entrypoint", "bin/envgen-health": "envgen-health"}
    if plan.mounted:
        runtime["bin/envgen-install"] = "envgen-install"
        runtime |= {f"lib/{name}": name for name in ("with-network", "with-index", "pip-install")}
    if plan.epoch:
        found.append(embed("/build/normalise", (folder / "normalise").read_text("utf-8")))
    found += [embed(f"/locked/{step}.txt", text) for step, text in plan.requirements.items()]
    if plan.manifest:
        found.append(embed("/runtime/manifest.json", plan.manifest))
    found += [embed(f"/runtime/{path}", (folder / name).read_text("utf-8")) for path, name in runtime.items()]
    if plan.mounted:
        manifest = json.dumps([source.manifest for source in plan.mounted], indent=1)
        found.append(embed("/runtime/sources.json", manifest))
    return tuple(found)


def dockerfile(plan: Plan) -> str:
    """The text, with ``LABELS_HERE`` in place of the labels."""
    template = "Dockerfile.dev.j2" if plan.development else "Dockerfile.j2"
    next_step = count(1).__next__  # each step of a locked build has a time of its own: templates/scripts/normalise
    return render(template, {"plan": plan, "scripts": scripts(plan), "labels": LABELS_HERE, "next_step": next_step})


def with_labels(text: str, plan: Plan, digest: str) -> str:
    """The finished text: identity labels put in."""
    pairs = (*plan.labels, Pair("dev.envgen.render", digest))
    before, after = text.split(LABELS_HERE)
    return before + render("partials/labels.j2", {"labels": pairs}) + after
