"""Operation ``look``: which processes of this container hold these locks, or have loaded these libraries."""

from __future__ import annotations

from envgen.inside.jit.procs import holders, loaded


def run(request: dict[str, object]) -> dict[str, object]:
    """``locks``: [[device, inode], ...]; ``libraries``: [[inode, module], ...]."""
    locks = [(int(device), int(inode)) for device, inode in request.get("locks") or ()]  # type: ignore[attr-defined]
    libraries = {int(inode): str(name) for inode, name in request.get("libraries") or ()}  # type: ignore[attr-defined]
    users, unseen = loaded(libraries)
    known = holders(locks) if locks else {}
    return {"holders": [known[identity] for identity in locks], "users": users, "unseen": unseen}
