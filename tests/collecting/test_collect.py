"""Collecting: faults, resume, locks, budgets, the race."""

import json
import os
import signal
import subprocess
import sys
import time

import msgspec
import polars as pl
import pytest

import kerncast
from kerncast.collecting.collection import Collection, _Ties
from kerncast.collecting.journal import NAME, Header, Journal, final_records, read
from kerncast.collecting.messages import Item, Policy, Result
from kerncast.collecting.run import Request, collect, locked
from kerncast.collecting.supervisor import DeviceLost
from kerncast.data import Dataset
from kerncast.errors import BadFile, InvalidValue
from kerncast.testing.backends import QUICK, BackendContract, Quiet

TRITON = kerncast.get_family("gemm/triton")
INSTANT = "kerncast.testing.backends:Instant"


def vectors(count=12, problems=1):
    """Some configs of gemm/triton on some problems."""
    configs = TRITON.config.sample(count, 0, TRITON.bindings({"dtype": "fp16"}, kerncast.get_device("a100")))
    configs = configs.rename({name: f"config.{name}" for name in configs.columns})
    frames = []
    for number in range(problems):
        values = {"M": 64 + number, "N": 64, "K": 64, "split_k": 1, "batch": 1, "dtype": "fp16", "layout": "rcr", "tf32": False}
        frames.append(configs.with_columns(*(pl.lit(value).alias(f"problem.{name}") for name, value in values.items())))
    return pl.concat(frames)


def request(out, backend=INSTANT, **changes):
    return Request(TRITON, backend, ("0",), out, **{"policy": QUICK, **changes})


class TestInstant(BackendContract):
    backend, family = INSTANT, "gemm/triton"

    def vectors(self):
        return vectors()


def test_two_devices_share_the_work(tmp_path):
    """One worker process per device, one journal; so many vectors that the slower starter comes in time."""
    summary = collect(Request(TRITON, INSTANT, ("0", "1"), tmp_path / "d", QUICK, chunk_size=8), [vectors(60, 300)], Quiet())
    rows = Dataset.open(tmp_path / "d").read()
    assert (summary.measured, rows.height) == (18_000, 18_000)
    assert set(rows["worker"]) == {"0", "1"}
    assert rows["order"].n_unique() == 18_000


def test_second_visits_end_when_their_time_is_over_and_every_vector_has_its_row(tmp_path):
    """Without a limit all that had too few quiet samples is visited again; with none to spend, nothing is."""
    never_sure = msgspec.structs.replace(QUICK, fewest_samples=QUICK.samples + 1, give_up=0.0)
    for seconds, visited in ((None, 12), (0.0, 0)):
        wanted = request(tmp_path / str(visited), policy=never_sure, second_visit_seconds=seconds)
        summary = collect(wanted, [vectors(12)], Quiet())
        assert (summary.revisited, summary.measured, summary.without_a_row) == (visited, 12, False)


def test_a_finished_dataset_is_extended_only_when_asked(tmp_path):
    """`--resume` measures what is missing and leaves what is there."""
    collect(request(tmp_path / "d"), [vectors(6)], Quiet())
    with pytest.raises(InvalidValue, match="is a finished dataset: add --resume"):
        collect(request(tmp_path / "d"), [vectors(12)], Quiet())
    summary = collect(request(tmp_path / "d", extend=True), [vectors(12)], Quiet())
    assert summary.measured + summary.already_there == 12
    rows = Dataset.open(tmp_path / "d").read()
    assert rows["key"].n_unique() == rows.height >= 12


def test_the_dataset_carries_the_device_it_was_measured_on(tmp_path):
    """Features can be computed on another machine."""
    collect(request(tmp_path / "d"), [vectors(2)], Quiet())
    dataset = Dataset.open(tmp_path / "d")
    local = kerncast.get_device("local")
    assert dataset.contents.devices[0].name == local.name
    assert dataset.device(local.name).numbers["num_cus"] == local.numbers["num_cus"]


