"""MODEL on the command line: a folder, or a model of the store by its id or a unique part of it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from kerncast.app.api.printing import echo
from kerncast.core.io.quoting import word
from kerncast.errors import InvalidValue, NotFound

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
