"""What every importer must do. Subclass it in a test module, fill in the attributes, let pytest collect it.

class TestMine(ImporterContract):
    format_name = "mine"
    sample = b"m,n,k,us\\n1,2,3,4.5\\n"
    options = Options(device="a100")
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import polars as pl

from kerncast.data import Dataset
from kerncast.data.importers import Options, import_files
from kerncast.errors import KerncastError

MUTATIONS = 300


class ImporterContract:
    """Reads its sample the same way twice, remembers where rows came from, refuses everything else cleanly."""

    format_name: ClassVar[str]
    sample: ClassVar[bytes]
    options: ClassVar[Options]

    def _import(self, folder: Path, content: bytes, name: str = "out") -> Dataset:
        source = folder / "sample"
        source.write_bytes(content)
        return import_files(self.format_name, [source], folder / name, self.options)

    def test_reads_its_sample_the_same_way_twice(self, tmp_path: Path) -> None:
        """Same file, same rows, same digest."""
        first = self._import(tmp_path, self.sample, "first")
        second = self._import(tmp_path, self.sample, "second")
        assert first.rows > 0
        assert first.digest == second.digest
        first.verify()

    def test_every_row_remembers_its_file_and_line(self, tmp_path: Path) -> None:
        """Provenance: the digest of the file, and a line that exists."""
        dataset = self._import(tmp_path, self.sample)
        digests = {source.digest for source in dataset.contents.sources}
        for family in dataset.families:
            rows = dataset.read(family)
            assert set(rows["source"].unique()) <= digests
            assert rows["source_line"].null_count() == 0
            assert rows.select(pl.struct("source", "source_line")).n_unique() == rows.height

    def test_a_device_that_is_not_named_is_asked_for(self, tmp_path: Path) -> None:
        """Unless the file says it, the device is an option, never a guess."""
        source = tmp_path / "sample"
        source.write_bytes(self.sample)
        try:
            dataset = import_files(self.format_name, [source], tmp_path / "out", replace(self.options, device=None))
        except KerncastError as error:
            assert "`device" in str(error)  # noqa: PT017 - this module does not depend on pytest
        else:
            assert all(dataset.read(family)["device"].null_count() == 0 for family in dataset.families)

    def test_empty_foreign_and_missing_files_are_refused_and_nothing_is_written(self, tmp_path: Path) -> None:
        """One sentence that names the file; no dataset, no leftovers."""
        for content in (b"", b"\n", b"\x00\xff\xfe\x1f\x8b" * 50, b"just some words\n", self.sample.splitlines()[0] + b"\n"):
            self._refused(tmp_path, content)
        try:
            import_files(self.format_name, [tmp_path / "absent"], tmp_path / "out", self.options)
        except KerncastError as error:
            assert "absent" in str(error)  # noqa: PT017
        else:
            raise AssertionError("a missing file was imported")

    def test_damaged_files_are_read_or_refused_but_never_crash(self, tmp_path: Path) -> None:
        """Bytes flipped, dropped, doubled and cut, from a fixed seed: only a KerncastError may be raised."""
        rng = random.Random(0)
        for number in range(MUTATIONS):
            damaged = bytearray(self.sample)
            for _ in range(rng.randint(1, 4)):
                place = rng.randrange(len(damaged))
                match rng.randrange(4):
                    case 0:
                        damaged[place] = rng.randrange(256)
                    case 1:
                        del damaged[place : place + rng.randint(1, 9)]
                    case 2:
                        damaged[place:place] = damaged[place : place + rng.randint(1, 9)]
                    case _:
                        damaged = damaged[: max(place, 1)]
                if not damaged:
                    damaged = bytearray(b",")
            try:
                self._import(tmp_path, bytes(damaged), f"out{number}").verify()
            except KerncastError as error:
                assert "\n" not in str(error)  # noqa: PT017
                assert not (tmp_path / f"out{number}").exists()

    def _refused(self, folder: Path, content: bytes) -> None:
        try:
            self._import(folder, content)
        except KerncastError as error:
            assert "sample" in str(error), f"the refusal does not name the file: {error}"  # noqa: PT017
            assert sorted(item.name for item in folder.iterdir()) == ["sample"]
        else:
            raise AssertionError(f"{content[:40]!r} was imported")
