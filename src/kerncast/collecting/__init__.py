"""Collecting: a supervisor that owns the journal, and worker processes that own the danger."""
