"""The image: there, rendered from this profile, for this machine."""

from __future__ import annotations

from envgen.doctor import remedies
from envgen.doctor.model import Context, Finding, Where, check, error, info, ok, warning

LABEL_RENDER = "dev.envgen.render"
LABEL_PROFILE = "dev.envgen.profile"
LABEL_PATCHES = "dev.envgen.patches"


@check("image.exists", Where.IMAGE, needs="engine")
def exists(context: Context) -> list[Finding]:
    """The profile's image is on this engine."""
    name, image = context.profile.image_name, context.image
    if image is None:
        title, cure = f"the image {name} isn't built", remedies.build(context)
        return [error(title, "no such image on this engine", name, cure, case="missing")]
    return [ok(f"{name} is {image.id[:19]}", id=image.id, created=str(image.created), size=image.size)]


@check("image.render", Where.IMAGE, needs="image")
def rendered_from_profile(context: Context) -> list[Finding]:
    """Its render digest is the one that the profile gives now."""
    assert context.image is not None
    labels = context.image.labels
    digest, owner = labels.get(LABEL_RENDER, ""), labels.get(LABEL_PROFILE, "")
    if not digest:
        seen, cure = "no label dev.envgen.render", remedies.build(context)
        return [warning("the image wasn't built by envgen", seen, "an image of this profile", cure, case="foreign")]
    if owner != context.profile.name:
        title, cure = "the image belongs to another profile", remedies.build(context)
        return [error(title, owner, context.profile.name, cure, case="other-profile")]
    if not context.digest:
        return [info("whether the image is up to date wasn't checked")]
    if digest != context.digest:
        title, cure = "the profile has changed since the image was built", remedies.build(context)
        return [warning(title, digest[:12], context.digest[:12], cure, case="outdated")]
    return [ok("the image is what the profile renders to now", digest=digest)]


@check("image.platform", Where.IMAGE, needs="image")
def platform(context: Context) -> list[Finding]:
    """It is for the architecture that the profile names, else the engine's own."""
    assert context.image is not None
    wanted = context.profile.base.platform
    arch = context.image.architecture
    own = context.engine.arch if context.engine else arch
    expected = wanted.value.split("/")[1] if wanted else own
    if arch != expected:
        title, cure = "the image is for another architecture", remedies.build(context)
        return [error(title, arch, expected, cure, case="wrong")]
    if arch != own:
        cure = remedies.line(f"base: {{platform: linux/{own}}}")
        title = "the image is for another machine than this engine's"
        return [warning(title, f"{arch}, emulated", own, cure, case="emulated")]
    return [ok(f"the image is for {arch}")]


@check("image.patches", Where.IMAGE, needs="image")
def patches(context: Context) -> list[Finding]:
    """Which patches are in it, as its label lists them."""
    assert context.image is not None
    listed = context.image.labels.get(LABEL_PATCHES, "").split()
    sources = context.profile.sources.values()
    if listed:
        names = ", ".join(name.removesuffix(".patch") for name in listed)
        return [ok(f"{len(listed)} patch{'es' * (len(listed) != 1)} in the image: {names}", patches=listed)]
    if any(source.patches and source.origin.kind != "checkout" for source in sources):
        return [
            info("no patch is in the image", "the profile names patches; `envgen patch list` says why none applies")
        ]
    return []
