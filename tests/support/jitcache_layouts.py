"""Caches on disk as FlashInfer lays them out (names and places as real builds leave them)."""

from __future__ import annotations

import os
from pathlib import Path

PAGE = ("flashinfer_page_binding", "page")
RELEASES = ("0.5.3", "0.7.2.post1")  # 0.6.0 has the layout of the first, 0.6.18 that of the second
SHARED_LOG = ("0.5.3",)  # one .ninja_log for all modules


def put(path: Path, data: bytes | str = b"x" * 64) -> Path:
    """Write a file, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


MACHINES = {"x86_64": 62, "aarch64": 183}


def elf(machine: str = "") -> bytes:
    """A stand-in for a shared library of a machine (default: this one): its header alone."""
    code = MACHINES[machine or os.uname().machine]
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + (3).to_bytes(2, "little") + code.to_bytes(2, "little")
    return head.ljust(64, b"\0")


class Shelf:
    """One ``cached_ops`` of a release."""

    def __init__(self, root: Path, version: str = "0.5.3", arch: str = "121a", seen: str = "") -> None:
        """``seen`` = the root as a container sees it, which is what FlashInfer writes into build.ninja."""
        self.root = root
        prefix = "/".join(part for part in (version, arch) if part)
        self.seen = f"{seen or root.resolve()}/{prefix}"
        self.version = version
        self.arch = arch
        self.base = root / version / arch if arch else root / version
        self.ops = self.base / "cached_ops"
        put(self.base / "flashinfer_jit.log", "built\n")
        self.shared = version in SHARED_LOG
        if self.shared:
            put(self.ops / ".ninja_log", "# ninja log v5\n")
            put(self.ops / ".ninja_deps", b"# ninjadeps\n\x04\x00\x00\x00")

    def module(
        self, name: str, stems: tuple[str, ...] = PAGE, generated: tuple[str, ...] = (), *, built: bool = True
    ) -> Path:
        """A compiled module. ``generated`` = sources below ``generated/``; the rest come from the package."""
        folder = self.ops / name
        sources = [f"/opt/flashinfer/data/csrc/{stem}.cu" for stem in stems]
        for path in generated:
            put(self.base / "generated" / path, f"// {path}\n")
            sources.append(f"{self.seen}/generated/{path}")
        lines = [
            "ninja_required_version = 1.3",
            f"name = {name}",
            "cuda_home = /usr/local/cuda",
            "common_cflags = -DPy_LIMITED_API=0x03090000 $",
            "    -isystem $cuda_home/include",
            "",
            "rule cuda_compile",
            "  command = $nvcc $cuda_cflags -c $in -o $out",
            "  depfile = $out.d",
            "",
        ]
        objects = []
        for source in sources:
            stem = Path(source).stem
            if self.shared:
                objects.append(f"$name/{stem}.cuda.o")
                put(folder / f"{stem}.cuda.o")
            else:
                objects.append(f"{self.seen}/cached_ops/{name}/csrc_{stem}.cuda.o")
                put(folder / f"csrc_{stem}.cuda.o")
            lines.append(f"build {objects[-1]}: cuda_compile {source}")
        output = f"$name/{name}.so" if self.shared else f"{self.seen}/cached_ops/{name}/{name}.so"
        lines += ["", f"build {output}: link {' '.join(objects)}", f"default {output}", ""]
        put(folder / "build.ninja", "\n".join(lines))
        if built:
            put(folder / f"{name}.so", elf())
        if not self.shared:
            put(folder / ".ninja_log", "# ninja log v5\n")
            put(folder / ".ninja_deps", b"# ninjadeps\n\x04\x00\x00\x00")
        put(self.ops / "tmp" / f"{name}.lock", b"")
        return folder


def release(root: Path, version: str, arch: str = "121a", seen: str = "") -> Shelf:
    """A cache with the modules whose generated paths differ most."""
    shelf = Shelf(root, version, arch, seen)
    shelf.module("page")
    shelf.module("rope", ("rope", "flashinfer_rope_binding"))
    shelf.module("silu_and_mul", (), ("silu_and_mul.cu",))
    shelf.module("gemm_sm120", ("gemm_groupwise",), ("gen_gemm_sm120/one.cu", "gen_gemm_sm120/two.cu"))
    shelf.module("fp4_gemm_cutlass_sm120", ("fp4",), ("gen_gemm_sm120_cutlass_fp4/fp4_gemm_cutlass_128.cu",))
    if version in SHARED_LOG:  # before 0.6.3 the instantiations went into the package itself
        shelf.module("fused_moe_120", ("moe_gemm", "fused_moe"))
        shelf.module("fused_moe_90", ("moe_gemm",))
    else:
        head = "cutlass_instantiations"
        shelf.module("fused_moe_120", ("moe_gemm",), (f"{head}/120/gemm_grouped/120/a.generated.cu",))
        put(shelf.base / "generated" / head / "120/gemm_grouped/120/stale.generated.cu", "// of an older build\n")
        shelf.module("fused_moe_90", ("moe_gemm",), (f"{head}/90/gemm_grouped/90/b.generated.cu",))
    if version == "0.7.2.post1":
        put(shelf.ops / "moe_gated_sm121_cute_dsl" / "meta.json", "{}")
        put(shelf.ops / "moe_gated_sm121_cute_dsl" / "kernel_1.o")
        put(shelf.ops / "kda_ptx" / "module.cubin")
        put(root / "autotune" / "table.json", "{}")
    put(root / "cubins" / "a" / "kernel.cubin")
    return shelf


def snapshot(root: Path) -> dict[str, tuple[str, bytes]]:
    """Every path below ``root`` with its kind and bytes, links as themselves."""
    found: dict[str, tuple[str, bytes]] = {}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(folder) / name
            key = path.relative_to(root).as_posix()
            if path.is_symlink():
                found[key] = ("link", os.fsencode(path.readlink()))
            elif path.is_dir():
                found[key] = ("folder", b"")
            elif path.is_file():
                found[key] = ("file", path.read_bytes())
            else:
                found[key] = ("other", b"")
    return found


def lost(before: dict[str, tuple[str, bytes]], root: Path) -> set[str]:
    """What went since ``before``. Asserts that nothing changed and nothing but lock files came."""
    after = snapshot(root)
    for key, value in after.items():
        if key in before:
            assert before[key] == value, f"{key} changed"
        else:
            assert "/tmp" in f"/{key}" and (value[0] == "folder" or key.endswith(".lock")), f"{key} came"
    return set(before) - set(after)


def outermost(paths: set[str]) -> set[str]:
    """Only the topmost of paths that lie within each other."""
    return {path for path in paths if not any(path.startswith(other + "/") for other in paths)}
