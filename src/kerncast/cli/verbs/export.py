"""`kerncast export`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kerncast.cli.asking import steps
from kerncast.cli.views.output import json_option, print_json, table
from kerncast.errors import CannotWrite, InvalidValue

if TYPE_CHECKING:
    from kerncast.models.model import Model
    from kerncast.selecting.tiers.build import TierOptions


@click.command("export")
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.option("--to", "form", type=click.Choice(["c", "json", "csv"]), default="c", show_default=True,
              help="C99 with a C++17 header, a plain JSON table of choices, or the lines of a linear model.")  # fmt: skip
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), metavar="DIR|FILE", help="What to write; must not exist."
)
@click.option("--tiers", default="tree,portfolio,full", show_default=True, metavar="TIERS",
              help="With c: who may answer; fewer make a smaller artefact. The memo is always there.")  # fmt: skip
@click.option("--prefix", default="kerncast", show_default=True, metavar="NAME",
              help="With c: what functions, types and files are called; artefacts in one program need one each.")  # fmt: skip
@click.option("--problems", type=click.Path(path_type=Path), metavar="FILE",
              help="With json: the problems to decide (.json or .parquet). [default: those it was trained on]")  # fmt: skip
@click.option("--loss", default=0.002, show_default=True, type=click.FloatRange(0, 1, min_open=True, max_open=True),
              help="What the portfolio may lose.")  # fmt: skip
@click.option("--max", "most", default=64, show_default=True, type=click.IntRange(min=1), help="Most configs of the portfolio.")
@json_option
def command(
    model: Path, form: str, out: Path, tiers: str, prefix: str, problems: Path | None, loss: float, most: int, as_json: bool
) -> None:
    """Write a model out for programs that do not have Python.

    `--to c` writes one .c and one .h without any dependency beyond libm, a C++17 header, a self-test with golden
    vectors, CMakeLists.txt and a pkg-config file. It chooses exactly what Python chooses.

    \b
    kerncast export model --to c --out picker
    cmake -S picker -B build && cmake --build build && ctest --test-dir build
    kerncast export model --to json --out choices.json
    kerncast export lines --to csv --out lines.csv
    """
    from kerncast.models.model import Model
    from kerncast.selecting.tiers.build import TierOptions, tiers_of

    if form != "c" and (prefix != "kerncast" or tiers != "tree,portfolio,full"):
        raise InvalidValue("--prefix and --tiers are for --to c")
    if form != "json" and problems is not None:
        raise InvalidValue("--problems is for --to json: C answers any problem, and lines are what they are")
    if out.exists():
        raise InvalidValue(f"{out} exists already: choose another name, or remove it first")
    began, loaded, options = time.monotonic(), Model.load(model), TierOptions(loss, most)
    with steps() as step:
        if form == "json":
            written = _json(loaded, out, problems, options, step)
        elif form == "csv":
            written = _csv(loaded, out)
        else:
            from kerncast.compiling.lower import lower
            from kerncast.exporting.project import write_project

            wanted = [item.strip() for item in tiers.split(",") if item.strip()]
            built = tiers_of(loaded, options, step)
            # A family with nothing to choose has no tree.
            include = [item for item in wanted if item != "tree" or built.tree is not None]
            written = write_project(lower(loaded, built, include), out, prefix, step)
    seconds = time.monotonic() - began
    if as_json:
        print_json({"out": str(out), "files": {path.name: path.stat().st_size for path in written}, "seconds": seconds})
        return
    table(("file", "bytes"), [(path.name, f"{path.stat().st_size:,}") for path in written], right=("bytes",))
    click.echo(f"written in {seconds:.1f} s")
    if form == "c":
        click.echo(f"Next: cmake -S {out} -B {out}/build && cmake --build {out}/build && ctest --test-dir {out}/build")


def _json(loaded: Model, out: Path, problems: Path | None, options: TierOptions, step: Callable[[str], None]) -> list[Path]:
    from kerncast.cli.asking import read_problems
    from kerncast.exporting.json_table import trained_problems, write_table
    from kerncast.selecting.selector import Selector

    selector = Selector.load(loaded, tier="full", options=options, step=step)
    asked = read_problems((str(problems),), loaded.family)[0] if problems is not None else trained_problems(loaded)
    step(f"deciding {len(asked):,} problems")
    write_table(out, loaded, [answer.as_json() for answer in selector.select_many(asked)])
    return [out]


def _csv(loaded: Model, out: Path) -> list[Path]:
    """The coefficients of a linear model, and on stderr what to look at twice."""
    from kerncast.learners.linear import Linear

    if not isinstance(loaded.learner, Linear):
        raise InvalidValue(
            f"--to csv writes the lines of a linear model; {loaded.path} is {loaded.manifest.kind}: use c or json"
        )
    try:
        loaded.learner.table().write_csv(out)
    except OSError as error:
        raise CannotWrite(f"could not write {out}: {error.strerror or error}") from error
    size = loaded.learner.size()
    click.echo(
        f"{size['lines']:,} lines, {size['negative_intercepts']:,} with a negative intercept; "
        f"{size['absurd_readings']:,} absurd readings (ten times off a robust line)",
        err=True,
    )
    return [out]
