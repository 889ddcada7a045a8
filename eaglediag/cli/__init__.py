"""The command line. Each command is one module, imported when it is used; errors become exit codes here and nowhere else."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and exit with its code (see `eaglediag.errors`)."""
    from eaglediag.cli.app import app
    from eaglediag.errors import EaglediagError, Interrupted

    debug = "--debug" in sys.argv or bool(os.environ.get("EAGLEDIAG_DEBUG"))
    try:
        app()
    except (EaglediagError, KeyboardInterrupt) as raised:
        error = raised if isinstance(raised, EaglediagError) else Interrupted("interrupted")
        if debug:
            raise
        print(f"eaglediag: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
