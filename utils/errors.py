"""What can go wrong, each with the code that a script leaves with; and the words that tell it."""

import difflib
import errno
import json
import os
import re
import sys
from traceback import print_exc


class Failure(Exception):
    """Something that is told in a few lines and without a traceback; `exit_code` is what the script leaves with."""

    exit_code = 1


class ConfigError(Failure, ValueError):
    """The config or the command line is wrong, or an object could not be built from it."""

    exit_code = 2


class ArgumentError(ConfigError):
    """A constructor refuses an argument, whose name the message begins with; where it stands, its maker knows."""


class CheckpointError(Failure):
    """A checkpoint is unreadable, does not fit, or is refused."""

    exit_code = 3


class Diverged(Failure):
    """The training loss is no longer a number."""

    exit_code = 4


class SaveError(Failure):
    """A checkpoint could not be written."""

    exit_code = 5


class OutOfMemory(Failure):
    """The device has no memory left for an update."""

    exit_code = 6


class Stopped(Failure):
    """A signal asked for the end; the code is the shell's own, 128 + the signal's number."""

    def __init__(self, signal_number, message="stopped"):
        super().__init__(message)
        self.exit_code = 128 + signal_number


def near(name, names, cutoff=0.6):
    """ "Did you mean …?" with the nearest of `names`, or nothing."""
    by_case = {str(other).casefold(): other for other in names}
    close = difflib.get_close_matches(str(name).casefold(), by_case, n=1, cutoff=cutoff)
    return f"Did you mean '{by_case[close[0]]}'?" if close else ""


def hint(name, names):
    """The nearest of the names that are accepted, or else all of them."""
    return near(name, names) or f"It accepts {', '.join(map(str, names)) or 'none'}."


def first_line(error):
    """What an exception says, without the pages that some libraries add."""
    return re.sub(r"\x1b\[\d*m", "", str(error).strip() or "nothing").splitlines()[0][:300]


def shown(value, most=80):
    """A value as it stands in a config, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def exit_code(main, *args, traceback=False):
    """Call `main(*args)` and return the code to leave with.

    A Failure is printed on stderr in at most five lines (a list of problems: each on a line of its own), any other
    exception is the user's code and keeps its traceback. `traceback`: a Failure shows its own, too.
    """
    try:
        main(*args)
        sys.stdout.flush()
        if "utils.processes" in sys.modules:  # whoever has joined others has imported it
            sys.modules["utils.processes"].leave()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read what is printed has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's, which needs no import to be told by
            error = OutOfMemory(f"{str(error).splitlines()[0]}\n{_LESS_MEMORY}")
        elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            error = SaveError(f"{error.filename or 'the run'}: could not be written: {error.strerror}. Make room.")
        elif "by peer" in str(error) and not isinstance(error, Failure):  # where processes meet
            error = Failure(f"Another process has gone ({str(error).partition('by peer')[0][-20:]}by peer).")
        if not isinstance(error, Failure):
            if is_first_to_say("an exception"):
                raise
            error = Failure(f"{type(error).__name__}: {first_line(error)}")
        elif not is_first_to_say(str(error), ever=True):
            return error.exit_code
        if traceback:
            print_exc()
        said = f"process {os.environ['RANK']}: {error}" if os.environ.get("RANK", "0") != "0" else str(error)
        print(said.encode(errors="backslashreplace").decode(), file=sys.stderr)
        return error.exit_code
    return 0


def is_first_to_say(words, ever=False):
    """Of several processes, whether this one is to tell what went wrong; see utils.processes."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return True
    from utils import processes

    return processes.is_first_to_say(words, ever)


_LESS_MEMORY = """Halve data_loader.args.batch_size and double trainer.accumulate: an update stays the same.
Or train in half the memory with trainer.amp=bf16."""
