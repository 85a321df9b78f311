"""Devices that differ, vanish, or come back as something else; kernels that break the contract."""

import os
import re
from pathlib import Path

import msgspec
import polars as pl
import pytest

from kerncast.app.cli import main
from kerncast.core.progress import QUIET, Progress
from kerncast.data import Dataset
from kerncast.data.journal import NAME, header_of, records_of
from kerncast.errors import InvalidValue
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.library.problems import parse_vary
from kerncast.measuring.collection import Request
from kerncast.measuring.plan import Measuring
from kerncast.measuring.run import collect
from kerncast.measuring.scheduling import DeviceLost
from kerncast.measuring.sweeping import open_sweep, parse_selection
from kerncast.testing.backends import QUICK

TRITON = family_named("gemm/triton")
# For kernels that wait until another process has started.
PATIENT = msgspec.structs.replace(QUICK, deadline_floor_ns=120_000_000_000, deadline_ceiling_ns=120_000_000_000)


def vectors(configs=4):
    """Some configs on each of twelve problems, M=64 and on."""
    configs = TRITON.config.sample(configs, 0, TRITON.bindings({"dtype": "fp16"}, devices.get("a100")))
    problem = {"N": 64, "K": 64, "split_k": 1, "batch": 1, "dtype": "fp16", "layout": "rcr", "tf32": False}
    problems = pl.DataFrame(
        [{"problem.M": 64 + number} | {f"problem.{k}": v for k, v in problem.items()} for number in range(12)]
    )
    return problems.join(configs.rename({name: f"config.{name}" for name in configs.columns}), how="cross")


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """The folder that tells the backends what to do."""
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))
    monkeypatch.setenv("ODD", str(tmp_path))
    return tmp_path


class Heard(Progress):
    def __init__(self):
        self.said = []

    def say(self, text):
        self.said.append(text)


