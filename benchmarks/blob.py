"""A model that is loaded at run time beside the same model compiled in: time of an answer, time to load, sizes.

The model is that of select_latency.py: 4,608 CK Tile GEMM kernels with times from a formula. Both answer each problem in turn,
and every answer is compared.

    python benchmarks/blob.py [--keep DIR]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from reporting import Benchmark, Row, Target, finish, script_parser, spread
from select_latency import C_NAMES, asked_problems, trained

import kerncast
from kerncast.answering.exporters.blob import write_blob
from kerncast.answering.exporters.project import write_project
from kerncast.measuring.backends.cpu.build import find_compiler
from kerncast.native.build import FLAGS
from kerncast.native.lower import lower
from kerncast.native.tiers.build import TierOptions, build_tiers

BENCHMARK = Benchmark(
    __file__,
    "How long choosing and predicting take",
    "A model loaded at run time, and the same one compiled in",
    note="4,608 CK Tile GEMM kernels, one core; each problem is answered by both in turn.",
)
ASKED, ROUNDS = 600, 5
# The most times as long as compiled in.
TARGETS = {"full": 1.3, "portfolio": 3.0, "tree": 3.0, "memo": None}


def built(model: kerncast.Model, folder: Path) -> None:
    """The model in two forms, compiled: as code (`picker.o`), and the runtime with a blob."""
    if not (folder / "runtime").exists():
        artefact = lower(model, build_tiers(model, TierOptions()))
        write_project(artefact, folder / "code", "picker")
        write_blob(artefact, folder / "model.kcb", folder / "runtime")
    compiler = find_compiler()
    assert compiler is not None, "this benchmark needs gcc or clang"
    flags = [flag for flag in FLAGS if flag not in ("-fPIC", "-shared")]
    sources = {"picker.o": "code/picker.c", "runtime.o": "runtime/kerncast_runtime.c"}
    for made, source in sources.items():
        if not (folder / made).exists():
            subprocess.run([compiler.path, *flags, "-c", str(folder / source), "-o", str(folder / made)], check=True)
    objects = [str(Path(__file__).with_suffix(".c")), str(folder / "picker.o"), str(folder / "runtime.o")]
    includes = [f"-I{folder / 'code'}", f"-I{folder / 'runtime'}"]
    subprocess.run([compiler.path, *flags, *includes, *objects, "-o", str(folder / "bench"), "-lm"], check=True)


def measure(folder: Path) -> list[Row]:
    folder.mkdir(parents=True, exist_ok=True)
    (model,) = trained(folder, "default")
    own = folder / "blob"
    own.mkdir(exist_ok=True)
    built(model, own)
    np.ascontiguousarray(asked_problems(model, ASKED), np.int64).tofile(own / "problems.bin")
    command = [own / "bench", own / "problems.bin", str(ASKED), own / "model.kcb", str(ROUNDS)]
    lines = [line.split() for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()]
    found = {name: [(float(line[2]), float(line[3])) for line in lines if line[0] == name] for name in TARGETS}
    single = {line[0]: float(line[1]) for line in lines if len(line) == 2}
    rows = [
        Row("answers that differ", single["differences"], "", Target(high=0), n=f"{ASKED * ROUNDS * len(TARGETS):,} answers")
    ]
    for tier, most in TARGETS.items():
        ratios = [loaded / compiled for compiled, loaded in found[tier]]
        compiled, loaded = found[tier][int(np.argmin([pair[0] for pair in found[tier]]))]
        rows.append(Row(
            f"time of {C_NAMES[tier]}, loaded ÷ compiled in, p50", float(np.median(ratios)), "×",
            None if most is None else Target(high=most), n=f"{ASKED} problems, {ROUNDS} rounds",
            interval=spread(ratios, "rounds"), note=f"{loaded:.3g} and {compiled:.3g} µs in the quickest round",
        ))  # fmt: skip
    rows.append(Row("loading the model", single["load"] / 1e3, "ms", n="1 run"))
    sizes = {
        "size of the blob": own / "model.kcb", "source of the model as code": own / "code" / "picker.c",
        "object of the model as code": own / "picker.o", "object of the runtime": own / "runtime.o",
    }  # fmt: skip
    rows += [Row(what, file.stat().st_size / 1e6, "MB") for what, file in sizes.items()]
    return rows


def main() -> int:
    parser = script_parser(__doc__)
    parser.add_argument("--keep", type=Path, help="keep models and exports in this folder, and reuse those in it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        return finish(BENCHMARK, measure(arguments.keep or Path(scratch)), arguments.json)


if __name__ == "__main__":
    sys.exit(main())
