"""What users of CK Tile's heuristics expect of an op of their own: one file, and a program that prints its time."""

from __future__ import annotations

import json
import sys

from promises import Work, promise
from promises_ck import GEMM, imported

PROGRAM = """
import json, sys
rows, columns, block = map(int, sys.argv[1:])
print(json.dumps({"ns": 500 + rows * columns * (1 + abs(block - 32) / 64) / 10}))
"""
TRANSPOSE = """
name = "transpose"
doc = "a blocked transpose"
device = "local"
argv = ["{setting.python}", "{setting.program}", "{problem.rows}", "{problem.columns}", "{config.block}"]
samples = 1

[op]
name = "transpose"
doc = "the transpose of a matrix of fp32"
work = { bytes = "8 * rows * columns" }

[op.problem]
rows = { from = 1, to = 65536, doc = "rows of the input" }
columns = { from = 1, to = 65536, doc = "columns of the input" }

[op.features]
log2_bytes = "log2(8 * rows * columns)"

[family]
name = "blocked"
doc = "a transpose block by block"

[family.config]
block = { powers_of_two = [4, 64], doc = "rows and columns of a block" }

[family.features]
block = "1 * block"
blocks = "ceil_div(rows, block) * ceil_div(columns, block)"

[settings]
python = { doc = "the interpreter" }
program = { doc = "the script" }

[result]
format = "json"
time = { at = ["ns"], unit = "ns" }
"""


@promise(
    "61-63",
    GEMM,
    "Add an op of your own, with tests and a guide to its data",
    "[Adding an op](ops-and-families.md)",
    after=imported,
)
def extended(work: Work) -> None:
    program = work.write("program.py", PROGRAM)
    work.write("transpose.toml", TRANSPOSE)
    work(f"kerncast collect transpose.toml --set python={sys.executable} --set program={program} --problems "
         "'grid:rows=64,100,150,256,500;columns=64,100,128,300,500' --configs all --out transposed")  # fmt: skip
    work("kerncast inspect transposed --verify")
    work("kerncast train transposed --trees 40 --folds 3 --out chooser")
    told = work.json("kerncast select chooser rows=200 columns=128")
    assert '"block": 32' in json.dumps(told), told
