"""The sources of the runtime: `kerncast_runtime.c` and `.h`, the same for every model."""

from __future__ import annotations

import re

from kerncast.compiling.blob.bytecode import OPERATIONS
from kerncast.compiling.blob.container import VERSION
from kerncast.compiling.blob.lifting import chosen, functions, lifted, replaced, rows_of, without_functions
from kerncast.compiling.blob.sections import FACTS, MOST, NUMBERS
from kerncast.compiling.c99 import MEMO
from kerncast.compiling.c_forest import MOST_SETS
from kerncast.compiling.header import MESSAGE_BYTES, MOST_PINS, enumerations
from kerncast.compiling.packaged import packaged as engine
from kerncast.expr.to_c import prelude
from kerncast.learners.gbdt import BEHIND, LIKELY_TO_FAIL
from kerncast.learners.target import LEAST_RATE
from kerncast.models.answer import fallback_words
from kerncast.models.limits.widening import ABSENT
from kerncast.models.statuses import C_STATUSES
from kerncast.models.tier import C_TIERS
from kerncast.tables.off_grid import MOST_ALIGNED
from kerncast.writing.c import c_integer, c_number, c_string, define, filled, packaged_c

# Functions that the engine calls and an artefact generates: the runtime's own take a context too.
GENERATED = (
    "kc_problem_values", "kc_features", "kc_tree_values", "kc_size", "kc_compared_problem", "kc_compared_mixed",
    "kc_broken_rule", "kc_unsupported", "kc_broken_config_rule", "kc_config_valid", "kc_problem_applies", "kc_config_applies",
    "kc_problem_usual", "kc_config_usual", "kc_decode", "kc_encode", "kc_log_time", "kc_combine", "kc_bounds", "kc_fails",
    "kc_learn", "kc_time", "kc_portfolio_score", "kc_full_score", "kc_quick_score", "kc_mask", "kc_line_time",
)  # fmt: skip
OPERANDS = {"where": 3, **dict.fromkeys(("abs", "floor", "ceil", "sqrt", "log2", "log1p", "not", "index", "fetch"), 1)}
# What contexts and models do themselves here.
OWN = ("kerncast_context_bytes", "kerncast_init_checked", "kerncast_create_checked", "kerncast_schema", "kerncast_model")
KEY = "(size_t)KC_PROBLEM * sizeof(int64_t)"
INCLUDES = engine("begin.c").split("\n", 1)[1]


def runtime_source(prefix: str = "kerncast") -> str:
    """The text of `PREFIX_runtime.c`."""
    head = "typedef int64_t kerncast_problem;\ntypedef int64_t kerncast_config;\n"
    return named(f'#include "@PREFIX@_runtime.h"\n{INCLUDES}{head}{common(embedded=False)}{own_file("public.c")}', prefix)


def named(text: str, prefix: str) -> str:
    """Text of this package and of the engine under a prefix."""
    names = {"status_names": C_STATUSES, "tier_names": C_TIERS}
    return filled(text, prefix, **{name: ", ".join(map(c_string, found)) for name, found in names.items()})


def common(embedded: bool, before: str = "") -> str:
    """What the runtime and a file with its own model have in common."""
    alone = "kc_own_memory *memory"
    sections = [
        prelude(),
        _sizes() + before,
        engine("spaces.c"), engine("trait.c"), _memo(), engine("forest.c"), engine("lanes.c"),
        own_file(
            "model.c", facts=_enum("FACT", FACTS), numbers=_enum("NUMBER", NUMBERS), operations=_enum("OP", OPERATIONS),
            fallback_library=c_string(fallback_words("library")), fallback_best=c_string(fallback_words("portfolio")),
        ),
        f"{own_file('alone.c')}static const kerncast_context *kc_alone({alone});\n" if embedded else "",
        own_file("programs.c"),
        packaged_c("kerncast.learners", "clip.c"), packaged_c("kerncast.learners", "dense.c"),
        _lines(),
        own_file("learners.c", least_rate=c_number(LEAST_RATE), likely_to_fail=c_number(LIKELY_TO_FAIL),
                 behind=c_number(BEHIND)),
        _rows(),
        _answers(),
        _pool(narrow=True), _pool(narrow=False), _each(),
        own_file("pools.c"),
        _engine(embedded),
        own_file("loading.c", operands=", ".join(str(OPERANDS.get(name, 2)) for name in OPERATIONS)),
        own_file("loading_trees.c", most_sets=str(MOST_SETS)),
        own_file("contexts.c"),
    ]  # fmt: skip
    return "".join(sections)


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


