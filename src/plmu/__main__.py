"""`python -m plmu`, the same as `plmu`."""

from plmu.cli.program import main

main()
