"""A folder for an experiment, and the project's commands run in this process as if each had one of its own."""

import importlib.util
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import torch

import train
from logger.logger import _Console, _Waiting
from utils import imports, runs
from utils.errors import exit_code

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
USERS = ("toy", "noisy", "own", "many")  # modules that lie beside a config, as a user's do
TIMES = {"seconds", "samples_per_second", "data_wait"}  # the numbers that no two runs share


class Done(NamedTuple):
    """What a command left: its exit code, what it printed, and what its `main` returned, None where it did not."""

    code: int
    out: str
    err: str
    numbers: dict | None = None


class Lab:
    """A folder with a config and the user modules beside it, a folder for runs, and a file for the probes."""

    def __init__(self, folder, monkeypatch, capsys):
        self.folder = folder / "experiment"
        self.saved = folder / "saved"
        self.probe_file = folder / "probe.jsonl"
        self._monkeypatch, self._capsys = monkeypatch, capsys
        self.folder.mkdir()
        for name in USERS:
            shutil.copy(TESTS / f"{name}.py", self.folder)
        monkeypatch.setenv("PROBE", str(self.probe_file))

    def write(self, config, name="config.json"):
        """The path of a file that holds the config; text is written as it is."""
        path = self.folder / name
        path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
        return path

    def train(self, config, *words, **environment):
        """`python train.py -c CONFIG WORDS`, or without -c where config is None."""
        return self._command(train, config, words, environment)

    def resume(self, checkpoint, *words, **environment):
        """`python train.py -r CHECKPOINT WORDS`."""
        return self._command(train, None, ("-r", checkpoint, *words), environment)

    def test(self, checkpoint, *words, config=None):
        """`python test.py -r CHECKPOINT WORDS`."""
        return self._command(_test_script(), config, ("-r", checkpoint, *words), {})

    def _command(self, script, config, words, environment):
        self.as_in_a_new_process()
        given = [] if config is None else ["-c", self.write(config) if isinstance(config, dict) else config]
        numbers = []
        with self._monkeypatch.context() as changed:
            changed.setattr(sys, "argv", [script.__file__, *map(str, [*given, *words])])
            for name, value in environment.items():
                changed.setenv(name, value)
            main = script.main

            def noted(*args):
                numbers.append(main(*args))
                return numbers[-1]

            changed.setattr(script, "main", noted)
            self._capsys.readouterr()
            code = exit_code(script.run)
        out, err = self._capsys.readouterr()
        return Done(code, out, err, numbers[0] if numbers else None)

    @staticmethod
    def as_in_a_new_process():
        """Forget the user's modules, their folders, the open log and the locks."""
        for name in USERS:
            sys.modules.pop(name, None)
        sys.path[:] = [folder for folder in sys.path if folder not in imports._users]
        imports._users.clear()
        for folder in list(runs._held):
            runs.unlock(folder)
        root = logging.getLogger()
        for handler in list(root.handlers):
            if isinstance(handler, (_Console, _Waiting)):
                if getattr(handler, "target", None) is not None:
                    handler.target.close()
                root.removeHandler(handler)
                handler.close()

    def runs(self, name="*"):
        """The run folders, in the order they were begun; `name` of the experiment, else of all."""
        return sorted((path for path in self.saved.glob(f"{name}/*") if path.is_dir()), key=_age)

    @property
    def run(self):
        """The only run's folder."""
        (folder,) = self.runs()
        return folder

    def probe(self, key):
        """The values that the user modules have noted under a key since the last `forget`, in order."""
        if not self.probe_file.exists():
            return []
        lines = [json.loads(line) for line in self.probe_file.read_text().splitlines()]
        return [line[key] for line in lines if key in line]

    def forget(self):
        self.probe_file.unlink(missing_ok=True)


class Checkout:
    """A copy of the project's code, for whole processes: what they note at its root is no part of this checkout."""

    def __init__(self, folder):
        self.root = folder
        self._started = []
        for path in [*ROOT.glob("*.py"), ROOT / "config.json"]:
            shutil.copy(path, folder)
        for room in ("base", "data_loader", "extras", "logger", "model", "trainer", "utils"):
            shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "data").symlink_to(ROOT / "data")

    def start(self, *words, program=sys.executable, **environment):
        """python WORDS, or another program's, as a process in a session of its own."""
        environment = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default", **environment}
        process = subprocess.Popen(
            [program, *map(str, words)],
            cwd=self.root,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def end(self):
        """Leave nothing behind of what a failed test has started."""
        for process in self._started:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.communicate()

    def run(self, *words):
        """A Done of python WORDS."""
        process = self.start(*words)
        out, err = process.communicate(timeout=120)
        return Done(process.returncode, out, err)


def _age(folder):
    path = folder / "environment.json"
    return json.loads(path.read_text())["time"] if path.exists() else ""


def _test_script():
    """The script test.py, under another name than Python's own package `test`."""
    spec = importlib.util.spec_from_file_location("evaluate_script", ROOT / "test.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(path):
    """The content of a checkpoint, read as anybody would."""
    return torch.load(path, weights_only=True)


def history(folder):
    """The lines of a run's metrics.jsonl, without the numbers that no two runs share."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def differences(one, other, path=""):
    """The dotted paths at which two nested values differ in any bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
        return [] if same else [path]
    if isinstance(one, dict) and isinstance(other, dict):
        names = [name for name in dict.fromkeys([*one, *other]) if name not in TIMES]
        return [found for n in names for found in differences(one.get(n), other.get(n), f"{path}.{n}".lstrip("."))]
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        return [found for i, (a, b) in enumerate(zip(one, other)) for found in differences(a, b, f"{path}.{i}")]
    return [] if type(one) is type(other) and repr(one) == repr(other) else [path]


def differences_of_checkpoints(one, other):
    """What differs between two checkpoints but for the config, which says how each was come to."""
    one, other = load(one), load(other)
    return differences({**one, "config": None}, {**other, "config": None})
