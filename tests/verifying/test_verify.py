"""`kerncast inspect --verify`: every kind of artefact is recognised and checked whole, and what is wrong is said by file."""

import json
import os
import shutil

import msgspec
import polars as pl
import pytest
from tests.support.artefacts import reseal

import kerncast
from kerncast.data import Dataset
from kerncast.data.dataset import MANIFEST
from kerncast.data.journal import NAME, STATE
from kerncast.models.manifest import read_manifest, write_manifest


@pytest.fixture
def copy(made, tmp_path):
    """A copy of an artefact to damage."""

    def copied(kind):
        source, target = made[kind], tmp_path / made[kind].name
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
        return target

    return copied


def flip(file, at=None):
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    file.write_bytes(data)


def faults(path):
    return [fault for item in kerncast.inspect(path, verify=True).artefacts for fault in item.faults]


def test_every_kind_is_recognised_and_whole(made):
    """Each is named by its kind, and something of it was checked."""
    for kind, path in made.items():
        found = kerncast.inspect(path, verify=True)
        (item,) = found.artefacts
        assert kind.startswith(item.kind), (kind, item.kind)
        assert found.whole, found
        assert item.checks, kind


def test_a_folder_is_searched_and_each_artefact_gets_a_line(made, run, tmp_path):
    """Text and JSON name all of them and what is none; the exit code is 1 as soon as one is damaged, 2 if there is none."""
    folder = made["dataset"].parent
    code, out, _ = run("inspect", "--verify", folder)
    assert code == 0
    for path in made.values():
        assert f"{path}: " in out
    assert "artefacts, none damaged" in out
    code, out, _ = run("inspect", "--verify", folder, "--json")
    told = json.loads(out)
    assert code == 0
    assert {item["path"] for item in told["artefacts"]} >= {str(path) for path in made.values()}
    shutil.copytree(made["vectors json"], tmp_path / "v")
    (tmp_path / "notes.txt").write_text("hello")
    flip(tmp_path / "v" / "part-00000.json")
    code, out, _ = run("inspect", "--verify", tmp_path)
    assert code == 1
    assert f"{tmp_path / 'v'}: vectors, DAMAGED (manifest)" in out
    assert f"! {tmp_path / 'v' / 'part-00000.json'} differs from its checksum; run the same `kerncast sweep` again" in out
    assert f"kerncast does not know them: {tmp_path / 'notes.txt'}" in out
    for nothing in (tmp_path / "notes.txt", tmp_path / "missing"):
        code, _, err = run("inspect", "--verify", nothing)
        assert code == 2
        assert "check the path" in err


def test_all_damage_is_told_not_only_the_first(copy):
    """Three files of a dataset and two of a model, each with its next step."""
    dataset = copy("dataset")
    (part,) = dataset.glob("rows/*/*/*.parquet")
    flip(part)
    flip(dataset / "skipped.parquet")
    (dataset / "extra" / "part-00000.parquet").unlink()
    assert {fault.file for fault in faults(dataset)} == {
        part, dataset / "skipped.parquet", dataset / "extra" / "part-00000.parquet",
    }  # fmt: skip
    model = copy("model")
    flip(model / "candidates.parquet")
    (model / "evaluation.json").unlink()
    (model / "more.npz").write_bytes(b"")
    assert {fault.file.name for fault in faults(model)} == {"candidates.parquet", "evaluation.json", "more.npz"}
    assert all("restore it, or train" in fault.sentence or "remove it" in fault.sentence for fault in faults(model))


@pytest.mark.parametrize(("kind", "file"), [("dataset", MANIFEST), ("model", "model.json")])
def test_an_artefact_without_its_manifest_is_still_known(copy, kind, file):
    """By the names of its other files."""
    path = copy(kind)
    (path / file).unlink()
    (found,) = kerncast.inspect(path, verify=True).artefacts
    assert (found.kind, found.whole) == (kind, False)
    assert f"has no {file}" in found.faults[0].sentence


def changed_part(path, change):
    """Write other rows into the part of a dataset, with checksums that fit: only the rows themselves can tell."""
    dataset = Dataset.open(path)
    (part,) = dataset.contents.parts
    rows = change(pl.read_parquet(path / part.file))
    rows.write_parquet(path / part.file)
    from kerncast.core.io.artefact import file_checksum
    from kerncast.data.schema import content_digest

    part = msgspec.structs.replace(part, checksum=file_checksum(path / part.file), content=content_digest([rows]))
    dataset._write_file(msgspec.structs.replace(dataset.contents, parts=(part,)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows.with_columns(time_ns=pl.lit(1e-307)), "time_ns must be a positive number of nanoseconds"),
        (lambda rows: rows.with_columns(status=pl.lit("fine")), "status must be one of"),
        (lambda rows: rows.with_columns(pl.col("problem.dim3") + 32), "rows are mislabelled"),
        (lambda rows: rows.with_columns(source=pl.lit("elsewhere")), "which dataset.json does not list"),
        (lambda rows: rows.with_columns(op=pl.lit("gemm")), "say that their op is 'gemm'"),
        (lambda rows: pl.concat([rows, rows]), "has 6 rows, and dataset.json says 3"),
        (lambda rows: rows.with_columns(run_id=pl.lit("r"), key=rows["key"]), None),
        (lambda rows: rows[[0, 0, 0]].with_columns(run_id=pl.lit("r")), "same key and run as another row"),
    ],
    ids=["time", "status", "key", "source", "op", "rows", "run", "doubled"],
)  # fmt: skip
def test_rows_are_checked_even_if_every_checksum_fits(copy, change, said):
    """What no flipped bit does but a program can: impossible times, other keys, doubled rows."""
    path = copy("dataset")
    changed_part(path, change)
    found = [fault.sentence for fault in faults(path)]
    assert (said is None and not found) or said in found[0]


