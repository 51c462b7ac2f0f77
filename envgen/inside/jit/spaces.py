"""Operation ``spaces``: how large each namespace is and when it was last used; and removing folders of some."""

from __future__ import annotations

import os

from envgen.inside.jit.layout import TRASH
from envgen.inside.jit.names import check_name
from envgen.inside.jit.tree import FOLDER, GONE, Measure, measure, reason, remove


def run(request: dict[str, object]) -> dict[str, object]:
    """``roots``: paths of namespaces. ``remove``: names below ``parent`` that go; they are measured no more.

    Last used = the youngest time of any file: FlashInfer opens the lock of each module that it loads, and writes its
    log, so a use leaves its time there even when nothing is compiled.
    """
    found = []
    roots: list[str] = list(request.get("roots") or ())  # type: ignore[call-overload]
    for root in roots:
        total = Measure()
        problem = ""
        try:
            fd = os.open(root, FOLDER)
        except OSError as error:
            problem = reason(error)
        else:
            try:
                total = measure(fd, total)
            finally:
                os.close(fd)
        found.append({"bytes": total.bytes, "files": total.files, "used": total.newest,
                      "libraries": len(total.libraries), "problem": problem})  # fmt: skip
    errors: list[str] = []
    names: list[str] = list(request.get("remove") or ())  # type: ignore[call-overload]
    if names:
        parent = os.open(str(request["parent"]), FOLDER)
        try:
            device = os.fstat(parent).st_dev
            for name in [old for old in os.listdir(parent) if old.startswith(TRASH)]:
                remove(name, parent, device, errors, name)  # of a run that was killed in the middle of it
            for name in names:
                check_name(name, "namespace")
                # What is half removed must not be taken for a namespace that is whole.
                trash = TRASH + os.urandom(8).hex()
                try:
                    os.rename(name, trash, src_dir_fd=parent, dst_dir_fd=parent)
                except OSError as error:
                    if error.errno not in GONE:
                        errors.append(name + ": " + reason(error))
                    continue
                remove(trash, parent, device, errors, name)
        finally:
            os.close(parent)
    return {"spaces": found, "errors": errors}
