"""`python -m calve`."""

from calve.cli.main import main

if __name__ == "__main__":
    main()
