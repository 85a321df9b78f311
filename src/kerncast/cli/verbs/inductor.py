"""`kerncast inductor`: torch.compile."""

from __future__ import annotations

from pathlib import Path

import click

from kerncast.api.printing import echo
from kerncast.cli.views.output import draw, json_option, print_json
from kerncast.writing.shell import word


@click.group("inductor")
def command() -> None:
    """What PyTorch's compiler does with a model: which matrix products it meets.

    These commands need torch: pip install 'kerncast[torch]'. They run the Python file that you name, with your rights.
    Each takes --json.

    \b
    kerncast inductor shapes model.py
    kerncast inductor shapes model.py --out problems.json
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
