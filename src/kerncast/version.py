"""The version, in a separate module so that every module can import it alone."""

__version__ = "0.1.0"
