"""Contract batteries: what every importer (and, as they come, every backend, model and exporter) must pass."""
