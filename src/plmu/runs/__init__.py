"""The run folder: one owner of its files, and loading a run to evaluate, stream, serve or export it."""
