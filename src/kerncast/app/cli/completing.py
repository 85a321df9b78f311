"""What the shell offers when one presses Tab: ops, families, devices, formats, models and the columns of datasets.

A completer must be quick and must never fail: an error would appear in the middle of a command line. So nothing here
trains, compiles or opens rows, and whatever goes wrong offers nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from kerncast.app.api.showing import echo
from kerncast.core.io.quoting import word
from kerncast.errors import InvalidValue, NotFound

# What a shell would obey in a word without quotes.
OBEYED = frozenset("$`\\\"'!&|;<>()[]{}*?#~^")

# The file that a folder of a kind has; named here because the modules that write them load polars.
MODEL, DATASET = "model.json", "dataset.json"

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _quiet(found: Callable[[click.Context, str], Iterable[CompletionItem]]) -> Completer:
    """A completer for click from a function of the context and the text so far."""

    @wraps(found)
    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            return list(found(context, incomplete))
        except Exception:  # a damaged dataset or a broken package of another author: offer nothing
            return []

    return complete


def _starting(names: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    """The names that begin like the text, whatever its case; each with what zsh and fish show beside it."""
    wanted = incomplete.lower()
    return [CompletionItem(name, help=" ".join(text.split())) for name, text in names if name.lower().startswith(wanted)]


@_quiet
def ops(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Ops and their aliases."""
    from kerncast.library.registry import OPS

    aliases = ((alias, f"is {op.name}") for alias, op in OPS.by_alias.items())
    return _starting([*((op.name, op.doc) for op in OPS), *aliases], incomplete)


