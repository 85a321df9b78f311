"""`kerncast merge`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from kerncast.app.api.printing import echo
from kerncast.app.cli.verb import verb
from kerncast.app.cli.views.disagreements import disagreement_lines
from kerncast.app.cli.views.output import Json, print_json, say_unfinished, working
from kerncast.core.io.arguments import Help
from kerncast.data.dataset import Dataset, merge
from kerncast.data.quality import disagreements


@verb("merge")
def command(
    paths: Annotated[Sequence[Path], Help(metavar="DATASET...", names="dataset_folders", required=True)],
    *,
    out: Annotated[Path, Help("The directory to write; it must not exist.", metavar="DATASET", required=True)],
    as_json: Json = False,
) -> None:
    """Join datasets into a new one.

    Rows that are equal in every cell are kept once; repeats of a measurement are all kept. Repeats that
    contradict each other are reported, never resolved.

    \b
    kerncast merge monday tuesday --out week
    """
    with working(f"merging {len(paths)} datasets"):
        inputs = [Dataset.open(path) for path in paths]
        dataset, dropped = merge(inputs, out)
        conflicts = {family.id: disagreements(dataset.read(family)) for family in dataset.families}
    if as_json:
        print_json(
            {
                "path": str(out),
                "rows": dataset.rows,
                "duplicates_dropped": dropped,
                "digest": dataset.digest,
                "notes": [f"{dropped:,} exact duplicates dropped"],
                "conflicts": conflicts,
                "unfinished": {str(item.path): asdict(item.completeness) for item in inputs if item.completeness},
            }
        )
        return
    say_unfinished(inputs)
    echo(f"{out}: {dataset.rows:,} rows, {dropped:,} exact duplicates dropped")
    for name, found in conflicts.items():
        for line in disagreement_lines(found):
            echo(f"{name}: {line}")
