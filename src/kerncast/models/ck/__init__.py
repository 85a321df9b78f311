"""The model layout of CK Tile's heuristics: `model_<target>.lgbm(.gz)`, `feature_spec.json`, `train_manifest.json`.

A directory that CK's tools made is a model here, and forests that are written here read only columns that CK computes, so
they can be used there. An unknown column is refused: feeding a forest the wrong column is the most frequent mistake with this
layout. Rates are TFLOPS and GB/s, log1p of them where `log_targets` says so; latency is milliseconds.
"""

from kerncast.models.ck.layout import LAYOUTS, SPEC, TARGETS, TRAINING, Layout, Milliseconds
from kerncast.models.ck.reading import Forests, read_ck, read_coverage, read_forests

__all__ = [
    "LAYOUTS",
    "SPEC",
    "TARGETS",
    "TRAINING",
    "Forests",
    "Layout",
    "Milliseconds",
    "read_ck",
    "read_coverage",
    "read_forests",
]
