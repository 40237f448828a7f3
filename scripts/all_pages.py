"""Writes all pages that are made out of the code, or (`--check`) says which are outdated; calve is imported once."""

import sys

import benchmarks_page
import engines_page
import errors_page
import licences_page
import metrics_page
import options_page
import python_page
import scale_page
import types_page
from pages import finish

PAGES = (options_page, engines_page, metrics_page, types_page, errors_page, python_page, scale_page)


def main() -> int:
    """The exit code."""
    return max([finish(one.PAGE, one.page()) for one in PAGES] + [licences_page.main(), benchmarks_page.main()])


if __name__ == "__main__":
    sys.exit(main())
