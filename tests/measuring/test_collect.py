"""Collecting: faults, resume, locks, budgets, the race."""

import json
import os
import signal
import threading
import zlib

import msgspec
import polars as pl
import pytest

from kerncast.core.progress import Progress
from kerncast.data import Dataset
from kerncast.data import journal as journal_format
from kerncast.data.journal import NAME, Header, journal_rows, records_of
from kerncast.data.schema import row_keys
from kerncast.errors import BadFile, InvalidValue
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.measuring.collection import Collection, Request
from kerncast.measuring.journal import Journal, compact
from kerncast.measuring.messages import Item, Policy, Ready, Result
from kerncast.measuring.run import collect, locked
from kerncast.measuring.scheduling import DeviceLost
from kerncast.testing.backends import QUICK, BackendContract

TRITON = family_named("gemm/triton")
INSTANT = "kerncast.testing.backends:Instant"


def vectors(count=12, problems=1):
    """Some configs of gemm/triton on some problems."""
    configs = TRITON.config.sample(count, 0, TRITON.bindings({"dtype": "fp16"}, devices.get("a100")))
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


def test_second_visits_end_when_their_time_is_over_and_every_vector_has_its_row(tmp_path):
    """Without a limit all that had too few quiet samples is visited again; with none to spend, nothing is."""
    never_sure = msgspec.structs.replace(QUICK, fewest_samples=QUICK.samples + 1, give_up=0.0)
    for seconds, visited in ((None, 12), (0.0, 0)):
        wanted = request(tmp_path / str(visited), policy=never_sure, second_visit_seconds=seconds)
        summary = collect(wanted, [vectors(12)])
        assert (summary.revisited, summary.measured, summary.without_a_row) == (visited, 12, False)


def test_a_finished_dataset_is_extended_only_when_asked(tmp_path):
    """`--resume` measures what is missing and leaves what is there."""
    collect(request(tmp_path / "d"), [vectors(6)])
    with pytest.raises(InvalidValue, match="is a finished dataset: add `resume`"):
        collect(request(tmp_path / "d"), [vectors(12)])
    summary = collect(request(tmp_path / "d", extend=True), [vectors(12)])
    assert summary.measured + summary.already_there == 12
    rows = Dataset.open(tmp_path / "d").read()
    assert rows["key"].n_unique() == rows.height >= 12


def test_the_dataset_carries_the_device_it_was_measured_on(tmp_path):
    """Features can be computed on another machine."""
    collect(request(tmp_path / "d"), [vectors(2)])
    dataset = Dataset.open(tmp_path / "d")
    local = devices.get("local")
    assert dataset.contents.devices[0].name == local.name
    assert dataset.device(local.name).numbers["num_cus"] == local.numbers["num_cus"]


def test_a_second_writer_is_refused_with_the_pid_of_the_first(tmp_path):
    """One writer per dataset."""
    Dataset.create(tmp_path / "d")
    with locked(tmp_path / "d"), pytest.raises(InvalidValue, match=f"is being written by process {os.getpid()}"):
        collect(request(tmp_path / "d"), [vectors(2)])


def test_a_resume_on_another_device_or_compiler_is_refused(tmp_path):
    """Times of two machines never mix in one run."""
    Dataset.create(tmp_path / "d")
    Journal.begin(tmp_path / "d" / NAME, Header("gemm/triton", "instant", "other_cpu", {"instant": "1"}, "r")).close()
    with pytest.raises(InvalidValue, match="was begun with device 'other_cpu', but this is"):
        collect(request(tmp_path / "d"), [vectors(2)])


def test_a_budget_stops_cleanly_and_the_same_call_goes_on(tmp_path):
    """What is measured stays in the journal; nothing is measured twice."""
    first = collect(request(tmp_path / "d", budget_seconds=0.0), [vectors(12)])
    assert first.without_a_row
    assert (tmp_path / "d" / NAME).exists()
    second = collect(request(tmp_path / "d"), [vectors(12)])
    assert not second.without_a_row
    assert Dataset.open(tmp_path / "d").rows == 12


def test_a_backend_that_never_starts_is_given_up_with_its_reason(tmp_path):
    """Three tries, then a sentence that says what to do."""
    with pytest.raises(DeviceLost, match="does not come up"):
        collect(request(tmp_path / "d", backend="kerncast.testing.backends:Faulty"), [vectors(2)])
    assert not (tmp_path / "d").exists()


