"""Which data sets are on this machine: what `plmu data` prints."""

from __future__ import annotations

from collections.abc import Callable

from plmu.data.files import DataConfig, cache_folder, is_file, unreadable
from plmu.errors import DataError
from plmu.experiments.data import characters, imdb, mnist, parallel, qqp, reviews, snli, vectors
from plmu.text.words import TextData
from plmu.training.terminal import show_table


def overview(config: DataConfig) -> None:
    """Print a table of all sources."""
    folder = config.folder()
    rows = [
        ("Mackey-Glass series", "mackey-glass", "generated when needed", "an equation"),
        ("adding problem", "addition", "generated when needed", "a generator"),
        ("MNIST, 4 files", "psmnist", _mnist_status(config), mnist.HOME),
        ("IMDB", "imdb", _text_status(config, imdb.FOLDER, _loaded(imdb.load)), imdb.HOME),
        ("Quora question pairs", "qqp", _text_status(config, qqp.FOLDER, _loaded(qqp.load)), qqp.HOME),
        ("SNLI 1.0", "snli", _text_status(config, snli.FOLDER, _loaded(snli.load)), snli.HOME),
        ("text8", "text8", _text_status(config, characters.FOLDER, _text8), characters.HOME),
        ("Amazon reviews", "reviews", _text_status(config, reviews.FOLDER, _reviews), reviews.HOME),
        ("IWSLT'15 En–Vi", "iwslt", _text_status(config, parallel.FOLDER, _iwslt), parallel.HOME),
        ("word vectors", "imdb, qqp, snli", _vectors(config), vectors.HOME),
    ]
    title = f"data folder: {folder or 'none set; downloads go to the cache'}"
    show_table(("data", "for", "here", "from"), rows, title)
    print(f"cache: {cache_folder()} (set PLMU_CACHE to move it); data folder: set PLMU_DATA or --data.root")


def _mnist_status(config: DataConfig) -> str:
    """How complete MNIST is; four files are verified by their checksums."""
    folder = config.folder() or cache_folder()
    try:
        names = [name for name in mnist.FILES if any(is_file(folder / "mnist" / f"{name}{end}") for end in (".gz", ""))]
        if not names:
            return "no"
        if len(names) < len(mnist.FILES):
            return f"partial: {len(names)} of {len(mnist.FILES)} files"
        mnist.load(DataConfig(folder))
    except DataError as error:
        return f"damaged: {error}"
    return "complete"


def _text_status(config: DataConfig, name: str, describe: Callable[[DataConfig], str]) -> str:
    """How complete a source is, by `describe`, which reads its files the first time and the cache of parsed data later.

    `name` is the source's folder in the data folder: "no" if that is empty or not there.
    """
    folder = config.folder() or cache_folder()
    try:
        if not (folder / name).is_dir() or not any((folder / name).iterdir()):
            return "no"
        return describe(DataConfig(folder))
    except DataError as error:
        return f"damaged or missing: {error}"
    except OSError as error:
        return str(unreadable(error))


def _loaded(load: Callable[[DataConfig], TextData]) -> Callable[[DataConfig], str]:
    """A function that loads a source and returns how complete it is."""
    return lambda config: load(config).completeness


def _text8(config: DataConfig) -> str:
    return characters.load(characters.CharactersConfig(config.root)).completeness


def _reviews(config: DataConfig) -> str:
    """The names of the files alone: reading them takes minutes."""
    return ", ".join(path.name for path in reviews.locate(config))


def _iwslt(config: DataConfig) -> str:
    return parallel.load(parallel.ParallelConfig(config.root)).completeness


def _vectors(config: DataConfig) -> str:
    if config.folder() is None:
        return "no"
    try:
        return vectors.locate(config).name
    except DataError:
        return "no"
