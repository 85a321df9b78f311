"""The store: models found by op, family, device, coverage and software; whether they still fit the machine."""
