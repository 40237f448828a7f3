"""Runs tests with the lowest versions that pyproject.toml allows, in an environment of their own.

    python scripts/lowest_versions.py .cache/lowest

Every `name>=version` of calve's dependencies and extras is installed as `name==version`; what those need themselves is
as new as they allow, and test tools are those of constraints.txt. PySpark is the one of constraints.txt: `make
versions` runs the others. The newest versions are those of constraints.txt, which all tests run with.
"""

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("aws", "kafka", "hive", "postgres", "otel", "openlineage", "web")
HELD = ("pyspark", "duckdb")
"""Taken from constraints.txt: `make versions` tries other versions of Spark, and DuckDB's extensions are for one."""
SOURCE_ONLY = ("pyspark",)
"""Published without wheels, and built in seconds; of all else a lowest version has a wheel, so nothing is compiled."""
TOOLS = (
    *("pytest", "pytest-xdist", "hypothesis", "greenlet", "selenium", "PyYAML", "duckdb", "duckdb-extensions"),
    *("duckdb-extension-avro", "duckdb-extension-iceberg", "duckdb-extension-httpfs", "datafusion", "pyiceberg-core"),
)
SMOKE = (
    *("tests/unit/api", "tests/unit/cli/test_instant.py", "tests/unit/cli/test_prompt.py"),
    *("tests/unit/cli/test_show.py", "tests/unit/iceberg", "tests/unit/test_values.py"),
    *("tests/unit/reader", "tests/unit/source", "tests/unit/watch", "tests/unit/web", "tests/unit/write"),
    *("tests/unit/statements", "tests/unit/docs"),
    "tests/e2e/test_pipelines.py::test_a_view_follows_its_source_from_run_to_run",
)
NEWER = (
    "test_files_are_written_as_the_options_say",
    "test_a_copy_has_the_rows_of_its_source_and_the_column[filters]",
)
"""Arrow writes Bloom filters since version 26; before, calve leaves them out."""
ALLOWED = ("-W", "ignore::DeprecationWarning", "-W", "ignore::ImportWarning")  # of old versions themselves


def main() -> None:
    """Install and run."""
    place = Path(sys.argv[1]).absolute()
    wanted = lowest()
    print("\n".join(wanted), flush=True)
    python = environment(place, wanted)
    variables = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [str(python), "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *ALLOWED, *SMOKE]
    command += ["-k", " and ".join(f"not {name}" for name in NEWER)]
    sys.exit(subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode)


def lowest() -> list[str]:
    """`name==lowest version` of every dependency."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    pins = constraints()
    found = []
    for text in [*project["dependencies"], *(one for extra in EXTRAS for one in extras[extra])]:
        match = re.match(r"([A-Za-z0-9._-]+(?:\[[^\]]+\])?)(?:>=|==)([0-9.]+)", text)
        if match is None:
            sys.exit(f"{text} has no lowest version")
        name, version = match[1], match[2]
        found.append(f"{name}=={pins[name] if name in HELD else version}")
    return found


def constraints() -> dict[str, str]:
    """Versions of constraints.txt by name."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if not line.startswith("#"))
    return {name.lower().replace("_", "-"): version for name, version in pairs}


def environment(place: Path, wanted: list[str]) -> Path:
    """The Python of an environment with these packages, the test tools and calve."""
    python, complete = place / "bin" / "python", place / "complete"
    if not complete.is_file() or complete.read_text(encoding="utf-8").splitlines() != wanted:
        venv.create(place, with_pip=False, clear=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        pins = constraints()
        tools = [f"{name}=={pins[name.lower()]}" for name in TOOLS]
        binary = ("--only-binary", ":all:", "--no-binary", ",".join(SOURCE_ONLY))
        subprocess.run([*pip, "--disable-pip-version-check", *binary, *wanted, *tools], check=True)
        subprocess.run([*pip, "--disable-pip-version-check", "--no-deps", "-e", str(ROOT)], check=True)
        complete.write_text("\n".join(wanted), encoding="utf-8")
    return python


if __name__ == "__main__":
    main()
