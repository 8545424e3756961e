"""`python -m caps.cli` is `caps`."""

from caps.cli import main

main()
