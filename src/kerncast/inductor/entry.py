"""What `import torch` calls (entry point `torch.backends`): nothing happens unless an environment variable asks for it."""

from __future__ import annotations

import os

OBSERVE, MODEL, DISABLE = "KERNCAST_OBSERVE", "KERNCAST_INDUCTOR", "KERNCAST_DISABLE"


def autoload() -> None:
    """Return at once unless `KERNCAST_OBSERVE` or `KERNCAST_INDUCTOR` is set."""
    if not (os.environ.get(OBSERVE) or os.environ.get(MODEL)):
        return
