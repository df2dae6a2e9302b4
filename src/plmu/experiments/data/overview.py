"""What data is here: for `plmu data`."""

from __future__ import annotations

from collections.abc import Callable

from plmu.data.files import DataConfig, cache_folder, is_file, unreadable
from plmu.errors import DataError
from plmu.experiments.data import characters, imdb, mnist, parallel, qqp, reviews, snli, vectors
from plmu.training.terminal import show_table


def overview(config: DataConfig) -> None:
    """A table of all sources."""
    folder = config.folder()
    rows = [
        ("Mackey-Glass series", "mackey-glass", "generated when needed", "an equation"),
        ("adding problem", "addition", "generated when needed", "a generator"),
        ("MNIST, 4 files", "psmnist", _mnist(config), mnist.HOME),
        ("IMDB", "imdb", _text(config, imdb.FOLDER, lambda here: imdb.load(here).completeness), imdb.HOME),
        ("Quora question pairs", "qqp", _text(config, qqp.FOLDER, lambda here: qqp.load(here).completeness), qqp.HOME),
        ("SNLI 1.0", "snli", _text(config, snli.FOLDER, lambda here: snli.load(here).completeness), snli.HOME),
        ("text8", "text8", _text(config, characters.FOLDER, _text8), characters.HOME),
        ("Amazon reviews", "reviews", _text(config, reviews.FOLDER, _reviews), reviews.HOME),
        ("IWSLT'15 En–Vi", "iwslt", _text(config, parallel.FOLDER, _iwslt), parallel.HOME),
        ("word vectors", "imdb, qqp, snli", _vectors(config), vectors.HOME),
    ]
    title = f"data folder: {folder or 'none set; downloads go to the cache'}"
    show_table(("data", "for", "here", "from"), rows, title)
    print(f"cache: {cache_folder()} (set PLMU_CACHE to move it); data folder: set PLMU_DATA or --data.root")


def _mnist(config: DataConfig) -> str:
    folder = config.folder() or cache_folder()
    try:
        there = [name for name in mnist.FILES if any(is_file(folder / "mnist" / f"{name}{end}") for end in (".gz", ""))]
        if not there:
            return "no"
        if len(there) < len(mnist.FILES):
            return f"partial: {len(there)} of {len(mnist.FILES)} files"
        mnist.load(DataConfig(folder))
    except DataError as error:
        return f"damaged: {error}"
    return "complete"


def _text(config: DataConfig, name: str, describe: Callable[[DataConfig], str]) -> str:
    """What is here, read from the files at first and from the cache of parsed data later."""
    folder = config.folder() or cache_folder()
    try:
        if not (folder / name).is_dir() or not any((folder / name).iterdir()):
            return "no"
        return describe(DataConfig(folder))
    except DataError as error:
        return f"damaged or missing: {error}"
    except OSError as error:
        return str(unreadable(error))


def _text8(config: DataConfig) -> str:
    return characters.load(characters.CharactersConfig(config.root)).completeness


def _reviews(config: DataConfig) -> str:
    """The names of the files alone: to read them takes minutes."""
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
