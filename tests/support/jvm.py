"""Settings of the tests' JVMs, which are short-lived, handle little data, and share two cores."""

from pathlib import Path

CLASSES = Path(__file__).parents[2] / ".cache" / "jvm" / "classes.jsa"
"""Class archive of `scripts/class_archive.py`. An incompatible JVM ignores it."""

QUICK = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": " ".join(
        [
            "-XX:TieredStopAtLevel=1",  # no time for the optimising compiler
            "-XX:+UseSerialGC",
            "-XX:ReservedCodeCacheSize=256m",  # else generated classes fill it, and code is swept for room
            "-XX:MetaspaceSize=256m",  # else the heap is collected several times while Spark's classes are loaded
            *([f"-XX:SharedArchiveFile={CLASSES}", "-Xlog:cds=off"] if CLASSES.exists() else []),
        ]
    ),
}

_OPTIONS = "spark.driver.extraJavaOptions"

LASTING = QUICK | {_OPTIONS: f"{QUICK[_OPTIONS]} -XX:CompileThresholdScaling=0.2"}
"""For a JVM that many tests share: to compile early costs it a second and saves more."""
