"""docker-bake.json: the builds of all profiles from the committed files. Pure like all rendering."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from envgen.profile.model import Profile, Project
from envgen.profile.values import HostPath
from envgen.render.compose import PROXY
from envgen.render.environment import CA_VARIABLE, JOBS_VARIABLE, WHEELHOUSE_VARIABLE

HEAD = "Written by `envgen export bake`. docs/exports.md says how it differs from `envgen build`."


def document(project: Project, epochs: Mapping[str, int]) -> dict[str, Any]:
    """A target for each profile. ``epochs``: the time of a profile's lock, where it has one."""
    variables: dict[str, Any] = {}
    targets = {
        name: _target(profile, epochs.get(name), variables) for name, profile in sorted(project.profiles.items())
    }
    return {
        "//": HEAD,
        "variable": variables,
        "group": {"default": {"targets": [project.default_profile]}},
        "target": targets,
    }


def text(document: Mapping[str, Any]) -> str:
    """As a file."""
    return json.dumps(document, indent=2) + "\n"


def _target(profile: Profile, epoch: int | None, variables: dict[str, Any]) -> dict[str, Any]:
    args = {"SOURCE_DATE_EPOCH": str(epoch)} if epoch is not None else {}
    if profile.network.pass_proxy:
        for name in PROXY:
            variables[name] = {"default": ""}
            args[name] = f'${{{name} == "" ? null : {name}}}'
    # The variables of the Compose files: what differs between machines.
    variables[CA_VARIABLE] = {"default": ""}
    ca = _variable(CA_VARIABLE, profile.network.ca_certificates)
    # Without a file there is no secret: bake asks for a permission to read outside the folder, /dev/null included.
    optional = f'[for one in [{{id = "ca_certificates", src = {ca}}}] : one if one.src != ""]'
    secrets = f'concat([{{id = "jobs", env = "{JOBS_VARIABLE}"}}], {optional})'
    contexts = {}
    if profile.build.wheelhouse is not None:
        variables[WHEELHOUSE_VARIABLE] = {"default": ""}
        contexts["wheelhouse"] = f"${{{_variable(WHEELHOUSE_VARIABLE, profile.build.wheelhouse)}}}"
    return {
        "context": ".",
        "dockerfile": _literal(profile.dockerfile),
        "tags": [_literal(profile.image_name)],
        **({"args": args} if args else {}),
        **({"contexts": contexts} if contexts else {}),
        "secret": f"${{{secrets}}}",
        **({"platforms": [profile.base.platform.value]} if profile.base.platform else {}),
        "output": ["type=docker"],
        "attest": ["type=provenance,disabled=true"],
    }


def _variable(name: str, path: HostPath | None) -> str:
    """What a variable says, else the profile's path where it is one of the project; bake knows no ``~``."""
    if path is None or path.path.startswith(("/", "~")):
        return name
    return f'({name} == "" ? {_literal(json.dumps(path.path, ensure_ascii=False))} : {name})'


def _literal(text: str) -> str:
    """A text in which bake replaces nothing."""
    return text.replace("${", "$${").replace("%{", "%%{")
