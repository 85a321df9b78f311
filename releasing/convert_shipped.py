"""Write the shipped models again in the formats of this kerncast. Their forests stay as they are, and nothing is trained.

    python releasing/convert_shipped.py src/kerncast/library/shipped

Run it after a change of what `model.json` holds, or of how formulas are hashed. Afterwards every model is asked
for its golden predictions, so formulas that compute something else are not taken for the old ones.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
from golden import check_golden

from kerncast.library.registry import FAMILIES
from kerncast.models.manifest import MANIFEST, Manifest, write_manifest
from kerncast.models.model import feature_digest
from kerncast.training.procedure import Recipe

# What fields say that a file does not have.
NOTHING: dict[str, Any] = {
    "warm_start": [], "declaration": None, "facts": {}, "conditions": {}, "contradicted": [], "device_dtypes": {},
    "device_software": {}, "slim": "", "elsewhere": None,
}  # fmt: skip


def convert(folder: Path) -> None:
    """One model, in its place."""
    data = {**NOTHING, **json.loads((folder / MANIFEST).read_text())}
    data["features"]["digest"] = feature_digest(FAMILIES.get(data["family"]), tuple(data["features"]["names"]))
    data["recipe"] = Recipe(**data["recipe"]).as_options()
    write_manifest(folder, msgspec.convert(data, Manifest))


def main() -> int:
    """Convert all of them, and ask each."""
    place, wrong = Path(sys.argv[1]), []
    models = sorted(file.parent for file in place.glob(f"*/{MANIFEST}"))
    for folder in models:
        convert(folder)
        wrong += check_golden(folder)
    print("\n".join(wrong) or f"{len(models)} models written again; all golden predictions are as before")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
