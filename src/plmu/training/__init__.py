"""The training loop: optimisers, checkpoints, resuming, several processes. It knows no experiment and no data set."""
