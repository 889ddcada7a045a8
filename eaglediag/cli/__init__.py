"""The command line. Each command is a module, imported when used; errors become exit codes here and nowhere else."""

from __future__ import annotations

import os
import sys
import traceback

#: EX_SOFTWARE of sysexits.h: an error nobody foresaw. Not 1, which says that a gate of `check` failed.
UNFORESEEN = 70


def main() -> None:
    """Run the command line and exit with its code (see `eaglediag.errors`)."""
    from eaglediag.cli.app import app
    from eaglediag.errors import EaglediagError, Interrupted

    debug = "--debug" in sys.argv or bool(os.environ.get("EAGLEDIAG_DEBUG"))
    try:
        app()
    except EaglediagError as error:
        message, code = str(error), error.exit_code
    except KeyboardInterrupt:
        message, code = "interrupted", Interrupted.exit_code
    except Exception as error:
        message = (
            f"unforeseen {type(error).__name__}: {error}; run it again with EAGLEDIAG_DEBUG=1 and report the traceback"
        )
        code = UNFORESEEN
    else:
        return
    if debug:
        traceback.print_exc()
    print(f"eaglediag: {message}", file=sys.stderr)
    sys.exit(code)
