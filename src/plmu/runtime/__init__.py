"""Running a trained model: `Stream`, `Sessions`, their state files, sampling from a language model."""
