"""Tests that every backend must pass, with its own good kernels and with kernels that do everything wrong.

Subclass `BackendContract` in a test module. The faults are put on top of the backend under test by `Faulty`,
so a backend need not ship broken kernels to prove that collecting with it is safe.

    class TestMine(BackendContract):
        backend = "mine"
        family = "gemm/mine"

        def vectors(self):
            return a polars frame with problem.* and config.* columns, at least 12 rows
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
from msgspec import structs

from kerncast.core.op import Config, Family, Problem
from kerncast.data import Dataset, schema
from kerncast.library.registry import FAMILIES
from kerncast.measuring.collection import CollectionSummary, Request
from kerncast.measuring.messages import Policy
from kerncast.measuring.run import collect
from kerncast.testing.faults import EXPECTED, FAULTY, Analytic, Faulty, Instant, analytic_ns, planned, vector_text

__all__ = [
    "EXPECTED",
    "FAULTY",
    "QUICK",
    "Analytic",
    "BackendContract",
    "Faulty",
    "Instant",
    "analytic_ns",
    "planned",
    "vector_text",
    "vector_texts",
]

QUICK = Policy(
    samples=3,
    fewest_samples=2,
    sample_ns=20_000,
    warmup_ns=20_000,
    # Long enough for a good kernel on a machine that stalls; a test waits for it once for every kernel that hangs.
    deadline_floor_ns=5_000_000_000,
    deadline_ceiling_ns=6_000_000_000,
)


class BackendContract:
    """Good kernels are measured and exact; a bad one affects only its own row; a killed collection can be continued."""

    backend: ClassVar[str]
    family: ClassVar[str]
    policy: ClassVar[Policy] = QUICK
    memory_bytes: ClassVar[int] = 400 << 20

    def vectors(self) -> pl.DataFrame:
        """At least 12 valid vectors, columns `problem.*` and `config.*`."""
        raise NotImplementedError

    def _collect(self, out: Path, backend: str, vectors: pl.DataFrame, **changes: Any) -> CollectionSummary:
        policy = structs.replace(self.policy, **changes)
        return collect(Request(FAMILIES.get(self.family), backend, ("0",), out, policy, chunk_size=8), [vectors])

    def test_good_kernels_are_measured_and_exact(self, tmp_path: Path) -> None:
        """Every vector gets an ok row with a positive time and an error within the tolerance."""
        vectors = self.vectors()
        self._collect(tmp_path / "d", self.backend, vectors)
        rows = Dataset.open(tmp_path / "d").read()
        assert rows["status"].to_list() == ["ok"] * vectors.height, rows["error"].to_list()
        assert (rows["time_ns"] > 0).all()
        assert rows["key"].n_unique() == vectors.height
        assert not (tmp_path / "d" / "journal.jsonl").exists()

    def test_each_fault_costs_one_row_and_the_rest_goes_on(self, tmp_path: Path) -> None:
        """Whatever a kernel does, in compiling and closing too, its own row says it: all the others are measured."""
        vectors = self.vectors()
        family = FAMILIES.get(self.family)
        texts = vector_texts(family, vectors)
        faults = dict(zip(texts[1:], EXPECTED, strict=False))
        with planned(self.backend, faults):
            self._collect(tmp_path / "d", FAULTY, vectors, memory_bytes=self.memory_bytes)
        rows = Dataset.open(tmp_path / "d").read()
        keys = schema.row_keys(family, vectors.with_columns(device=pl.lit(rows["device"][0])))
        found = dict(zip(rows["key"], rows["status"], strict=True))
        expected = [EXPECTED[faults[text]] if text in faults else "ok" for text in texts]
        assert [found[key] for key in keys] == expected

    def test_a_killed_collection_is_resumed_without_losing_or_repeating_a_row(self, tmp_path: Path) -> None:
        """kill -9 of the supervisor, then the same call again."""
        vectors = self.vectors()
        vectors.write_parquet(tmp_path / "vectors.parquet")
        code = (
            "import polars as pl; from pathlib import Path; from kerncast.testing.backends import *\n"
            f"class C(BackendContract): backend, family = {self.backend!r}, {self.family!r}\n"
            f"C()._collect(Path({str(tmp_path / 'd')!r}), FAULTY, pl.read_parquet({str(tmp_path / 'vectors.parquet')!r}))"
        )
        journal = tmp_path / "d" / "journal.jsonl"
        with planned(self.backend, dict.fromkeys(vector_texts(FAMILIES.get(self.family), vectors), "slow")):
            process = subprocess.Popen([sys.executable, "-P", "-c", code])
            deadline = time.monotonic() + 120
            # The first chunk is in, the second is being measured.
            while time.monotonic() < deadline and not (journal.exists() and journal.read_bytes().count(b"\n") > 8):
                time.sleep(0.02)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        assert journal.exists()
        with planned(self.backend, {}):
            summary = self._collect(tmp_path / "d", FAULTY, vectors)
        assert 0 < summary.already_there < vectors.height
        rows = Dataset.open(tmp_path / "d").read()
        assert rows.height == rows["key"].n_unique() == vectors.height


def vector_texts(family: Family, vectors: pl.DataFrame) -> list[str]:
    """The text of each vector of a frame, as `Faulty` sees it."""
    vectors = schema.with_optional(family, vectors).select(list(schema.parameter_columns(family)))
    return [
        vector_text(Problem.trusted(family, _prefixed(row, "problem.")), Config.trusted(family, _prefixed(row, "config.")))
        for row in vectors.iter_rows(named=True)
    ]


def _prefixed(row: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}
