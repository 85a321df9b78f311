"""Choose what an active collection measures next, by a quick model trained on the rows so far."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl

    from kerncast.core.device import Device
    from kerncast.core.op import Family
    from kerncast.learning.tables.table import Table
    from kerncast.measuring.collection import Worth

# Successful rows needed before a model is trained.
FEWEST_ROWS = 20
# Small forests for times alone: a rough ranking is enough, and the devices wait for it.
QUICK: dict[str, Any] = {"trees": 80, "bags": 1, "blend": 0.0, "library_trees": 0}


def worth_by_model(family: Family, seed: int) -> Worth:
    """A function that says how much measuring a vector is worth, by models trained on the rows so far."""

    def worth(rows: pl.DataFrame, rest: pl.DataFrame, device: Device) -> npt.NDArray[np.float64] | None:
        import numpy as np

        from kerncast.learning.tables.feature_rows import Featurizer
        from kerncast.learning.tables.table import build_table
        from kerncast.training.acquisition import acquisition
        from kerncast.training.procedure import Procedure
        from kerncast.training.recipe import Recipe

        if (rows["status"] == "ok").sum() < FEWEST_ROWS:
            return None
        table = _with_times(build_table(family, rows, {device.name: device}, ""))
        dtypes = tuple(sorted(rest["problem.dtype"].unique())) if "problem.dtype" in rest.columns else None
        described = Featurizer(family, table.devices[0], dtypes).describe(rest)
        # A dtype that only one of the two has may add or remove a feature.
        shared = [name for name in table.rows.names if name in described.names]
        table = replace(table, rows=table.rows.only(shared))
        columns = [name for name in rest.columns if name.startswith("problem.")]
        problem = np.unique(rest.select(columns).hash_rows(seed=0).to_numpy(), return_inverse=True)[1]
        recipe = Recipe("gbdt", QUICK, seed=seed, threads=1).resolved(table, None)
        return acquisition(table, described.only(shared), problem, Procedure(recipe))

    return worth


def _with_times(table: Table) -> Table:
    """Drop groups of problems on which nothing worked, so that any part of the groups has times to learn from."""
    import numpy as np

    return table.take(np.isin(table.group, np.unique(table.group[table.ok])))
