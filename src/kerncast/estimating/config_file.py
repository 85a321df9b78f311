"""Reading a model's `config.json`: the file, or the folder that holds it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerncast.core.io.foreign import JSON, guarded, load_json
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.estimating.decoder import Decoder
from kerncast.estimating.fields import Fields
from kerncast.estimating.reading import decoder_of

CONFIG = "config.json"
# Some quantisers write what they did to a file of their own.
BESIDE = "hf_quant_config.json"
NEXT_STEP = "give the config.json of a Hugging Face model, or the folder that holds it"


def read_decoder(given: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[Decoder, str | None]:
    """The decoder that a config describes, and what its quantisation is called if that is not known.

    `given` is a config.json, the folder that holds one, or what such a file holds.
    """
    if isinstance(given, Mapping):
        return decoder_of(Fields(given, "the config"), _name(given, "model"))
    if not isinstance(given, str | os.PathLike):
        raise InvalidValue(f"`config` is a path or a mapping, got {type(given).__name__}: {NEXT_STEP}")
    path = Path(given)
    file = path / CONFIG if path.is_dir() else path
    if not file.exists():
        raise NotFound(f"there is no {file}: {NEXT_STEP}")
    values = _object(file)
    # Collections of configs put the name of the model before both names.
    beside = file.with_name(f"{file.name.removesuffix(CONFIG)}{BESIDE}")
    quantised = Fields(_object(beside), str(beside)) if file.name.endswith(CONFIG) and beside.is_file() else None
    own = path.name if path.is_dir() else (file.parent.name if file.name == CONFIG else file.stem)
    return decoder_of(Fields(values, str(file)), _name(values, own or path.resolve().name), quantised)


def _object(file: Path) -> Mapping[str, Any]:
    if not file.is_file():  # a pipe would never end
        raise BadFile(f"{file} is not a file: {NEXT_STEP}")
    with guarded(file, NEXT_STEP, "is not JSON"):
        values = load_json(JSON.read(file))
    if not isinstance(values, Mapping):
        raise BadFile(f"{file} holds {type(values).__name__}, not an object: {NEXT_STEP}")
    return values


def _name(values: Mapping[str, Any], otherwise: str) -> str:
    stated = values.get("_name_or_path")
    return (stated if isinstance(stated, str) and stated else otherwise)[:200]