def own_file(name: str, **blocks: str) -> str:
    """A file of this package, its blocks filled in; the prefix comes at the end."""
    text = packaged_c(__package__, name)
    for block, value in blocks.items():
        text = text.replace(f"@{block.upper()}@", value)
    return text


def _enum(kind: str, names: tuple[str, ...]) -> str:
    return ", ".join(f"KC_{kind}_{name.upper()}" for name in names)


def _sizes() -> str:
    sizes = {f"KC_MOST_{name.upper()}": value for name, value in MOST.items() if name != "programs"}
    return define(
        **sizes, KC_MEMO=MEMO, KC_MOST_PINS=MOST_PINS, KC_MOST_ALIGNED=MOST_ALIGNED, KC_ABSENT=f"({c_integer(ABSENT)})",
        KC_BLOB_VERSION=VERSION, KC_BLOB_VERSION_TEXT=c_string(str(VERSION)),
    )  # fmt: skip


def _memo() -> str:
    return engine("memo.c").replace("[KC_PROBLEM]", "[KC_MOST_PARAMETERS]")


def _lines() -> str:
    return lifted(packaged_c("kerncast.learners", "lines.c"), GENERATED)


def _rows() -> str:
    """What is computed for one config with all its features."""
    holds = {"unsigned char holds[KC_MODEL_CONDITIONS];": "unsigned char *const holds = kc->holds;"}
    walk = replaced(engine("walk.c"), holds).replace("static void kc_learn(", "static void kc_forests(")
    timed = replaced(engine("walked_time.c"), holds).replace("static double kc_time(", "static double kc_walked_time(")
    timed = "".join(line for line in timed.splitlines(keepends=True) if not line.startswith("#define"))
    row = engine("row.c") + engine("row_time.c").replace("static double kc_time(", "static double kc_row_time(")
    text = walk + row + timed + (
        "static double kc_time(const double *p, const double *c) {\n"
        "    return kc->m.kind == KC_GBDT ? kc_walked_time(p, c) : kc_row_time(p, c);\n}\n\n"
    ) + replaced(engine("runs.c"), holds)  # fmt: skip
    return lifted(text, GENERATED)


def _answers() -> str:
    """Names, configs, rarity, and which candidates fit a problem."""
    labels = replaced(engine("labels.c"), {"kc_label_texts[text]": "kc->m.text + text"})
    numbers = {
        "const kc_config_number stored = kc_configs[": "return kc->m.configs[",
        "    return stored == KC_CONFIG_MISSING ? KERNCAST_MISSING : (int64_t)stored;\n": "",
    }
    text = labels + replaced(engine("configs.c"), numbers) + engine("rarity.c") + engine("fits.c")
    return lifted(text, GENERATED)


