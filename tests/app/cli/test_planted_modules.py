"""A folder that someone else filled runs nothing: the current folder is on the path of no interpreter that kerncast starts."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from example_configs import LLAMA_8B
from tests.support.routines import tiny_routine

import kerncast
from kerncast.app.cli import VERBS
from kerncast.testing.models import synthetic_dataset, synthetic_rows

# As the installed command begins, with several command lines, one after the other. What serves is ended as by Ctrl-C, and
# what is compiled is compiled quickly.
COMMAND = """
import os, signal, sys, threading
from json import loads
from kerncast.app.cli import main
from kerncast.native import build

slow = build.build
build.build = lambda compiler, flags, *rest, **more: slow(compiler, [f for f in flags if f[:2] != "-O"], *rest, **more)

for line in loads(sys.argv[1]):
    if line[0] == "serve":
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        main(line)
    except SystemExit as stopped:
        print(f"== {line[0]} {stopped.code or 0}", flush=True)
"""
PROBLEM = ["M=512", "N=512", "K=512", "dtype=fp16", "layout=rcr"]
GRID = ["--problems", "grid:M=16;N=16;K=16", "--vary", "dtype=fp32", "--vary", "layout=rrr", "--configs", "sample:2"]
REQUEST = {"op": "gemm", "device": "b200", "M": 128, "N": 1536, "K": 7168, "dtype": "fp8"}
QUICK = ["--trees", "4", "--leaves", "4", "--folds", "2", "--threads", "1"]
LINES = [
    *(verb.split() for verb in ("list device", "doctor", "list family", "models", "list op")),
    ["sweep", "gemm/cpu", *GRID, "--out", "vectors"],
    ["collect", "gemm/cpu", *GRID, "--out", "measured"],
    ["inspect", "d"],
    ["merge", "d", "measured", "--out", "both"],
    ["export", "d", "--to", "csv", "--out", "d.csv"],
    ["import", "csv", "d.csv", "--mapping", "d.toml", "--out", "again"],
    ["train", "d", "--out", "m", *QUICK],
    ["train", "d", "--out", "n", *QUICK, "--seed", "1"],
    ["evaluate", "m", "d", "--include-seen"],
    ["compare", "m", "n", "d", "--include-seen"],
    ["train", "more", "--base", "m", "--device", "a100", "--out", "adapted"],
    ["regenerate", "update", "m", "more", "--dry-run"],
    ["export", "m", "--to", "portfolio"],
    ["predict", "m", *PROBLEM],
    ["predict", json.dumps(REQUEST)],
    ["select", "m", *PROBLEM],
    ["select", "m", *PROBLEM, "--search"],
    ["estimate", "config.json", "--device", "h100", "--context", "512"],
    ["export", "m", "--to", "json", "--out", "choices.json"],
    ["inspect", "d", "--verify"],
    ["serve", "m", "--open", "--no-browser"],
    ["serve", "m", "--port", "0"],
    ["torch", "report", "--help"],
    ["regenerate", "tiny.toml", "--out", "work", "--store", "store"],
]


@pytest.mark.needs("a C compiler")
def test_no_verb_runs_a_module_of_the_current_folder(planted, tmp_path):
    """Nor does a worker. `quickstart` and its race are tried in test_quickstart.py."""
    assert {line[0] for line in LINES} == set(VERBS)
    synthetic_dataset(planted / "d", synthetic_rows(16, 0))
    synthetic_dataset(planted / "more", synthetic_rows(8, 1))
    (planted / "config.json").write_text(json.dumps(LLAMA_8B))
    (planted / "tiny.toml").write_text(tiny_routine())
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "kerncast").write_text(COMMAND)
    done = subprocess.run([sys.executable, tmp_path / "bin" / "kerncast", json.dumps(LINES)], capture_output=True, text=True)
    print(done.stdout, done.stderr)
    codes = dict(re.findall(r"^== (\S+) (\d+)$", done.stdout, re.M))
    assert codes == dict.fromkeys((line[0] for line in LINES), "0")


def test_every_interpreter_is_started_without_the_current_folder():
    """`-P`, or `-I`, which implies it; a variable would reach the programs under test."""
    sources = [path.read_text() for path in Path(kerncast.__file__).parent.rglob("*.py")]
    flags = [flag for text in sources for flag in re.findall(r"sys\.executable,\s*(.{4})", text)]
    assert len(flags) >= 6
    assert set(flags) == {'"-P"', '"-I"'}
    assert not any("PYTHONSAFEPATH" in text for text in sources)
