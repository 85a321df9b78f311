"""A collection on the devices of many machines: one keeper per device, one driver that hands out vectors and writes."""
