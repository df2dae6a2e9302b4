"""Model files: `save` and `load`, the JSON description of a model, atomic writes, weights of keras-lmu."""
