"""What goes wrong between several processes, found early and told: other weights, a long wait, one that is gone."""

import ctypes
import os
import re
import signal
import sys
import threading
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

import torch

from utils import processes
from utils.checkpoint import unwrapped
from utils.errors import Failure, first_line

PATIENCE_SECONDS = 60
_BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}  # bytes of a number → whole numbers of them
LOST = re.compile(r"gloo|nccl|ProcessGroup|TCPStore|by peer", re.IGNORECASE)
STAND = "stands/{}"  # of a process by its number, where all can read it


@torch.no_grad()
def check_alike(model, when):
    """Failure where a parameter that each process has whole is not the same, bit for bit, on all; `when`, in words."""
    if processes.size() == 1:
        return
    whole = {name: p for name, p in unwrapped(model).named_parameters() if not hasattr(p, "full_tensor")}
    sums = [p.flatten().view(_BITS.get(p.element_size(), torch.uint8)).sum() for p in whole.values()]
    there = [one.to(sums[0].device) for one in sums]  # from all devices that the model lies on
    found = processes.gather(dict(zip(whole, torch.stack(there).tolist() if there else ())))
    for number, other in enumerate(found):
        if different := [name for name in whole if found[0].get(name) != other.get(name)]:
            which = f"'{different[0]}' ({len(different)} of {len(whole)} parameters)"
            why = f"{when} {which} is another on process {number} than on process 0: they don't train as one"
            advice = "Build the same model on each, and call the one that the trainer has, which averages gradients."
            unused = "If some steps leave parameters out: parallel.args.find_unused_parameters=true."
            raise Failure(f"{why}.\n{advice}\n{unused}")


@contextmanager
def told(trainer, patience_seconds=PATIENCE_SECONDS):
    """Within the block each process notes every second where it stands, for the others to read; no step waits for it.

    One that has not moved for so long, not a line, tells where all stand. A collective that failed, since another
    process has gone, is a Failure of one line; where the time is up, one with the same words.
    """
    if processes.is_alone():
        yield
        return
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        ctypes.CDLL(None).prctl(1, int(signal.SIGTERM))  # PR_SET_PDEATHSIG: a killed torchrun leaves nobody behind
    watch = _Watch(trainer, patience_seconds)
    watch.start()
    try:
        yield
    except RuntimeError as error:
        if not LOST.search(str(error)):
            raise
        watch.ended.set()  # what it noted last is where it waited
        time.sleep(2)  # so that the one whose error it is tells it first
        said = re.sub(r"^(\[.*?\] *)+", "", first_line(error))  # without the place in torch's sources
        if gone := re.search(r".*by peer", said):
            raise Failure(f"Another process has gone ({gone[0]}).") from error
        raise Failure(f"Another process does not come ({said}).\n{watch.all_stands()}") from error
    finally:
        watch.ended.set()


class _Watch(threading.Thread):
    def __init__(self, trainer, patience_seconds):
        super().__init__(name="stands", daemon=True)
        self.trainer, self.patience_seconds = trainer, patience_seconds
        self.main, self.store = threading.current_thread().ident, processes.notes()
        self.ended, self._seen, self._since = threading.Event(), None, time.monotonic()
        self.store.set(STAND.format(processes.process_number()), "at the start")

    def run(self):
        while not self.ended.wait(1):
            try:
                waited = self._note()
                if waited >= self.patience_seconds:
                    time.sleep(2)  # so that the others have noted theirs
                    if processes.is_first_to_say(f"waiting at step {self.trainer.step}"):
                        print(f"No step for {waited:.0f} s.\n{self.all_stands()}", file=sys.stderr, flush=True)
            except RuntimeError:  # the group has ended
                return

    def _note(self):
        """Note where the main thread stands; the seconds that it has stood there."""
        frames = [frame for frame, _ in traceback.walk_stack(sys._current_frames()[self.main])]
        seen = [self.trainer.step, *((frame.f_code, frame.f_lasti) for frame in frames)]
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
        waited = time.monotonic() - self._since
        own = next((frame for frame in frames if "-packages" not in frame.f_code.co_filename), frames[0])
        where = f"{Path(own.f_code.co_filename).name}, line {own.f_lineno}, {own.f_code.co_name}"
        place = f"epoch {self.trainer.epoch + 1}, step {self.trainer.step + 1}: {where}, for {waited:.0f} s"
        self.store.set(STAND.format(processes.process_number()), place)
        return waited

    def all_stands(self):
        """A line a process."""
        keys = map(STAND.format, range(processes.process_count()))
        noted = [self.store.get(key).decode() if self.store.check([key]) else "not there yet" for key in keys]
        return "\n".join(f"process {number}: {place}" for number, place in enumerate(noted))
