"""The runtime of blobs, the same for every model: its sources `kerncast_runtime.c` and `.h`, and how Python calls it.

It is the engine of `native/c/` over a model that is loaded; an interpreter computes what generated code computes for one
that is compiled in.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

from kerncast.core.expr.to_c import prelude
from kerncast.core.io.artefact import is_intact
from kerncast.core.io.quoting import c_string, define, filled, packaged_c, with_prefix
from kerncast.errors import BadFile
from kerncast.measuring.backends.cpu.build import find_compiler, instruction_set
from kerncast.models.answer import Tier, fallback_words
from kerncast.native import packaged as engine_file
from kerncast.native.binding import Binding
from kerncast.native.blob.container import OPERATIONS, VERSION
from kerncast.native.blob.sections import FACTS, MOST, NUMBERS
from kerncast.native.build import FLAGS, build, folder_for
from kerncast.native.c99 import common_sizes, engine, formulas
from kerncast.native.c_forest import MOST_SETS
from kerncast.native.header import MESSAGE_BYTES, calls, enumerations

OPERANDS = {"where": 3, **dict.fromkeys(("abs", "floor", "ceil", "sqrt", "log2", "log1p", "not", "index", "fetch"), 1)}
# Largest sizes and widths of numbers. All parts of the engine are there.
SIZES: dict[str, int | str] = {
    **common_sizes(), "KC_LOADED": 1, "KC_ALONE": 0, "KC_MOST_PARAMETERS": MOST["parameters"], "KC_MOST_DEPTH": 1024,
    **dict.fromkeys(("KC_MOST_PROBLEM", "KC_MOST_CONFIG"), "KC_MOST_PARAMETERS"), "KC_MOST_VALUES": MOST["values"],
    "KC_MOST_COMPARED_VALUES": "KC_MOST_VALUES", "KC_MOST_FEATURES": MOST["features"],
    "KC_MOST_TREE_FEATURES": "KC_MOST_FEATURES", "KC_MOST_RAW": MOST["raw"], "KC_MOST_COMPARED": MOST["listed"],
    **dict.fromkeys(("KC_WITH_FORESTS", "KC_WITH_ROWS", "KC_WITH_TREE", "KC_WITH_COMPARING"), 1),
    "KC_CONFIG_MISSING": "KERNCAST_MISSING", "KC_HOLDS(m, name)": "unsigned char *const name = (m)->loaded.holds",
    "KC_BLOB_VERSION": VERSION, "KC_BLOB_VERSION_TEXT": c_string(str(VERSION)),
}  # fmt: skip
TYPES = {
    "kc_id": "uint16_t", "kc_child": "int16_t",
    "kc_member": "uint16_t", "kc_config_number": "int64_t", "kc_band": "int32_t", "kc_place": "int32_t",
    "kc_comparing_id": "int32_t",
}  # fmt: skip


def runtime_source(prefix: str = "kerncast") -> str:
    """The text of `PREFIX_runtime.c`."""
    blocks = {
        "facts": _enum("FACT", FACTS), "numbers": _enum("NUMBER", NUMBERS), "operations": _enum("OP", OPERATIONS),
        "operands": ", ".join(str(OPERANDS.get(name, 2)) for name in OPERATIONS), "most_sets": str(MOST_SETS),
        "fallback_library": c_string(fallback_words("library")), "fallback_best": c_string(fallback_words(Tier.PORTFOLIO)),
    }  # fmt: skip

    def own(name: str) -> str:
        return filled(packaged_c(__package__, name), prefix, **blocks)

    types = "".join(f"typedef {kind} {name};\n" for name, kind in TYPES.items())
    lines = "".join(packaged_c("kerncast.learning.learners", name) for name in ("clip.c", "dense.c", "lines.c"))
    return "".join([
        f'#include "{prefix}_runtime.h"\n', engine_file("begin.c").split("\n", 1)[1], prelude(),
        with_prefix(define(**SIZES) + types, prefix), own("loaded.h"), with_prefix(engine_file("model.h"), prefix), formulas(),
        own("programs.c"), lines, own("learners.c"), engine(prefix), own("loading.c"), own("loading_trees.c"), own("public.c"),
    ])  # fmt: skip


def runtime_header(prefix: str = "kerncast") -> str:
    """The text of `PREFIX_runtime.h`."""
    return filled(
        packaged_c(__package__, "runtime.h"),
        prefix,
        enumerations=enumerations(prefix, f"int64_t config[{prefix.upper()}_MOST_PARAMETERS];"),
        most_parameters=str(MOST["parameters"]),
        calls=calls(prefix),
    )


def _enum(kind: str, names: tuple[str, ...]) -> str:
    return ", ".join(f"KC_{kind}_{name.upper()}" for name in names)


LONGEST_MESSAGE = 4 * MESSAGE_BYTES


def compiled_runtime() -> Path | None:
    """The runtime as a shared object, compiled once; None if there is no compiler."""
    compiler = find_compiler()
    if compiler is None:
        return None
    made = folder_for("runtime", compiler.path, compiler.version, *FLAGS, instruction_set()) / "artefact.so"
    if not is_intact(made):
        build(compiler, FLAGS, runtime_source(), runtime_header(), made, "kerncast_runtime")
    return made


class BlobBinding(Binding):
    """One loaded model with one context; threads take turns. The runtime checks the bytes before it uses them."""

    def __init__(self, library: Path, data: bytes, what: str, prefix: str = "kerncast") -> None:
        self._data, self._what = data, what
        self._model = ctypes.c_void_p()
        self._open(library, prefix)
        said = ctypes.create_string_buffer(LONGEST_MESSAGE)
        if self._function("load")(data, len(data), ctypes.byref(self._model), said, len(said)):
            raise BadFile(f"{what}: {said.value.decode('utf-8', 'replace')}")
        context = ctypes.c_void_p()
        if self._function("create")(self._model, ctypes.byref(context)):
            raise BadFile(f"{what}: there is not enough memory to answer with this model")
        self._begin(context, self._function("parameters")(self._model, 0), MOST["parameters"])
        self.candidates = int(self._function("candidates")(context))

    def _shapes(self) -> dict[str, tuple[list[Any], Any]]:
        pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
        shapes = {name: shape for name, shape in super()._shapes().items() if name not in ("create_checked", "query_json")}
        return shapes | {
            "load": ([ctypes.c_char_p, size, pointer, pointer, size], number),
            "unload": ([pointer], None),
            "create": ([pointer, pointer], number),
            "parameters": ([pointer, number], ctypes.c_int32),
            "self_test": ([pointer, pointer, pointer, size], number),
            "describe": ([pointer], ctypes.c_char_p),
            "predict": ([pointer, pointer, pointer, pointer], number),
            "features": ([pointer, pointer, pointer, pointer, size], number),
            "candidates": ([pointer], ctypes.c_int32),
        }

    def _stateless(self, name: str, *arguments: Any) -> int:
        return int(self._function(name)(self._context, *arguments))

    def self_test(self) -> int:
        """How many golden vectors it has; a `BadFile` says which of them is answered differently here."""
        checked, said = ctypes.c_int32(), ctypes.create_string_buffer(LONGEST_MESSAGE)
        if self._function("self_test")(self._model, ctypes.byref(checked), said, len(said)):
            raise BadFile(f"{self._what}: {said.value.decode('utf-8', 'replace')}")
        return checked.value

    def describe(self) -> dict[str, Any]:
        """Family, device, kind and checksum of the model."""
        return dict(json.loads(self._function("describe")(self._model)))

    def close(self) -> None:
        """Free the context and the model."""
        super().close()
        if self._model:
            self._function("unload")(self._model)
            self._model = ctypes.c_void_p()
