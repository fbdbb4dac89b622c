"""The fixtures that several test files share."""

import signal
import sys

import pytest
import torch
from lab import TESTS, Checkout, Lab

from utils import imports


@pytest.fixture
def lab(tmp_path, monkeypatch, capsys):
    """A Lab, and afterwards everything that a command changed in this process put back."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(imports, "NOTE", tmp_path / "config_folders")
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(TESTS)])
    monkeypatch.delenv("INTERRUPT", raising=False)
    threads = torch.get_num_threads()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    torch.set_num_threads(1)
    made = Lab(tmp_path, monkeypatch, capsys)
    yield made
    made.as_in_a_new_process()
    torch.set_num_threads(threads)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    folder.mkdir()
    made = Checkout(folder)
    yield made
    made.end()


@pytest.fixture
def module(lab):
    """Write a user's module beside the config, under a name that no other test has."""
    written = []

    def write(name, code):
        written.append(name)
        (lab.folder / f"{name}.py").write_text(code, encoding="utf-8")
        return [number for number, line in enumerate(code.splitlines(), 1) if "# here" in line]

    yield write
    for name in written:
        sys.modules.pop(name, None)
