"""`python -m kerncast.cli`."""

from kerncast.cli import main

main()
