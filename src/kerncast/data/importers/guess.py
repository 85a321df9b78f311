"""Draft a mapping file by guessing which column is which parameter. The user has to check the draft.

A column is recognised by its name or, for dtypes and devices, by what it holds. An op is proposed only if the table has all
the sizes that it needs. What stays open is marked `?`; a draft without that mark can be imported as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

import polars as pl

from kerncast import devices, dtypes
from kerncast.data.importers import listed
from kerncast.data.importers.mapped import NANOSECONDS, OPEN, OUTCOMES, OWN_FAMILY
from kerncast.data.schema import Status
from kerncast.data.text_table import LINE
from kerncast.errors import InvalidValue
from kerncast.op import Family
from kerncast.parameters import Bool, Categorical, Parameter
from kerncast.registry import FAMILIES
from kerncast.writing import toml

_TIME_WORDS = ("time", "latency", "duration", "feedback", "runtime", "elapsed")
# Columns beside the time that have its name in theirs.
_NOT_THE_TIME = {
    "std",
    "stddev",
    "stdev",
    "var",
    "variance",
    "min",
    "max",
    "p90",
    "p95",
    "p99",
    "cv",
    "err",
    "timeout",
    "timestamp",
}
_UNITS = {
    **{unit: unit for unit in NANOSECONDS},
    "nanoseconds": "ns",
    "nsec": "ns",
    "microseconds": "us",
    "usec": "us",
    "µs": "us",
    "milliseconds": "ms",
    "msec": "ms",
    "seconds": "s",
    "sec": "s",
}
_FILLERS = ("size", "dim", "num", "param", "problem", "config")
_DEVICE_WORDS = {"gpu", "device", "hardware", "accelerator", "card", "arch", "machine"}
_OUTCOME_WORDS = {"valid", "validity", "status", "success", "ok", "pass", "passed", "correct", "outcome", "verified", "failed"}
# Usual names of sizes that a family calls otherwise.
_SYNONYMS = {"Hi": ("h", "height"), "Wi": ("w", "width"), "Y": ("kh", "filterh"), "X": ("kw", "filterw")}
# A product without a column for its layout is drafted as one of row-major matrices, and the draft says so.
_ASSUMED = {"layout": ("rrr", "no column says it; assumed: all matrices by rows, as numpy has them")}
# A table with more different cells than this in a column does not hold labels.
_MOST_LABELS = 32
# A column is judged by most of its cells: an import skips odd rows, and refuses a table only if more than half of it is odd.
_FITTING = 0.5
# Labels that nobody knows are asked about, unless they are as rare as this: then their rows are odd.
_ODD = 0.01


@lru_cache(maxsize=100_000)
def _words(name: str) -> tuple[str, ...]:
    """The words of a column's name; `latencyMs` has two."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", " ", name)
    return tuple(word for word in re.split(r"[^a-z0-9µ]+", parted.lower()) if word)


def _plain(name: str) -> str:
    """A column name without case, punctuation and filler words."""
    return "".join(word for word in _words(name) if word not in _FILLERS)


def _labels(cells: pl.Series) -> list[str]:
    """The different texts in a column, sorted; none if there are too many to be labels."""
    texts = cells.cast(pl.String).drop_nulls().unique()
    found = sorted(text for text in texts.to_list() if text != "") if texts.len() <= _MOST_LABELS else []
    # A boolean of a parquet file reads as in TOML.
    return [text.lower() for text in found] if cells.dtype == pl.Boolean else found


def _asked(meant: Mapping[str, str | None], cells: pl.Series) -> dict[str, str]:
    """Labels with their meanings, `?` for those that nobody knows; without these if they are odd cells."""
    unknown = [text for text, meaning in meant.items() if meaning is None]
    odd = cells.cast(pl.String).is_in(unknown).sum() <= _ODD * cells.len()
    return {text: meaning or OPEN for text, meaning in meant.items() if meaning or not odd}


