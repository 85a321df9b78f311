"""A collection that did not measure everything is a dataset: it is read, trained on and merged, and completed later."""

import json

import pytest
from tests.support.artefacts import reseal

import kerncast
from kerncast.app import cli
from kerncast.data import Dataset
from kerncast.data.journal import NAME, STATE, header_of
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.measuring.collection import Collection, Request
from kerncast.measuring.journal import compact
from kerncast.measuring.messages import Ready
from kerncast.measuring.run import collect, locked
from kerncast.measuring.scheduling import DeviceLost
from kerncast.measuring.sweeping import open_sweep, parse_selection
from kerncast.testing.backends import QUICK

TRITON = family_named("gemm/triton")


def vectors(configs=10, problems=1):
    """Some configs of gemm/triton on some problems."""
    sizes = ",".join(str(64 + number) for number in range(problems))
    axes = {"dtype": ["fp16"], "layout": ["rcr"]}
    chosen = parse_selection(TRITON, f"sample:{configs}")
    return next(open_sweep(TRITON, devices.get("a100"), [f"grid:M={sizes};N=64;K=64"], axes, chosen).iter_blocks())


def request(out, **changes):
    return Request(TRITON, "kerncast.testing.backends:Instant", ("0",), out, **{"policy": QUICK, **changes})


def ended(path, monkeypatch, rows=24, total=60, **changes):
    """A collection whose budget is spent after some rows."""
    with monkeypatch.context() as patch:
        patch.setattr(Collection, "stop", lambda self: self.summary.statuses.total() >= rows)
        summary = collect(request(path, chunk_size=4, **changes), [vectors(total // 6, 6)], total=total)
    assert summary.without_a_row
    return summary


def run(capsys, *args):
    with pytest.raises(SystemExit) as end:
        cli.main([str(arg) for arg in args])
    return end.value.code or 0, capsys.readouterr()


def test_what_a_budget_left_is_read_trained_on_merged_and_completed(tmp_path, monkeypatch, capsys):
    """Every reader takes the rows and says how many of how many there are; `resume` measures the rest, once."""
    path = tmp_path / "d"
    measured = ended(path, monkeypatch).measured
    dataset = kerncast.open(path)
    assert dataset.rows == dataset.read().height == measured < 60
    assert dataset.completeness.vectors == 60
    said = f"unfinished collection: {measured} of 60 vectors ({measured / 60:.0%}) have a row, because its budget ended it"
    assert said in repr(dataset)

    code, shown = run(capsys, "inspect", path)
    assert code == 0
    assert f"! {path}: {said}; `kerncast collect` with the same options and `--resume`" in shown.out
    code, shown = run(capsys, "inspect", path, "--json")
    assert json.loads(shown.out)["unfinished"] == {"vectors": 60, "measured": measured, "ended": "budget"}

    code, shown = run(capsys, "train", path, "--kind", "linear", "--no-folds", "--out", tmp_path / "model")
    assert (code, said in shown.err) == (0, True), shown.err

    collect(request(tmp_path / "other"), [vectors(2)])
    merged = kerncast.Dataset.merge([path, tmp_path / "other"], tmp_path / "both")
    assert (merged.rows, merged.unfinished) == (measured + 2, False)
    assert merged.notes[1] == f"{path}: {said}"
    assert merged.device(devices.get("local").name).numbers

    summary = collect(request(path, extend=True), [vectors(10, 6)], total=60)
    assert (summary.measured, summary.already_there, summary.without_a_row) == (60 - measured, measured, False)
    whole = Dataset.open(path)
    assert (whole.rows, whole.completeness, (path / STATE).exists()) == (60, None, False)
    assert whole.read()["key"].n_unique() == 60


def test_a_killed_collection_is_read_too_and_a_running_one_is_called_so(tmp_path, monkeypatch):
    """Nothing wrote down how it ended: the journal counts."""
    path = tmp_path / "d"
    measured = ended(path, monkeypatch).measured
    state = json.loads((path / STATE).read_text())
    (path / STATE).write_bytes(reseal({**state, "ended": None, "measured": None}))
    assert f"{measured} of 60 vectors" in str(Dataset.open(path).completeness)
    assert Dataset.open(path).completeness.ended is None
    with locked(path):
        assert Dataset.open(path).completeness.ended == "running"
    (path / STATE).unlink()
    assert str(Dataset.open(path).completeness) == f"unfinished collection: {measured} vectors have a row"


def test_rows_that_a_crash_left_in_a_part_and_in_the_journal_count_once(tmp_path, monkeypatch):
    """The journal is removed after its rows are written; a crash can come between the two."""
    path = tmp_path / "d"
    measured = ended(path, monkeypatch).measured
    journal = (path / NAME).read_bytes()
    device = devices.get("local")
    compact(Dataset.open(path, journal=False), TRITON, Ready({"name": device.name, "title": "", "kind": "cpu"}, {}))
    (path / NAME).write_bytes(journal)
    assert Dataset.open(path).rows == Dataset.open(path).read().height == measured
    assert header_of(path / NAME).device == device.name


def test_the_digest_follows_the_journal(tmp_path, monkeypatch):
    """A model that was trained on an unfinished collection names what it saw."""
    ended(tmp_path / "d", monkeypatch)
    first = Dataset.open(tmp_path / "d").digest
    ended(tmp_path / "d", monkeypatch, rows=8)
    second = Dataset.open(tmp_path / "d")
    assert second.digest != first
    assert second.completeness.measured == second.rows > 24


def test_a_lost_device_leaves_a_dataset(tmp_path, monkeypatch):
    """What it measured before is rows, and the state says what happened."""

    def lose(self, item, result, block, device_index, record=Collection.record):
        record(self, item, result, block, device_index)
        if self.summary.statuses.total() == 20:
            raise DeviceLost("device 0 is lost: it fell off the bus")

    monkeypatch.setattr(Collection, "record", lose)
    with pytest.raises(DeviceLost, match="20 rows are safe"):
        collect(request(tmp_path / "d"), [vectors(10, 6)], total=60)
    dataset = Dataset.open(tmp_path / "d")
    assert (dataset.rows, dataset.completeness.ended, dataset.completeness.measured) == (20, "device_lost", 20)
    assert dataset.read(where=["status=ok"])["time_ns"].is_not_null().all()
