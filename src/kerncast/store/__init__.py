"""The store: models found by op, family, device and software; whether they still fit the machine."""
