"""Where data files are: a folder of the user's, or a cache that is filled from their public homes with checksums.

The folder is `--data.root` or the environment variable PLMU_DATA, with one subfolder a source (`mnist/`, …).
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from plmu.errors import DataError, how_to_install

ABANDONED = 3600.0  # seconds after which a temporary file that nobody writes to is left over from a killed process


def unreadable(error: OSError, path: Path | None = None) -> DataError:
    """The error for a file or folder that the system does not let us read."""
    return DataError(f"{path or error.filename} cannot be read ({error.strerror or error})")


def file_sha256(path: Path) -> str:
    """The sha256 of a file's content. Size and time of the last change do not identify a file: copies share them."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


PACKINGS = ("", ".xz", ".gz", ".bz2")  # endings of a file that may be packed


def packed(name: str) -> tuple[str, ...]:
    """The names that a file may have, plain and packed.

    >>> packed("a.txt")
    ('a.txt', 'a.txt.xz', 'a.txt.gz', 'a.txt.bz2')
    """
    return tuple(f"{name}{ending}" for ending in PACKINGS)


@dataclass
class DataConfig:
    """Where the data is."""

    root: Path | None = None
    """Folder that holds the data sets. Default: the environment variable PLMU_DATA; else they are downloaded once."""

    def folder(self) -> Path | None:
        """The folder, which exists; None where none is set."""
        folder = self.root or (Path(os.environ["PLMU_DATA"]) if os.environ.get("PLMU_DATA") else None)
        try:
            exists = folder is None or folder.is_dir()
        except OSError as error:
            raise unreadable(error, folder) from None
        if not exists:
            raise DataError(f"the data folder {folder} does not exist: check --data.root or PLMU_DATA")
        return folder


@dataclass(frozen=True)
class Remote:
    """A file on the internet."""

    url: str
    sha256: str


def cache_folder() -> Path:
    """Where downloads and generated data are kept: PLMU_CACHE, else the user's cache folder. It may not exist."""
    folder = os.environ.get("PLMU_CACHE")
    return Path(folder) if folder else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plmu"


def find(config: DataConfig, source: str, names: tuple[str, ...], remote: Remote | str) -> Path:
    """The file of a source: from the user's folder, under any of the names, else downloaded and verified.

    Args:
        config: says which folder is the user's.
        source: the subfolder.
        names: names that the file may have there, the preferred one first.
        remote: the file to download; or a string that tells the user where to get a file that is not downloaded.

    Raises:
        DataError: the file is not in the folder, or cannot be downloaded.
    """
    folder = config.folder()
    path = present(config, source, names)
    if path is not None:
        return path
    if folder is not None:
        home = remote.url if isinstance(remote, Remote) else remote
        download = ", or leave --data.root and PLMU_DATA unset to download it" if isinstance(remote, Remote) else ""
        raise DataError(f"{folder / source} has no {' or '.join(names)}. Put it there (it comes from {home}){download}")
    if isinstance(remote, str):
        raise DataError(
            f"{' or '.join(names)} is not here and is not downloaded: get it from {remote}, put it into a folder"
            f" <data>/{source}/ and set PLMU_DATA or --data.root to <data>"
        )
    return _download(source, names[0], remote)


def present(config: DataConfig, source: str, names: tuple[str, ...]) -> Path | None:
    """The file of a source in the user's folder, under the first of the names that exists; None if none does."""
    folder = config.folder()
    paths = [] if folder is None else [folder / source / name for name in names]
    return next((path for path in paths if is_file(path)), None)


def is_file(path: Path) -> bool:
    """Whether a file exists. Raises DataError if its folder may not be entered."""
    try:
        return path.is_file()
    except OSError as error:
        raise unreadable(error, path) from None


def clear_abandoned(folder: Path) -> None:
    """Remove the temporary files of killed processes: of `replacing` and of pooch's downloads."""
    for path in (*folder.glob(".*.tmp"), *folder.glob("tmp????????")):
        try:
            if path.is_file() and time.time() - path.stat().st_mtime > ABANDONED:
                path.unlink()
        except OSError:
            continue  # another process was faster, or it is not ours to remove


def _download(source: str, name: str, remote: Remote) -> Path:
    try:
        import pooch
    except ImportError:
        raise DataError(f"downloading needs pooch: {how_to_install('pooch')}, or set PLMU_DATA to a folder") from None
    folder = cache_folder() / source
    try:
        folder.mkdir(parents=True, exist_ok=True)
        clear_abandoned(folder)
    except OSError as error:
        raise DataError(
            f"{name} cannot be kept in {folder} ({error.strerror}): set PLMU_CACHE to a folder for downloads, or"
            " PLMU_DATA to one that has the data"
        ) from None
    bar = _Bar(name) if sys.stderr.isatty() else None
    try:
        path = pooch.retrieve(
            remote.url, known_hash=f"sha256:{remote.sha256}", fname=name, path=folder, progressbar=bar or False
        )
    except ValueError as error:  # a wrong checksum; pooch has already removed the file
        raise DataError(f"{remote.url} is not the file it should be ({error}): try again, or set PLMU_DATA") from None
    except OSError as error:  # no network, a broken connection, a full disk
        raise DataError(
            f"{name} could not be downloaded from {remote.url} ({type(error).__name__}: {error}). Without a network,"
            f" put the file into a folder <data>/{source}/ and set PLMU_DATA or --data.root to <data>"
        ) from None
    finally:
        if bar is not None:
            bar.close()
    return Path(path)


class _Bar:
    """A progress bar of rich on standard error, with the methods that pooch calls."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
        self.bar = Progress(*columns, console=Console(stderr=True))
        self.row = self.bar.add_task(name, total=None)

    @property
    def total(self) -> float | None:
        """Bytes in all, which pooch sets when the server has answered."""
        return self.bar.tasks[0].total

    @total.setter
    def total(self, size: int) -> None:
        self.bar.update(self.row, total=size or None)
        self.bar.start()

    def update(self, size: int) -> None:
        self.bar.advance(self.row, size)

    def reset(self) -> None:
        self.bar.update(self.row, completed=0)

    def close(self) -> None:
        self.bar.stop()
