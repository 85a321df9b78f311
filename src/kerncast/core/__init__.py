"""What all rooms are built on: expressions, spaces, ops, devices, values, and safe files. It knows no op by name."""
