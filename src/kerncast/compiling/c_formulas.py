"""From a model's outputs to times and scores, in C: targets, the blend of forests, and bounds from rounded sums."""

from __future__ import annotations

from kerncast.compiling.c_forest import ForestPlan
from kerncast.compiling.forest import Forests
from kerncast.learners.gbdt import BEHIND, LIKELY_TO_FAIL, Gbdt, GbdtOptions
from kerncast.learners.target import LEAST_RATE, Target
from kerncast.writing.c import c_number, define


def target_functions(target: Target, base: str) -> str:
    """`kc_decode` (to nanoseconds), `kc_encode` (back) and `kc_log_time` (the score), as in `learners.target`."""
    least = c_number(LEAST_RATE)
    if target.higher_is_faster:
        rate = "expm1(target)" if target.log else "target"
        decode = f"    const double rate = {rate};\n    return {base} / (rate > {least} ? rate : {least});\n"
        encode = f"    return {'log1p' if target.log else ''}({base} / time_ns);\n"
    else:
        decode = f"    const double time_ns = {'exp(target)' if target.log else 'target'} * {base};\n"
        decode += "    return time_ns > 1e-3 ? time_ns : 1e-3;\n"
        encode = f"    return {'log' if target.log else ''}(time_ns / {base});\n"
    direct = target.log and not target.higher_is_faster
    log_time = "    return target;\n" if direct else "    return log(kc_decode(target, v));\n"
    text = ""
    for name, argument, body in (("decode", "target", decode), ("encode", "time_ns", encode), ("log_time", "target", log_time)):
        text += f"static inline double kc_{name}(double {argument}, const double *v) {{\n    (void)v;\n{body}}}\n"
    return text


def rough_bounds(learner: Gbdt, plan: ForestPlan) -> str:
    """`kc_bounds`: the bounds of the score, from forests that are off by at most `rough_error`."""
    assert isinstance(learner.options, GbdtOptions)
    means, error = _bag_means(plan.forests), plan.rough_error()
    own, weight = 1.0, 0.0
    if "rank" in means:
        assert learner.options.blend is not None
        own, weight = 1.0 - learner.options.blend, learner.options.blend * learner.options.temperature
    value = f"{c_number(own)} * {means['time']}" + (f" - {c_number(weight)} * {means['rank']}" if "rank" in means else "")
    value += f" + {means['library']}" if "library" in means else ""
    off = (own + weight + ("library" in means)) * error
    lines = [f"    const double value = {value};"]
    lines += [f"    *low = value - {c_number(off)};", f"    *high = value + {c_number(off)};"]
    if "valid" in means:
        lines.append(f"    if ({means['valid']} < {c_number(LIKELY_TO_FAIL - error)}) *low += {c_number(BEHIND)};")
        lines.append(f"    if ({means['valid']} < {c_number(LIKELY_TO_FAIL + error)}) *high += {c_number(BEHIND)};")
    body = "\n".join(lines)
    scale = define(KC_ROUGH_SCALE=c_number(plan.rough_scale()))
    return f"{scale}static void kc_bounds(const double *raw, double *low, double *high) {{\n{body}\n}}\n"


def _bag_means(forests: Forests) -> dict[str, str]:
    """C text of each forest's sum; forests of one name are averaged over their bags."""
    first, means = 0, {}
    for name, bags in forests.trees.items():
        total = " + ".join(f"raw[{first + bag}]" for bag in range(len(bags)))
        means[name] = total if len(bags) == 1 else f"(({total}) / {c_number(float(len(bags)))})"
        first += len(bags)
    return means


def failing(forests: Forests | None) -> str:
    """`kc_fails`: whether the forest for failures expects one; never if there is none."""
    trees = {} if forests is None else forests.trees
    names = list(trees)
    known = "valid" in trees
    first = sum(len(trees[name]) for name in names[: names.index("valid")]) if known else 0
    text = define(KC_FAILURE_FORESTS=len(trees["valid"]) if known else 0, KC_FIRST_FAILURE_FOREST=first)
    test = f"{_bag_means(forests)['valid']} < {c_number(LIKELY_TO_FAIL)}" if forests is not None and known else "0"
    return text + f"static inline int kc_fails(const double *raw) {{\n    (void)raw;\n    return {test};\n}}\n"


def gbdt_combine(learner: Gbdt, forests: Forests) -> str:
    """`Gbdt.combine` in C."""
    assert isinstance(learner.options, GbdtOptions)
    means = _bag_means(forests)
    if set(means) == {"time"}:
        return "    *score = *time_ns;\n"
    lines = [f"    double value = kc_log_time({means['time']}, v);"]
    if "rank" in means:
        assert learner.options.blend is not None
        own, weight = 1.0 - learner.options.blend, learner.options.blend * learner.options.temperature
        lines.append(f"    value = {c_number(own)} * value - {c_number(weight)} * {means['rank']};")
    if "library" in means:
        lines.append(f"    value = value + {means['library']};")
    if "valid" in means:
        lines.append(f"    value = value + ({means['valid']} < {c_number(LIKELY_TO_FAIL)} ? {c_number(BEHIND)} : 0.0);")
    return "\n".join([*lines, "    *score = value;"]) + "\n"