@_quiet
def families(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Kernel families."""
    from kerncast.library.registry import FAMILIES

    return _starting(((family.id, family.doc) for family in FAMILIES), incomplete)


@_quiet
def devices(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Device profiles by their own names; `local`; your own profiles, which are .toml files."""
    from kerncast.library import devices as profiles

    known = ((device.name, device.title) for device in profiles.profiles().values())
    return [*_starting([*known, (profiles.LOCAL, "this machine")], incomplete), *_paths(incomplete, ".toml")]


@_quiet
def formats(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Formats that `import` reads."""
    from kerncast.data.formats import importers

    return _starting(((name, item.doc) for name, item in importers().items()), incomplete)


@_quiet
def export_targets(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """What `export` writes."""
    from kerncast.answering.exporters import exporters

    return _starting(((name, item.doc) for name, item in exporters().items()), incomplete)


@_quiet
def kinds(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Kinds of model that `train` fits."""
    from kerncast.learning.learners.kinds import learner_kinds

    return _starting(((kind, "") for kind in learner_kinds()), incomplete)


@_quiet
def model_folders(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Folders that hold a model, and folders to look further in."""
    return _folders(incomplete, MODEL)


@_quiet
def dataset_folders(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Folders that hold a dataset, and folders to look further in."""
    return _folders(incomplete, DATASET)


@_quiet
def stored_models(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Models of the store that the command line names, or of the default one."""
    from kerncast.models.store.store import Store

    entries, _ = Store.open(context.params.get("store") or context.meta.get("kerncast.store")).survey(None)
    return _starting(((entry.id, entry.family) for entry in entries), incomplete)


@_quiet
def conditions(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """`--where`: the columns of the dataset that the command line names so far, as far as one can filter by them."""
    if "=" in incomplete or "<" in incomplete or ">" in incomplete:
        return []
    from kerncast.data import schema
    from kerncast.data.dataset import Dataset

    columns: dict[str, str] = {}
    # Behind an option that still lacks its value, click has not yet told arguments apart: they are all in `args`.
    values = [context.params.get(name) or () for name in ("path", "data", "datasets", "source")]
    words = [*(item for value in values for item in (value if isinstance(value, tuple) else (value,))), *context.args]
    for path in (path for path in map(Path, words) if (path / DATASET).is_file()):
        for family in Dataset.open(path).families:
            columns |= dict.fromkeys([*schema.parameter_columns(family), "device", "status", "time_ns"], family.id)
    return [CompletionItem(f"{name}=", help=family) for name, family in columns.items() if name.startswith(incomplete)]


def _within(incomplete: str) -> tuple[Iterator[Path], str]:
    """The files and folders that begin like the text and that a shell would not obey, and the text behind the last `/`."""
    start = Path(incomplete)
    within, prefix = (start, "") if incomplete.endswith("/") or not incomplete else (start.parent, start.name)
    # Shells insert a name unquoted, and a line end would be another item.
    return (
        item for item in sorted(within.iterdir())
        if item.name.startswith(prefix) and item.name.isprintable() and not OBEYED & set(item.name) and item.name[0] != "-"
    ), prefix  # fmt: skip


def _folders(incomplete: str, mark: str) -> list[CompletionItem]:
    """Folders with a certain file, offered as words; others as folders to go into."""
    found, prefix = _within(incomplete)
    folders = [item for item in found if item.is_dir() and (prefix.startswith(".") or not item.name.startswith("."))]
    return [CompletionItem(str(item) if (item / mark).is_file() else f"{item}/") for item in folders]


def _paths(incomplete: str, suffix: str) -> list[CompletionItem]:
    """Files with this ending that begin like the text; only once the text looks like a path."""
    if "/" not in incomplete and not incomplete.startswith("."):
        return []
    found = list(_within(incomplete)[0])
    files = [CompletionItem(str(item)) for item in found if item.name.endswith(suffix)]
    return [*files, *(CompletionItem(f"{item}/") for item in found if item.is_dir())]


def models(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Folders that hold a model, and ids of the store."""
    return [*model_folders(context, parameter, incomplete), *stored_models(context, parameter, incomplete)]


def models_and_data(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Folders that hold a model or a dataset, and ids of the store."""
    return [*models(context, parameter, incomplete), *dataset_folders(context, parameter, incomplete)]


def listed(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What `kerncast list` may be asked about."""
    kinds = {"op": ops, "family": families, "device": devices}
    return kinds[context.params["what"]](context, parameter, incomplete) if context.params.get("what") in kinds else []


def models_and_ops(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Folders that hold a model, and ops, whose model is then taken from the store."""
    return [*ops(context, parameter, incomplete), *model_folders(context, parameter, incomplete)]


_META = "kerncast.store"


def _remember(context: click.Context, _: click.Parameter, value: Path | None) -> None:
    context.meta[_META] = value


def store_of_model() -> click.Option:
    """The store in which a verb looks up the ids of models."""
    return click.Option(
        ["--store"], type=click.Path(path_type=Path), metavar="DIR", is_eager=True, expose_value=False, callback=_remember,
        help="The store, if MODEL is not a folder but the id of a model there. [default: KERNCAST_STORE, else your own]",
    )  # fmt: skip


class StoredModel(click.Path):
    """The path of a model: as given if one is there, else that of the store's model with this id."""

    name = "model"

    def __init__(self, alone: bool = True) -> None:
        """`alone`: the verb reads models alone; else anything that kerncast wrote, such as a dataset, is meant by its path."""
        super().__init__(path_type=Path)
        self.alone = alone

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The folder, or the path inside the store; what is neither is left for the verb to refuse as a path."""
        path = Path(str(super().convert(value, param, ctx)))
        from kerncast.models.model import is_model

        if is_model(path) or (not self.alone and _is_written(path)):
            return path
        from kerncast.models.store.store import Store

        store = Store.open(None if ctx is None else ctx.meta.get(_META))
        try:
            entry = store.meant(str(value))
        except NotFound as error:
            if ctx is not None and ctx.meta.get(_META) is not None:
                raise NotFound(f"{path} is not a folder, and {error}") from error
            entry = None
        if entry is None:
            _refuse_op(str(value), path)
            return path
        echo(f"model: {entry.id}", err=True)
        return entry.path


def _is_written(path: Path) -> bool:
    from kerncast.app.api.inspect import kind_at

    return path.is_file() or kind_at(path) is not None


def _refuse_op(name: str, path: Path) -> None:
    """Refuse the name of an op in the place of a model, unless it is that of a file."""
    from kerncast.library.registry import OPS

    with contextlib.suppress(NotFound):
        if not path.is_file() and OPS.alone(name):
            raise InvalidValue(
                f"'{name}' is an op, not a model: name a folder or an id (`kerncast models` lists them), or ask all models of "
                f"the op with `kerncast predict {word(name)}`"
            )


LOOKED_UP = {"models": StoredModel(), "models_and_data": StoredModel(alone=False)}
"""What a parameter may name that is looked up here (`Help.names`)."""
