"""What a model learned, as CSV: the lines of a linear model, or the weights of an mlp."""

from __future__ import annotations

from pathlib import Path

from kerncast.answering.exporters import Exporter, NoOptions
from kerncast.core.io.atomic import build_directory, write_atomically
from kerncast.core.progress import Progress
from kerncast.errors import InvalidValue
from kerncast.learning.learners.linear import Linear
from kerncast.learning.learners.mlp import Mlp
from kerncast.learning.learners.mlp_csv import write_network
from kerncast.models.model import Model


class CsvExporter(Exporter):
    """Lines or weights."""

    name = "csv"
    doc = "CSV (the lines of a linear model; a folder with the weights of an mlp)"
    one_device = False

    def write(self, model: Model, out: Path, options: NoOptions, progress: Progress) -> list[Path]:
        learner, names = model.learner, model.manifest.features.names
        if isinstance(learner, Linear):
            write_atomically(out, learner.table().write_csv)
            return [out]
        if isinstance(learner, Mlp):
            build_directory(out, lambda folder: write_network(folder, learner, names, model.target))
            return sorted(out.iterdir())
        raise InvalidValue(
            f"`to=csv` writes the lines of a linear model or the weights of an mlp; {model.path} is {model.manifest.kind}: "
            "use c or json"
        )