def test_a_second_writer_is_refused_with_the_pid_of_the_first(tmp_path):
    """One writer per dataset."""
    Dataset.create(tmp_path / "d")
    with locked(tmp_path / "d"), pytest.raises(InvalidValue, match=f"is being written by process {os.getpid()}"):
        collect(request(tmp_path / "d"), [vectors(2)], Quiet())


def test_a_resume_on_another_device_or_compiler_is_refused(tmp_path):
    """Times of two machines never mix in one run."""
    Dataset.create(tmp_path / "d")
    Journal.begin(tmp_path / "d" / NAME, Header("gemm/triton", "instant", "other_cpu", {"instant": "1"}, "r")).close()
    with pytest.raises(InvalidValue, match="was begun with device 'other_cpu', but this is"):
        collect(request(tmp_path / "d"), [vectors(2)], Quiet())


def test_a_budget_stops_cleanly_and_the_same_call_goes_on(tmp_path):
    """What is measured stays in the journal; nothing is measured twice."""
    first = collect(request(tmp_path / "d", budget_seconds=0.0), [vectors(12)], Quiet())
    assert first.without_a_row
    assert (tmp_path / "d" / NAME).exists()
    second = collect(request(tmp_path / "d"), [vectors(12)], Quiet())
    assert not second.without_a_row
    assert Dataset.open(tmp_path / "d").rows == 12


def test_ctrl_c_finishes_the_chunk_at_hand_and_keeps_everything(tmp_path):
    """One signal stops politely, in a process of its own."""
    vectors(40, 60).write_parquet(tmp_path / "v.parquet")
    code = (
        "import sys; from pathlib import Path; import polars as pl; sys.path.insert(0, sys.argv[3]); import test_collect as t; "
        "from kerncast.collecting.messages import Policy; "
        "s = t.collect(t.request(Path(sys.argv[1]), policy=Policy(samples=200, fewest_samples=200)), "
        "[pl.read_parquet(sys.argv[2])], t.Quiet()); print(s.interrupted, s.without_a_row, s.measured)"
    )
    arguments = [str(tmp_path / "d"), str(tmp_path / "v.parquet"), os.path.dirname(__file__)]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
    journal = tmp_path / "d" / NAME
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (journal.exists() and journal.stat().st_size > 2000):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    interrupted, without_a_row, measured = out.split()
    assert (interrupted, without_a_row) == ("True", "True")
    _, records, _ = read(journal)
    assert len(records) == int(measured) > 0


def test_ctrl_c_is_answered_at_once_and_a_second_one_says_what_is_safe(tmp_path):
    """Whoever presses it knows what happens, and how to go on."""
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]); import test_collect as t; "
        "from kerncast.cli.views.collect import CollectView; "
        # A chunk that takes so long that the second signal comes within it.
        "t.collect(t.request(Path(sys.argv[1]), policy=t.Policy(samples=10**6, fewest_samples=10**6), budget_seconds=60), "
        "[t.vectors(2)], CollectView(None))"
    )
    arguments = [str(tmp_path / "d"), os.path.dirname(__file__)]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (tmp_path / "d" / NAME).exists():
        time.sleep(0.02)
    time.sleep(1.0)  # the chunk is handed out as soon as the journal is begun
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == "kerncast: stopping: finishing what is being measured (Ctrl-C again ends at once)\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert f"kerncast: stopped: everything measured is safe in {tmp_path / 'd'} (0 rows): run the same command to go on" in said
    assert "KeyboardInterrupt" in said.splitlines()[-1]


def test_a_backend_that_never_starts_is_given_up_with_its_reason(tmp_path):
    """Three tries, then a sentence that says what to do."""
    with pytest.raises(DeviceLost, match="does not come up"):
        collect(request(tmp_path / "d", backend="kerncast.testing.backends:Faulty"), [vectors(2)], Quiet())
    assert not (tmp_path / "d").exists()


