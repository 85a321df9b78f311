"""Contract tests that every importer, backend, model and exporter must pass."""
