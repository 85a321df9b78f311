"""The user's own data directory, as each platform has it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def data_folder(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """`kerncast` in the user's data directory."""
    home = Path.home()
    if platform == "win32":
        base = Path(environment.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif platform == "darwin":
        base = home / "Library" / "Application Support"
    else:
        given = environment.get("XDG_DATA_HOME", "")
        # The base directory specification says to ignore relative paths.
        base = Path(given) if Path(given).is_absolute() else home / ".local" / "share"
    return base / "kerncast"
