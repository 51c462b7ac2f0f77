"""What an edit re-runs, executed: python benchmarks/edits.py  (needs a Docker Engine and the base
image)

The shipped Dockerfile.source is built with stub steps: every RUN keeps its mounts, and its command
is replaced by one that writes a stamp of (that command, all stamps that it can see) where the real
one leaves its output. So BuildKit decides what to re-run from real dependencies, and nothing is
downloaded or compiled. The column "possible" is the best known order of steps, counted by hand:
each of the two vocabulary files is a step, whose download BuildKit keeps.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from envgen.profile.load import load_project, select
from envgen.render.outputs import render_profile

TOP = Path(__file__).resolve().parent.parent
NONCE = secrets.token_hex(8)  # a fresh cache for every run of this program
RUN = re.compile(r"^RUN ((?:--mount=\S+ *(?:\\\n\s*)?)*)((?:.*\\\n)*.*)", re.MULTILINE)
STAMP = (
    "mkdir -p /src/flashinfer /src/vllm /wheels /encodings; "
    "for f in /src/flashinfer /src/vllm /wheels /encodings /run/envgen/wheels /run/envgen/encodings; do "
    "[ ! -e $f/stamp ] || cat $f/stamp; done >/tmp/seen; echo {0} >>/tmp/seen; "
    "for f in /src/flashinfer /src/vllm /wheels /encodings; do cp /tmp/seen $f/stamp; done"
)


@dataclass(frozen=True)
class Edit:
    """One edit: its name, what makes it, how many steps are possible, and the stages that must not
    re-run.
    """

    what: str
    sets: tuple[str, ...]
    possible: int
    never: str = "no such stage"
    patch: str = ""
    program: str = ""  # under docker/


EDITS = (
    Edit("Python patch on vLLM", (), 7, "wheel-", patch="vllm"),
    Edit("vLLM ref", ("sources.vllm.origin.ref=v0.14.1",), 11, "wheel-flashinfer"),
    Edit("FlashInfer ref", ("sources.flashinfer.origin.ref=v0.5.4",), 11, "wheel-vllm"),
    Edit("a runtime ENV", ("env.FLASHINFER_LOGLEVEL=3",), 0),
    Edit("a runtime apt package", ("apt.runtime=[curl, less]",), 1),
    Edit("MAX_JOBS", ("build.max_jobs=3",), 0),
    # It is copied late: what follows are files, a package and folders.
    Edit("a program of containers", (), 6, "wheel-", program="runtime/libexec/server"),
    # "Its own stage, then copies": one step for the file, then at most the five behind the copy; no
    # wheel.
    Edit(
        "a tiktoken file",
        ("tiktoken.encodings.o200k_base.url=http://127.0.0.1/o200k_base",),
        6,
        "wheel-",
    ),
)


def stub(dockerfile: str) -> str:
    """Replace the command of every RUN, keeping its mounts and a digest of what stood there."""

    def replace(match: re.Match[str]) -> str:
        command = json.dumps(match.group(2) + NONCE)
        digest = hashlib.sha256(command.encode()).hexdigest()
        folders = "".join(
            f"mkdir -p {path}; " for path in re.findall(r"/src/inputs/\S+", match.group(2))[:1]
        )
        return f"RUN {match.group(1)}{folders}{STAMP.format(digest)}"

    return RUN.sub(
        replace, re.sub(r"^ADD (?=--checksum)", "RUN : ", dockerfile, flags=re.MULTILINE)
    )


def context(folder: Path, edit: Edit | None) -> str:
    """Write the build context of an edit and return its stubbed Dockerfile."""
    sets = edit.sets if edit else ()
    shutil.copytree(TOP / "patches", folder / "patches")
    if edit and edit.patch:
        series = folder / "patches" / edit.patch
        first = series / next(
            line for line in (series / "series").read_text().split() if line.endswith(".patch")
        )
        first.write_text("Edited: yes\n" + first.read_text())  # other bytes, the same change
    project = folder / "envgen.yaml"
    project.write_text((TOP / "envgen.yaml").read_text())
    profile = select(
        load_project(file=project, sets=sets, local=False, profile="source").project, "source"
    )
    files = render_profile(profile, root=folder).files
    for path, content in files.items():
        if path.startswith("docker/"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
    if edit and edit.program:
        with (folder / "docker" / edit.program).open("a") as file:
            file.write("# edited\n")
    return stub(files["Dockerfile.source"].decode())


def build(folder: Path, dockerfile: str, jobs: str) -> list[str]:
    """Build it and return the names of the steps that really ran."""
    (folder / "Dockerfile").write_text(dockerfile)
    (folder / "jobs").write_text(jobs)
    done = subprocess.run(
        ["docker", "buildx", "build", "--progress=rawjson", "--secret", f"id=jobs,src={folder / 'jobs'}",
         "-f", str(folder / "Dockerfile"), str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    ran: dict[str, str] = {}
    for line in done.stderr.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        for vertex in event.get("vertexes") or ():
            name = vertex.get("name", "")
            if re.match(r"\[[a-z_-]+ +\d+/\d+\] (RUN|COPY|WORKDIR|ADD)", name):
                ran[vertex["digest"]] = "" if vertex.get("cached") else name
    return [name for name in ran.values() if name]


def main() -> None:
    rows = ["| edit | steps re-run | possible | re-run |", "| --- | --- | --- | --- |"]
    failed = False
    with tempfile.TemporaryDirectory(prefix="envgen-edits-") as work:
        first = Path(work) / "first"
        first.mkdir()
        everything = build(first, context(first, None), "8")
        again = build(first, (first / "Dockerfile").read_text(), "8")
        if again:
            raise SystemExit(f"not cached when nothing changed: {again}")
        for number, edit in enumerate(EDITS):
            folder = Path(work) / str(number)
            folder.mkdir()
            ran = build(folder, context(folder, edit), "3" if edit.what == "MAX_JOBS" else "8")
            stages = sorted({name.split()[0].lstrip("[") for name in ran})
            bad = len(ran) > edit.possible or any(stage.startswith(edit.never) for stage in stages)
            failed |= bad
            rows.append(
                f"| {edit.what} | {len(ran)}{' **too many**' if bad else ''} | {edit.possible} "
                f"| {', '.join(stages) or 'nothing'} |"
            )
    print(f"{len(everything)} steps in all\n\n" + "\n".join(rows))
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
