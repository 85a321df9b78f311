"""Benchmarks of one's own: how vectors travel, how answers are read, and what no program may do to the collection."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from kerncast.core.op import Config, Problem
from kerncast.library.declared.family_file import family_named
from kerncast.measuring.backends.command import CommandBackend
from kerncast.measuring.backends.command.benchmark import load
from kerncast.measuring.backends.command.process import ProgramRunner
from kerncast.measuring.backends.contract import Ended, ProgramAnswer
from kerncast.testing.backends import BackendContract

SINGLE = family_named("eltwise_unary/single")
HEAD = """
name = "mine"
family = "eltwise_unary/single"
device = "wormhole_b0"
"""
DOCS = Path(__file__).parents[4] / "docs" / "command.md"


def vector(width):
    values = {"func": "exp", "dim0": 1, "dim1": 1, "dim2": 32, "dim3": width, "dtype": "bf16", "buffer": "dram"}
    return Problem(SINGLE, values), Config(SINGLE)


@pytest.fixture
def ask(tmp_path):
    """The answers of a benchmark about tensors of some widths, and the (width, seconds) that were announced."""

    def call(text, widths=(32, 64), verify=True):
        path = tmp_path / "benchmark.toml"
        path.write_text(HEAD + text)
        backend = CommandBackend("3", load(str(path)))
        begun = []
        answers = dict(backend.ask([vector(width) for width in widths], lambda at, _: begun.append(widths[at]), verify, "warm"))
        backend.programs.close()
        assert not backend.programs.scratch.exists()
        return [answers[position] for position in range(len(widths))], begun

    return call


@pytest.mark.parametrize("to", ["stdin", "file"])
def test_a_whole_chunk_travels_as_json_and_comes_back_in_any_order(program, ask, to):
    """Without a shape of its own a vector goes as id, problem and config; the id joins the answer."""
    program(
        "bench",
        """
vectors = json.load(sys.stdin if sys.argv[1] == "-" else open(sys.argv[1]))
assert vectors[0]["config"] == {} and os.environ["CHIP"] == "chip 3", vectors
for v in reversed(vectors): print(v["id"] + "," + str(v["problem"]["dim3"] / 8) + ",yes")
print("id,us,good", file=sys.stderr)
os.write(1, b"")
""",
    )
    source = "-" if to == "stdin" else "{vectors_file}"
    answers, begun = ask(
        f"""
mode = "chunk"
argv = ["sh", "-c", 'echo noise; echo "id, us, good"; bench "$1"', "sh", "{source}"]
environment = {{ CHIP = "chip {{device}}" }}
input = {{ to = "{to}" }}
[result]
format = "csv"
time = {{ at = "us", unit = "us" }}
status = {{ at = "good", values = {{ yes = "ok" }} }}
match = [{{ at = "id", equals = "{{id}}" }}]
"""
    )
    assert answers == [ProgramAnswer(4000.0), ProgramAnswer(8000.0)]
    assert begun == [32]


def test_plain_text_is_read_by_regular_expressions_and_exit_codes_are_statuses(program, ask):
    """The error that a program reports is compared with the benchmark's tolerance; 77 is what the benchmark says."""
    program(
        "bench",
        """
width, check = int(sys.argv[1]), sys.argv[2]
if width == 64: print("cannot", file=sys.stderr); sys.exit(77)
print(f"warming up\\nmean 1.5e-3 ms, error {0.25 if width == 96 else 0.001} ({check})")
if width == 160: sys.exit(3)
""",
    )
    answers, _ = ask(
        """
argv = ["bench", "{problem.dim3}", "{check}", "{problem.dim0}", "{problem.dim1}", "{problem.dim2}", "{problem.dtype}"]
exit_codes = { 77 = "unsupported" }
words = { check = { of = "verify", values = { true = "checked", false = "unchecked" } } }
[result]
format = "regex"
time = { at = 'mean ([0-9.e-]+) ms', unit = "ms" }
max_abs_err = { at = 'error ([0-9.]+)' }
tolerance = 0.01
[only]
"problem.func" = ["exp"]
"problem.buffer" = ["dram"]
"problem.layout" = ["tile"]
"problem.sharding" = ["interleaved"]
"problem.out_buffer" = ["input"]
"problem.out_sharding" = ["input"]
""",
        (32, 64, 96, 160),
    )
    assert answers[0] == ProgramAnswer(pytest.approx(1500.0), 0.001)
    assert [(item.status, str(item)) for item in answers[1:]] == [
        ("unsupported", "the program ended with exit code 77: cannot"),
        ("wrong_result", "the largest error is 0.25, more than 0.01"),
        ("launch_error", "the program ended with exit code 3: mean 1.5e-3 ms, error 0.001 (checked)"),
    ]