def test_a_journal_is_checked_line_by_line_and_a_torn_tail_is_no_damage(copy):
    """A bad line in the middle is named by its number; a last line that was cut is left out, and said."""
    path = copy("unfinished collection")
    whole = (path / NAME).read_bytes()
    (path / NAME).write_bytes(whole[:-7])
    found = kerncast.inspect(path / NAME, verify=True)
    assert found.whole
    assert "was cut off: readers leave it out" in str(found)
    (path / NAME).write_bytes(whole.replace(b'"order":3', b'"order":4'))
    flip(path / STATE, 30)
    said = [fault.sentence for fault in faults(path)]
    assert len(said) == 2
    assert any("line 5 is damaged" in text for text in said)
    assert any("collection.json" in text and "remove the file" in text for text in said)


def test_rows_that_a_collection_had_and_are_gone_are_told(copy):
    """A line taken out of the journal, or all of it: the state says how many vectors had a row."""
    path = copy("unfinished collection")
    lines = (path / NAME).read_bytes().splitlines(keepends=True)
    (path / NAME).write_bytes(b"".join(lines[:2] + lines[3:]))
    assert any("vectors have a row" in fault.sentence for fault in faults(path))
    (path / NAME).unlink()
    assert any("and 0 rows are there" in fault.sentence for fault in faults(path))


def test_a_manifest_with_a_fitting_checksum_that_contradicts_itself_is_told(copy):
    """A stranger computes checksums, too: ranges that cannot be, counts that are wrong, files elsewhere."""
    model = copy("model")
    manifest = read_manifest(model)
    hull = {**manifest.hull, "M": msgspec.structs.replace(manifest.hull["M"], low=9_999_999)}
    write_manifest(model, msgspec.structs.replace(manifest, hull=hull))
    assert "its trained range of M goes from 9999999 to" in faults(model)[0].sentence
    swept = copy("vectors parquet")
    data = json.loads((swept / "vectors.json").read_text())
    (swept / "vectors.json").write_bytes(reseal({**data, "problems": data["problems"] + 1}))
    assert "counts other problems or configs" in faults(swept)[0].sentence
    data["parts"][0]["file"] = "../../etc/passwd"
    (swept / "vectors.json").write_bytes(reseal(data))
    assert "is not a file in it" in faults(swept)[0].sentence


def test_a_store_names_the_entry_or_the_model_that_is_damaged(copy):
    """And models that no entry names are said, not counted as damage."""
    store = copy("store")
    (entry,) = store.rglob("entry.json")
    (model,) = [item for item in entry.parent.iterdir() if item.is_dir()]
    shutil.copytree(model, entry.parent / "model-left")
    found = kerncast.inspect(store, verify=True)
    assert found.whole
    assert "model-left is a model that no entry names" in str(found)
    flip(model / "predictions.parquet")
    assert [fault.file for fault in faults(store)] == [model / "predictions.parquet"]
    flip(entry, 40)
    assert entry in [fault.file for fault in faults(store)]


def test_nothing_of_the_artefact_is_run_and_links_are_not_followed(copy, tmp_path, monkeypatch):
    """No process is started, no code is loaded, whatever the folder holds; a pipe does not hang, a link does not lead away."""
    import subprocess

    from kerncast.native import build as loading

    def never(*args, **options):
        raise AssertionError("something was run")

    monkeypatch.setattr(subprocess, "Popen", never)
    for name in [name for name in vars(loading) if callable(getattr(loading, name)) and name.islower()]:
        monkeypatch.setattr(loading, name, never)
    for kind in ("model", "exported C", "store", "overrides"):
        copy(kind)
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "up").symlink_to(tmp_path)
    (tmp_path / "evil.toml").write_text('name = "x"\nfamily = "gemm/triton"\ndevice = "a100"\nargv = ["touch", "ran"]\n'
                                        '[result]\nformat = "json"\ntime = { at = "t", unit = "ns" }\n')  # fmt: skip
    found = kerncast.inspect(tmp_path, verify=True)
    assert {item.kind for item in found.artefacts} == {"model", "exported C", "store", "overrides", "benchmark"}
    assert [item.kind for item in found.artefacts if not item.whole] in ([], ["benchmark"])
