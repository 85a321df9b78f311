"""Models that are computed row by row, in C: roofline, linear, mlp, deep. `x` are the features, `v` the problem's numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import polars as pl

from kerncast.compiling.packaged import packaged
from kerncast.compiling.sealed import Sealed
from kerncast.errors import InvalidValue
from kerncast.learners.contract import Learner
from kerncast.learners.deep import Deep, DeepOptions, layout
from kerncast.learners.linear import Linear, group_columns
from kerncast.learners.mlp import Mlp, Scaling
from kerncast.learners.roofline import Roofline
from kerncast.models.model import Model
from kerncast.writing.c import c_number

Floats = npt.NDArray[np.float64]

PREDICT = "static void kc_learn(const double *x, const double *p, const double *c, const double *v, double *raw) {\n"


def learner_source(model: Model, values: Mapping[str, int], sealed: Sealed) -> tuple[str, int]:
    """C text of `kc_learn`, which fills `raw`, and how many numbers that is.

    `values`: where each number of the problem lies.
    """
    learner = model.learner
    writers: dict[type[Learner], Callable[[], tuple[str, int]]] = {
        Roofline: lambda: _roofline(learner),  # type: ignore[arg-type]
        Linear: lambda: _linear(model, learner, values, sealed),  # type: ignore[arg-type]
        Mlp: lambda: _mlp(learner, sealed),  # type: ignore[arg-type]
        Deep: lambda: _deep(learner, sealed),  # type: ignore[arg-type]
    }
    writer = writers.get(type(learner))
    if writer is None:
        known = ", ".join(["gbdt", *(kind.kind for kind in writers)])
        raise InvalidValue(f"models of kind {model.manifest.kind} cannot be exported (those that can: {known})")
    return writer()


def _roofline(learner: Roofline) -> tuple[str, int]:
    return PREDICT + f"    (void)x, (void)p, (void)c, (void)v;\n    raw[0] = {c_number(learner.level_)};\n}}\n", 1


def _linear(model: Model, learner: Linear, values: Mapping[str, int], sealed: Sealed) -> tuple[str, int]:
    """Lines in the order of their keys, found by binary search; a key that is not there follows the line of all rows."""
    family, columns = model.family, group_columns(model.family)
    pooled = learner.lines_.filter("pooled").row(0, named=True)
    lines = learner.lines_.filter(~pl.col("pooled") & pl.col("slope").is_not_null())
    keys = np.empty((lines.height, len(columns)))
    reads = []
    for place, column in enumerate(columns):
        side, name = column.split(".", 1)
        space = family.problem if side == "problem" else family.config
        parameter = space.parameters[name]
        codes = dict(parameter.codes)
        keys[:, place] = [
            float(parameter.inactive if item is None else codes.get(item, item)) for item in lines[column].to_list()
        ]
        reads.append(f"{'p' if side == 'problem' else 'c'}[{list(space.parameters).index(name)}]")
    order = np.lexsort(keys.T[::-1]) if len(columns) else np.arange(lines.height)
    numbers = lines.select("intercept", "slope", "shortest").to_numpy()[order] if lines.height else np.empty((0, 3))
    size = next((name for name in ("line_size", "roofline_ns", "bytes", "flops") if name in values), None)
    if size is None:
        raise InvalidValue(f"op {family.op.name} declares no line_size and no work: a line needs a size; use another model")
    others = np.array([[float(pooled[name] or 0.0) for name in ("intercept", "slope", "shortest")]])
    width = max(1, len(columns))
    text = sealed.array("double", "kc_line_keys", keys[order].ravel()) + sealed.array(
        "double", "kc_lines", np.concatenate([numbers, others]).ravel()
    )
    text += PREDICT + f"    (void)x, (void)p, (void)c;\n    const double key[{width}] = {{{', '.join(reads) or '0'}}};\n"
    text += f"""    int32_t low = 0, high = {lines.height}, found = {lines.height};
    while (low < high) {{
        const int32_t middle = (low + high) / 2;
        const double *at = kc_line_keys + (ptrdiff_t)middle * {len(columns)};
        int order = 0;
        for (int32_t i = 0; i < {len(columns)} && order == 0; i++) order = key[i] < at[i] ? -1 : key[i] > at[i];
        if (order == 0) found = middle;
        if (order == 0) break;
        if (order < 0) high = middle; else low = middle + 1;
    }}
    const double *line = kc_lines + (ptrdiff_t)found * 3;
    const double time_ns = line[0] + line[1] * v[{values[size]}], least = line[2] / 10.0;
    raw[0] = kc_encode(time_ns > least ? time_ns : least, v);
}}
"""
    return text, 1


def _scaling(scaling: Scaling) -> tuple[str, int]:
    """`kc_scale(x, out)`: the columns that a network reads, and how many."""
    arrays = scaling.arrays
    codes = np.asarray(arrays["codes"])
    lines, column = [], 0
    for place in np.flatnonzero(codes[:, 0] < 0):
        read = f"x[{place}]"
        if np.asarray(arrays["wide"])[place]:
            read = f"log1p({read} > 0.0 ? {read} : 0.0)"
        mean, deviation = (c_number(float(np.asarray(arrays[name])[place])) for name in ("mean", "deviation"))
        lines.append(f"    out[{column}] = kc_clip(({read} - {mean}) / {deviation});")
        column += 1
    for place in np.flatnonzero(codes[:, 0] >= 0):
        for code in codes[place][codes[place] >= 0]:
            lines.append(f"    out[{column}] = x[{place}] == {c_number(float(code))};")
            column += 1
    clip = "static double kc_clip(double x) { return x > 10.0 ? 10.0 : x < -10.0 ? -10.0 : x; }\n"
    body = "\n".join(lines)
    return f"{clip}static void kc_scale(const double *x, double *out) {{\n{body}\n}}\n", column


def _mlp(learner: Mlp, sealed: Sealed) -> tuple[str, int]:
    scale, width = _scaling(learner.scaling_)
    widest = max([width, *(weights.shape[1] for weights, _ in learner.layers_)])
    text = scale + packaged("dense.c")
    body = f"    (void)p, (void)c, (void)v;\n    double a[{widest}], b[{widest}];\n    kc_scale(x, a);\n"
    source, target = "a", "b"
    for number, (weights, bias) in enumerate(learner.layers_):
        text += sealed.array("double", f"kc_weights_{number}", weights.ravel()) + sealed.array(
            "double", f"kc_bias_{number}", bias
        )
        rows, columns = weights.shape
        body += (
            f"    kc_dense({source}, {rows}, kc_weights_{number}, kc_bias_{number}, {columns}, {int(number > 0)}, {target});\n"
        )
        source, target = target, source
    center = [c_number(float(value)) for value in learner.center_]
    return text + PREDICT + body + f"    raw[0] = {source}[0] * {center[1]} + {center[0]};\n}}\n", 1


def _deep(learner: Deep, sealed: Sealed) -> tuple[str, int]:
    assert isinstance(learner.options, DeepOptions)
    scale, width = _scaling(learner.scaling_)
    shape = layout(learner.scaling_, learner.options)
    text = scale + packaged("dense.c")
    for name, weights in learner.weights_.items():
        text += sealed.array("double", f"kc_{name}", np.asarray(weights, np.float64).ravel())
    widest = max([*shape.widths, 8])
    body = [
        "    (void)p, (void)c, (void)v;",
        f"    double in[{width}], a[{widest}], b[{widest}], d[{widest}];",
        "    kc_scale(x, in);",
        f"    kc_dense(in, {shape.plain}, kc_plain, kc_bias, {shape.widths[0]}, 0, a);",
    ]
    for place, (start, stop) in enumerate(shape.categorical):
        size = np.asarray(learner.weights_[f"embedding{place}"]).shape[1]
        body += [
            f"    kc_dense(in + {start}, {stop - start}, kc_embedding{place}, NULL, {size}, 0, b);",
            f"    kc_dense(b, {size}, kc_mixing{place}, NULL, {shape.widths[0]}, 0, d);",
            f"    for (int32_t i = 0; i < {shape.widths[0]}; i++) a[i] += d[i];",
        ]
    for stage, columns in enumerate(shape.widths):
        if stage:
            rows = shape.widths[stage - 1]
            body += [
                f"    kc_dense(a, {rows}, kc_stage{stage}, kc_stage{stage}_bias, {columns}, 1, b);",
                f"    memcpy(a, b, {columns} * sizeof *a);",
            ]
        for block in range(shape.blocks):
            name = f"kc_block{stage}_{block}"
            body += [
                f"    kc_dense(a, {columns}, {name}_in, {name}_in_bias, {columns}, 1, b);",
                f"    kc_dense(b, {columns}, {name}_out, {name}_out_bias, {columns}, 1, d);",
                f"    for (int32_t i = 0; i < {columns}; i++) a[i] += d[i];",
            ]
    outputs = np.asarray(learner.weights_["head"]).shape[1]
    center = [c_number(float(value)) for value in learner.center_]
    body += [
        f"    kc_dense(a, {shape.widths[-1]}, kc_head, kc_head_bias, {outputs}, 1, raw);",
        f"    raw[0] = raw[0] * {center[1]} + {center[0]};",
    ]
    return text + PREDICT + "\n".join(body) + "\n}\n", outputs
