"""What a learner computes as C: the function `kc_learn`, for those that are no forests."""

from __future__ import annotations

import numpy as np

from kerncast.core.io.c import c_number, packaged_c
from kerncast.learning.learners.contract import ADD, DENSE, RAW, CScope, CSource, Level, Lines, Network, learn_function

LEARNERS = "kerncast.learning.learners"
BUFFERS = ("in", "a", "b", "d", "raw")


def written(lowered: Level | Lines | Network, scope: CScope) -> CSource:
    """The C of a learner that is lowered."""
    match lowered:
        case Level():
            return CSource(learn_function(f"    raw[0] = {c_number(lowered.value)};\n"))
        case Lines():
            return _lines(lowered, scope)
        case Network():
            return _network(lowered, scope)


def _lines(lines: Lines, scope: CScope) -> CSource:
    problems = len(scope.family.problem.parameters)
    text = scope.sealed.array("double", "kc_line_keys", lines.keys.ravel())
    text += scope.sealed.array("double", "kc_lines", lines.lines.ravel())
    reads = [f"p[{place}]" if place < problems else f"c[{place - problems}]" for place in lines.reads]
    body = f"    const double key[{max(1, len(reads))}] = {{{', '.join(reads) or '0'}}};\n"
    sizes, size = f"{len(lines.keys)}, {len(lines.reads)}", f"v[{scope.values[lines.size]}]"
    body += f"    raw[0] = kc_encode(kc_line_time(kc_line_keys, kc_lines, {sizes}, key, {size}), v);\n"
    return CSource(text + packaged_c(LEARNERS, "lines.c") + learn_function(body))


def _network(network: Network, scope: CScope) -> CSource:
    text, width = network.scaling.in_c()
    text += scope.sealed.array("double", "kc_weights", network.weights)
    body, widest = [], {0: width}
    for operation, source, offset, rows, first, bias, columns, rectify, target in network.steps:
        given, result = BUFFERS[source] + (f" + {offset}" if offset else ""), BUFFERS[target]
        if operation == DENSE:
            shift = "NULL" if bias < 0 else f"kc_weights + {bias}"
            body.append(f"kc_dense({given}, {rows}, kc_weights + {first}, {shift}, {columns}, {rectify}, {result});")
        else:
            body.append(f"for (int32_t i = 0; i < {columns}; i++) {result}[i] {'+=' if operation == ADD else '='} {given}[i];")
        widest[target] = max(widest.get(target, 0), columns)
    buffers = [f"{BUFFERS[number]}[{size}]" for number, size in sorted(widest.items()) if number != RAW]
    body = [f"double {', '.join(buffers)};", "kc_scale(x, in);", *body]
    body.append(f"raw[0] = raw[0] * {c_number(network.spread)} + {c_number(network.middle)};")
    function = learn_function("".join(f"    {line}\n" for line in body))
    if network.blend is None:
        return CSource(text + function)
    own, other = (c_number(share) for share in network.blend)
    return CSource(text + function, network.outputs, f"{own} * kc_log_time(raw[0], v) + {other} * raw[1]")


def scaling_columns(network: Network) -> tuple[np.ndarray, np.ndarray, list[tuple[int, float]]]:
    """What a network reads: (feature, in log space), means and deviations; and (feature, code) of each column for a label."""
    arrays = network.scaling.arrays
    codes, wide = np.asarray(arrays["codes"]), np.asarray(arrays["wide"])
    plain, labelled = np.flatnonzero(codes[:, 0] < 0), np.flatnonzero(codes[:, 0] >= 0)
    coded = [(int(place), float(code)) for place in labelled for code in codes[place][codes[place] >= 0]]
    spread = np.column_stack([np.asarray(arrays[name])[plain] for name in ("mean", "deviation")])
    return np.column_stack([plain, wide[plain]]), spread, coded
