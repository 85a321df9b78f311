"""How large an exported model is as object code, by the tiers that it has.

The model is that of select_latency.py: 4,608 CK Tile GEMM kernels with times from a formula. `size` counts code, constants and
data of the object that the exported CMake project's default flags (-O3) give.

    python benchmarks/export_size.py [--keep DIR]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from reporting import Benchmark, Row, Target, finish, script_parser
from select_latency import made_up_rows

import kerncast
from kerncast.answering.exporters.project import write_project
from kerncast.data import Dataset
from kerncast.library.registry import FAMILIES
from kerncast.measuring.backends.cpu.build import find_compiler
from kerncast.native.lower import lower
from kerncast.native.tiers.build import tiers_named

BENCHMARK = Benchmark(
    __file__,
    "How long choosing and predicting take",
    "The size of an exported model, 4,608 CK Tile GEMM kernels",
    note="The kernels' times come from a formula, so a tree's loss is that against the model, not on real measurements.",
)
# Maximum kilobytes of object code.
TIERS = {"tree,portfolio,full": 2_000.0, "portfolio": None, "tree": 100.0}
NAMES = {"tree,portfolio,full": "all tiers", "portfolio": "the portfolio", "tree": "the tree alone"}
FLAGS = ("-std=c99", "-O3", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off")


def object_bytes(folder: Path) -> int:
    """Code, constants and data of the compiled artefact, by `size`."""
    compiler = find_compiler()
    assert compiler is not None, "this benchmark needs gcc or clang"
    made = folder / "picker.o"
    subprocess.run([compiler.path, *FLAGS, "-c", str(folder / "picker.c"), "-o", str(made)], check=True)
    shown = subprocess.run(["size", str(made)], check=True, capture_output=True, text=True).stdout
    return sum(int(word) for word in shown.splitlines()[1].split()[:3])


def measure(folder: Path) -> list[Row]:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "data").exists():
        family = FAMILIES.get("gemm/ck_tile")
        Dataset.build(folder / "data", lambda draft: draft.append(family, made_up_rows()))
    if not (folder / "default").exists():
        kerncast.train(folder / "data", out=folder / "default", folds=2)
    model, rows = kerncast.Model.load(folder / "default"), []
    with tempfile.TemporaryDirectory() as scratch:
        for tiers, most in TIERS.items():
            built, include = tiers_named(model, tiers)
            out = Path(scratch) / tiers.replace(",", "_")
            write_project(lower(model, built, include), out, "picker")
            size, source = object_bytes(out) / 1e3, (out / "picker.c").stat().st_size
            text, note = f"object code, {NAMES[tiers]} (`--tiers {tiers}`)", f"{source / 1e6:.2f} MB of source"
            rows.append(Row(text, size, "KB", None if most is None else Target(high=most), note=note))
            if built.judged is not None:
                answered, loss = built.judged
                n = "held-out problems like the measured ones"
                rows.append(
                    Row(
                        "problems that the tree alone answers; the others get a status and a fallback", 100 * answered, "%", n=n
                    )
                )
                against = "the model's own choice in the portfolio"
                rows.append(Row("what the tree alone loses on them", 100 * loss, "%", Target(high=3.0), against, n))
    return rows


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument(
        "--keep", type=Path, help="keep the model in this folder (that of select_latency.py will do), and reuse it"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        return finish(BENCHMARK, measure(arguments.keep or Path(scratch)), arguments.json)


if __name__ == "__main__":
    sys.exit(main())
