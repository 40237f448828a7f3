"""The seeds of random schedules, in parts that workers run beside each other."""

import os


def shards(count: int, of: int) -> list[range]:
    """So many seeds in each of so many parts; together they are `CALVE_SEEDS=first:last` where that is set."""
    first, _, last = os.environ.get("CALVE_SEEDS", f"0:{count * of}").partition(":")
    return [range(int(first) + shard, int(last), count) for shard in range(count)]
