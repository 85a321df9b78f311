"""Rows ready to learn from: measurements folded into a table, features, figures."""