class Lost(Heard):
    """Tells the backend when a device was given up."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def say(self, text):
        super().say(text)
        (self.folder / "lost").touch()


def measure(out, backend, devices=("0",), progress=QUIET, policy=QUICK, configs=4, **changes):
    request = Request(TRITON, f"odd_backends:{backend}", devices, out, policy, chunk_size=4, **changes)
    return collect(request, [vectors(configs)], progress=progress)


def test_two_devices_share_the_work(odd):
    """One worker process per device, one journal, one row for each vector."""
    summary = measure(odd / "d", "Meeting", ("0", "1"), policy=PATIENT)
    rows = Dataset.open(odd / "d").read()
    assert summary.measured == rows.height == rows["key"].n_unique() == rows["order"].n_unique() == 48
    assert set(rows["worker"]) == {"0", "1"}


def test_devices_that_differ_are_refused_before_anything_is_measured(odd):
    """Rows of one device never carry the name of another."""
    expected = r'device 1 is h100 with \{"driver":"1.1"\}, but .*/d is of a100 with \{"driver":"1.0"\}: .* another `out`'
    with pytest.raises(InvalidValue, match=expected):
        measure(odd / "d", "Mixed", ("0", "1"))
    assert not (odd / "d").exists()


def test_a_device_that_comes_back_as_another_is_refused(odd):
    """A driver that was updated under the run: what is measured stays, nothing is added, nobody is blamed."""
    (odd / "falls0").write_text("updated")
    with pytest.raises(InvalidValue, match=r'device 0 is a100 with \{"driver":"2"\}, but .* is of a100 with \{"driver":"1"\}'):
        measure(odd / "d", "Vanishing")
    header, records = header_of(odd / "d" / NAME), list(records_of(odd / "d" / NAME))
    assert header.software == {"driver": "1"}
    assert {record["status"] for record in records} == {"ok"}


def test_a_device_that_vanishes_is_not_its_vectors_fault(odd):
    """The sentence says what is safe and where; the vector in flight gets no row; the same call goes on."""
    (odd / "falls0").write_text("gone0")
    with pytest.raises(DeviceLost, match=r"device 0 is lost: .*RuntimeError: no such device.*same command to go on") as lost:
        measure(odd / "d", "Vanishing")
    records = list(records_of(odd / "d" / NAME))
    assert f"; {len(records)} rows are safe in {odd / 'd'}: " in str(lost.value)
    assert lost.value.rows == len(records) > 0
    assert {record["status"] for record in records} == {"ok"}
    (odd / "gone0").unlink()
    assert not measure(odd / "d", "Vanishing").without_a_row
    assert Dataset.open(odd / "d").read()["status"].to_list() == ["ok"] * 48


def test_the_command_ends_with_3_when_its_device_vanished_after_some_rows(odd, capfd):
    """As every unfinished run does; a refusal with nothing measured stays 2."""
    (odd / "falls0").write_text("gone0")
    what = ["--problems", "grid:M=64,65;N=64;K=64", "--vary", "dtype=fp16", "--vary", "layout=rcr", "--configs", "sample:4"]
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "collect",
                "gemm/triton",
                "--backend",
                "odd_backends:Vanishing",
                "--chunk-size",
                "4",
                *what,
                "--out",
                str(odd / "d"),
            ]
        )
    said = capfd.readouterr().err
    assert ended.value.code == 3, said
    assert f"4 rows are safe in {odd / 'd'}: fix the device and run the same command to go on" in said


def test_one_lost_device_of_several_leaves_the_others_at_work(odd):
    """It is named at once and in the summary; another device measures the vector that it was lost at."""
    (odd / "falls1").write_text("gone1")
    (odd / "waits").touch()
    heard = Lost(odd)
    summary = measure(odd / "d", "Vanishing", ("0", "1"), heard, PATIENT)
    assert list(summary.lost) == ["1"]
    assert "no such device" in summary.lost["1"]
    assert heard.said == [f"device 1 is lost: {summary.lost['1']}; the others go on (0)"]
    assert (summary.without_a_row, summary.measured, summary.statuses["ok"]) == (False, 48, 48)


def test_a_reset_command_that_fails_loses_the_device(odd):
    """As if it had vanished."""
    (odd / "falls0").write_text("fallen")
    with pytest.raises(DeviceLost, match=r"device 0 is lost: the reset command \['false', '0'\] failed .* rows are safe in"):
        measure(odd / "d", "Vanishing", reset_command=("false", "{device}"))
    assert {record["status"] for record in records_of(odd / "d" / NAME)} == {"ok"}


def test_a_reset_command_is_divided_into_words_as_a_shell_does():
    """For a backend and for an external benchmark; quotes keep a path with a space whole."""
    text = "'/opt/my tools/reset' --device={device} -v"
    assert Measuring(reset_command=text).reset_words == ("/opt/my tools/reset", "--device={device}", "-v")
    assert Measuring().reset_words == ()
    with pytest.raises(InvalidValue, match=r"`reset_command` .* cannot be divided into words"):
        _ = Measuring(reset_command="tool 'open").reset_words


def test_kernels_that_break_the_contract_are_blamed_for_what_they_did(odd):
    """A close that fails blames nobody; a clock that cannot be right and an exception are said in words."""
    measure(odd / "d", "Wrong", configs=1)
    rows = Dataset.open(odd / "d").read()
    found = {M: (status, error) for M, status, error in rows.select("problem.M", "status", "error").iter_rows()}
    assert found[65] == ("launch_error", "the backend says that 1 launches took -5 ns: a time must be a positive number")
    assert found[66][0] == "launch_error"
    assert "launches took 0 ns" in found[66][1]
    assert found[67] == ("launch_error", "KeyError: 'x'")
    others = rows.filter(~rows["problem.M"].is_in([65, 66, 67]))
    assert others["status"].to_list() == ["ok"] * 9


def test_the_backend_in_the_documentation_works_as_it_stands(tmp_path, monkeypatch):
    """It is taken from the page."""
    page = (Path(__file__).parents[2] / "docs" / "backends.md").read_text()
    (tmp_path / "documented_backend.py").write_text(re.search(r"```python\n(.*?class Mine.*?)```", page, re.S)[1])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    family = family_named("gemm/cpu")
    sweep = open_sweep(
        family, devices.get("local"), ["grid:M=8,16;N=16;K=16"],
        parse_vary(family, ["dtype=fp32", "layout=rrr", "threads=1"]), parse_selection(family, "sample:3"),
    )  # fmt: skip
    collect(Request(family, "documented_backend:Mine", ("0",), tmp_path / "d", QUICK), sweep.iter_blocks())
    rows = Dataset.open(tmp_path / "d").read()
    assert rows["status"].to_list() == ["ok"] * 6, rows["error"].to_list()
    assert set(rows["backend"]) == {"mine"}
