"""`python -m kerncast.app.cli`."""

from kerncast.app.cli import main

main()
