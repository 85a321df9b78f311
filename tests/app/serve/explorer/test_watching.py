"""A sweep is watched while it is measured: through its journal, and on a page."""

import datetime
import json
import threading
from urllib.request import Request, urlopen

import polars as pl
import pytest

from kerncast.app.serve import watched
from kerncast.app.serve.explorer.datasets import VectorStatuses, Watch
from kerncast.data.dataset import Dataset
from kerncast.data.journal import NAME, STATE, STATE_FILE, Header, State
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.measuring.collection import Request as Wanted
from kerncast.measuring.journal import Journal
from kerncast.measuring.run import collect, locked
from kerncast.testing.backends import QUICK
from kerncast.testing.models import synthetic_rows

TRITON = family_named("gemm/triton")
BEGAN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def vectors(count=16, problems=3):
    configs = TRITON.config.sample(count, 0, TRITON.bindings({"dtype": "fp16"}, devices.get("a100")))
    configs = configs.rename(lambda name: f"config.{name}")
    shapes = pl.DataFrame({"problem.M": [64 * (1 + number) for number in range(problems)]})
    fixed = {"N": 64, "K": 64, "split_k": 1, "batch": 1, "dtype": "fp16", "layout": "rcr", "tf32": False}
    columns = [pl.lit(value).alias(f"problem.{name}") for name, value in fixed.items()]
    return shapes.join(configs, how="cross").with_columns(columns)


def wanted(out):
    return Wanted(TRITON, "kerncast.testing.backends:Instant", ("0",), out, policy=QUICK)


def record(row, second, sentinel=1000.0):
    parts = ("problem.", "config.")
    values = {part: {name.removeprefix(part): row[name] for name in row if name.startswith(part)} for part in parts}
    found = {"key": row["key"], "status": row["status"], "time_ns": row["time_ns"], "time_ns_mad": row["time_ns_mad"],
             "order": second, "block": 0, "sentinel_ns": sentinel, "error": None if row["status"] == "ok" else "no <b>room</b>",
             "started_at": (BEGAN + datetime.timedelta(seconds=second)).isoformat(timespec="milliseconds")}  # fmt: skip
    return {**found, "problem": values["problem."], "config": values["config."]}


def test_rate_time_left_statuses_drift_and_the_best_so_far(tmp_path):
    """From the lines of the journal, as they come; a torn line waits for its end."""
    rows = synthetic_rows(problems=4).to_dicts()
    path = Dataset.create(tmp_path / "d").path
    now = [BEGAN]
    watch = Watch(path, lambda: now[0])
    assert watch.look()["state"] == "none"
    with locked(path):
        journal = Journal.begin(path / NAME, Header(TRITON.id, "instant", "a100", {}, "r1"))
        (path / STATE).write_bytes(STATE_FILE.text(State(len(rows))))
        for second, row in enumerate(rows[:20]):
            journal.add(record(row, second))
        journal.flush()
        now[0] = BEGAN + datetime.timedelta(seconds=20)
        found = watch.look()
        assert (found["state"], found["measured"], found["left"], found["rate"]) == ("running", 20, 20, 1.0)
        assert found["seconds_left"] == 20.0
        # The machine slows down, and a line is half written.
        for second, row in enumerate(rows[20:38], 20):
            journal.add(record(row, second, 1300.0))
        journal.flush()
        with (path / NAME).open("ab") as file:
            file.write(b'00000000 {"key": "half')
        now[0] = BEGAN + datetime.timedelta(seconds=32)
        found = watch.look()
        assert (found["measured"], found["rate"]) == (38, 18 / 12)
        assert found["drift"]["now"] == pytest.approx(1.3)
        assert {item["value"]: item["rows"] for item in found["statuses"]} == {
            status: sum(row["status"] == status for row in rows[:38]) for status in ("ok", "out_of_memory")
        }
        assert found["errors"][0]["error"] == "no <b>room</b>"
        worked = pl.DataFrame(rows[:38]).filter(status="ok")
        worked = worked.group_by("problem.M", "problem.N", "problem.K").agg(pl.col("time_ns").min())
        assert sorted(item["time_ns"] for item in found["best"] if item["time_ns"]) == sorted(worked["time_ns"])
        journal.close()
    assert watch.look()["ended"] == "it was killed"


def test_a_vector_that_is_measured_again_counts_once_as_it_ended_last():
    """Within one look and from one look to the next."""
    seen = VectorStatuses()
    assert seen.add([("a", "ok"), ("b", "crash"), ("a", "ok")]).tolist() == [True, True, False]
    assert seen.add([("b", "ok"), ("c", "timeout")]).tolist() == [False, True]
    assert seen.add([]).tolist() == []
    assert (len(seen), seen.counts()) == (3, [("ok", 2), ("timeout", 1)])


def test_a_sweep_that_is_measured_is_followed_to_its_end(tmp_path):
    """While it runs it says so; when it has ended every vector is counted, those of the last moment, too."""
    out, looks = tmp_path / "d", []
    watch = Watch(out)

    def look():
        looks.append(watch.look())
        return False

    summary = collect(wanted(out), [vectors()], total=48, stop=look)
    assert "running" in {item["state"] for item in looks}
    found = watch.look()
    assert (found["state"], found["measured"], found["vectors"]) == ("finished", 48, 48)
    assert {item["value"]: item["rows"] for item in found["statuses"]} == dict(summary.statuses)


def test_the_page_of_a_sweep_is_there_as_long_as_it_is_measured(tmp_path, monkeypatch):
    """`watched` tells its address once the dataset is there; a sweep that never begins has none, and ends at once."""
    monkeypatch.setattr("kerncast.app.serve.server.END_SECONDS", 60)  # a busy machine
    out, urls, found, known = tmp_path / "d", [], [], threading.Event()

    def ready(url):
        urls.append(url)
        known.set()

    def look():
        if not found and out.exists() and known.wait(60):
            body, headers = json.dumps({"dataset": "d"}).encode(), {"content-type": "application/json"}
            asked = Request(f"{urls[0]}explore/watch", data=body, headers=headers)
            found.append(json.load(urlopen(asked)))
        return False

    with watched(out, ready=ready):
        collect(wanted(out), [vectors()], total=48, stop=look)
    assert found[0]["state"] == "running"
    with pytest.raises(OSError, match="refused"):
        urlopen(urls[0])
    with watched(tmp_path / "never", ready=urls.append):
        pass
    assert len(urls) == 1
