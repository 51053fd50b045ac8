"""The ``cgtool`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Every way out is an exit code; no traceback of ours is shown."""
    try:
        # Imported in here: Ctrl-C while a module is read must be as quiet as any other.
        from cgtool.cli.run import run

        code = run()
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
