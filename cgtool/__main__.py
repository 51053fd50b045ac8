"""``python -m cgtool`` is the command ``cgtool``."""

from cgtool.cli.app import main

if __name__ == "__main__":
    main()
