"""Splits, metrics, intervals and baselines: arrays in, numbers out. Names are defined in docs/metrics.md."""
