"""Installs Debian's Chromium and its driver, which the tests of the page use.

    python scripts/install_browser.py

A browser that is there is left alone. Without apt-get, or without the right to use it, it says so and ends well: the
tests that need a browser are skipped with that reason.
"""

import os
import shutil
import subprocess
import time

PACKAGES = ("chromium", "chromium-driver", "fonts-dejavu-core")
SECONDS = 600


def main() -> None:
    """Install what is missing."""
    if shutil.which("chromium") and shutil.which("chromedriver"):
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        print("chromium is not found, and only root can install it with apt-get: tests in a browser will be skipped")
        return
    print("installing chromium")
    began = time.monotonic()
    if not installed() and not (updated() and installed()):
        print("chromium could not be installed: tests in a browser will be skipped")
        return
    print(f"chromium is installed, after {time.monotonic() - began:.0f} s")


def installed() -> bool:
    """Whether the packages are there now; the lists that the machine has may be old or missing."""
    return apt("install", "--yes", "--no-install-recommends", *PACKAGES)


def updated() -> bool:
    """Whether the lists of packages could be fetched."""
    return apt("update")


def apt(*arguments: str) -> bool:
    """Run apt-get quietly; it may wait for another one."""
    command = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=3", *arguments]
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )
    except subprocess.TimeoutExpired:
        print(f"apt-get {arguments[0]} took more than {SECONDS} s")
        return False
    if done.returncode:
        print(f"apt-get {arguments[0]} failed: {done.stderr.strip()}")
    return done.returncode == 0


if __name__ == "__main__":
    main()
