"""Real launches by torchrun of a copy of the code: processes that train, fail, are killed and go on."""

import json
import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple

import noisy
from lab import TESTS, USERS, Checkout

SECONDS = 150  # what no launch here takes


class Launch(NamedTuple):
    """What a launch left: torchrun's exit code, what was printed, and the seconds that it took."""

    code: int
    out: str
    err: str
    seconds: float


class Launcher:
    """Launches in one folder: a checkout, a config with the user's modules beside it, and the runs' folder."""

    def __init__(self, folder):
        self.folder, self.saved, self.experiment = folder, folder / "saved", folder / "experiment"
        self.probe = folder / "probe"
        (folder / "checkout").mkdir()
        self.experiment.mkdir()
        self.checkout = Checkout(folder / "checkout")
        for name in USERS:
            shutil.copy(TESTS / f"{name}.py", self.experiment)
        self._started = []

    def write(self, config, name="config.json"):
        path = self.experiment / name
        path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
        return path

    def start(self, *words, program=sys.executable, **environment):
        """A process `python WORDS`, or of another program, in a session of its own."""
        made = {"PROBE": str(self.probe), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "", **environment}
        self._started.append(self.checkout.start(*words, program=program, **made))
        return self._started[-1]

    def torchrun(self, count, *words, **environment):
        """torchrun --nproc-per-node COUNT WORDS, started."""
        return self.agent(count, "--standalone", *words, **environment)

    def agent(self, count, *words, **environment):
        alone = ("--local-addr", "127.0.0.1")
        return self.start("-m", "torch.distributed.run", *alone, "--nproc-per-node", count, *words, **environment)

    def run(self, count, *words, **environment):
        """A Launch of torchrun --nproc-per-node COUNT WORDS."""
        return self.ended(self.torchrun(count, *words, **environment))

    @staticmethod
    def ended(process, seconds=SECONDS):
        begun = time.monotonic()
        out, err = process.communicate(timeout=seconds)
        return Launch(process.returncode, out, err, time.monotonic() - begun)

    def alone(self, *words, **environment):
        """A Launch of one process without torchrun."""
        return self.ended(self.start(*words, **environment))

    def left(self):
        """The processes that still hold this folder's checkout as theirs."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cwd"):
            try:
                if path.resolve() == self.checkout.root.resolve():
                    found.append(path.parent.name)
            except OSError:
                continue
        return found

    def end(self):
        """Leave nothing behind of what a failed test started, nor workers, which lead sessions of their own."""
        for process in self._started:
            if process.poll() is None:
                for number in [*descendants(process.pid), process.pid]:
                    try:
                        os.kill(number, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                process.communicate()


def descendants(parent):
    """The numbers of the processes that a process has started, and of those that they have."""
    children = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            number = path.read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        children.setdefault(int(number), []).append(int(path.parent.name))
    found, left = [], [parent]
    while left:
        left += children.get(left[0], [])
        found += children.get(left.pop(0), [])
    return found


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def config(saved, **sections):
    """Of `noisy`, with all that it has, for a model that gets into trouble."""
    given = {
        "arch": "many.Net",
        "data_loader": noisy.loader(404, batch_size=8, shuffle=True),  # two processes have two rows each of the last
        "valid_data_loader": noisy.loader(200, batch_size=4),
        "metrics": ["noisy.size"],
        **sections,
    }
    return noisy.everything(saved, **given)
