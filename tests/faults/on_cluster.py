"""The command `calve`, with all work done by executors, however little: `python -m tests.faults.on_cluster run`."""

from functools import partial

from calve.cli.main import main
from calve.keylookup.indexed import IndexedSearch, IndexLimits
from calve.keylookup.resolver import DriverLimits, PositionResolver
from calve.pipeline import start
from calve.write import batch
from tests.support.names import replace_by

if __name__ == "__main__":
    replace_by(batch, "DRIVER_ROWS", 10)
    replace_by(batch, "tasks_for", lambda _size, _cores: 2)
    replace_by(
        start, "IndexedSearch", partial(IndexedSearch, limits=IndexLimits(rows=0, taken_rows=0, merged_rows=0, keys=0))
    )
    replace_by(start, "PositionResolver", partial(PositionResolver, limits=DriverLimits(rows=0)))
    main()
