"""Damage is found before it is used: parts of datasets, manifests, and documents that no parser should choke on."""

import json
import os
import shutil
import tomllib
from pathlib import Path

import msgspec
import pytest
from tests.support.artefacts import reseal

from kerncast.core.io import artefact
from kerncast.core.io.artefact import seal_of
from kerncast.core.io.foreign import decode_json, decode_toml, load_json
from kerncast.data import Dataset
from kerncast.errors import BadFile
from kerncast.models import Model

ELSEWHERE = Path(__file__).parents[2] / "fixtures" / "made_elsewhere"


@pytest.fixture
def folder(tmp_path):
    """A dataset."""
    shutil.copytree(ELSEWHERE / "dataset", tmp_path / "d")
    return tmp_path / "d"


def test_a_part_is_verified_when_its_rows_are_read_and_again_only_after_a_change(folder, monkeypatch):
    """A flipped bit is refused by every reader, not only by inspect and merge; an unchanged file is hashed once."""
    hashed = []
    own = artefact._hashed
    monkeypatch.setattr(artefact, "_hashed", lambda path: hashed.append(path) or own(path))
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


def test_a_changed_manifest_is_refused(folder):
    """A digit of a device's number, or a row count, cannot change unnoticed; a checksum that fits makes no file safe."""
    dataset = Dataset.open(folder)
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
    file.write_bytes(reseal(data))
    with pytest.raises(BadFile, match="is not a file in it"):
        Dataset.open(folder)


def test_files_of_another_version_of_kerncast_are_refused_with_what_makes_them_again(folder, tmp_path):
    """A model that lacks a field of today, though nothing in it changed since; a dataset without a checksum."""
    shutil.copytree(ELSEWHERE / "gbdt", tmp_path / "m")
    file = tmp_path / "m" / "model.json"
    data = json.loads(file.read_text())
    del data["facts"]
    file.write_text(json.dumps({**data, "checksum": seal_of({**data, "checksum": ""})}))
    with pytest.raises(
        BadFile, match=r"model.json is of another version of kerncast \(the key 'facts' .* train the model again"
    ):
        Model.load(tmp_path / "m")
    file = folder / "dataset.json"
    file.write_text(json.dumps({name: value for name, value in json.loads(file.read_text()).items() if name != "seal"}))
    with pytest.raises(BadFile, match=r"dataset.json has no checksum: restore it, or import the data again"):
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
