"""The sources of the runtime: `kerncast_runtime.c` and `.h`, the same for every model.

It is the engine of `compiling/c/` over a model that is loaded; an interpreter computes what generated code computes for one
that is compiled in.
"""

from __future__ import annotations

from kerncast.core.expr.to_c import prelude
from kerncast.core.io.c import c_string, define, filled, packaged_c, with_prefix
from kerncast.models.answer import fallback_words
from kerncast.native.blob.bytecode import OPERATIONS
from kerncast.native.blob.container import VERSION
from kerncast.native.blob.sections import FACTS, MOST, NUMBERS
from kerncast.native.c99 import common_sizes, engine, formulas
from kerncast.native.c_forest import MOST_SETS
from kerncast.native.header import MESSAGE_BYTES, MOST_PINS, enumerations
from kerncast.native.packaged import packaged as engine_file

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
    "kerncast_problem": "int64_t", "kerncast_config": "int64_t", "kc_id": "uint16_t", "kc_child": "int16_t",
    "kc_member": "uint16_t", "kc_config_number": "int64_t", "kc_band": "int32_t", "kc_place": "int32_t",
    "kc_comparing_id": "int32_t",
}  # fmt: skip


def runtime_source(prefix: str = "kerncast") -> str:
    """The text of `PREFIX_runtime.c`."""
    blocks = {
        "facts": _enum("FACT", FACTS), "numbers": _enum("NUMBER", NUMBERS), "operations": _enum("OP", OPERATIONS),
        "operands": ", ".join(str(OPERANDS.get(name, 2)) for name in OPERATIONS), "most_sets": str(MOST_SETS),
        "fallback_library": c_string(fallback_words("library")), "fallback_best": c_string(fallback_words("portfolio")),
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
        enumerations=enumerations(prefix),
        message_bytes=str(MESSAGE_BYTES),
        most_parameters=str(MOST["parameters"]),
        most_pins=f"{MOST_PINS:,}",
    )


def _enum(kind: str, names: tuple[str, ...]) -> str:
    return ", ".join(f"KC_{kind}_{name.upper()}" for name in names)
