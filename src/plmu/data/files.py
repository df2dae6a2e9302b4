"""Where data files are: a folder of the user's, or a cache that is filled from their public homes with checksums.

The folder is `--data.root` or the environment variable PLMU_DATA, with one subfolder a source (`mnist/`, …).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


class DataError(RuntimeError):
    """Data that is missing, incomplete or damaged, with what to do about it."""


@dataclass
class DataConfig:
    """Where the data is."""

    root: Path | None = None
    """Folder that holds the data sets. Default: the environment variable PLMU_DATA; else they are downloaded once."""

    def folder(self) -> Path | None:
        given = self.root or (Path(os.environ["PLMU_DATA"]) if os.environ.get("PLMU_DATA") else None)
        if given is not None and not given.is_dir():
            raise DataError(f"the data folder {given} does not exist: check --data.root or PLMU_DATA")
        return given


@dataclass(frozen=True)
class Remote:
    """A file on the internet."""

    url: str
    sha256: str


def cache_folder() -> Path:
    """Where downloads and generated data are kept: PLMU_CACHE, else the user's cache folder."""
    given = os.environ.get("PLMU_CACHE")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "plmu"
    base.mkdir(parents=True, exist_ok=True)
    return base


def find(config: DataConfig, source: str, names: tuple[str, ...], remote: Remote) -> Path:
    """The file of this source, by any of its names, in the user's folder; else downloaded and verified."""
    folder = config.folder()
    if folder is not None:
        for name in names:
            if (folder / source / name).is_file():
                return folder / source / name
        raise DataError(
            f"{folder / source} has no {' or '.join(names)}. Put it there (it comes from {remote.url}), or leave"
            " --data.root and PLMU_DATA unset to download it"
        )
    return _download(source, names[0], remote)


def _download(source: str, name: str, remote: Remote) -> Path:
    try:
        import pooch
    except ImportError:
        raise DataError("downloading needs pooch: pip install 'plmu[train]', or set PLMU_DATA to a folder") from None
    folder = cache_folder() / source
    try:
        path = pooch.retrieve(
            remote.url, known_hash=f"sha256:{remote.sha256}", fname=name, path=folder, progressbar=False
        )
    except ValueError as error:  # a wrong checksum; pooch has already removed the file
        raise DataError(f"{remote.url} is not the file it should be ({error}): try again, or set PLMU_DATA") from None
    except OSError as error:  # no network, a broken connection, a full disk
        raise DataError(
            f"{name} could not be downloaded from {remote.url} ({type(error).__name__}: {error}). Without a network,"
            f" put the file into a folder <data>/{source}/ and set PLMU_DATA or --data.root to <data>"
        ) from None
    return Path(path)
