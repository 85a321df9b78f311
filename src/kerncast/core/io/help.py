"""What the command line says of a parameter, written where the parameter is declared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Help:
    """`folds: Annotated[int | None, Help("Cross-validation folds.", least=2)] = None` is also the option `--folds`.

    A parameter without one is not on the command line. The text names other parameters in backticks, as errors do.
    """

    text: str = ""
    metavar: str | None = None
    option: str | None = None
    """How the command line spells it, if not by its name: `--set`, which is a name of Python's own."""
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    several: bool | None = None
    """Whether the option may be repeated; None: if the parameter takes several values."""
    alone: str | None = None
    """What the option means without a value."""
    required: bool = False
    """Whether the command line must have it, although the function does not need it."""
    names: str | None = None
    """What the value names: the shell completes it, and `model` is looked up in the store."""
