"""`kerncast inductor`: torch.compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kerncast.api.printing import echo
from kerncast.cli import completing
from kerncast.cli.asking import steps
from kerncast.cli.views.output import draw, json_option, print_json, table
from kerncast.writing.shell import word


@click.group("inductor")
def command() -> None:
    """PyTorch's compiler: the matrix products it meets in a model, and how well a model of kerncast chooses their kernels.

    These commands need torch: pip install 'kerncast[torch]'. They run the Python file that you name, with your rights.
    Each takes --json.

    \b
    kerncast inductor shapes model.py
    kerncast inductor shapes model.py --out problems.json
    kerncast inductor validate my-model --model-file model.py
    kerncast inductor report decided.json
    """


@command.command("shapes")
@click.argument("file", metavar="FILE.py[:FUNCTION]")
@click.option("--backward", is_flag=True, help="Also list the products of the backward pass, as in training.")
@click.option("--no-bias", is_flag=True, help="List the products without their bias, for families that have no epilogue.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.json", help="Write the problems to this file.")
@json_option
def shapes(file: str, backward: bool, no_bias: bool, out: Path | None, as_json: bool) -> None:
    """List the matrix products of a model, as torch.compile sees them, without running the model.

    FILE.py is run, so name only a file that you trust. Its FUNCTION (default: example) takes nothing and returns
    (model, inputs). The inputs are a tensor, a tuple, a dict of keyword arguments, or the pair of both. Only sizes, strides
    and types matter: under `with torch.device("meta"):` neither weights nor inputs take memory.

    The file that --out writes is a problem set for `collect`, `sweep`, `select` and `predict`.

    \b
    kerncast inductor shapes model.py
    kerncast inductor shapes model.py:large --backward --json
    kerncast inductor shapes model.py --no-bias --out problems.json
    kerncast collect gemm/inductor_cpp --problems problems.json --vary threads=1 --out data
    """
    from kerncast.inductor.shape_files import example_of
    from kerncast.inductor.shapes import shapes_of

    model, inputs = example_of(file)
    found = shapes_of(model, inputs, backward=backward, bias=not no_bias)
    if out is not None:
        found.save(out)
    if as_json:
        print_json(found.as_json())
        return
    draw(found.table) if found.products else echo("no matrix product")
    echo(*found.notes) if found.notes else None
    if out is not None:
        echo(f"next: kerncast collect FAMILY --problems {word(out)} --out data, with a family of `kerncast families`")


@command.command("validate")
@click.argument("model", metavar="MODEL", shell_complete=completing.model_folders)
@click.option("--model-file", metavar="FILE.py[:FUNCTION]",
              help="A network to compile in each way and run in turns. Its products are measured, too.")  # fmt: skip
@click.option("--shapes", metavar="SPEC", help="Products to measure: a problem set as for `kerncast collect`, or a file.")
@click.option(
    "--vary", multiple=True, metavar="NAME=VALUES", help="With --shapes, one more axis: threads=1,2. May be repeated."
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads that torch may use. [default: as torch decides]")
@click.option(
    "--top-k", type=click.IntRange(min=1), default=1, show_default=True, help="Kernels that are left for Inductor to time."
)
@click.option("--sample", type=click.IntRange(min=0), default=0, show_default=True,
              help="Other configs of each product to measure, to see how far the choice is from the best.")  # fmt: skip
@click.option("--exhaustive", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
              help="With --model-file, also compile with a max-autotune of N kernels a product; takes long.")  # fmt: skip
@click.option("--any-software", is_flag=True, help="Use the model although torch or the compiler is not that of its data.")
@click.option(
    "--worst", type=click.IntRange(min=0), default=5, show_default=True, help="How many of the worst products to list."
)
@click.option(
    "--picture", type=click.Path(path_type=Path), metavar="FILE.svg", help="With --model-file: speed against compile time."
)
@click.option("--store", type=click.Path(path_type=Path), metavar="DIR",
              help="The store of MODEL. [default: KERNCAST_STORE, else the user's]")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@json_option
def validate(model: str, worst: int, picture: Path | None, as_json: bool, **options: Any) -> None:
    """Compare what a model chooses with max-autotune, on this machine.

    For each product: the chosen kernel, the kernels that stock max-autotune times and, with --sample, others. For a network:
    compile time and speed with stock settings, with max-autotune and with kerncast, run in turns in one process.

    MODEL is a folder or an id in the store. FILE.py is run, so name only a file that you trust. Exit code 1 if the chosen
    kernels have less than 97 % of the speed of max-autotune's.

    \b
    kerncast inductor validate my-model --model-file network.py --picture picture.svg
    kerncast inductor validate my-model --shapes problems.json --sample 20 --json
    kerncast inductor validate my-model --shapes "lognormal:20;M=1:32;N=64:1024;K=64:1024" --vary dtype=fp32 \\
        --vary layout=rcr --vary threads=1
    """
    from kerncast.api.validate import validate as run
    from kerncast.inductor.validation import MODE_HEADERS, PRODUCT_HEADERS

    with steps() as progress:
        found = run(model, picture=picture, progress=progress, **options)
    if as_json:
        print_json(found.as_json())
    else:
        if found.products:
            table(PRODUCT_HEADERS, found.product_rows(found.worst(worst) or found.products), right=("time", "max-autotune"))
            echo(found.headline())
        if found.modes:
            table(MODE_HEADERS, found.mode_rows(), right=MODE_HEADERS[1:])
    if not found.as_good:
        raise SystemExit(1)


@command.command("report")
@click.argument("file", metavar="FILE.json", type=click.Path(path_type=Path))
@json_option
def report(file: Path, as_json: bool) -> None:
    """Show what was decided in a program that ran with KERNCAST_REPORT=FILE.json.

    \b
    KERNCAST_INDUCTOR=1 KERNCAST_REPORT=decided.json TORCHINDUCTOR_MAX_AUTOTUNE=1 TORCHINDUCTOR_FREEZING=1 python serve.py
    kerncast inductor report decided.json
    """
    from kerncast.inductor.reporting import Report

    found = Report.read(file)
    print_json(found.as_json()) if as_json else echo(*repr(found).splitlines())
