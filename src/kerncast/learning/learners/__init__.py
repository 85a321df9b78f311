"""Learners: each fits a table, predicts rows and writes its own weights. No pickle."""