def guess_time(columns: Iterable[str]) -> tuple[str, str] | None:
    """The column that looks like the label, and its unit ('?' when the name does not say)."""
    names = [name for name in columns if not set(_words(name)) & _NOT_THE_TIME]
    for word in _TIME_WORDS:
        for name in names:
            words = _words(name)
            if any(word in part for part in words):
                units = {_UNITS[part] for part in words if part in _UNITS}
                return name, units.pop() if len(units) == 1 else OPEN
    # A column named after a unit, such as `us`, is a time too.
    return next(((name, _UNITS[name.lower()]) for name in names if name.lower() in _UNITS), None)


def _translations(parameter: Parameter, cells: pl.Series) -> dict[str, str]:
    """What the labels of a column mean, where that is not what they say; `?` where nobody knows."""
    if not isinstance(parameter, Categorical):
        return {}
    known = {label: label for label, _ in parameter.labels}
    folded = {label.lower(): label for label in known}
    spelled = dtypes.spellings_of(parameter)
    meant = {text: known.get(text) or spelled(text) or folded.get(text.lower()) for text in _labels(cells)}
    found = _asked(meant, cells)
    # An import knows the spellings of dtypes by itself.
    needed = any(meaning not in (text, spelled(text)) for text, meaning in found.items())
    return found if needed else {}


def _fits(parameter: Parameter, cells: pl.Series) -> bool:
    """Whether a column can hold the values of a parameter; any labels can be translated."""
    if isinstance(parameter, Categorical | Bool):
        return True
    texts = cells.cast(pl.String).drop_nulls()
    whole = texts.filter(texts != "").str.contains(r"^-?\d+(\.0+)?$")
    return whole.sum() >= _FITTING * whole.len()


def _holds(cells: pl.Series, labels: Iterable[str], meaning: Callable[[str], object]) -> bool:
    """Whether most cells of a column are labels that are known."""
    known = [text for text in labels if meaning(text)]
    return bool(known) and cells.cast(pl.String).is_in(known).sum() >= _FITTING * cells.len()


def _matches(family: Family, table: pl.DataFrame, labels: Mapping[str, list[str]]) -> dict[str, str]:
    """Stored column → table column, by name; a dtype also by what the column holds. `labels` are those of each column."""
    columns = list(labels)
    by_plain = {_plain(name): name for name in reversed(columns)}
    exact = set(columns)
    found: dict[str, str] = {}
    for prefix, space in (("problem", family.problem), ("config", family.config)):
        for name, parameter in space.parameters.items():
            # `m_size` is M by its plain name; `numpy_dtype` is dtype because it is the only column with that word.
            worded = [column for column in columns if name.lower() in _words(column)]
            other = next((by_plain[word] for word in _SYNONYMS.get(name, ()) if word in by_plain), None)
            column = (name if name in exact else by_plain.get(_plain(name))) or (worded[0] if len(worded) == 1 else other)
            if column is not None and column not in found.values() and _fits(parameter, table[column]):
                found[f"{prefix}.{name}"] = column
    for name, parameter in family.problem.parameters.items():
        if f"problem.{name}" not in found and name == "dtype" and isinstance(parameter, Categorical):
            spelled = dtypes.spellings_of(parameter)
            left = (column for column in columns if column not in found.values())
            holding = [column for column in left if _holds(table[column], labels[column], spelled)]
            if len(holding) == 1:
                found["problem.dtype"] = holding[0]
    return found


def _lacking(family: Family, found: Mapping[str, str], sizes: bool) -> list[str]:
    """Parameters of the problem that have neither a column nor a default: the sizes, or the labels."""
    return [
        name
        for name, parameter in family.problem.parameters.items()
        if f"problem.{name}" not in found
        and parameter.default is None
        and not parameter.nullable
        and (name not in _ASSUMED or not isinstance(parameter, Categorical))
        and isinstance(parameter, Categorical | Bool) is not sizes
    ]


