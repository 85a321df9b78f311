"""Damage is found before it is used: parts of datasets, manifests, and documents that no parser should choke on."""

import json
import os
import shutil
import tomllib
from pathlib import Path

import msgspec
import pytest

from kerncast.data import Dataset
from kerncast.errors import BadFile
from kerncast.files import checksums
from kerncast.files.foreign import decode_json, decode_toml, load_json

OLD = Path(__file__).parents[1] / "fixtures" / "0.1" / "dataset"


@pytest.fixture
def folder(tmp_path):
    """A dataset of an earlier version, whose manifest has no checksum."""
    shutil.copytree(OLD, tmp_path / "d")
    return tmp_path / "d"


def test_a_part_is_verified_when_its_rows_are_read_and_again_only_after_a_change(folder, monkeypatch):
    """A flipped bit is refused by every reader, not only by inspect and merge; an unchanged file is hashed once."""
    hashed = []
    own = checksums._hashed
    monkeypatch.setattr(checksums, "_hashed", lambda path: hashed.append(path) or own(path))
    assert Dataset.open(folder).read().height == 120
    assert Dataset.open(folder).read().height == 120
    (part,) = {*hashed}
    assert len(hashed) == 1
    data = bytearray(part.read_bytes())
    data[len(data) // 3] ^= 64
    part.write_bytes(data)
    os.utime(part, ns=(1, 1))
    with pytest.raises(BadFile, match="differs from its checksum: restore it"):
        Dataset.open(folder).read()


def test_a_changed_manifest_is_refused_and_one_without_a_checksum_is_read(folder):
    """A digit of a device's number, or a row count, cannot change unnoticed once this version has written the file."""
    dataset = Dataset.open(folder)
    dataset._write_file(dataset.contents)
    file = folder / "dataset.json"
    text = file.read_text()
    assert Dataset.open(folder).contents == dataset.contents
    assert '"rows": 120' in text
    file.write_text(text.replace('"rows": 120', '"rows": 121'))
    with pytest.raises(BadFile, match=r"dataset.json differs from its checksum"):
        Dataset.open(folder)
    file.write_text(text.replace("kerncast", "kerncas\udce9t", 1), errors="surrogateescape")
    with pytest.raises(BadFile, match="is damaged"):
        Dataset.open(folder)
    data = json.loads(text)
    data["parts"][0]["file"] = "../other.parquet"
    del data["seal"]
    file.write_text(json.dumps(data))
    with pytest.raises(BadFile, match="is not a file in it"):
        Dataset.open(folder)


@pytest.mark.parametrize("text", [b"[" * 200_000, b"\xff\xfe", b'{"a": "\xe9"}', b""], ids=["deep", "bits", "latin", "empty"])
def test_no_document_is_a_traceback(text):
    """Nesting and bytes that are not text are the error that the callers of each parser expect."""
    with pytest.raises(msgspec.DecodeError):
        decode_json(text)
    with pytest.raises(ValueError, match=r".") as refused:
        load_json(text)
    assert not isinstance(refused.value, RecursionError)
    with pytest.raises(tomllib.TOMLDecodeError):
        decode_toml(b"a = " + text)
