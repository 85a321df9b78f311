"""The version, apart from the package's `__init__`: what every module may name without importing the rest."""

__version__ = "0.1.0"
