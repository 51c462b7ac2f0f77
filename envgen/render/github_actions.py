"""A workflow for GitHub Actions: check what is committed, build, ask the release, publish. Pure like all rendering."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

from envgen.profile.model import GpuMode, Platform, Profile
from envgen.profile.values import ImageRef
from envgen.render.quote import Quoting

HEAD = "# Written by `envgen export github-actions`. docs/exports.md has what the repository must set.\n"
Doc = dict[str, Any]


def document(profile: Profile, image: ImageRef, *, install: str, branch: str, runs_on: str, locked: bool) -> Doc:
    """The workflow. ``image``: what is published, without tag; ``install``: what pip installs; ``locked``: whether
    there is to be an envgen.lock."""
    github = image.registry == "ghcr.io"
    first: list[Doc] = [
        {"uses": "actions/checkout@v4", "with": {"persist-credentials": False}},
        {"uses": "actions/setup-python@v5", "with": {"python-version": "3.12"}},
        {"run": 'python -m pip install "$ENVGEN"'},
    ]
    checks = ["envgen render --check", *(["envgen lock --check"] if locked else [])]
    build: Doc = {
        "needs": "check",
        # A fork's pull request may not publish.
        "if": "github.event_name != 'pull_request'",
        "runs-on": runs_on or _machine(profile),
        "timeout-minutes": 360,
        "permissions": {"contents": "read", **({"packages": "write"} if github else {})},
        "env": {"IMAGE": str(image)},
        "steps": [*first, *_build(profile, image, github)],
    }
    return {
        "name": "envgen",
        "on": {"push": {"branches": [branch]}, "pull_request": {}, "workflow_dispatch": {}},
        "permissions": {"contents": "read"},
        "env": {"ENVGEN": install},
        "jobs": {
            "check": {
                "runs-on": "ubuntu-24.04",
                "timeout-minutes": 15,
                "steps": [*first, *({"run": check} for check in checks)],
            },
            "build": build,
        },
    }


def text(document: Doc) -> str:
    """As a file."""
    return HEAD + yaml.dump(document, Dumper=Quoting, sort_keys=False, allow_unicode=False, width=10**6)


def _machine(profile: Profile) -> str:
    return "ubuntu-24.04-arm" if profile.base.platform is Platform.ARM64 else "ubuntu-24.04"


def _build(profile: Profile, image: ImageRef, github: bool) -> Iterable[Doc]:
    login = {"username": "${{ github.actor }}", "password": "${{ secrets.GITHUB_TOKEN }}"}
    if not github:
        login = {"username": "${{ secrets.REGISTRY_USER }}", "password": "${{ secrets.REGISTRY_TOKEN }}"}
    registry = {"registry": image.registry} if image.registry else {}
    yield {"uses": "docker/setup-buildx-action@v3", "id": "buildx"}
    yield {"uses": "docker/login-action@v3", "with": {**registry, **login}}
    on_gpu = profile.gpu is not GpuMode.NONE
    served = [name for name, service in profile.services.items() if on_gpu and service.is_vllm]
    words = ["envgen", "build", "--profile", profile.name, '--tag "$IMAGE:$GITHUB_SHA"']
    words += ['--cache-from "type=registry,ref=$IMAGE:cache"', '--cache-to "type=registry,ref=$IMAGE:cache,mode=max"']
    # What a release refuses is not published: it is asked in the image, which must then be in the engine.
    words += [] if served else ["--push"]
    yield {"run": " ".join(words), "env": {"BUILDX_BUILDER": "${{ steps.buildx.outputs.name }}"}}
    for name in served:
        yield {"run": f"envgen predict {name} --profile {profile.name}"}
    if served:
        yield {"run": 'docker push "$IMAGE:$GITHUB_SHA"'}
