"""What can go wrong in a run, in words for its user. Imports nothing, so that the program can always name them."""


class RunError(RuntimeError):
    """A run that cannot be started, continued or scored as asked."""


class Diverged(RuntimeError):
    """Training made the model far worse than it was at the start, or its numbers are no longer finite."""


class CheckpointError(OSError):
    """A checkpoint that could not be written."""
