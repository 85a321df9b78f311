"""T4, the results format of the auto-tuning community: one file per problem and device.

`kerncast import t4` reads it back: what the format has no place for is in `metadata` and among the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kerncast.data.dataset import Dataset
from kerncast.data.exporters.selected import Measured, columns_of, split, write_each
from kerncast.data.importers.tuned import COLUMN_PREFIX

SCHEMA_VERSION = "1.0.0"
OBJECTIVE = "time"
NS_PER_MS = 1e6
# Every status as one of T4's words; the exact one is among the measurements.
INVALIDITY = {
    "ok": "correct", "invalid": "constraints", "unsupported": "constraints", "compile_error": "compile",
    "wrong_result": "correctness", "timeout": "timeout",
}  # fmt: skip


def write_t4(dataset: Dataset, out: Path, family: str | None, where: Sequence[str]) -> list[Path]:
    """A file, or a folder with a file for each problem and device."""
    return write_each(list(split(dataset, family, where)), out, _document)


def _document(part: Measured) -> dict[str, Any]:
    metadata = {"timeunit": "milliseconds", "kernel_name": part.kernel, "device_name": part.device, **part.header}
    if part.sizes:
        metadata["problem_size"] = part.sizes
    return {
        "schema_version": SCHEMA_VERSION,
        "metadata": metadata,
        "results": [_result(part, row) for row in part.rows],
    }


def _result(part: Measured, row: Mapping[str, Any]) -> dict[str, Any]:
    time, compiling = row["time_ns"], row["compile_ns"]
    measurements = [{"name": name, "value": value, "unit": _unit(name)} for name, value in columns_of(row).items()]
    if time is not None:
        measurements.insert(0, {"name": OBJECTIVE, "value": time / NS_PER_MS, "unit": "ms"})
    times: dict[str, Any] = {} if compiling is None else {"compilation": compiling / NS_PER_MS}
    # Only a single launch is known as it was; of several, the dataset has what they come to.
    times["runtimes"] = [time / NS_PER_MS] if time is not None and row["samples"] == 1 else []
    return {
        **({} if row["started_at"] is None else {"timestamp": row["started_at"]}),
        "configuration": part.config(row),
        "objectives": [OBJECTIVE],
        "times": times,
        "invalidity": INVALIDITY.get(row["status"], "runtime"),
        "correctness": 0 if row["status"] == "wrong_result" else 1,
        "measurements": measurements,
    }


def _unit(name: str) -> str:
    return "ns" if "_ns" in name.removeprefix(COLUMN_PREFIX) else ""
