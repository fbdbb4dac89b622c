"""SIGINT and SIGTERM as a flag that is looked at between updates; a second SIGINT leaves at once."""

import os
import signal
import threading
import time
from contextlib import contextmanager
from typing import Any

from utils import processes
from utils.errors import Stopped

_NAMES: dict[int, str] = {signal.SIGINT: "SIGINT", signal.SIGTERM: "SIGTERM"}
_received: list[int] = []
_pace: Any = None  # of several processes, within `watched`


@contextmanager
def watched():
    """Within the block the two signals only set a flag; the handlers are put back afterwards.

    Outside the main thread, where Python allows no handlers, signals act as ever.
    """
    global _pace
    _received.clear()
    _pace = _Pace()
    heeded = _NAMES if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, _receive) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _received.clear()
        _pace = None


def _receive(number, frame):
    if number == signal.SIGINT and signal.SIGINT in _received:
        raise KeyboardInterrupt
    if os.isatty(1):  # written past Python's buffers, in which the signal may have come
        os.write(1, f"\n{_NAMES[number]}: saving after this step; Ctrl-C again leaves at once.\n".encode())
    _received.append(number)


@contextmanager
def held():
    """Within the block the two signals wait, for this thread and for the processes that it starts."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _NAMES)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore():
    """From here on this process leaves both to its parent, those that came while they were held, too."""
    for number in _NAMES:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NAMES)


class _Pace:
    """When the processes ask one another: after as many calls as take some 5 s, at most 20."""

    def __init__(self):
        self.calls, self.left, self.since = 1, 1, time.monotonic()

    def agreed(self, number):
        """The largest signal number that any process has received; 0 where it is not the time to ask."""
        self.left -= 1
        if self.left > 0:
            return 0
        seconds = (time.monotonic() - self.since) / self.calls
        number, seconds = map(max, zip(*processes.gather((number, seconds))))
        # What came before the first call was no update: at most twice as many as have been timed.
        self.calls = self.left = int(min(max(5 / seconds, 1), 2 * self.calls, 20))
        self.since = time.monotonic()
        return number


def check(together=False):
    """Raise Stopped where a signal asked for the end.

    Of several processes all leave at the same call with `together`, which each of them makes equally often.
    """
    number = _received[0] if _received else 0
    if not processes.is_alone():
        number = _pace.agreed(number) if together and _pace else 0
    if number:
        raise Stopped(number, f"Stopped by {_NAMES[number]}.")
