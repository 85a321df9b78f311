"""Draft a mapping file by guessing which column is which parameter. The user has to check the draft."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import polars as pl

from kerncast.data.importers.mapped import NANOSECONDS
from kerncast.data.text_table import LINE
from kerncast.errors import InvalidValue
from kerncast.op import Family
from kerncast.parameters import Categorical, Parameter
from kerncast.registry import FAMILIES

_TIME_WORDS = ("time", "latency", "duration", "feedback", "runtime", "elapsed")
_UNITS = {
    **{unit: unit for unit in NANOSECONDS},
    "nanoseconds": "ns",
    "microseconds": "us",
    "milliseconds": "ms",
    "seconds": "s",
}


def _words(name: str) -> list[str]:
    return re.split(r"[^a-z0-9]+", name.lower())


def _plain(name: str) -> str:
    """A column name without case, punctuation and filler words."""
    words = [
        word
        for word in re.split(r"[^a-z0-9]+", name.lower())
        if word not in ("size", "dim", "num", "param", "problem", "config")
    ]
    return "".join(words)


def guess_time(columns: Iterable[str]) -> tuple[str, str] | None:
    """The column that looks like the label, and its unit ('?' when the name does not say)."""
    for word in _TIME_WORDS:
        for name in columns:
            words = _words(name)
            if any(word in part for part in words):
                return name, next((_UNITS[part] for part in reversed(words) if part in _UNITS), "?")
    # A column named after a unit, such as `us`, is a time too.
    return next(((name, _UNITS[name.lower()]) for name in columns if name.lower() in _UNITS), None)


def _translation(parameter: Parameter, cells: pl.Series) -> str:
    """The labels of a categorical column that need a translation, ready to fill in."""
    if not isinstance(parameter, Categorical):
        return ""
    labels = {label for label, _ in parameter.labels}
    found = sorted(set(cells.drop_nulls().cast(pl.String).unique()))
    if set(found) <= labels or len(found) > 32:
        return ""
    pairs = ", ".join(f'{_quoted(text)} = "{text if text in labels else "?"}"' for text in found)
    return f", values = {{ {pairs} }}"


def _matches(family: Family, columns: list[str]) -> dict[str, str]:
    """Stored column → table column, by name."""
    by_plain = {_plain(name): name for name in reversed(columns)}
    found = {}
    for prefix, space in (("problem", family.problem), ("config", family.config)):
        for name in space.parameters:
            # `m_size` is M by its plain name; `numpy_dtype` is dtype because it is the only column with that word.
            worded = [column for column in columns if name.lower() in _words(column)]
            column = by_plain.get(_plain(name)) or (worded[0] if len(worded) == 1 else None)
            if column is not None:
                found[f"{prefix}.{name}"] = column
    return found


def _unanswered(family: Family, columns: list[str]) -> int:
    """Parameters that have neither a column nor a default."""
    found = _matches(family, columns)
    spaces = (("problem", family.problem), ("config", family.config))
    return sum(
        f"{prefix}.{name}" not in found and parameter.default is None
        for prefix, space in spaces
        for name, parameter in space.parameters.items()
    )


def draft_mapping(table: pl.DataFrame, family_name: str | None = None) -> str:
    """The text of a mapping file for `table`; what could not be guessed is marked `?`."""
    columns = [name for name in table.columns if name != LINE]
    if family_name is not None:
        family = FAMILIES.get(family_name)
    else:
        scored = {item.id: len(_matches(item, columns)) for item in FAMILIES}
        # Among families that match equally many columns, take the one with the fewest open parameters.
        best = max(scored, key=lambda name: (scored[name], -_unanswered(FAMILIES.get(name), columns), name))
        if not scored[best]:
            raise InvalidValue(f"no column looks like a parameter of any family: name one with `family` ({', '.join(scored)})")
        family = FAMILIES.get(best)
    matches = _matches(family, columns)
    time = guess_time([name for name in columns if name not in matches.values()])
    lines = [f'family = "{family.id}"', 'device = "?"    # see `kerncast devices`']
    left = [name for name in columns if name not in matches.values() and (time is None or name != time[0])]
    lines += [f"ignore = [{', '.join(_quoted(name) for name in left)}]"]
    for section, space in (("problem", family.problem), ("config", family.config)):
        if space.parameters:
            lines += ["", f"[{section}]"]
        for name, parameter in space.parameters.items():
            column = matches.get(f"{section}.{name}")
            if column is not None:
                extra = _translation(parameter, table[column])
                spec = f"{{ column = {_quoted(column)}{extra} }}" if extra else _quoted(column)
                lines.append(f"{name} = {spec}")
            elif parameter.default is not None:
                lines.append(f"# {name}: no column looks like it; {parameter.default} is assumed")
            else:
                lines.append(f'{name} = {{ value = "?" }}    # no column looks like it: {parameter.describe()}')
    label, unit = time or ("?", "?")
    lines += ["", "[time]", f"column = {_quoted(label)}", f'unit = "{unit}"    # ns, us, ms or s']
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A TOML basic string, which escapes as JSON does."""
    return json.dumps(text, ensure_ascii=False)
