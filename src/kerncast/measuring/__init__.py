"""Collecting: a supervisor that writes the journal, and worker processes that run the kernels and may crash."""
