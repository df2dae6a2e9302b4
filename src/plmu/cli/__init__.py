"""The program `plmu`: commands, options, help, tables and plots. A thin user of the Python API."""

from plmu.cli.program import main

__all__ = ["main"]
