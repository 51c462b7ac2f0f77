"""Step: several GPUs in one container."""

from __future__ import annotations

import re

from gpu_day.comparing import compare, logged
from gpu_day.day import Day, NotRun, Rows, start, step


@step("several-gpus", "tensor parallel over 2 and 4 GPUs in one container")
def several_gpus(day: Day, rows: Rows) -> None:
    most = len(day.gpus())
    if most < 2:
        raise NotRun("one GPU")
    day.envgen("down", day.service)
    place = f"services.{day.service}"
    for size in (size for size in (2, 4) if size <= most):
        numbers = ", ".join(f'"{number}"' for number in range(size))
        sets = (
            "--set",
            f"{place}.args.tensor-parallel-size={size}",
            "--set",
            f"{place}.gpu=[{numbers}]",
        )
        if start(day, rows, f"tensor-parallel-size {size}", "--recreate", *sets):
            text = day.log(day.service)
            seen = re.findall(r"world_size=(\d+)", text)
            rows.add(
                "its log: world_size",
                str(size) in seen,
                f"{sorted(set(seen))}; {logged(text)}",
                str(size),
            )
            answer = day.envgen("predict", day.service, "--json", *sets).document
            compare(rows, f"tensor-parallel-size {size}", answer, logged(text), text)
