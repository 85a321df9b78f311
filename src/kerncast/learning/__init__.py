"""From rows to a score: tables of features and labels, the kinds of models, the metrics."""
