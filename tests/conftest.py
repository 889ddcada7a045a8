"""What holds for all tests."""

from __future__ import annotations

import signal

# Where the tests are run by a shell's background job Ctrl-C is ignored, and would be by every process that they start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
