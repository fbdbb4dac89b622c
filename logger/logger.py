"""Lines for people: on the console at once, and in the run's train.log as soon as there is a run's folder."""

import logging.handlers
import os
import sys

LEVELS = {0: logging.WARNING, 1: logging.INFO, 2: logging.DEBUG}


class _Console(logging.Handler):
    """Prints above a progress bar that is being drawn; warnings say that they are one."""

    def emit(self, record):
        line = self.format(record)
        if record.levelno >= logging.WARNING:
            line = f"{record.levelname.lower()}: {line}"
        # Whoever draws a bar has imported tqdm.
        write = sys.modules["tqdm"].tqdm.write if "tqdm" in sys.modules else print
        write(line)
        sys.stdout.flush()


class _Waiting(logging.handlers.MemoryHandler):
    """Keeps the lines that come before there is a file to write them to, and passes on the others at once."""


def get_logger(name, verbosity=2):
    """A logger by that name. verbosity: 0 warnings, 1 also a line an epoch, 2 and above everything.

    Of several processes only the first says more than errors.
    """
    _waiting()
    logger = logging.getLogger(name)
    level = LEVELS[min(max(int(verbosity), 0), 2)]
    logger.setLevel(level if os.environ.get("RANK", "0") == "0" else logging.ERROR)
    return logger


def open_log(path):
    """Append what the console shows, and has shown since the last file was closed, to the file at `path`."""
    close_log()
    file = logging.FileHandler(path, encoding="utf-8", delay=True)
    file.setFormatter(logging.Formatter("%(asctime)s  %(levelname)-7s  %(message)s", "%Y-%m-%d %H:%M:%S"))
    _waiting().setTarget(file)
    _waiting().flush()


def close_log():
    """What follows waits for the next file."""
    handler = _waiting()
    if handler.target is not None:
        handler.target.close()
        handler.setTarget(None)


def _waiting():
    """The handler that waits for a file; the root logger gets it, and the console's, at the first call."""
    root = logging.getLogger()
    found = next((handler for handler in root.handlers if isinstance(handler, _Waiting)), None)
    if found is None:
        found = _Waiting(capacity=1)
        if not any(type(handler) is logging.StreamHandler for handler in root.handlers):  # of logging.basicConfig
            root.addHandler(_Console())
        root.addHandler(found)
    return found
