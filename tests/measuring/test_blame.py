"""Blame: a vector gets a failed row only for what it does itself, and what gets no row is measured by the next call."""

import json
import os

import polars as pl
import pytest

from kerncast.app.cli import main
from kerncast.data import Dataset
from kerncast.data.schema import row_keys
from kerncast.errors import CannotWrite, KerncastError, NotFound
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named
from kerncast.measuring.backends.contract import CannotCompile
from kerncast.measuring.backends.cpu.build import Compiler, Library
from kerncast.measuring.backends.environment import oom_kills
from kerncast.measuring.backends.inductor import VALUE, VARIABLE, InductorBackend
from kerncast.measuring.collection import Request
from kerncast.measuring.messages import Item, Result
from kerncast.measuring.plan import retried
from kerncast.measuring.run import collect
from kerncast.measuring.scheduling import CannotGoOn, FailedAlike, Inquiry
from kerncast.testing.backends import FAULTY, QUICK, planned, vector_texts

TRITON = family_named("gemm/triton")
VECTORS = 36


def vectors():
    """Twelve configs on each of three problems, M = 64, 65 and 66."""
    problem = {"N": 64, "K": 64, "split_k": 1, "batch": 1, "dtype": "fp16", "layout": "rcr", "tf32": False}
    problems = pl.DataFrame([{f"problem.{name}": value for name, value in {"M": m, **problem}.items()} for m in (64, 65, 66)])
    return problems.join(
        TRITON.config.sample(12, 0, TRITON.bindings(problem, devices.get("a100"))).select(pl.all().name.prefix("config.")),
        how="cross",
    )


@pytest.fixture
def blamed(tmp_path, monkeypatch):
    """The folder that tells the backend what fails."""
    monkeypatch.setenv("BLAMED", str(tmp_path))
    monkeypatch.syspath_prepend(os.path.dirname(__file__))
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))
    return tmp_path


def measure(folder, every=1, **changes):
    wanted, rows = {"policy": QUICK, "chunk_size": 8, **changes}, vectors().gather_every(every)
    return collect(Request(TRITON, "blamed_backends:Blamed", ("0",), folder / "d", **wanted), [rows], total=rows.height)


@pytest.mark.parametrize(
    ("fault", "message", "rows"),
    [
        ("cache_open", r"^the cache is not used.*nothing was measured yet: fix that and run", 0),
        ("cache_full", r"No space left on device.*nothing was measured yet: fix that and run", 0),
        ("no_descriptors", r"Too many open files; \d+ rows are safe in .*: fix that and run the same command to go on", 12),
    ],
)
def test_the_environment_is_not_a_kernel(blamed, fault, message, rows):
    """An unusable or full cache, no descriptors: it stops, no vector has a failed row, the next call completes it."""
    (blamed / fault).touch()
    with pytest.raises(CannotGoOn, match=message) as stopped:
        measure(blamed)
    assert stopped.value.rows >= rows
    if rows:
        kept = Dataset.open(blamed / "d")
        assert set(kept.read()["status"]) == {"ok"}
        assert "the machine around the kernels failed" in str(kept.completeness)
    (blamed / fault).unlink()
    summary = measure(blamed)
    assert summary.measured + summary.already_there == VECTORS
    assert Dataset.open(blamed / "d").read()["status"].to_list() == ["ok"] * VECTORS


def test_a_compiler_without_disk_space_is_not_a_kernel_that_does_not_compile(tmp_path):
    """What the compiler says decides: an error in the source is the kernel's, one of the disk is not."""
    for words, expected in (("error: unknown type", CannotCompile), ("/tmp/cc1.s: No space left on device", CannotWrite)):
        compiler = tmp_path / f"cc-{expected.__name__}"
        compiler.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
        compiler.chmod(0o755)
        library = Library(Compiler(str(compiler), "1", ()), tmp_path / "cache", "sources")
        with pytest.raises(expected, match=words.rpartition(": ")[2]):
            library.fixed("probe")


def test_a_worker_that_is_killed_from_outside_costs_no_row(blamed):
    """The vector that ran is measured again alone: it is neither out_of_memory nor a crash."""
    (blamed / "killer").touch()
    assert measure(blamed).statuses == {"ok": VECTORS}
    assert (blamed / "killed").exists()


def test_a_kernel_is_blamed_for_its_own_end_and_not_for_that_of_a_signal(blamed):
    """Killed from outside when it is run again: only ends of the same kind count together."""
    (blamed / "ends").touch()
    request = Request(TRITON, "blamed_backends:Blamed", ("0",), blamed / "d", QUICK, chunk_size=8)
    assert collect(request, [vectors()[10:13]], total=3).statuses == {"ok": 2, "crash": 1}
    assert (blamed / "second").exists()
    assert Dataset.open(blamed / "d").read()["error"].drop_nulls().to_list() == ["the worker ended with exit code 5"]


def test_the_row_of_an_illegal_instruction_says_what_helps(blamed, monkeypatch):
    """A crash row with the variable that PyTorch's bf16 products need on some machines; not once it is set, nor otherwise."""
    monkeypatch.delenv(VARIABLE, raising=False)
    (blamed / "illegal").touch()
    request = Request(TRITON, "blamed_backends:Illegal", ("0",), blamed / "d", QUICK, chunk_size=8)
    assert collect(request, [vectors()[10:13]], total=3).statuses == {"ok": 2, "crash": 1}
    (error,) = Dataset.open(blamed / "d").read()["error"].drop_nulls()
    assert error.startswith("the worker ended with SIGILL: on some virtual machines")
    assert "set ONEDNN_MAX_CPU_ISA=AVX10_1_512 before torch is imported" in error
    assert InductorBackend.advice("SIGSEGV") == ""
    monkeypatch.setenv(VARIABLE, VALUE)
    assert InductorBackend.advice("SIGILL") == ""


