"""How the tests' own JVMs run: short lives, little data, two cores for all of them."""

QUICK = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # no time for the optimising compiler
}
