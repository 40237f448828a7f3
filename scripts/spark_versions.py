"""Runs the smoke tests with other versions of Spark, each in an environment of its own.

    python scripts/spark_versions.py .cache/spark [VERSION ...]

An environment has one version of PySpark and borrows all else from the environment that runs this script, calve itself
included. One that is there already is used again.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.5.9", "4.0.5", "4.3.0")
"""Besides the one that all tests run with; one for every minor version that behaves differently."""
SMOKE = ("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "slow", "tests/versions")
ALLOWED = ("-W", "ignore:The distutils package is deprecated:DeprecationWarning")  # of PySpark 3.5 itself


def main() -> None:
    """Run them all; the exit code says whether all of them passed."""
    folder, *asked = sys.argv[1:]
    failed = []
    for version in asked or VERSIONS:
        print(f"== Spark {version}", flush=True)
        python = environment(Path(folder).absolute() / version, version)
        variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CALVE_EXPECTED_SPARK": version}
        if subprocess.run([str(python), *SMOKE, *ALLOWED], cwd=ROOT, env=variables, check=False).returncode:
            failed.append(version)
    if failed:
        sys.exit(f"failed with Spark {', '.join(failed)}")


def environment(place: Path, version: str) -> Path:
    """The Python of an environment with this version of PySpark."""
    python = place / "bin" / "python"
    complete = place / "complete"
    if not complete.is_file():
        venv.create(place, with_pip=False, clear=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        subprocess.run([*pip, "--disable-pip-version-check", f"pyspark=={version}"], check=True)
        complete.touch()
    (site,) = (place / "lib").glob("python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))  # after the packages that are installed here
    return python


if __name__ == "__main__":
    main()