@pytest.mark.parametrize(("fault", "place"), [("spoil", VECTORS - 1), ("break", VECTORS - 1), ("break", 8), ("spoil", 7)])
def test_a_vector_that_spoils_others_is_found_wherever_it_is(tmp_path, fault, place):
    """Their results are wrong or their launches fail; it is the last of all or of its chunk, so that nobody comes after it."""
    rows = vectors()
    with planned("kerncast.testing.faults:Instant", {vector_texts(TRITON, rows)[place]: fault}):
        wanted = Request(TRITON, FAULTY, ("0",), tmp_path / "d", policy=QUICK, chunk_size=8)
        summary = collect(wanted, [rows], total=VECTORS)
    assert summary.statuses == {"ok": VECTORS - 1, "wrong_result": 1}
    found = Dataset.open(tmp_path / "d").read().filter(pl.col("status") != "ok")
    keys = list(row_keys(TRITON, rows.with_columns(device=pl.lit(found["device"][0]))))
    assert found["key"].to_list() == [keys[place]]
    assert "it spoils the process" in found["error"][0]


def test_many_failures_alike_stop_the_run_and_get_no_row(blamed):
    """They differ only in numbers; `alike_failures=0` keeps them, and `retry` measures them again."""
    (blamed / "driver_broken").touch()
    # Two of each problem, six configs: every failure is tried again in a process of its own.
    with pytest.raises(FailedAlike, match=r"^4 configs in a row failed alike \(launch_error: the driver .* none of them got"):
        measure(blamed, every=7, alike_failures=4)
    assert not (blamed / "d").exists()
    assert measure(blamed, every=7, alike_failures=0).statuses == {"launch_error": 6}
    (blamed / "driver_broken").unlink()
    assert measure(blamed, every=7, extend=True).already_there == 6
    assert measure(blamed, every=7, extend=True, retry=retried("crash")).already_there == 6
    assert measure(blamed, every=7, extend=True, retry=retried(["crash", "launch_error"])).statuses == {"ok": 6}
    assert measure(blamed, every=7, extend=True, retry=retried(True)).already_there == 6


def test_statuses_to_retry_are_named_or_all():
    """An unknown status is refused with the known ones."""
    assert retried(True) == retried("all") > retried("crash,timeout") == {"crash", "timeout"}
    assert retried(None) == retried(False) == frozenset()
    with pytest.raises(NotFound, match="did you mean 'timeout'"):
        retried("timeot")


def test_a_journal_that_vanishes_is_noticed_and_nothing_else_is_removed(blamed):
    """The run stops with a sentence; the folder and what others put into it stay."""
    (blamed / "journal_gone").write_text(str(blamed / "d"))
    with pytest.raises(KerncastError, match=r"journal.jsonl was removed while it was being written"):
        measure(blamed)
    assert (blamed / "d").is_dir()


@pytest.mark.parametrize("culprit", range(9))
def test_an_inquiry_finds_the_vector_that_spoils_others(culprit):
    """Whichever of those before the witness it is, and in few trials."""
    items = [Item(str(number), {}, {}) for number in range(9)]
    witness = Item("witness", {}, {})
    inquiry, trials, found = Inquiry(witness, items), 0, None
    while found is None and not inquiry.over:
        trials += 1
        wrong = items[culprit] in inquiry.trying
        inquiry.hear(Result("3", "wrong_result"))
        inquiry.hear(Result("witness", "wrong_result" if wrong else "ok"))
        found = inquiry.conclude()
    assert found is items[culprit]
    assert trials <= 8


def test_an_inquiry_without_a_culprit_ends():
    """All are tried once by themselves and once together, then nobody is blamed."""
    inquiry = Inquiry(Item("witness", {}, {}), [Item("1", {}, {}), Item("2", {}, {})])
    assert [inquiry.conclude(), inquiry.over, inquiry.conclude(), inquiry.over] == [None, False, None, True]


def test_kills_for_want_of_memory_are_counted_by_the_machine_and_its_groups(tmp_path):
    """The count rises whichever of them counts it, in both versions of control groups."""
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("4:memory:/a\n0::/b/c\n")
    assert oom_kills(proc, groups) == 0
    for path, text in (("memory/a/memory.oom_control", "oom_kill 1\n"), ("b/memory.events", "oom 9\noom_kill 2\n")):
        (groups / path).parent.mkdir(parents=True, exist_ok=True)
        (groups / path).write_text(text)
    (proc / "vmstat").write_text("pgfault 7\noom_kill 4\n")
    assert oom_kills(proc, groups) == 7


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [("driver_broken", 2, "keep such rows as failures with --alike-failures 0"), ("no_descriptors", 3, "rows are safe in")],
)
def test_the_command_line_says_how_to_go_on(blamed, capfd, fault, code, words):
    """In options, as JSON, and with the exit code of a part if there are rows."""
    (blamed / fault).touch()
    command = ["collect", "gemm/triton", "--backend", "blamed_backends:Blamed", "--problems", "grid:M=64,65;N=64;K=64"]
    command += ["--vary", "dtype=fp16", "--vary", "layout=rcr", "--configs", "sample:12", "--chunk-size", "4"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--alike-failures", "4", "--json", "--out", str(blamed / "d")])
    assert ended.value.code == code
    assert words in json.loads(capfd.readouterr().out)["error"]
