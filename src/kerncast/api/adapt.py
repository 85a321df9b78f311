"""`kerncast.adapt`: move a model to another device by a few measurements there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kerncast import devices
from kerncast.api.measured import Data, paths_of
from kerncast.api.results import listed, model_of, place_of, texts
from kerncast.api.showing import Wanted, shown
from kerncast.data.dataset import MANIFEST, Dataset
from kerncast.data.importers import Options, import_files
from kerncast.data.importers.recognise import recognised
from kerncast.device import Device
from kerncast.errors import BadFile, InvalidValue
from kerncast.files.atomic import scratch_folder
from kerncast.models.model import Model
from kerncast.training.adapting import adapt as run


def adapt(
    model: Model | str | Path,
    data: Data,
    *,
    out: str | Path | None = None,
    device: Device | str | Path | None = None,
    where: str | Sequence[str] = (),
    seed: int = 0,
    progress: Wanted = "auto",
) -> Model:
    """Move a model to the device that some rows were measured on, and return the model of that device.

    `model` is a model of other devices, best of several (`train` with `pool`), or of this one with other software. `data` are
    datasets, or files that `read` reads into one, with rows of one device: a few dozen are enough to begin with. `device` is
    its profile, a name or the path of a TOML file; left out, that of the data. What the model misses on the rows is learned on
    top of it and judged out of fold. A model of the rows alone is judged on the same folds (from 40 rows on), and kept if it is
    better by a twentieth. `evaluation["adapted"]` has the errors `before`, `after` and `alone`, which one was `kept`, and what
    was `not_used`: rows of a layout or dtype, say, that the model knows nothing of.
    """
    base = model_of(model)
    profile = device if isinstance(device, Device) or device is None else devices.get(str(device))
    with shown(progress) as show, scratch_folder() as folder:
        paths = [
            path if _is_data(path) else _imported(path, Path(folder) / str(number), device)
            for number, path in enumerate(paths_of(listed(data)))
        ]
        return run(base, paths, place_of(out, "model"), device=profile, where=texts(where), seed=seed, progress=show)


def _is_data(path: Path) -> bool:
    """Whether a path is a dataset or a folder of datasets, so that nothing has to be imported."""
    return not path.exists() or (path / MANIFEST).is_file() or (path.is_dir() and any(path.glob(f"*/{MANIFEST}")))


def _imported(path: Path, out: Path, device: Device | str | Path | None) -> Path:
    """A table of another tool as a dataset."""
    named = device.name if isinstance(device, Device) else None if device is None else str(device)
    try:
        format_name = recognised([path])
    except InvalidValue as error:
        raise InvalidValue(
            f"{path} is not a table that is recognised: make a dataset of it with `kerncast import`, and adapt with that"
        ) from error
    found: Dataset = import_files(format_name, [path], out, Options(device=named))
    if not found.rows:
        raise BadFile(f"{path} has no rows: there is nothing to learn from")
    return found.path
