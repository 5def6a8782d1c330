"""``python -m mpicoll``: see `mpicoll.cli.main`."""

from mpicoll.cli.main import main

if __name__ == "__main__":
    main()
