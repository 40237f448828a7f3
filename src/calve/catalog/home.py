"""Folders of the home: they hold rows, records that could not be read, logs and secrets, and are the user's own."""

from pathlib import Path


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone; those that exist stay as they are."""
    for missing in reversed([place for place in (folder, *folder.parents) if not place.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)
