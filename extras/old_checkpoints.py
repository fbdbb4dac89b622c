"""Checkpoints of pytorch-template and its forks, which pickle a ConfigParser and whatever the fork put beside it.

python -m extras.old_checkpoints OLD NEW    write one as a checkpoint that anything loads

torch's weights-only reader does the reading. Every class or function that it does not know is given to it as an inert
stand-in, so no code that the file names is run.
"""

import re
import sys
from pathlib import Path

import numpy as np
import torch

from utils import checkpoint
from utils.errors import CheckpointError, exit_code, first_line
from utils.util import as_plain

MOST_STAND_INS = 1000  # different names in one file


class _StandIn:
    """What stands for an object of a class that is not imported: the arguments and the state it was pickled with."""

    def __init__(self, *args):
        self.args, self.state = args, {}

    def __setstate__(self, state):
        self.state = state if isinstance(state, dict) else {}

    def __setitem__(self, key, value):  # of a class that is a dict or a list
        self.state[key] = value

    def append(self, value):
        pass

    def __str__(self):
        return "/".join(map(str, self.args)) if "Path" in type(self).__name__ else type(self).__name__


def load(path, warn):
    """The content of a checkpoint of ours or, where it is none that utils.checkpoint.load reads, of theirs."""
    try:
        return checkpoint.load(path, warn)
    except CheckpointError:
        content = read(path)
        if "format" in content:  # one of ours, and damaged
            raise
        return content


def read(path):
    """The content of a checkpoint of theirs as ours has it, in tensors and plain values.

    What could not be kept of it is left out; CheckpointError where the file is none, or has no weights.
    """
    content = _unpickled(Path(path))
    if not isinstance(content, dict) or not isinstance(content.get("state_dict"), dict):
        raise CheckpointError(f"{path}: holds no 'state_dict', so it is no checkpoint of pytorch-template.")
    best = content.get("monitor_best")
    plain = {name: _kept(value) for name, value in content.items()}
    known = {
        "epoch": int(content.get("epoch", 0)),
        "config": _config(content.get("config")),
        "monitor_best": float(best) if isinstance(best, (int, float, np.number, torch.Tensor)) else None,
    }
    return {name: value for name, value in {**plain, **known}.items() if value is not None}


def _unpickled(path):
    scalar = np.float64(0).__reduce__()[0]
    kinds = {type(np.dtype(kind)) for kind in "fdilqbBhHILQ?"}
    known = [np.dtype, *kinds, *((scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core"))]
    while len(known) < MOST_STAND_INS:
        try:
            with torch.serialization.safe_globals(known):
                return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # an unpickler's errors are of every kind
            unknown = re.search(r"GLOBAL (\S+) was not an allowed global", str(error))
            if unknown is None:
                why = f"{path}: can't be read, with stand-ins for its classes either: {first_line(error)}"
                raise CheckpointError(why) from error
            name = unknown[1]  # torch leaves "builtins." out
            names = [name] if "." in name else [f"builtins.{name}", f"__builtin__.{name}"]
            known += [(type(name.rpartition(".")[2], (_StandIn,), {}), path) for path in names]
    raise CheckpointError(f"{path}: names more than {MOST_STAND_INS} classes.")


def _kept(value):
    """`value` in what a checkpoint may hold; None for what holds anything else."""
    try:
        return checkpoint.plain(value)
    except TypeError:
        return None


def _config(saved):
    """The sections in a pickled ConfigParser, of any of its versions, or in a plain dict."""
    inside = [saved, *saved.state.values()] if isinstance(saved, _StandIn) else [saved]
    sections = next((one for one in inside if isinstance(one, dict) and "trainer" in one), {})
    return as_plain(sections)


def run():
    if len(sys.argv) != 3:
        raise CheckpointError("Give two paths: python -m extras.old_checkpoints OLD NEW")
    checkpoint.save(read(sys.argv[1]), sys.argv[2])


if __name__ == "__main__":
    sys.exit(exit_code(run))
