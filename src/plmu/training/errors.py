"""What can go wrong in a run, in words for its user. Imports nothing, so that the program can always name them."""


class RunError(RuntimeError):
    """A run that cannot be started, continued or scored as asked."""


class Diverged(RuntimeError):
    """The loss became NaN or infinite."""


class CheckpointError(OSError):
    """A checkpoint that could not be written."""
