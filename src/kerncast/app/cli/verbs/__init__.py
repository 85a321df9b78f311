"""The verbs: examples, and how results are shown. Options come from the signatures of the public functions."""
