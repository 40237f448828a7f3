"""The command `calve`, with all work done by executors, however little: `python -m tests.faults.on_cluster run`."""

from functools import partial

from calve.cli.main import main
from calve.keylookup.resolver import DriverLimits, PositionResolver
from calve.pipeline import sink
from calve.write import batch

if __name__ == "__main__":
    vars(batch)["DRIVER_ROWS"] = 10
    vars(batch)["tasks_for"] = lambda _size, _cores: 2
    vars(sink)["PositionResolver"] = partial(PositionResolver, limits=DriverLimits(rows=10))
    main()
