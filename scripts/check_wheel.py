"""Builds the wheel, installs it in an environment of its own, imports every module from there, and finds the page.

The dependencies are borrowed from the environment that runs this script; calve itself is not (its editable install is a
`.pth` file, which a borrowed folder does not get to run).
"""

import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

IMPORT_ALL = """
import importlib, pathlib, pkgutil, sys
import calve
root = pathlib.Path(calve.__file__).parent
assert root.is_relative_to(sys.prefix), f"calve came from {root}"
assert (root / "py.typed").is_file(), "py.typed is missing"
page = importlib.import_module("calve.web.app")
missing = [name for name in (*page.PARTS, "index.html", "login.html") if not (root / "web/static" / name).is_file()]
assert not missing, f"files of the page are missing: {missing}"
names = [m.name for m in pkgutil.walk_packages(calve.__path__, "calve.")]
for name in names:
    importlib.import_module(name)
print(f"imported {len(names)} modules")
"""


def run(*command: str | Path) -> None:
    """Run a command and stop with its output when it fails."""
    done = subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command[:6]))} failed:\n{done.stdout}{done.stderr}")


def main() -> None:
    """Build, install, import."""
    with tempfile.TemporaryDirectory(prefix="calve-wheel-") as folder:
        place = Path(folder)
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", place / "dist", ROOT)
        (wheel,) = (place / "dist").glob("calve-*.whl")
        venv.create(place / "venv", with_pip=False)
        python = place / "venv" / "bin" / "python"
        run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel)
        (site,) = (place / "venv" / "lib").glob("python*/site-packages")
        (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
        run(python, "-I", "-c", IMPORT_ALL)
        print(f"{wheel.name} builds, installs and imports")


if __name__ == "__main__":
    main()
