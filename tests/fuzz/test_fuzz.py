"""Fuzzers with a fixed budget: whatever bytes a reader gets, it reads them or refuses them with a sentence.

`corpus/KIND` holds what is mutated: small files made for this, and every input that once broke a reader.
"""

import json
import random
import shutil
import zlib
from pathlib import Path

import msgspec
import pytest
from tests.support.artefacts import SHAPE, reseal, swept
from tests.support.mutating import mutated, mutated_json

import kerncast
from kerncast.answering.query import Query, among
from kerncast.data import Dataset
from kerncast.data.formats import ImportOptions
from kerncast.data.formats.table import read_mapping
from kerncast.data.importing import import_files, recognised
from kerncast.data.journal import Header, journal_rows
from kerncast.errors import KerncastError
from kerncast.learning.learners.lightgbm_text import parse_forest
from kerncast.library.devices import read_profile
from kerncast.library.registry import FAMILIES
from kerncast.measuring.sweeping import Vectors
from kerncast.models.answer import Answered, StatusPlace
from kerncast.models.manifest import Manifest, read_manifest, write_manifest
from kerncast.models.model import Model
from kerncast.models.store.store import Store
from kerncast.native.overrides import read_overrides
from kerncast.native.tiers.build import read_tiers
from kerncast.regenerating import routine
from kerncast.testing import repeats

CORPUS = Path(__file__).parent / "corpus"
ELSEWHERE = Path(__file__).parents[1] / "fixtures" / "made_elsewhere"
MAPPED = CORPUS / "mapping" / "table.toml"
IMPORTS = {
    "aiconfigurator": ImportOptions(),
    "autoheuristic": ImportOptions(device="a100"),
    "ck-tile": ImportOptions(device="gfx950"),
    "csv": ImportOptions(device="a100", mapping=MAPPED),
    "kernel-tuner": ImportOptions(),
    "parquet": ImportOptions(device="a100", mapping=MAPPED),
    "reshard-lines": ImportOptions(device="wormhole_b0"),
    "tt-sweep": ImportOptions(device="wormhole_b0"),
    "ttnn-csv": ImportOptions(device="wormhole_b0", values={"func": "exp"}),
}


def mutations(kind, count):
    """The corpus of a kind, then mutations of it: the same in every run."""
    seeds, chance = [file.read_bytes() for file in sorted((CORPUS / kind).iterdir())], random.Random(kind)
    yield from seeds
    for _ in range(count):
        yield mutated(chance, seeds)


def survives(read, data, *args):
    """Read it, or refuse it with a sentence; anything else fails with the input, which then belongs into the corpus."""
    try:
        read(*args)
    except KerncastError:
        return
    except BaseException as error:
        raise AssertionError(f"{type(error).__name__}: {error}; add this to the corpus: {data!r}"[:3000]) from error


@pytest.mark.parametrize("name", IMPORTS)
def test_importers(name, tmp_path):
    """Every format, with and without being told which it is; the draft of a mapping, too."""
    suffix = next(iter((CORPUS / name).iterdir())).suffix
    source, out = tmp_path / f"table{suffix}", tmp_path / "out"
    for data in mutations(name, repeats(8, 2_000)):
        source.write_bytes(data)
        survives(import_files, data, name, [source], out, IMPORTS[name])
        shutil.rmtree(out, ignore_errors=True)
        survives(recognised, data, [source], False)
        if name in ("csv", "parquet"):
            survives(lambda: Dataset.guess_mapping(source, file_format=name), data)


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("overrides", read_overrides), ("mapping", read_mapping), ("device", read_profile),
        ("routine", lambda path: routine.load(str(path))),
    ],
    ids=["overrides", "mapping", "device", "routine"],
)  # fmt: skip
def test_toml(kind, read, tmp_path):
    """The files that people write."""
    file = tmp_path / "file.toml"
    for data in mutations(kind, repeats(150, 50_000)):
        file.write_bytes(data)
        survives(read, data, file)


def test_forest_texts():
    """LightGBM's texts."""
    for data in mutations("forest", repeats(120, 50_000)):
        survives(lambda data=data: parse_forest(data.decode()) if is_text(data) else None, data)


def is_text(data):
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_arrays(tmp_path):
    """The arrays of tiers, which are made again if they cannot be used."""
    model, file = Model.load(ELSEWHERE / "gbdt"), tmp_path / "tiers.npz"
    for data in mutations("npz", repeats(40, 20_000)):
        file.write_bytes(data)
        survives(read_tiers, data, file, model)


