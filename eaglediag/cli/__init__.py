"""The command line. Each command is a module, imported when used; errors become exit codes here and nowhere else."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback

#: EX_SOFTWARE of sysexits.h: an error nobody foresaw. Not 1, which says that a gate of `check` failed.
UNFORESEEN = 70


def main() -> None:
    """Run the command line and exit with its code (see `eaglediag.errors`)."""
    from eaglediag.cli.app import app
    from eaglediag.errors import EaglediagError, Interrupted, ReaderGone

    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        # A job that is cancelled is interrupted too: what was measured is kept, and nothing stays behind.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(prog_name="eaglediag")
    except ReaderGone as gone:
        # What is still buffered has nowhere to go, and Python would complain at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(gone.exit_code)
    except EaglediagError as error:
        message, code, trace = str(error), error.exit_code, traceback.format_exc()
    except KeyboardInterrupt:
        message, code, trace = "interrupted", Interrupted.exit_code, traceback.format_exc()
    except Exception as error:
        message = f"unforeseen {type(error).__name__}: {error}; run it again with --debug and report the traceback"
        code, trace = UNFORESEEN, traceback.format_exc()
    else:
        return
    if "--debug" in sys.argv or os.environ.get("EAGLEDIAG_DEBUG"):
        print(trace, file=sys.stderr)
    from eaglediag.reports.untrusted import printable

    # It may hold a file's name, or the last words of a server.
    print(f"eaglediag: {printable(' '.join(message.splitlines()))}", file=sys.stderr)
    sys.exit(code)
