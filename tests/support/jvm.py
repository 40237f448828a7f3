"""How the tests' own JVMs run: short lives, little data, two cores for all of them."""

from pathlib import Path

CLASSES = Path(__file__).parents[2] / ".cache" / "jvm" / "classes.jsa"
"""What `scripts/class_archive.py` makes. A JVM that it does not fit goes on without it."""

QUICK = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": " ".join(
        [
            "-XX:TieredStopAtLevel=1",  # no time for the optimising compiler
            "-XX:+UseSerialGC",
            *([f"-XX:SharedArchiveFile={CLASSES}", "-Xlog:cds=off"] if CLASSES.exists() else []),
        ]
    ),
}
