"""A full disk at every place that collecting writes to: one sentence, nothing lost, and the same call goes on."""

import errno
import os
from pathlib import Path

import polars as pl
import pytest

from kerncast.data import Dataset
from kerncast.data.journal import LOCK, NAME, Header, records_of
from kerncast.errors import CannotWrite
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.measuring.collection import Request
from kerncast.measuring.journal import Journal
from kerncast.measuring.run import collect
from kerncast.testing.backends import QUICK

TRITON = family_named("gemm/triton")
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
POLARS = pl.exceptions.ComputeError("parquet: underlying IO error: No space left on device (os error 28)")


def measure(out):
    configs = TRITON.config.sample(12, 0, TRITON.bindings({"dtype": "fp16"}, devices.get("a100")))
    problem = {"M": 64, "N": 64, "K": 64, "split_k": 1, "batch": 1, "dtype": "fp16", "layout": "rcr", "tf32": False}
    frame = configs.rename({name: f"config.{name}" for name in configs.columns})
    frame = frame.with_columns(*(pl.lit(value).alias(f"problem.{name}") for name, value in problem.items()))
    return collect(Request(TRITON, "kerncast.testing.backends:Instant", ("0",), out, QUICK, chunk_size=4), [frame])


def refuse_writes(patch, name, after=0):
    """No room for what is written to files of this name, after so many writes."""
    write, seen = os.write, []

    def full(fd, data):
        if os.readlink(f"/proc/self/fd/{fd}").endswith(name):
            seen.append(fd)
            if len(seen) > after:
                raise FULL
        return write(fd, data)

    patch.setattr(os, "write", full)


def refuse_sync(patch, name):
    """No room when a file of this name goes to the disk, as with delayed allocation."""
    sync = os.fsync

    def full(fd):
        if os.readlink(f"/proc/self/fd/{fd}").endswith(name):
            raise FULL
        sync(fd)

    patch.setattr(os, "fsync", full)


def refuse(error):
    def full(*arguments, **options):
        raise error

    return full


PLACES = {
    "dataset.json": (lambda patch: patch.setattr(Path, "write_bytes", refuse(FULL)), "nothing was measured yet"),
    "the lock": (lambda patch: refuse_writes(patch, LOCK), "nothing was measured yet"),
    "the journal's first line": (lambda patch: refuse_writes(patch, NAME), "nothing new was measured yet"),
    "the journal's first sync": (lambda patch: refuse_sync(patch, NAME), "nothing new was measured yet"),
    "a later line": (lambda patch: refuse_writes(patch, NAME, 2), "everything measured before is safe there"),
    "the rows": (
        lambda patch: patch.setattr(pl.DataFrame, "write_parquet", refuse(POLARS)),
        "all 12 rows are safe in .*/journal.jsonl",
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_full_disk_is_one_sentence_and_the_same_call_goes_on(place, tmp_path, monkeypatch):
    """With the path, what is safe and the next step; after space was freed every vector has its row."""
    fill, safe = PLACES[place]
    expected = (
        rf"could not write {tmp_path / 'd'}.* \(No space left on device\): free some space and run the same command again; "
    )
    with monkeypatch.context() as patch:
        fill(patch)
        with pytest.raises(CannotWrite, match=f"{expected}.*({safe})"):
            measure(tmp_path / "d")
    summary = measure(tmp_path / "d")
    assert not summary.without_a_row
    rows = Dataset.open(tmp_path / "d").read()
    assert rows.height == rows["key"].n_unique() == 12


def test_a_line_that_was_written_in_part_does_not_damage_the_journal(tmp_path, monkeypatch):
    """The disk filled up in the middle of a line: closing, which tries again, goes on within it."""
    header, rest = Header("f", "b", "d", {}, "r"), {"status": "ok", "problem": {}, "config": {}}
    journal = Journal.begin(tmp_path / NAME, header)
    journal.add({"key": "a", **rest})
    journal.flush()
    journal.add({"key": "b", **rest})
    write, left = os.write, [5, 0]
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: left.pop(0)]) if left[0] else refuse(FULL)())
    with pytest.raises(CannotWrite):
        journal.flush()
    monkeypatch.setattr(os, "write", write)
    journal.close()
    assert [record["key"] for record in records_of(tmp_path / NAME)] == ["a", "b"]


@pytest.mark.parametrize("torn", [b"", b"0123", b'01234567 {"family":"gem'])
def test_a_journal_without_a_whole_first_line_is_begun_again(torn, tmp_path):
    """Killed, or out of space, before anything was measured."""
    Dataset.create(tmp_path / "d")
    (tmp_path / "d" / NAME).write_bytes(torn)
    assert measure(tmp_path / "d").measured == 12