def _pool(narrow: bool) -> str:
    """The pool with trees: sets of one word (narrow) or several."""
    text = chosen(engine("pool.c"), {"KC_POOL_WORDS == 1": narrow, "KC_POOL_SCREENS": not narrow})
    words, sums = "(size_t)KC_POOL_WORDS * sizeof(uint64_t)", "(size_t)KC_TREES_FORESTS * KC_POOL_WORDS * 64"
    changes = {
        "kc_pool_state *state = &context->pool;": "kc_pool_state *state = pool->state;",
        "kc_trees_compute[g](value, group->values, group->count, out);": "kc_compute(kc, pool, g, value, out);",
        "uint64_t tried[KC_POOL_WORDS] = {0};": f"uint64_t *const tried = state->tried_here;\n    memset(tried, 0, {words});",
        "kc_trees_fails(raw)": "kc_trees_fails(kc, pool, raw)",
        "kc_trees_result(value,": "kc_trees_result(kc, pool, value,",
        "sizeof state->there": words, "sizeof state->valid": words, "sizeof state->sums": f"{sums} * sizeof(double)",
        "state->condition": "state->words_of" if narrow else "state->rows_of",
    }  # fmt: skip
    if not narrow:
        changes |= {
            "kc_trees_id row_of_bin[KC_TREES_MOST_THRESHOLDS + 1];": "kc_trees_id *const row_of_bin = state->row_of_bin;",
            "kc_trees_id bin_of[KC_POOL_MOST_COMBINATIONS];": "kc_trees_id *const bin_of = state->bin_of;",
            "if (best_only) kc_pool_screen": "if (best_only && KC_POOL_SCREENS) kc_pool_screen",
            "sizeof state->rows[0]": words, "sizeof state->rough": f"{sums} * sizeof(int32_t)",
        }  # fmt: skip
    text = replaced(text, changes)
    text = rows_of(text, {
        **dict.fromkeys(("rows", "bits", "sets", "tried"), "KC_POOL_WORDS"),
        **dict.fromkeys(("sums", "rough"), "(KC_POOL_WORDS * 64)"),
    })  # fmt: skip
    kind = "narrow" if narrow else "wide"
    for name in functions(text):
        text = re.sub(rf"\b{name}\b", name.replace("kc_pool_", f"kc_{kind}_"), text)
    size = "#undef KC_POOL_WORDS\n" + define(KC_POOL_WORDS="1" if narrow else "(pool->words)")
    return size + lifted(text, (*GENERATED, "kc_within"), pool=True)


def _each() -> str:
    """The pool of a model that is computed config by config."""
    text = engine("rows.c").replace("kc_pool_score", "kc_each_score")
    return lifted(text, (*GENERATED, "kc_config_numbers", "kc_within", "kc_row_of"), pool=True)


def _engine(embedded: bool) -> str:
    """Reading problems, answers, the memo, pins, the tree, the public functions."""
    answering = chosen(engine("engine.c"), {"KC_TREE_ALONE": False})
    text = replaced(without_functions(answering, OWN), {
        "int (*applies)(int32_t, const double *)": "int (*applies)(const kerncast_context *, int32_t, const double *)",
        "int (*usual)(int32_t, const double *, int64_t)":
            "int (*usual)(const kerncast_context *, int32_t, const double *, int64_t)",
        "!applies(i, numbers)": "!applies(kc, i, numbers)",
        "usual(i, numbers, value)": "usual(kc, i, numbers, value)",
        "sizeof places[i].key": KEY, "sizeof place->key": KEY,
        "sizeof answer->config": "(size_t)KC_CONFIG * sizeof(int64_t)",
        "capacity < KC_FEATURES": "capacity < (size_t)KC_FEATURES",
    })  # fmt: skip
    overrides = replaced(engine("overrides.c"), {
        "sizeof context->available": "(size_t)KC_CANDIDATES",
        "sizeof context->pin[i].key": KEY, "sizeof context->pin[kept].key": KEY,
        "count != KC_CANDIDATES": "count != (size_t)KC_CANDIDATES",
    })  # fmt: skip
    others = (
        "kc_config_value",
        "kc_config_numbers",
        "kc_within",
        "kc_fits",
        "kc_label_of",
        "kc_interval_of",
        "kc_row",
        "kc_runs",
    )
    both = engine("comparing.c") + text + overrides
    return lifted(both, (*GENERATED, *others), embedded=embedded)
