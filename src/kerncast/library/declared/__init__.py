"""Ops and families that a file declares, rather than code."""
