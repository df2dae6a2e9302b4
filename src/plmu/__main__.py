"""`python -m plmu`, the same as `plmu`."""

from plmu.cli import main

main()
