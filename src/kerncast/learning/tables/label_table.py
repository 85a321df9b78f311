"""Names of kernels in measured rows: what each config is called, and which parameters of the problem that depends on."""

from __future__ import annotations

import polars as pl

from kerncast.core.op import Family
from kerncast.core.parameters import Bool, Categorical
from kerncast.data.schema import LABEL

COUNT = "__count"


def label_table(family: Family, rows: pl.DataFrame) -> pl.DataFrame | None:
    """What each config is called, and on which problems: `problem.*` of the parameters that decide, `config.*`, `label`.

    The fewest parameters that tell names apart are used, and those whose only measured value all names contain: a kernel that
    is called `gemm_fp16_…` is no kernel for bf16, though the rows have nothing to compare it with. If one config still has
    several names on the same problems, the most frequent one counts. None: the rows have no names.
    """
    configs = [f"config.{name}" for name in family.config.parameters]
    if not configs or LABEL not in rows.columns:
        return None
    named = rows.filter(pl.col(LABEL).is_not_null())
    if named.is_empty():
        return None
    categorical = [
        f"problem.{name}" for name, parameter in family.problem.parameters.items() if isinstance(parameter, Categorical | Bool)
    ]
    counted = named.group_by(*configs, *categorical, LABEL).agg(pl.len().alias(COUNT))
    by = [column for column in categorical if _is_said(named, column)]
    ambiguous = _ambiguous(counted, configs)
    while ambiguous:
        left = {column: _ambiguous(counted, [*configs, *by, column]) for column in categorical if column not in by}
        best = min(left, key=lambda column: left[column], default=None)
        if best is None or left[best] >= ambiguous:
            break
        by.append(best)
        ambiguous = left[best]
    keys = [*by, *configs]
    total = counted.group_by(*keys, LABEL).agg(pl.col(COUNT).sum()).sort(COUNT, LABEL, descending=[True, False])
    found = total.group_by(keys, maintain_order=True).agg(pl.col(LABEL).first())
    return found.sort(keys, nulls_last=True)


def _is_said(named: pl.DataFrame, column: str) -> bool:
    """Whether a parameter has one value in these rows, and that is a part of every name."""
    values = named[column].unique()
    if len(values) != 1 or not isinstance(values[0], str):
        return False
    words = named[LABEL].unique().str.to_lowercase().str.replace_all(r"[^a-z0-9]+", "_")
    return bool(("_" + words + "_").str.contains(f"_{values[0].lower()}_", literal=True).all())


def _ambiguous(counted: pl.DataFrame, keys: list[str]) -> int:
    """Groups that have more than one name."""
    return counted.group_by(keys).agg(pl.col(LABEL).n_unique().alias(COUNT)).filter(pl.col(COUNT) > 1).height


def with_earlier(found: pl.DataFrame | None, earlier: pl.DataFrame | None) -> pl.DataFrame | None:
    """Names of new rows, and those of an earlier model where the new rows have none."""
    if found is None or earlier is None:
        return earlier if found is None else found
    if set(earlier.columns) != set(found.columns):  # they depend on other parameters, so they cannot be told apart
        return found
    keys = [name for name in found.columns if name != LABEL]
    both = pl.concat([found, earlier.select(found.columns)])
    return both.unique(keys, keep="first", maintain_order=True).sort(keys, nulls_last=True)
