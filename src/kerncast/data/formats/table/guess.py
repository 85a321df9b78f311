"""Draft a mapping file by guessing which column is which parameter. The user has to check the draft.

A column is recognised by its name or, for dtypes and devices, by what it holds. An op is proposed only if the table has all
the sizes that it needs; else the draft declares one (`own_op`). What stays open is marked `?`; a draft without that mark can be
imported as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import polars as pl

from kerncast.core import dtypes
from kerncast.core.io.quoting import toml_comment, toml_string, toml_table
from kerncast.core.op import Family
from kerncast.core.parameters import Bool, Categorical, Parameter
from kerncast.data.formats import listed
from kerncast.data.formats.table import OUTCOMES, OWN_FAMILY
from kerncast.data.formats.table.columns import (
    FITTING,
    MOST_LABELS,
    NOT_THE_TIME,
    ODD,
    OPEN,
    TIME_WORDS,
    UNITS,
    Drafted,
    labels_of,
    numbers,
    own_kernels,
    own_op,
    part_of,
    plain,
    texts,
    times_of,
    whole_numbers,
    words,
)
from kerncast.data.schema import Status
from kerncast.data.tables import LINE
from kerncast.errors import InvalidValue
from kerncast.library import devices
from kerncast.library.declared.family_file import family_named, family_tables
from kerncast.library.registry import FAMILIES

_DEVICE_WORDS = {"gpu", "gfx", "device", "hardware", "accelerator", "card", "arch", "machine"}
_OUTCOME_WORDS = {"valid", "validity", "status", "success", "ok", "pass", "passed", "correct", "outcome", "verified", "failed"}
# Usual names of sizes that a family calls otherwise.
_SYNONYMS = {"Hi": ("h", "height"), "Wi": ("w", "width"), "Y": ("kh", "filterh"), "X": ("kw", "filterw"),
             "rows": ("nrows",), "columns": ("cols", "ncols")}  # fmt: skip
# A product without a column for its layout is drafted as one of row-major matrices, and the draft says so.
_ASSUMED = {"layout": ("rrr", "no column says it; assumed: all matrices by rows, as numpy has them")}


def _asked(meant: Mapping[str, str | None], cells: pl.Series) -> dict[str, str]:
    """Labels with their meanings, `?` for those that nobody knows; without these if they are odd cells."""
    unknown = [text for text, meaning in meant.items() if meaning is None]
    odd = cells.cast(pl.String).is_in(unknown).sum() <= ODD * cells.len()
    return {text: meaning or OPEN for text, meaning in meant.items() if meaning or not odd}


def _time(table: pl.DataFrame, columns: Iterable[str]) -> tuple[str, str] | None:
    """The column that looks like the label, and its unit ('?' when the name does not say)."""
    found = []
    for place, name in enumerate(columns):
        said = words(name)
        if set(said) & NOT_THE_TIME:
            continue
        order = next((rank for rank, word in enumerate(TIME_WORDS) if any(_is_time(word, part) for part in said)), None)
        units = {UNITS[part] for part in said if part in UNITS}
        filled = table[name].drop_nulls().len()
        is_number = numbers(table[name]).count() >= FITTING * filled
        if not is_number:  # `5.41 us`: the cells say the unit
            times, own = times_of(table[name])
            is_number = filled > 0 and own.count() >= FITTING * filled and times.is_finite().any()
            units = {own.drop_nulls().mode().sort()[0]} if is_number else units
        if order is not None:
            found.append((is_number, True, len(units) == 1, -order, -place, name, units.pop() if len(units) == 1 else OPEN))
        elif is_number and (name.lower() in UNITS or _says_a_unit(said)):  # named after a unit, such as `us` or `t_us`
            found.append((True, False, True, 0, -place, name, units.pop()))
    return max(found)[-2:] if found else None


def _says_a_unit(said: Sequence[str]) -> bool:
    """Whether the words of a name have one unit of time: `avg µs`. An `s` is one in `t_s`, and none in `GB/s`."""
    units = {UNITS[part] for part in said if part in UNITS}
    return len(units) == 1 and (units != {"s"} or set(said) - set(UNITS) <= {"t", "avg", "mean", "median"})


def _is_time(word: str, part: str) -> bool:
    """Whether a part of a name says that it is a time; `timesteps` are not."""
    return word in part and not re.search("step|stamp|out|date|zone", part)


def _translations(parameter: Parameter, cells: pl.Series) -> dict[str, str]:
    """What the labels of a column mean, where that is not what they say; `?` where nobody knows."""
    if not isinstance(parameter, Categorical):
        return {}
    known = {label: label for label, _ in parameter.labels}
    folded = {label.lower(): label for label in known}
    spelled = dtypes.spellings_of(parameter)
    meant = {text: known.get(text) or spelled(text) or folded.get(text.lower()) for text in labels_of(cells)}
    found = _asked(meant, cells)
    # An import knows the spellings of dtypes by itself.
    needed = any(meaning not in (text, spelled(text)) for text, meaning in found.items())
    return found if needed else {}


def _fits(parameter: Parameter, cells: pl.Series) -> bool:
    """Whether a column can hold the values of a parameter; any labels can be translated."""
    if isinstance(parameter, Categorical | Bool):
        return True
    filled = cells.filter(texts(cells) != "")
    whole = whole_numbers(filled).drop_nulls()
    if whole.len() < FITTING * filled.len():
        return False
    legal = {value for value in whole.unique().to_list() if parameter.index(value) is not None}
    wrong = whole.len() - whole.is_in(list(legal)).sum()
    # Rows with a wrong size are skipped. A parameter that may be left out is left out rather than lose rows.
    free = parameter.default is not None or parameter.nullable
    return bool(wrong <= (ODD if free else FITTING) * whole.len())


def _holds(cells: pl.Series, labels: Iterable[str], meaning: Callable[[str], object]) -> bool:
    """Whether most cells of a column are labels that are known."""
    known = [text for text in labels if meaning(text)]
    return bool(known) and cells.cast(pl.String).is_in(known).sum() >= FITTING * cells.len()


def _matches(family: Family, table: pl.DataFrame, labels: Mapping[str, list[str]]) -> dict[str, str]:
    """Stored column → table column, by name; a dtype also by what the column holds. `labels` are those of each column."""
    columns = list(labels)
    by_plain = {plain(name): name for name in reversed(columns)}
    exact = set(columns)
    found: dict[str, str] = {}
    for prefix, space in (("problem", family.problem), ("config", family.config)):
        for name, parameter in space.parameters.items():
            # `m_size` is M by its plain name; `numpy_dtype` is dtype because it is the only column with that word.
            worded = [column for column in columns if name.lower() in words(column)]
            other = next((by_plain[word] for word in _SYNONYMS.get(name, ()) if word in by_plain), None)
            column = (name if name in exact else by_plain.get(plain(name))) or (worded[0] if len(worded) == 1 else other)
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


def _best_family(table: pl.DataFrame, labels: Mapping[str, list[str]]) -> Family | str:
    """The family whose problem the table describes, without a size to be invented; or what the nearest op lacks."""
    matches = {family.id: _matches(family, table, labels) for family in FAMILIES}
    # A size of the problem must be among them: every table has a column that could be some dtype or label.
    whole = [
        family
        for family in FAMILIES
        if not _lacking(family, matches[family.id], sizes=True)
        and all(name.endswith("dtype") for name in _lacking(family, matches[family.id], sizes=False))
        and any(f"problem.{name}" in matches[family.id] for name, item in family.problem.parameters.items() if item.ordered)
    ]
    if not whole:
        lacking = {id: [name for sizes in (True, False) for name in _lacking(family, matches[id], sizes)]
                   for id, family in FAMILIES.found.items()}  # fmt: skip
        there = {id: sum(name.startswith("problem.") for name in found) for id, found in matches.items()}
        near = max(there, key=lambda id: (there[id], -len(lacking[id]), id))
        if there[near] < len(lacking[near]):  # most of what its problem needs is not there
            return ""
        return f"; the nearest is {near.partition('/')[0]}, without a column for {', '.join(lacking[near])}"

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
    named = {column for column in columns if set(words(column)) & _DEVICE_WORDS}
    meant = {column: {text: devices.named(text) for text in labels[column]} for column in columns}
    known = [
        column
        for column in columns
        if (any(meant[column].values()) if column in named else _holds(table[column], labels[column], devices.named))
    ]
    # Names that nobody knows are asked about; a number is the place of a card in its machine.
    worded = [column for column in columns if column in named and any(not text.isdigit() for text in labels[column])]
    if not known and not worded:
        return f'device = "{OPEN}"    # the name of the device, see `kerncast list device`; `local` is this machine', None
    column = (known or worded)[0]
    values = _asked({text: device.name if device else None for text, device in meant[column].items()}, table[column])
    if OPEN not in values.values():
        return f"device = {{ column = {toml_string(column)} }}", column
    known_values = toml_table(values)
    return f"device = {{ column = {toml_string(column)}, values = {known_values} }}    # see `kerncast list device`", column


def _status_line(table: pl.DataFrame, columns: list[str]) -> tuple[str, str | None]:
    """The line that says which rows failed, and the column that it reads."""
    for column in columns:
        labels = labels_of(table[column])
        said = set(words(column))
        if not labels or not said & _OUTCOME_WORDS:
            continue
        meant = {text: _status(text) for text in labels}
        if "failed" in said:  # `failed = 1` is the opposite of `ok = 1`
            turned = {"ok": Status.LAUNCH_ERROR.value, Status.INVALID.value: "ok"}
            meant = {text: turned.get(status or "", status) for text, status in meant.items()}
        if any(meant.values()):
            values = {text: status or OPEN for text, status in meant.items()}
            asked = f"    # '?' is one of {', '.join(Status)}" if OPEN in values.values() else ""
            return f"status = {{ column = {toml_string(column)}, values = {toml_table(values)} }}{asked}", column
    return "", None


def _status(text: str) -> str | None:
    """The status that a text means, if it needs no explanation."""
    plain_text = re.sub(r"[\s_-]+", " ", text.lower())
    return next((item.value for item in Status if item.value.replace("_", " ") == plain_text), OUTCOMES.get(plain_text))


def _failed_line(table: pl.DataFrame, time: str, has_status: bool) -> str:
    """Cells of the time that are no times, which mean failures; a column for the outcome says it better."""
    cells = texts(table[time])
    values, _ = times_of(cells)
    odd = sorted(set(cells.filter(values.is_null() | ~values.is_finite() | (values <= 0)).to_list()))
    if has_status or not odd or len(odd) > MOST_LABELS:
        return ""
    values_line = toml_table(dict.fromkeys(odd, Status.LAUNCH_ERROR.value))
    return f"failed = {values_line}    # assumed: a cell that is no time is a failed run"


def _varies(table: pl.DataFrame, column: str, same: list[str]) -> bool:
    """Whether a column may tell kernels apart: words or whole numbers that differ while all the other columns are the same."""
    labels = labels_of(table[column])
    measured = set(words(column)) & {*NOT_THE_TIME, *TIME_WORDS}
    if not same or len(labels) < 2 or measured or any(re.fullmatch(r"-?\d*\.\d*[1-9]\d*(e[+-]?\d+)?", text) for text in labels):
        return False
    filled = table.filter(table[column].cast(pl.String).fill_null("") != "")
    return bool(filled.group_by(same).agg(pl.col(column).n_unique().alias(LINE))[LINE].max() != 1)


def draft_mapping(table: pl.DataFrame, family_name: str | None = None, called: str = "") -> str:
    """The text of a mapping file for `table`; what could not be guessed is marked `?`.

    A table that no installed op describes becomes an op of its own, which is `called` so.
    """
    if table.is_empty():
        raise InvalidValue("the table has no rows to guess from")
    columns = [name for name in table.columns if name != LINE]
    labels = {name: labels_of(table[name]) for name in columns}
    family = family_named(family_name) if family_name is not None else _best_family(table, labels)
    matches = {} if isinstance(family, str) else _matches(family, table, labels)

    def left(*taken: str | None) -> list[str]:
        return [name for name in columns if name not in matches.values() and name not in taken]

    time = _time(table, left())
    label, unit = time or (OPEN, OPEN)
    device_line, device_column = _device_line(table, labels, left(label))
    status_line, status_column = _status_line(table, left(label, device_column))
    ignored = left(label, device_column, status_column)
    drafted: Drafted | None
    if isinstance(family, str):
        drafted = own_op(table, ignored, called)
        if drafted is None:
            raise InvalidValue(
                f"no op has all its sizes among the columns ({listed(columns)}){family}, and no column of whole numbers can be "
                "a size of an op of your own: add one, rename columns, or name a family with `family`"
            )
        comments = [f"No installed op has all its sizes among the columns{family}: this is one of your own."]
        head = []
    else:
        same = [*matches.values(), *([device_column] if device_column is not None else [])]
        has_config = any(name.startswith("config.") for name in matches)
        kernels = [] if family_name is not None or has_config else _kernels(table, ignored, same)
        drafted = own_kernels(family.op.name, table, kernels) if kernels else None
        head = [] if drafted else [f"family = {toml_string(family_name or family.id)}"]
        comments = _comments(table, family, matches, ignored, same, bool(drafted))
    if drafted is not None:
        ignored = [name for name in ignored if name not in drafted.used]
        comments += drafted.notes
    left_out = ", ".join(map(toml_string, ignored))
    lines = [*head, device_line, f"ignore = [{left_out}]", *map(toml_comment, comments)]
    if drafted is not None:
        lines += ["", *family_tables(drafted.declaration)]
    for section in ("problem", "config"):
        prefix = f"{section}."
        own = {} if drafted is None else drafted.cells
        found = [f"{name.removeprefix(prefix)} = {cell}" for name, cell in own.items() if name.startswith(prefix)]
        if not isinstance(family, str):
            space = family.problem if section == "problem" else family.config
            parameters = family.op.parameters if drafted else space.parameters
            found += [
                _parameter_line(name, parameter, matches.get(prefix + name), table)
                for name, parameter in parameters.items()
                if section == "problem" or drafted is None
            ]
        if found:
            lines += ["", f"[{section}]", *found]
    lines += ["", "[time]", f"column = {toml_string(label)}", f'unit = "{unit}"    # ns, us, ms or s']
    failed = _failed_line(table, label, bool(status_line)) if time is not None else ""
    lines += [failed] if failed else []
    if status_line:
        lines += ["", "[measured]", status_line]
    return "\n".join(lines) + "\n"


def _kernels(table: pl.DataFrame, columns: list[str], same: list[str]) -> list[str]:
    """The columns that tell kernels apart, if some of them do so on one problem."""
    parts = {name: part_of(table, name) for name in columns}
    varying = [name for name in columns if parts[name] and _varies(table, name, same)]
    if not varying:
        return []
    return [name for name in columns if name in varying or (parts[name] == "config" and table[name].n_unique() > 1)]


def _comments(
    table: pl.DataFrame, family: Family, matches: Mapping[str, str], ignored: list[str], same: list[str], drafted: bool
) -> list[str]:
    """What a reader of the draft should check among the columns that it ignores."""
    twins = {
        other: column for other in ignored for column in matches.values() if plain(other) and plain(other) == plain(column)
    }
    found = [
        f"{toml_string(other)} may mean the same as {toml_string(column)}, which is used below: check which is right"
        for other, column in twins.items()
    ]
    for name, parameter in family.problem.parameters.items():
        alike = next((other for other in ignored if plain(other) == plain(name)), None)
        if f"problem.{name}" not in matches and alike is not None and not isinstance(parameter, Categorical | Bool):
            found.append(f"{toml_string(alike)} is left out: too many of its cells are not {name} ({parameter.describe()})")
    varying = [] if drafted else [toml_string(name) for name in ignored if _varies(table, name, same)]
    if varying:
        found += [
            f"{', '.join(varying)}: different in rows that are the same otherwise. They look like a kernel's parameters;",
            f"without them, different kernels count as repeats of one. {OWN_FAMILY.capitalize()}",
        ]
    return found


def _parameter_line(name: str, parameter: Parameter, column: str | None, table: pl.DataFrame) -> str:
    if column is not None:
        values = _translations(parameter, table[column])
        spec = f"{{ column = {toml_string(column)}, values = {toml_table(values)} }}" if values else toml_string(column)
        return f"{name} = {spec}"
    if parameter.default is not None or parameter.optional:
        return toml_comment(f"{name}: no column looks like it; {parameter.usual_word or parameter.default} is assumed")
    if parameter.when is not None:
        return toml_comment(f"{name}: no column looks like it; it is left empty")
    if name in _ASSUMED and parameter.index(_ASSUMED[name][0]) is not None:
        value, why = _ASSUMED[name]
        return f"{name} = {{ value = {toml_string(value)} }}    {toml_comment(why)}"
    rule = toml_comment(f"no column looks like it: {parameter.describe()}")
    return f"{name} = {{ value = {toml_string(OPEN)} }}    {rule}"