def one_by_one(records):
    """The records of a journal with their places, which come some at a time."""
    return [pair for batch in records for pair in zip(*batch, strict=True)]


def test_a_torn_tail_is_cut_and_damage_elsewhere_is_refused(tmp_path):
    """A killed writer costs the line it was writing; a flipped bit is not papered over."""
    path, header = tmp_path / NAME, Header("f", "b", "d", {}, "r")
    journal = Journal.begin(path, header)
    for number in range(3):
        journal.add({"key": str(number), "status": "crash", "problem": {}, "note": "ünïcode"})
    journal.close()
    whole = path.read_bytes()
    for cut in range(len(whole) - 1, len(whole) - 30, -1):
        path.write_bytes(whole[:cut])
        again, records = Journal.resume(path, header)
        placed = one_by_one(records)
        again.close()
        assert [record.key for _, record in placed] == ["0", "1"]
        assert [whole[at:].split(b"\n")[0].count(f'"key":"{record.key}"'.encode()) for at, record in placed] == [1, 1]
        assert whole.startswith(path.read_bytes())
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    path.write_bytes(bytes(damaged))
    with pytest.raises(BadFile, match="is damaged"):
        list(records_of(path))


@pytest.mark.parametrize("together", [1, 100, 2**20])
def test_a_resume_finds_damage_wherever_the_lines_are_divided(tmp_path, monkeypatch, together):
    """Lines that are decoded together are checked one by one: same records, any flipped bit before the last line is refused."""
    monkeypatch.setattr(journal_format, "READ_BYTES", together)
    path, header = tmp_path / NAME, Header("f", "b", "d", {}, "r")
    journal = Journal.begin(path, header)
    placed = [journal.add({"key": str(number), "status": "crash", "problem": {}}) for number in range(6)]
    journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole + whole[placed[-1] : -4])  # a torn line
    again, records = Journal.resume(path, header)
    assert [(at, record.key) for at, record in one_by_one(records)] == [(at, str(number)) for number, at in enumerate(placed)]
    again.close()
    assert path.read_bytes() == whole
    for at in range(placed[0], placed[-1], 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        again, records = Journal.resume(path, header)
        with pytest.raises(BadFile, match="is damaged"):
            list(records)
        again.close()
    line = b" "  # whole by its checksum, and no record
    path.write_bytes(whole + b"%08x %s\n" % (zlib.crc32(line), line))
    again, records = Journal.resume(path, header)
    with pytest.raises(BadFile, match="not a result"):
        list(records)
    again.close()


def test_the_last_record_of_a_key_counts(tmp_path):
    """A second race replaces the first label, and keeps its place."""
    journal = Journal.begin(tmp_path / NAME, Header("gemm/triton", "instant", "d", {}, "r"))
    row = vectors(1).row(0, named=True)
    problem, config = (
        {name: row.get(f"{half}.{name}") for name in getattr(TRITON, half).parameters} for half in ("problem", "config")
    )
    for key, time_ns in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
        journal.add({"key": key, "status": "ok", "time_ns": time_ns, "problem": problem, "config": config})
    journal.close()
    _, rows = journal_rows(tmp_path / NAME, TRITON)
    assert rows.select("key", "time_ns").rows() == [("a", 3.0), ("b", 2.0)]


def test_a_long_journal_becomes_several_parts_and_a_crash_between_them_doubles_nothing(tmp_path, monkeypatch):
    """Rows are written part by part, a raced label in its place, and what is there is not written again."""
    monkeypatch.setattr("kerncast.measuring.journal.PART_ROWS", 4)
    monkeypatch.setattr("kerncast.data.journal.BATCH", 2)
    dataset = Dataset.create(tmp_path / "d", journal=False)
    rows = vectors(10).with_columns(device=pl.lit("d"))
    keys = list(row_keys(TRITON, rows))
    journal = Journal.begin(dataset.path / NAME, Header("gemm/triton", "instant", "d", {}, "r"))
    for number, (key, row) in enumerate(
        [*zip(keys, rows.iter_rows(named=True), strict=True), (keys[1], rows.row(1, named=True))]
    ):
        problem, config = (
            {name: row.get(f"{half}.{name}") for name in getattr(TRITON, half).parameters} for half in ("problem", "config")
        )
        journal.add({"key": key, "status": "ok", "time_ns": 5.0 + number, "problem": problem, "config": config})
    journal.close()
    kept, append, times = (dataset.path / NAME).read_bytes(), dataset.append, 0

    def dies(*arguments, **named):
        nonlocal times
        times += 1
        if times == 3:
            raise KeyboardInterrupt
        append(*arguments, **named)

    ready = Ready({"name": "d", "title": "d", "kind": "gpu"}, {})
    monkeypatch.setattr(dataset, "append", dies)
    with pytest.raises(KeyboardInterrupt):
        compact(dataset, TRITON, ready)
    assert (dataset.path / NAME).read_bytes() == kept
    assert Dataset.open(dataset.path).rows == 10
    compact(Dataset.open(dataset.path, journal=False), TRITON, ready)
    found = Dataset.open(dataset.path)
    assert [part.rows for part in found.contents.parts] == [4, 4, 2]
    assert found.read().select("key", "time_ns").rows() == [
        (key, 15.0 if number == 1 else 5.0 + number) for number, key in enumerate(keys)
    ]


def test_a_journal_line_under_the_key_of_another_vector_is_refused(tmp_path):
    """Each line has its checksum, and the two times would still be of the wrong configs: no row is written."""
    dataset = Dataset.create(tmp_path / "d")
    rows = vectors(3).with_columns(device=pl.lit("d"))
    first, second, third = row_keys(TRITON, rows)
    journal = Journal.begin(dataset.path / NAME, Header("gemm/triton", "instant", "d", {}, "r"))
    for key, row in zip((second, first, third), rows.iter_rows(named=True), strict=True):
        problem, config = (
            {name: row.get(f"{half}.{name}") for name in getattr(TRITON, half).parameters} for half in ("problem", "config")
        )
        journal.add({"key": key, "status": "ok", "time_ns": 5.0, "problem": problem, "config": config})
    journal.close()
    ready = Ready({"name": "d", "title": "d", "kind": "gpu"}, {})
    why = (
        rf"{NAME} is damaged, the row with the key {second} has the .* config of {first} \(2 of 3 rows are mislabelled\): move"
    )
    with pytest.raises(BadFile, match=why):
        compact(dataset, TRITON, ready)
    assert (Dataset.open(dataset.path, journal=False).rows, (dataset.path / NAME).exists()) == (0, True)


def test_measuring_again_never_worsens_a_label(tmp_path):
    """A slow moment or a crash in the race does not cost a vector the time it had."""
    collection = Collection(request(tmp_path / "d"), Dataset.create(tmp_path / "d"))
    collection.journal = Journal.begin(tmp_path / "d" / NAME, Header("gemm/triton", "instant", "d", {}, "r"))
    item = Item("k", {"M": 1}, {"kind": "library"})
    for status, time_ns in (("ok", 100.0), ("timeout", None), ("ok", 120.0), ("ok", 90.0), ("crash", None)):
        collection.record(item, Result("k", status, time_ns=time_ns, time_ns_mad=0.0, unsure=time_ns == 100.0), 0, "0")
    collection.journal.close()
    assert [record["time_ns"] for record in records_of(tmp_path / "d" / NAME)] == [100.0, 90.0]
    assert collection.known.unsure(8).vectors == 0
    assert collection.known.best_ns({"M": 1}) == 90.0


def test_a_disturbed_machine_is_explained_once_and_doubtful_labels_are_counted(tmp_path):
    """What it does to the labels, where the share is shown; a second visit that is quiet settles a label."""
    said = []

    class Listening(Progress):
        def say(self, text):
            said.append(text)

    collection = Collection(request(tmp_path / "d"), Dataset.create(tmp_path / "d"), progress=Listening())
    collection.journal = Journal.begin(tmp_path / "d" / NAME, Header("gemm/triton", "instant", "d", {}, "r"))
    for number in range(30):
        result = Result(str(number), "ok", time_ns=100.0, time_ns_mad=0.0, samples=16, disturbed_samples=14, unsure=True)
        collection.record(Item(str(number), {"M": 1}, {"a": number}), result, 0, "0")
    assert len(said) == 1
    assert "during 88% of the samples so far (shown as disturbed)" in said[0]
    assert "its label may be too slow" in said[0]
    quiet = Result("3", "ok", time_ns=105.0, time_ns_mad=0.0, samples=4)
    collection.record(Item("3", {"M": 1}, {"a": 3}), quiet, 0, "0")
    assert collection.known.doubtful == 29
    collection.journal.close()


def test_a_finished_dataset_of_another_compiler_is_not_extended(tmp_path):
    """The same refusal as for an unfinished one."""
    collect(request(tmp_path / "a"), [vectors(3)])
    rows = Dataset.open(tmp_path / "a").read().with_columns(software=pl.lit('{"instant":"0"}'))
    Dataset.create(tmp_path / "d").append(TRITON, rows)
    with pytest.raises(InvalidValue, match=r'was measured on .* with \{"instant":"0"\}, but this is'):
        collect(request(tmp_path / "d", extend=True), [vectors(6)])


def test_near_ties_are_raced_again(tmp_path):
    """The configs within two per cent of the best get a second, common measurement."""
    summary = collect(request(tmp_path / "d"), [vectors(200)])
    assert summary.raced >= 2
    assert Dataset.open(tmp_path / "d").rows == summary.measured == 200


def test_journal_lines_are_json_that_people_can_read(tmp_path):
    """Checksum, space, JSON."""
    collect(request(tmp_path / "d", budget_seconds=0.0), [vectors(2)])
    line = (tmp_path / "d" / NAME).read_text().splitlines()[0]
    assert json.loads(line[9:])["family"] == "gemm/triton"


def test_cold_caches_are_refused_where_the_backend_cannot_make_them(tmp_path):
    """A flag never does nothing."""
    collect(request(tmp_path / "d", policy=Policy(samples=2, fewest_samples=2, cache="cold")), [vectors(2)])
    rows = Dataset.open(tmp_path / "d").read()
    assert set(rows["status"]) == {"launch_error"}
    assert "cannot make caches cold" in rows["error"][0]


def test_a_collection_runs_in_any_thread_and_stops_when_it_is_asked_to(tmp_path):
    """No signal handler is needed: an event ends it politely, and the same call goes on."""
    asked, found = threading.Event(), {}

    class Asking(Progress):
        def result(self, status, **facts):
            asked.set()

    def work(name, **options):
        wanted = request(tmp_path / "d", policy=Policy(samples=20, fewest_samples=20))
        found[name] = collect(wanted, [vectors(40, 60)], total=40 * 60, **options)

    def in_thread(*args, **options):
        thread = threading.Thread(target=work, args=args, kwargs=options)
        thread.start()
        thread.join(timeout=120)
        assert not thread.is_alive()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    in_thread("stopped", progress=Asking(), stop=asked.is_set)
    assert (found["stopped"].interrupted, found["stopped"].without_a_row) == (True, True)
    assert found["stopped"].measured == len(list(records_of(tmp_path / "d" / NAME))) > 0
    in_thread("finished")
    assert (found["finished"].interrupted, found["finished"].without_a_row) == (False, False)
    assert found["finished"].already_there == found["stopped"].measured
    assert {number: signal.getsignal(number) for number in before} == before


def test_an_interrupt_that_nobody_announced_keeps_what_is_measured(tmp_path):
    """As in a notebook, where nobody catches the signal: it ends at once, without a traceback, and the same call goes on."""

    class Interrupting(Progress):
        results = 0

        def result(self, status, **facts):
            self.results += 1
            if self.results == 20:
                raise KeyboardInterrupt

    first = collect(request(tmp_path / "d"), [vectors(60)], progress=Interrupting())
    assert (first.interrupted, first.without_a_row) == (True, True)
    assert 20 <= first.measured == len(list(records_of(tmp_path / "d" / NAME))) < 60
    second = collect(request(tmp_path / "d"), [vectors(60)])
    assert (second.already_there, Dataset.open(tmp_path / "d").rows) == (first.measured, 60)


def test_an_interrupt_while_it_is_stopping_ends_it_at_once(tmp_path):
    """The second Ctrl-C: said what is safe, then raised."""
    said = []

    class Interrupting(Progress):
        def say(self, text):
            said.append(text)
            if text.startswith("stopping"):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(request(tmp_path / "d"), [vectors(6)], progress=Interrupting(), stop=lambda: True)
    assert [text.split(":")[0] for text in said] == ["stopping", "stopped"]