def test_two_results_for_one_vector_are_refused_rather_than_guessed(program, ask):
    """A kernel's time never lands under another kernel's name."""
    program("bench", 'print(\'[{"t": 1}, {"t": 2}]\')')
    benchmark = 'argv = ["bench"]\ninput = { to = "stdin" }\n[result]\nformat = "json"\ntime = { at = ["t"], unit = "s" }\n'
    (answer,), _ = ask(benchmark, (32,))
    assert "2 results fit this vector" in str(answer)
    (answer,), _ = ask(benchmark + 'pick = "last"\n', (32,))
    assert answer == ProgramAnswer(2e9)


def test_relative_paths_start_from_the_folder_that_the_recipe_names(program, ask, tmp_path):
    """The program itself, and the file that it answers in."""
    program("bench", 'open("answer.json", "w").write(\'{"list": [{"t": 5}]}\')', tmp_path / "there")
    (answer,), _ = ask(
        f"""
argv = ["./bench"]
directory = "{tmp_path / "there"}"
input = {{ to = "stdin" }}
[result]
format = "json"
file = "answer.json"
rows = ["list"]
time = {{ at = ["t"], unit = "ns" }}
""",
        (32,),
    )
    assert answer == ProgramAnswer(5.0)


def test_output_is_bounded_and_nothing_outlives_its_program(program, gone, notes):
    """A gigabyte would not fit; a child in a session of its own is killed, too; a program that is not there says so."""
    path = program(
        "bench",
        """
child = os.fork()
if not child: os.setsid(), time.sleep(1000)
open(os.environ["NOTES"], "a").write(f"{child}\\n")
for _ in range(40): sys.stdout.write("x" * (1 << 20))
print("the end")
""",
    )
    programs = ProgramRunner()
    outcome = programs.run([str(path)], 60.0)
    assert (outcome.code, outcome.timed_out, len(outcome.stdout)) == (0, False, 8 << 20)
    assert outcome.stdout.endswith("xthe end\n")
    assert gone([int(notes()[0])])
    with pytest.raises(Ended, match=r"absent cannot be run .* is it built") as ended:
        programs.run(["absent"], 60.0)
    assert ended.value.status == "not_run"
    programs.close()


def test_a_killed_collection_leaves_no_program_behind(program, tmp_path, notes, gone):
    """kill -9 of the supervisor: the worker, its program, the program's child and the scratch folder all go."""
    program(
        "bench",
        """
child = os.fork()
if not child: os.setsid()
if child: open(os.environ["NOTES"], "a").write(f"{os.getpid()} {child} {os.getppid()} {os.getcwd()}\\n")
time.sleep(1000)
""",
    )
    (tmp_path / "hang.toml").write_text(
        f'{HEAD}argv = ["bench"]\ninput = {{ to = "stdin" }}\n[result]\nformat = "json"\ntime = {{ at = ["t"], unit = "s" }}\n'
    )
    command = [
        "collect",
        SINGLE.id,
        "--benchmark",
        tmp_path / "hang.toml",
        "--problems",
        "grid:dim2=32;dim3=32;func=exp;buffer=l1",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "kerncast.app.cli", *map(str, command), "--vary", "dtype=bf16", "--out", str(tmp_path / "d")]
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not notes():
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    *pids, folder = notes()[0].split()
    assert gone([int(pid) for pid in pids])
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and Path(folder).parent.exists():
        time.sleep(0.05)
    assert not Path(folder).parent.exists()


def test_another_program_or_recipe_is_other_software(program, collect, tmp_path):
    """A finished dataset is not extended with the times of a program that changed."""
    program("bench", "print('{\"t\": 1}')")
    text = (
        f'{HEAD}argv = ["bench"]\ninput = {{ to = "stdin" }}\nsamples = 1\n'
        '[result]\nformat = "json"\ntime = { at = ["t"], unit = "s" }\n'
    )
    (tmp_path / "r.toml").write_text(text)
    mine = [SINGLE.id, "--benchmark", "./r.toml", "--vary", "dtype=bf16", "--problems"]
    code, rows, shown = collect(*mine, "grid:dim2=32;dim3=32;func=exp;buffer=l1")
    assert (code, rows["time_ns"].to_list()) == (0, [1e9]), shown.err
    assert json.loads(rows["software"][0])["results"] == "not checked"
    program("bench", "print('{\"t\": 2}')")
    code, _, shown = collect(*mine, "grid:dim2=32;dim3=64;func=exp;buffer=l1", "--resume")
    assert code == 2
    assert "resume it there, or collect into another dataset" in shown.err


def test_a_reset_that_fails_ends_the_collection_with_a_sentence(program, collect, tmp_path):
    """A device that cannot be brought back is not measured on."""
    program("bench", "os.abort()")
    (tmp_path / "r.toml").write_text(
        f'{HEAD}argv = ["bench"]\nreset = ["false", "{{device}}"]\ninput = {{ to = "stdin" }}\n'
        '[result]\nformat = "json"\ntime = { at = ["t"], unit = "s" }\n'
    )
    problems = ["--problems", "grid:dim2=32;dim3=32,64;func=exp;buffer=l1", "--vary", "dtype=bf16"]
    code, _, shown = collect(SINGLE.id, "--benchmark", "./r.toml", *problems)
    assert code == 2
    assert "the reset command ['false', '0'] failed" in shown.err


