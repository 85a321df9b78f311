"""`kerncast export`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from kerncast.api.printing import echo
from kerncast.cli import completing
from kerncast.cli.asking import steps
from kerncast.cli.stored import model_argument, store_of_model
from kerncast.cli.views.output import json_option, print_json, table
from kerncast.models.tier import CHOOSING
from kerncast.writing.shell import word


@click.command("export")
@model_argument()
@store_of_model
@click.option(
    "--to", default="c", show_default=True, metavar="TARGET", shell_complete=completing.export_targets,
    help="C99 with a C++17 header (c), a file that a C runtime loads (blob), a JSON table of choices (json), CSV (the lines of "
    "a linear model; a folder with the weights of an mlp), or files for PyTorch's Inductor (lookup-table, autoheuristic).",
)  # fmt: skip
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), metavar="DIR|FILE", help="The path to write; it must not exist."
)
@click.option("--tiers", default=",".join(CHOOSING), show_default=True, metavar="TIERS",
              help="With c, blob: the tiers to include; others are left out. `tree` alone is the smallest.")  # fmt: skip
@click.option("--prefix", default="kerncast", show_default=True, metavar="NAME",
              help="With c, blob: prefix of functions, types and files; each artefact in a program needs its own. CMake: "
              "kerncast::NAME, find_package(kerncast_NAME).")  # fmt: skip
@click.option("--runtime", type=click.Path(path_type=Path), metavar="DIR",
              help="With blob: also write the C runtime to this new folder, with CMakeLists.txt and a self-test.")  # fmt: skip
@click.option("--problems", type=click.Path(path_type=Path), metavar="FILE",
              help="With json, lookup-table: the problems (.json or .parquet). [default: the training problems]")  # fmt: skip
@click.option("--loss", default=0.002, show_default=True, type=click.FloatRange(0, 1, min_open=True, max_open=True),
              help="Allowed loss of the portfolio, as a share.")  # fmt: skip
@click.option("--max", default=64, show_default=True, type=click.IntRange(min=1), help="Maximum configs in the portfolio.")
@click.option("--configs", metavar="SPEC",
              help="With c, json: choose from these instead of the configs that worked in training: kernels:FILE (names of "
              "kernels), build:DIR (a build folder of CK Tile), portfolio:FILE, a dataset, a benchmark file.")  # fmt: skip
@click.option("--overrides", type=click.Path(path_type=Path), metavar="FILE.toml",
              help="Which kernels exist and which choices are fixed: `available`, `deny`, [[pin]].")  # fmt: skip
@click.option("--top-k", type=click.IntRange(min=1), metavar="K",
              help="With lookup-table, autoheuristic: configs for each problem or leaf. [default: 1, 20]")  # fmt: skip
@click.option("--device", metavar="NAME", shell_complete=completing.devices,
              help="Which device, of a model that was trained on several together.")  # fmt: skip
@click.option("--device-name", metavar="NAME",
              help="With lookup-table: torch's name of the GPU, for every key. [default: keys for any device]")  # fmt: skip
@json_option
def command(model: Path, out: Path, to: str, as_json: bool, **options: Any) -> None:
    """Write a model out for programs that do not have Python.

    `--to c` writes one .c and one .h without any dependency beyond libm, a C++17 header, a self-test with golden
    vectors, CMakeLists.txt and a pkg-config file. It chooses exactly what Python chooses. `--to blob` writes one file that a
    small C runtime loads when a program runs, with the same answers.

    \b
    kerncast export model --to c --out picker
    kerncast export shipped/gemm-vllm --to c --device h100 --out h100_gemm
    cmake -S picker -B build && cmake --build build && ctest --test-dir build
    kerncast export model --to c --out small --prefix small --tiers tree
    kerncast export model --to c --out picker --overrides overrides.toml
    kerncast export ck_model --to c --out picker --configs kernels:mine.txt
    kerncast export model --to blob --out model.kcb --runtime runtime
    kerncast export model --to json --out choices.json
    kerncast export lines --to csv --out lines.csv
    kerncast export mlp --to csv --out weights
    kerncast export a100 --to lookup-table --out table.json --device-name 'NVIDIA A100-SXM4-80GB'
    kerncast export a100 --to autoheuristic --out _KerncastMM.py
    """
    from kerncast.api.export import export
    from kerncast.learners.linear import Linear
    from kerncast.models.model import Model

    began, loaded = time.monotonic(), Model.load(model)
    with steps() as progress:
        written = export(loaded, out, to=to, progress=progress, **options)
    if to == "csv" and isinstance(loaded.learner, Linear):
        size = loaded.learner.size()
        echo(
            f"{size['lines']:,} lines, {size['negative_intercepts']:,} with a negative intercept; "
            f"{size['absurd_readings']:,} absurd readings (ten times off a robust line)",
            err=True,
        )
    seconds = time.monotonic() - began
    if as_json:
        print_json({"path": str(out), "files": {path.name: path.stat().st_size for path in written}, "seconds": seconds})
        return
    table(("file", "bytes"), [(path.name, f"{path.stat().st_size:,}") for path in written], right=("bytes",))
    echo(f"written in {seconds:.1f} s")
    project = out if to == "c" else options["runtime"]
    if project is not None and to in ("c", "blob"):
        build = word(project / "build")
        echo(f"Next: cmake -S {word(project)} -B {build} && cmake --build {build} && ctest --test-dir {build}")
