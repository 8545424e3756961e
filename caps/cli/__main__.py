"""`python -m caps.cli` runs `caps`."""

from caps.cli import main

main()
