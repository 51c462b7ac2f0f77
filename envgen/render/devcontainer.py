"""devcontainer.json: an editor attaches to a service that `envgen up` starts. Pure like all rendering."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from envgen.profile.model import Profile
from envgen.profile.values import own_path
from envgen.render.environment import OVERLAY

HEAD = "// Written by `envgen export devcontainer`. docs/exports.md has what an editor does with it.\n"
EXTENSIONS = ("ms-python.python",)
_FOUND = "import importlib.util as u; [print(name, u.find_spec(name).origin) for name in {names}]"


def document(profile: Profile, name: str, folder: str, extensions: Sequence[str] = ()) -> dict[str, Any]:
    """The settings for service ``name``. ``folder``: of the file, relative to the project's."""
    service = profile.services[name]
    composed = [f"compose/{profile.name}.yaml"]
    if profile.compose is not None:
        composed.append(own_path(profile.compose.path))
    # In the overlay are the mounted sources.
    python = f"{OVERLAY}/bin/python" if profile.mounted_sources else profile.base.python
    packages = [source.package for source in profile.mounted_sources.values()]
    created = {"postCreateCommand": [python, "-c", _FOUND.format(names=packages)]} if packages else {}
    return {
        "name": f"{profile.project} {profile.name}",
        # With checkouts, user, ports and GPUs as they are on this machine; the container is then only attached to.
        "initializeCommand": ["envgen", "up", name, "--profile", profile.name],
        "dockerComposeFile": [posixpath.relpath(path, folder) for path in composed],
        "service": name,
        "runServices": [name],
        "overrideCommand": False,
        "shutdownAction": "none",
        "updateRemoteUserUID": False,
        "workspaceFolder": (service.working_dir or profile.working_dir).path,
        **created,
        "customizations": {
            "vscode": {
                "extensions": list(dict.fromkeys([*EXTENSIONS, *extensions])),
                "settings": {"python.defaultInterpreterPath": python},
            }
        },
    }


def text(document: Mapping[str, Any]) -> str:
    """As a file."""
    return HEAD + json.dumps(document, indent=2) + "\n"