def test_a_torn_tail_is_cut_and_damage_elsewhere_is_refused(tmp_path):
    """A killed writer costs the line it was writing; a flipped bit is not papered over."""
    path, header = tmp_path / NAME, Header("f", "b", "d", {}, "r")
    journal = Journal.begin(path, header)
    for number in range(3):
        journal.add({"key": str(number), "status": "ok", "note": "ünïcode"})
    journal.close()
    whole = path.read_bytes()
    for cut in range(len(whole) - 1, len(whole) - 30, -1):
        path.write_bytes(whole[:cut])
        again, records = Journal.resume(path, header)
        again.close()
        assert [record["key"] for record in records] == ["0", "1"]
        assert whole.startswith(path.read_bytes())
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    path.write_bytes(bytes(damaged))
    with pytest.raises(BadFile, match="is damaged"):
        read(path)


def test_the_last_record_of_a_key_counts():
    """A second race replaces the first label, and keeps its place."""
    records = [{"key": "a", "t": 1}, {"key": "b", "t": 2}, {"key": "a", "t": 3}]
    assert list(final_records(records)) == [{"key": "a", "t": 3}, {"key": "b", "t": 2}]


def test_measuring_again_never_worsens_a_label(tmp_path):
    """A slow moment or a crash in the race does not cost a vector the time it had."""
    collection = Collection(request(tmp_path / "d"), Quiet(), Dataset.create(tmp_path / "d"))
    collection.journal = Journal.begin(tmp_path / "d" / NAME, Header("gemm/triton", "instant", "d", {}, "r"))
    item = Item("k", {"M": 1}, {"kind": "library"})
    for status, time_ns in (("ok", 100.0), ("timeout", None), ("ok", 120.0), ("ok", 90.0), ("crash", None)):
        collection.record(item, Result("k", status, time_ns=time_ns, time_ns_mad=0.0, unsure=time_ns == 100.0), 0, "0")
    collection.journal.close()
    _, records, _ = read(tmp_path / "d" / NAME)
    assert [record["time_ns"] for record in records] == [100.0, 90.0]
    assert collection.unsure == {}


def test_a_finished_dataset_of_another_compiler_is_not_extended(tmp_path):
    """The same refusal as for an unfinished one."""
    collect(request(tmp_path / "a"), [vectors(3)], Quiet())
    rows = Dataset.open(tmp_path / "a").read().with_columns(software=pl.lit('{"instant":"0"}'))
    Dataset.create(tmp_path / "d").append(TRITON, rows)
    with pytest.raises(InvalidValue, match=r'was measured on .* with \{"instant":"0"\}, but this is'):
        collect(request(tmp_path / "d", extend=True), [vectors(6)], Quiet())


def test_a_vector_does_not_race_against_itself():
    """A second, faster time replaces the first."""
    ties = _Ties()
    for time_ns in (100.0, 99.0):
        ties.add(Item("k", {"M": 1}, {"a": 1}), time_ns, 1.0)
    assert list(ties.chunks(0)) == []
    ties.add(Item("l", {"M": 1}, {"a": 2}), 100.0, 1.0)
    assert [[item.key for item in chunk.items] for chunk in ties.chunks(0)] == [["k", "l"]]


def test_near_ties_are_raced_again(tmp_path):
    """The configs within two per cent of the best get a second, common measurement."""
    summary = collect(request(tmp_path / "d"), [vectors(200)], Quiet())
    assert summary.raced >= 2
    assert Dataset.open(tmp_path / "d").rows == summary.measured == 200


def test_journal_lines_are_json_that_people_can_read(tmp_path):
    """Checksum, space, JSON."""
    collect(request(tmp_path / "d", budget_seconds=0.0), [vectors(2)], Quiet())
    line = (tmp_path / "d" / NAME).read_text().splitlines()[0]
    assert json.loads(line[9:])["family"] == "gemm/triton"


def test_cold_caches_are_refused_where_the_backend_cannot_make_them(tmp_path):
    """A flag never does nothing."""
    collect(request(tmp_path / "d", policy=Policy(samples=2, fewest_samples=2, cache="cold")), [vectors(2)], Quiet())
    rows = Dataset.open(tmp_path / "d").read()
    assert set(rows["status"]) == {"launch_error"}
    assert "cannot make caches cold" in rows["error"][0]
