"""C with the tables of a blob in it, packed: a quarter of the source that generated C has, for the same header."""

from __future__ import annotations

import zlib

import numpy as np

from kerncast.compiling.blob.container import unpacked
from kerncast.compiling.blob.runtime import INCLUDES, common, named, own_file
from kerncast.compiling.blob.sections import blob
from kerncast.compiling.lower import Artefact
from kerncast.compiling.query import query_source
from kerncast.compiling.request import identity_of
from kerncast.writing.c import c_lines, define, with_prefix


def tables_source(artefact: Artefact, prefix: str) -> str:
    """The text of `PREFIX.c`, for the same header as the C that is generated."""
    family, data = artefact.model.family, blob(artefact)
    asked = query_source(prefix, family.problem, family.config, identity_of(artefact.model))
    head = f'#include "@PREFIX@.h"\n{INCLUDES}{common(embedded=True, before=_sizes_alone(data))}'
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    small = packed.compress(data) + packed.flush()
    text = define(KC_BLOB_BYTES=f"((size_t){len(data)})", KC_PACKED_BYTES=f"((size_t){len(small)})") + c_lines("kc_text", small)
    return named(head + own_file("inflate.c"), prefix) + text + with_prefix(own_file("embedded.c"), prefix) + asked


def _sizes_alone(data: bytes) -> str:
    """The memory of functions without a context, as the runtime's loader counts it."""
    tables = unpacked(data, "the model")
    programs, steps = tables["program.numbers"].reshape(-1, 8), tables.get("network.steps", np.zeros(0)).reshape(-1, 9)
    inputs = tables.get("scaling.plain", np.zeros(0)).size // 2 + tables.get("scaling.coded", np.zeros(0)).size
    widest = max([inputs + 1, *(int(max(step[2] + max(step[3], step[6]), step[6])) for step in steps)])
    return define(
        KC_ALONE_REGISTERS=int(programs[:, [1, 3, 5]].sum(axis=1).max()) + 1,
        KC_ALONE_HOLDS=tables["model.thresholds"].size + 1 if "model.thresholds" in tables else 1,
        KC_ALONE_LAYER=4 * widest + 1,
    )