def test_queries():
    """JSON requests in Python; `tests/native` asks the same of C, under sanitizers."""
    model = Model.load(ELSEWHERE / "gbdt")
    ready = Query(among([model]), compile=False)
    known = {str(status) for status in Answered if StatusPlace.JSON in status.places}
    for data in mutations("query", repeats(40, 5_000)):

        def ask(data=data):
            reply = json.loads(ready.answer(data))
            assert {item["status"] for item in (reply if isinstance(reply, list) else [reply])} <= known

        survives(ask, data)


# -- manifests: values are exchanged, and the checksum is the one of the new contents ---------------------------


def manifests(file, count, seal=reseal):
    whole, chance = json.loads(file.read_bytes()), random.Random(file.name)
    known = CORPUS / file.name
    for changed in sorted(known.iterdir()) if known.is_dir() else ():
        yield seal(json.loads(changed.read_bytes()))
    for _ in range(count):
        changed = mutated_json(chance, whole)
        yield seal(changed) if isinstance(changed, dict) else msgspec.json.encode(changed)


def test_manifests_of_datasets(tmp_path):
    """A stranger's `dataset.json`, whose checksum fits."""
    for name in ("dataset", "declared_dataset"):
        folder = tmp_path / name
        shutil.copytree(ELSEWHERE / name, folder)

        def use(folder=folder):
            dataset = Dataset.open(folder)
            repr(dataset)
            dataset.read()

        for data in manifests(folder / "dataset.json", repeats(40, 5_000)):
            (folder / "dataset.json").write_bytes(data)
            survives(use, data)
            survives(lambda folder=folder: kerncast.inspect(folder, verify=True, progress=False), data)


def test_manifests_of_models(tmp_path):
    """A stranger's `model.json`: it loads and answers, or is refused."""
    folder = tmp_path / "model"
    shutil.copytree(ELSEWHERE / "gbdt", folder)

    def use():
        model = Model.load(folder)
        repr(model)
        model.predict(SHAPE)

    def sealed(data):
        try:
            write_manifest(folder, msgspec.convert(data, Manifest))
        except msgspec.ValidationError:
            return msgspec.json.encode(data)
        return (folder / "model.json").read_bytes()

    whole = (folder / "model.json").read_bytes()
    assert read_manifest(folder)
    for data in manifests(folder / "model.json", repeats(40, 5_000), sealed):
        (folder / "model.json").write_bytes(data)
        survives(use, data)
    (folder / "model.json").write_bytes(whole)


def test_manifests_of_stores_and_sweeps(tmp_path):
    """`entry.json` and `vectors.json`."""
    store, sweep = tmp_path / "store", tmp_path / "sweep"
    shutil.copytree(ELSEWHERE / "store", store)
    swept(sweep, "json")
    (entry,) = store.rglob("entry.json")
    for data in manifests(entry, repeats(40, 5_000)):
        entry.write_bytes(data)
        survives(lambda: [item.load() for item in Store.open(store).entries()], data)
    for data in manifests(sweep / "vectors.json", repeats(40, 5_000)):
        (sweep / "vectors.json").write_bytes(data)
        survives(lambda: list(Vectors.open(sweep).iter_blocks()), data)


def test_journals(tmp_path):
    """Lines whose checksums fit, with other values in them."""
    family, file, chance = FAMILIES.get("gemm/triton"), tmp_path / "journal.jsonl", random.Random(0)
    config = {"kind": "triton", "BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 64, "num_stages": 3, "num_warps": 4}
    header = msgspec.to_builtins(Header("gemm/triton", "instant", "a100", {"driver": "1"}, "run"))
    record = {"key": "k", "status": "ok", "time_ns": 5.0, "problem": SHAPE, "config": config, "order": 0, "block": 0}
    for _ in range(repeats(150, 50_000)):
        lines = [header, record, {**record, "key": "l"}]
        place = chance.randrange(3)
        lines[place] = mutated_json(chance, lines[place])
        bodies = [msgspec.json.encode(line) for line in lines]
        data = b"".join(b"%08x %s\n" % (zlib.crc32(body), body) for body in bodies)
        file.write_bytes(data)
        survives(journal_rows, data, file, family)
