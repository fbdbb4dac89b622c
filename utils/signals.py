"""SIGINT and SIGTERM as a flag that is looked at between updates; a second SIGINT leaves at once."""

import os
import signal
import threading
from contextlib import contextmanager

from utils.errors import Stopped

_NAMES: dict[int, str] = {signal.SIGINT: "SIGINT", signal.SIGTERM: "SIGTERM"}
_received: list[int] = []


@contextmanager
def watched():
    """Within the block the two signals only set a flag; the handlers are put back afterwards.

    Outside the main thread, where Python allows no handlers, signals act as ever.
    """
    _received.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _receive) for number in _NAMES}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _received.clear()


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


def check(meet=False):
    """Raise Stopped where a signal asked for the end; of several processes all leave together, where they `meet`."""
    from utils import processes

    if (processes.size() == 1 or meet) and processes.any_of_all(bool(_received)):
        number = _received[0] if _received else signal.SIGTERM
        raise Stopped(number, f"Stopped by {_NAMES[number]}.")
