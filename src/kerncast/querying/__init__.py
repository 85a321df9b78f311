"""JSON requests about any op."""