def test_a_collection_in_which_nothing_worked_says_so(program, collect, tmp_path):
    """Exit code 3 and what to do, not the next step of a good collection; one row that worked is enough for that."""
    body = 'size = json.load(sys.stdin)["problem"]["dim3"]\nif size == 32: sys.exit("no such kernel")\nprint(\'{"t": 1}\')'
    program("bench", body)
    (tmp_path / "r.toml").write_text(
        f'{HEAD}argv = ["bench"]\ninput = {{ to = "stdin" }}\nsamples = 1\n'
        '[result]\nformat = "json"\ntime = { at = ["t"], unit = "s" }\n'
    )
    mine = [SINGLE.id, "--benchmark", "./r.toml", "--vary", "dtype=bf16", "--problems"]
    code, rows, shown = collect(*mine, "grid:dim2=32;dim3=32;func=exp;buffer=l1")
    assert (code, rows["status"].to_list()) == (3, ["launch_error"]), shown.err
    assert "! nothing worked: correct what the messages name" in shown.out
    assert "next:" not in shown.out
    code, rows, shown = collect(*mine, "grid:dim2=32;dim3=32,64;func=exp;buffer=l1", out="some")
    assert (code, sorted(rows["status"])) == (0, ["launch_error", "ok"]), shown.err
    assert "next: kerncast inspect some" in shown.out


def test_the_example_in_the_documentation_works_as_it_stands(program, collect, tmp_path):
    """Its program and its benchmark are taken from the page."""
    page = DOCS.read_text()
    blocks = dict(re.findall(r"```(python|toml)\n(.*?)```", page, re.S))
    (tmp_path / "bench.py").write_text(blocks["python"])
    (tmp_path / "mine.toml").write_text(blocks["toml"])
    command = re.search(r"\$ kerncast collect (\S+ --benchmark ./mine.toml.*?) --out mine\n```", page, re.S)[1]
    # As a shell reads it: a grid that is not quoted would end at its first semicolon.
    arguments = shlex.split(command.replace("\\\n", " ").replace("$PWD", str(tmp_path)))
    arguments += ["--set", f"python={sys.executable}"]
    code, rows, shown = collect(*arguments)
    assert code == 0, shown.err
    assert rows["status"].to_list() == ["ok"] * 3
    assert (rows["max_abs_err"] < 1e-6).all()
    # Unchecked, the same program reports no error, which is no error; but the times are not those of checked results.
    code, _, shown = collect(*arguments, "--no-verify", "--resume")
    assert code == 2
    assert "resume it there, or collect into another dataset" in shown.err
    code, rows, shown = collect(*arguments, "--no-verify", out="unchecked")
    assert (code, set(rows["status"]), rows["max_abs_err"].to_list()) == (0, {"ok"}, [None] * 3), shown.err
    assert {json.loads(text)["results"] for text in rows["software"]} == {"not checked"}


@pytest.mark.parametrize("page", sorted(DOCS.parent.glob("*.md")), ids=lambda page: page.name)
def test_grids_in_the_documentation_are_quoted(page):
    """A shell ends a command at a semicolon."""
    for line in re.findall(r"^.*--problems.*grid:.*;.*$", page.read_text(), re.M):
        assert re.search(r"['\"]grid:", line), line


class TestScripted(BackendContract):
    backend, family = "scripted_backend:Scripted", "eltwise_unary/single"

    @pytest.fixture(autouse=True)
    def _scripted(self, tmp_path, monkeypatch):
        """A backend class that needs no options, importable from the workers."""
        (tmp_path / "answer").write_text("#!/bin/sh\necho '{\"t\": 1500}'\n")
        (tmp_path / "answer").chmod(0o755)
        (tmp_path / "benchmark.toml").write_text(
            f'{HEAD}argv = ["{tmp_path}/answer"]\ninput = {{ to = "stdin" }}\n'
            '[result]\nformat = "json"\ntime = { at = ["t"], unit = "ns" }\n'
        )
        (tmp_path / "scripted_backend.py").write_text(
            "from kerncast.measuring.backends.command import CommandBackend\n"
            "from kerncast.measuring.backends.command.benchmark import load\n"
            "class Scripted(CommandBackend):\n    name = 'scripted'\n    configured = None\n"
            f"    def __init__(self, index='0'): super().__init__(index, load({str(tmp_path / 'benchmark.toml')!r}))\n"
            "    @classmethod\n    def configured(cls, index, options): return cls(index)\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        yield
        sys.modules.pop("scripted_backend", None)

    def vectors(self):
        problems = [vector(32 * width)[0].as_dict() for width in range(1, 13)]
        return pl.DataFrame([{f"problem.{name}": value for name, value in item.items()} for item in problems])
