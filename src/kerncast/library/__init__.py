"""What is declared, without mechanism: ops, kernel families, devices, problem sets, the shipped models."""
