"""The paper's experiments: one module for each, made of public names, and their data sources in `data/`.

| section of the paper | modules | the task |
|---|---|---|
| 4.1 | `psmnist` | digits from permuted pixels, one at a time |
| 4.2 | `mackey_glass` | predict a chaotic series |
| 4.3, supervised | `imdb`, `qqp`, `snli` on `text_classification` | classify texts and pairs of texts |
| 4.3, semi-supervised | `reviews`, then `imdb_pretrained` | a language model of reviews, then a classifier |
| 4.4 | `text8` on `language` | a language model of characters |
| 4.5 | `iwslt` on `translation/` | translate |
| 3.2, gated form | `addition` | add two marked numbers of a long sequence |

`baselines` has the LSTM that most of them are compared with, and `pretrained` reads a run that another one starts from.
An experiment subclasses `plmu.runs.experiment.Experiment` and has a line in `plmu.cli.catalogue`, where `plmu train`
finds it; docs/adding-an-experiment.md shows how.
"""
