"""The tables that the shipped models are built from, found among the paths that the caller names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kerncast.data.dataset import Dataset
from kerncast.data.importers import Options, import_files
from kerncast.data.importers.aiconfigurator.kinds import KINDS
from kerncast.data.importers.aiconfigurator.places import tables_at
from kerncast.errors import BadFile, InvalidValue, NotFound
from kerncast.progress import Progress
from kerncast.regenerating.shipping.attribution import Origin, source_of
from kerncast.regenerating.shipping.plans import LEAST_SHARE, Plan
from kerncast.regenerating.shipping.wormhole import PublicTable, WormholePlan, files_at

FORMAT = "aiconfigurator"


@dataclass(frozen=True)
class Given:
    """AIConfigurator's tables, and those that are one file each."""

    aiconfigurator: Path | None = None
    kinds: frozenset[str] = frozenset()
    """The kinds of AIConfigurator's tables that there are."""
    files: Mapping[PublicTable, Path] = field(default_factory=dict)

    @classmethod
    def at(cls, paths: Sequence[Path]) -> Given:
        """What is at some paths: a wheel, a file, a folder of either kind of tables or of both."""
        whole, kinds, files = None, frozenset[str](), dict[PublicTable, Path]()
        for path in paths:
            own = files_at(path)
            for table, file in own.items():
                if table in files:
                    raise InvalidValue(f"{files[table]} and {file} are the same table: name one of them")
            files |= own
            if path.name in {name for table in own for name in table.files}:
                continue
            try:
                with tables_at(path) as found:
                    held = frozenset(place.kind for place in found.places)
            except BadFile:
                if own:
                    continue
                raise
            if whole is not None:
                raise InvalidValue(f"{whole} and {path} both hold tables of AIConfigurator: name one of them")
            whole, kinds = path, held
        return cls(whole, kinds, files)

    def rows_of(self, plan: Plan, out: Path, progress: Progress) -> tuple[Dataset, Origin]:
        """The rows that a plan learns from, and who published them; raises NotFound if they are not among the tables."""
        if isinstance(plan, WormholePlan):
            file = self.files.get(plan.table)
            if file is None:
                raise NotFound(f"there is no file {' or '.join(plan.table.files)}")
            return plan.table.rows(file, out, progress), plan.table.origin
        held = {kind.name for kind in KINDS.values() if any(rows.family_id == plan.family for rows in kind.rows)}
        if self.aiconfigurator is None or not held & self.kinds:
            raise NotFound(f"there is no table of {' or '.join(sorted(held))}")
        options = Options(only=(plan.family,), keep_software=(plan.framework,), least_share=LEAST_SHARE)
        data = import_files(FORMAT, [self.aiconfigurator], out, options, progress=progress)
        return data, source_of(self.aiconfigurator)