def _best_family(table: pl.DataFrame, labels: Mapping[str, list[str]]) -> Family:
    """The family whose problem the table describes, without a size that would have to be invented."""
    matches = {family.id: _matches(family, table, labels) for family in FAMILIES}
    # A size of the problem must be among them: every table has a column that could be some dtype or label.
    whole = [
        family
        for family in FAMILIES
        if not _lacking(family, matches[family.id], sizes=True)
        and any(f"problem.{name}" in matches[family.id] for name, item in family.problem.parameters.items() if item.ordered)
    ]
    if not whole:
        near = max(FAMILIES, key=lambda family: (len(matches[family.id]), -len(family.problem.parameters), family.id))
        lacking = ", ".join(_lacking(near, matches[near.id], sizes=True))
        nearest = f"; the nearest is {near.op.name}, without a column for {lacking}" if matches[near.id] else ""
        raise InvalidValue(
            f"no op has all its sizes among the columns ({listed(labels)}){nearest}: rename columns, or name one with `family`"
        )

    def rank(family: Family) -> tuple[int, int, int, int, bool, str]:
        found = matches[family.id]
        configs = sum(name.startswith("config.") for name in found)
        unanswered = sum(
            f"config.{name}" not in found and item.default is None and item.when is None
            for name, item in family.config.parameters.items()
        )
        # Without the columns of a config there is no kernel to choose: then the family with one kernel is the obvious one.
        # One column by chance, such as `pipeline`, is not a config: a third of what a family needs has to be there.
        return (
            -len(_lacking(family, found, sizes=False)),
            len(found) - configs,
            configs if 2 * configs >= unanswered else -unanswered,
            -unanswered,
            family.id.endswith("/single"),
            family.id,
        )

    return max(whole, key=rank)


def _device_line(table: pl.DataFrame, labels: Mapping[str, list[str]], columns: list[str]) -> tuple[str, str | None]:
    """The line of the draft that says what was measured on, and the column that it reads."""
    for column in columns:
        named = bool(set(_words(column)) & _DEVICE_WORDS)
        known = {text: devices.named(text) for text in labels[column]}
        if not (any(known.values()) if named else _holds(table[column], labels[column], devices.named)):
            continue
        values = _asked({text: device.name if device else None for text, device in known.items()}, table[column])
        if OPEN not in values.values():
            return f"device = {{ column = {toml.string(column)} }}", column
        known_values = toml.inline_table(values)
        return f"device = {{ column = {toml.string(column)}, values = {known_values} }}    # see `kerncast devices`", column
    return f'device = "{OPEN}"    # see `kerncast devices`', None


def _status_line(table: pl.DataFrame, columns: list[str]) -> tuple[str, str | None]:
    """The line that says which rows failed, and the column that it reads."""
    for column in columns:
        labels = _labels(table[column])
        words = set(_words(column))
        if not labels or not words & _OUTCOME_WORDS:
            continue
        meant = {text: text if text in set(Status) else OUTCOMES.get(text.lower()) for text in labels}
        if "failed" in words:  # `failed = 1` is the opposite of `ok = 1`
            turned = {"ok": Status.LAUNCH_ERROR.value, Status.INVALID.value: "ok"}
            meant = {text: turned.get(status or "", status) for text, status in meant.items()}
        if any(meant.values()):
            values = {text: status or OPEN for text, status in meant.items()}
            return f"status = {{ column = {toml.string(column)}, values = {toml.inline_table(values)} }}", column
    return "", None


def _failed_line(table: pl.DataFrame, time: str, has_status: bool) -> str:
    """Cells of the time that are no times, which mean failures; a column for the outcome says it better."""
    texts = table[time].cast(pl.String).fill_null("")
    values = texts.cast(pl.Float64, strict=False)
    odd = sorted(set(texts.filter(values.is_null() | ~values.is_finite() | (values <= 0)).to_list()))
    if has_status or not odd or len(odd) > _MOST_LABELS:
        return ""
    values_line = toml.inline_table(dict.fromkeys(odd, Status.LAUNCH_ERROR.value))
    return f"failed = {values_line}    # assumed: a cell that is no time is a failed run"


