"""`envgen export`: a service for another system."""

from __future__ import annotations

import re
from pathlib import Path

import click

from envgen import files
from envgen.app.places import known_service
from envgen.app.session import Session
from envgen.app.weights import locked_commit
from envgen.cli.common import json_option, print_json, project_options, variant_option
from envgen.errors import UsageError
from envgen.render import kubernetes as use_case
from envgen.text import progress

DIGEST = re.compile(r"[a-z0-9][a-z0-9._:/-]*@sha256:[0-9a-f]{64}")


@click.group()
def command() -> None:
    """Write a service for another system.

    \b
    Example:
      envgen export kubernetes serve --image registry.example/vllm@sha256:... -o serve.yaml
    """


@command.command()
@click.argument("service", required=False)
@project_options
@variant_option
@click.option("--image", required=True, metavar="NAME@sha256:DIGEST", help="The image as the cluster pulls it.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="A file; default: stdout.")
@json_option
def kubernetes(
    session: Session, service: str | None, variant: str, image: str, output: Path | None, as_json: bool
) -> int:
    """Write SERVICE (default: the first one) as a LeaderWorkerSet and a Service of Kubernetes.

    The same file for the same project, lock and image. `docker push` prints the digest of an image. What only this
    machine has is refused, all at once (exit code 6): mounted checkouts, mounts, devices. docs/kubernetes.md has
    what the cluster needs, and what envgen does not do there.

    \b
    Examples:
      envgen export kubernetes serve --image registry.example/vllm@sha256:... -o serve.yaml
      envgen export kubernetes --image registry.example/vllm@sha256:... | kubectl apply -f -
    """
    session.variant = variant
    profile, root = session.profile(), session.loaded().project.root
    if not profile.services:
        raise UsageError(f"profile {profile.name} has no services")
    name = service or next(iter(profile.services))
    known_service(profile, name)
    if not DIGEST.fullmatch(image):
        hint = "`docker push NAME` prints it: --image NAME@sha256:..."
        raise UsageError(f"--image {image} has no digest: a tag can become another image", hint=hint)
    found = use_case.documents(profile, name, image, locked_commit(profile, root, name))
    if as_json:
        print_json(found)
        return 0
    written = use_case.text(found)
    if output is None:
        click.echo(written, nl=False)
    else:
        files.write(output, written.encode())
        progress(f"wrote {output}")
    return 0
