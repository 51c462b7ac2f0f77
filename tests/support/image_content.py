"""The content of two images compared, as `docker export` writes it: not their times."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tarfile
from pathlib import Path

from projects import docker

# Files that hold times: logs, the loader's auxiliary cache, uv's note of when a wheel was built.
TIMES = re.compile(
    r"/var/log/(apt/[^/]+|dpkg\.log|alternatives\.log|bootstrap\.log)|/var/cache/ldconfig/aux-cache|.*/uv_cache\.json"
)


def differing(first: str, second: str, folder: Path) -> list[str]:
    """A line for each path, and for the configuration, in which two images differ; at most 100."""
    one, two = content(first, folder), content(second, folder)
    paths = [path for path in sorted({*one, *two}) if one.get(path) != two.get(path)]
    return [f"{path}: {one.get(path)} and {two.get(path)}" for path in paths[:100]]


def content(image: str, folder: Path) -> dict[str, str]:
    """What an image holds of each path, and its configuration."""
    archive = folder / "files.tar"  # one at a time: an image may have 20 GB
    container = docker("create", image, "none")
    try:
        subprocess.run(["docker", "export", "-o", str(archive), container], check=True, timeout=600)
    finally:
        docker("rm", container)
    config = json.loads(docker("image", "inspect", "-f", "{{json .Config}}", image))
    found = {"configuration": json.dumps(config, sort_keys=True)}
    with tarfile.open(archive) as tar:
        for member in tar:
            path = f"/{member.name}"
            if TIMES.fullmatch(path):
                continue
            file = tar.extractfile(member) if member.isreg() else None
            data = file.read() if file else b""
            if path.endswith(".dist-info/RECORD"):  # the digest of uv_cache.json depends on a time
                data = b"".join(line for line in data.splitlines(True) if b"/uv_cache.json," not in line)
            attributes = {name: value for name, value in member.pax_headers.items() if name.startswith("SCHILY")}
            fields = (member.type, oct(member.mode), member.uid, member.gid, member.linkname, attributes)
            found[path] = f"{fields} {hashlib.sha256(data).hexdigest()[:16]}"
    return found
