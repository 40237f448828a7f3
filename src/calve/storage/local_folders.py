"""Local folders: the home, folders for one user alone, and their locations. Imports nothing heavy.

Folders of the home hold rows, unreadable records, logs and secrets: only the user can open them (`make_private`).
"""

import os
from pathlib import Path


def default_home() -> Path:
    """`CALVE_HOME`, or `.calve` in the working directory. An empty variable counts as none."""
    return Path(os.environ.get("CALVE_HOME") or ".calve").absolute()


def make_private(folder: Path) -> None:
    """Create a folder and its missing parents, for this user alone; existing ones stay as they are."""
    for missing in reversed([place for place in (folder, *folder.parents) if not place.exists()]):
        missing.mkdir(mode=0o700, exist_ok=True)


def location_of(folder: Path) -> str:
    """The location of a local folder for table metadata: a URI whose path is not percent-encoded.

    pyiceberg interprets `#` and `?` in a URI as the start of fragment and query; a folder with one of them in its path
    is given as a plain path, which pyiceberg, DuckDB and Spark read as well.
    """
    path = str(folder.absolute())
    return path if set("#?") & set(path) else f"file://{path}"
