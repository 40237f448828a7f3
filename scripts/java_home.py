"""Prints the JAVA_HOME that calve's Spark would use; a home that has to be made is made in the folder given."""

import os
import sys
from pathlib import Path

from calve.spark.java import find_java

if __name__ == "__main__":
    print(find_java(Path(sys.argv[1]), os.environ))