def _varies(table: pl.DataFrame, column: str, same: list[str]) -> bool:
    """Whether a column may tell kernels apart: words or whole numbers that differ while all the other columns are the same."""
    labels = _labels(table[column])
    measured = set(_words(column)) & {*_NOT_THE_TIME, *_TIME_WORDS}
    if not same or len(labels) < 2 or measured or any(re.fullmatch(r"-?\d*\.\d*[1-9]\d*(e[+-]?\d+)?", text) for text in labels):
        return False
    filled = table.filter(table[column].cast(pl.String).fill_null("") != "")
    return bool(filled.group_by(same).agg(pl.col(column).n_unique().alias(LINE))[LINE].max() != 1)


def draft_mapping(table: pl.DataFrame, family_name: str | None = None) -> str:
    """The text of a mapping file for `table`; what could not be guessed is marked `?`."""
    columns = [name for name in table.columns if name != LINE]
    labels = {name: _labels(table[name]) for name in columns}
    family = FAMILIES.get(family_name) if family_name is not None else _best_family(table, labels)
    matches = _matches(family, table, labels)

    def left(*taken: str | None) -> list[str]:
        return [name for name in columns if name not in matches.values() and name not in taken]

    time = guess_time(left())
    label, unit = time or (OPEN, OPEN)
    device_line, device_column = _device_line(table, labels, left(label))
    status_line, status_column = _status_line(table, left(label, device_column))
    ignored = left(label, device_column, status_column)
    left_out = ", ".join(map(toml.string, ignored))
    lines = [f"family = {toml.string(family.id)}", device_line, f"ignore = [{left_out}]"]
    same = [*matches.values(), *([device_column] if device_column is not None else [])]
    twins = {
        other: column for other in ignored for column in matches.values() if _plain(other) and _plain(other) == _plain(column)
    }
    for other, column in twins.items():
        meant = f"{toml.string(other)} may mean the same as {toml.string(column)}, which is used below: check which is right"
        lines.append(toml.comment(meant))
    varying = [toml.string(name) for name in ignored if _varies(table, name, same)]
    if varying:
        lines += [
            toml.comment(
                f"{', '.join(varying)}: different in rows that are the same otherwise. They look like a kernel's parameters;"
            ),
            toml.comment(f"without them, different kernels count as repeats of one. {OWN_FAMILY.capitalize()}"),
        ]
    for section, space in (("problem", family.problem), ("config", family.config)):
        if space.parameters:
            lines += ["", f"[{section}]"]
        lines += [
            _parameter_line(name, parameter, matches.get(f"{section}.{name}"), table)
            for name, parameter in space.parameters.items()
        ]
    lines += ["", "[time]", f"column = {toml.string(label)}", f'unit = "{unit}"    # ns, us, ms or s']
    failed = _failed_line(table, label, bool(status_line)) if time is not None else ""
    lines += [failed] if failed else []
    if status_line:
        lines += ["", "[measured]", status_line]
    return "\n".join(lines) + "\n"


def _parameter_line(name: str, parameter: Parameter, column: str | None, table: pl.DataFrame) -> str:
    if column is not None:
        values = _translations(parameter, table[column])
        spec = f"{{ column = {toml.string(column)}, values = {toml.inline_table(values)} }}" if values else toml.string(column)
        return f"{name} = {spec}"
    if parameter.default is not None or parameter.optional:
        return toml.comment(f"{name}: no column looks like it; {parameter.absent or parameter.default} is assumed")
    if parameter.when is not None:
        return toml.comment(f"{name}: no column looks like it; it is left empty")
    if name in _ASSUMED and parameter.index(_ASSUMED[name][0]) is not None:
        value, why = _ASSUMED[name]
        return f"{name} = {{ value = {toml.string(value)} }}    {toml.comment(why)}"
    rule = toml.comment(f"no column looks like it: {parameter.describe()}")
    return f"{name} = {{ value = {toml.string(OPEN)} }}    {rule}"
