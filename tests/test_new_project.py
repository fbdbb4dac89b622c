"""A fork is moved onto this core: what it has of its own goes along, trains, and the fork stays as it was."""

import ast
import hashlib
import json
import os
import subprocess
import sys

import pytest
from lab import ROOT, TESTS, history

import new_project
from extras import migrate
from extras.sources import Source, digest
from utils.errors import exit_code

BASE_TRAINER = """
import torch


class BaseTrainer:
    def __init__(self, model, criterion, metric_ftns, optimizer, config):
        self.config = config
        self.logger = config.get_logger("trainer", config["trainer"]["verbosity"])
        self.device = torch.device("cpu")
        self.model = model.to(self.device)
        self.loss = self.criterion = criterion
        self.metrics = self.metric_ftns = metric_ftns
        self.optimizer = optimizer
        self.visitors = []
        from logger import TensorboardWriter
        self.writer = TensorboardWriter(config.log_dir, self.logger, config["trainer"]["tensorboard"])

    def train(self):
        for epoch in range(1, self.config["trainer"]["epochs"] + 1):
            log = self._train_epoch(epoch)
        torch.save({"config": self.config, "log": log}, str(self.config.save_dir / "own.pth"))
"""
FORK = {
    "base/__init__.py": "from .base_data_loader import *\nfrom .base_model import *\nfrom .base_trainer import *\n",
    "base/base_trainer.py": BASE_TRAINER,
    "base/base_data_loader.py": """
from torch.utils.data import DataLoader


class BaseDataLoader(DataLoader):
    def __init__(self, dataset, batch_size, shuffle, validation_split, num_workers):
        self.n_samples = len(dataset)
        super().__init__(dataset, batch_size, shuffle, num_workers=num_workers)

    def split_validation(self):
        return None
""",
    "base/base_model.py": "import torch.nn as nn\n\n\nclass BaseModel(nn.Module):\n    pass\n",
    "logger/__init__.py": "from .visualization import *\n",
    "logger/visualization.py": "class TensorboardWriter:\n    pass\n",
    "logger/logger_config.json": "{}",
    "utils/__init__.py": "from .util import *\n",
    "utils/util.py": "def read_json(fname):\n    return {}\n\n\nclass MetricTracker:\n    pass\n",
    "parse_config.py": "class ConfigParser:\n    def __init__(self, config, resume=None):\n        pass\n",
    "trainer/__init__.py": "",
    "trainer/parts.py": (TESTS / "old_project.py").read_text(encoding="utf-8"),
    "train.py": "from trainer.parts import configure, main\n\nif __name__ == '__main__':\n    main(configure())\n",
    "requirements.txt": "torch>=1.2\npandas\n",
    "saved/models/old.txt": "",
    "model_best.pth": "",
}
CONFIG = {
    "name": "Digits",
    "n_gpu": 0,
    "arch": {"type": "DigitModel", "args": {}},
    "data_loader": {"type": "DigitLoader", "args": {"data_dir": "", "batch_size": 16, "num_workers": 0}},
    "optimizer": {"type": "Adam", "args": {"lr": 0.01}},
    "loss": "nll_loss",
    "metrics": ["accuracy"],
    "lr_scheduler": {"type": "StepLR", "args": {"step_size": 50}},
    "trainer": {"epochs": 2, "save_dir": "saved/", "save_period": 1, "verbosity": 2, "tensorboard": False},
}
EXTRA_NAMES = {  # in the files that are replaced
    "utils/util.py": """
import json
import math as m
from functools import wraps
from itertools import *

SIZES = [1, 2]
SIZES += [3]
_unit = 2


def read_json(fname):
    return {}


def ensure_dir(dirname):
    return "of the fork"


def marked(function):
    @wraps(function)
    def inner(*args):
        return function(*args) * _unit
    return inner


@marked
def area(radius):
    # é, and a comment
    return m.floor(m.pi * radius**2) + len(list(chain(SIZES)))


def make(folder):
    ensure_dir(folder)
    return area(1)


def _private():
    return 1
""",
    "base/base_model.py": """
import torch.nn as nn


class BaseModel(nn.Module):
    pass


class BaseGAN(BaseModel):
    def twice(self):
        return 2
""",
}


def write(folder, *more):
    for path, text in {
        **FORK,
        "config.json": json.dumps(CONFIG),
        **{p: t for one in more for p, t in one.items()},
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def fork(tmp_path):
    return write(tmp_path / "fork")


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """new_project.py NEW --from FORK WORDS, its imports not tried: (exit code, MOVED.md or the error)."""

    def run(fork, *words, folder=tmp_path / "new", tried=True):
        with monkeypatch.context() as changed:
            if not tried:
                changed.setattr(migrate.Move, "try_imports", lambda self: [])
            changed.setattr(sys, "argv", ["new_project.py", str(folder), "--from", str(fork), *words])
            code = exit_code(new_project.run)
        out, err = capsys.readouterr()
        return code, err or out

    return run


def contents(folder):
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def python(folder, *words):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def without_device():
    """The parts of a fork of 2019: the base sets the device, and names loss and metrics so."""
    text = FORK["trainer/parts.py"]
    for was, now in {
        "        self.device = device\n": "",
        "        config,\n        device,\n": "        config,\n",
        "        device=device,\n": "",
        "self.criterion(": "self.loss(",
        "self.metric_ftns": "self.metrics",
    }.items():
        assert was in text
        text = text.replace(was, now)
    return text


def test_a_moved_fork_trains_and_the_fork_stays_as_it_was(tmp_path, fork, command):
    before = contents(fork)
    code, told = command(fork)
    assert code == 0 and "train.py: its imports work." in told
    assert (tmp_path / "new" / "MOVED.md").read_text() == told[:-1]
    python(tmp_path / "new", "train.py", "-c", "config.json")
    (run,) = (tmp_path / "new" / "saved" / "Digits").iterdir()
    assert [line["epoch"] for line in history(run)] == [1, 2]
    assert contents(fork) == before


@pytest.mark.slow
def test_a_moved_fork_of_2019_trains_and_resumes_with_its_own_names(tmp_path, command):
    fork = write(tmp_path / "fork", {"trainer/parts.py": without_device()})
    code, told = command(fork, tried=False)
    assert code == 0 and "self.loss" not in told and "self.metrics" not in told
    assert "BaseTrainer moved the model to its device" in told
    python(tmp_path / "new", "train.py", "-c", "config.json")
    (run,) = (tmp_path / "new" / "saved" / "Digits").iterdir()
    assert len(history(run)) == 2
    python(tmp_path / "new", "train.py", "-r", str(run / "latest.pth"), "--ep", "3")
    assert [line["epoch"] for line in history(run)] == [1, 2, 3]


@pytest.mark.slow
def test_a_fork_that_keeps_its_base_trains_with_it_on_our_other_rooms(tmp_path, fork, command):
    (fork / "parse_config.py").write_text("class ConfigParser:\n    pass\n")  # nothing of its own: the core's is taken
    code, _ = command(fork, "--keep-base", tried=False)
    assert code == 0 and (tmp_path / "new" / "base" / "base_trainer.py").read_text() == BASE_TRAINER
    python(tmp_path / "new", "train.py", "-c", "config.json")
    (saved,) = tmp_path.glob("new/saved/Digits/*/own.pth")
    read = f"import torch; print(torch.load({str(saved)!r})['config']['name'])"
    assert python(tmp_path, "-c", read) == "Digits\n"


def test_names_that_only_the_forks_replaced_files_had_are_found_where_they_were(tmp_path, command):
    code, told = command(write(tmp_path / "fork", EXTRA_NAMES), tried=False)
    assert code == 0
    uses = [
        "from utils import area, SIZES",
        "from utils.util import make",
        "from base import BaseGAN, BaseModel",
        "from utils import *",
        "import tempfile",
        "print(area(1), make(tempfile.mkdtemp()), SIZES, issubclass(BaseGAN, BaseModel), BaseGAN().twice())",
    ]
    assert python(tmp_path / "new", "-c", "; ".join(uses)) == "12 12 [1, 2, 3] True 2\n"
    assert "utils/util.py:16: ensure_dir: the fork had its own ensure_dir; now it is the core's." in told


def test_a_name_that_the_forks_code_takes_is_carried_though_it_is_private_or_an_import(tmp_path, command):
    taking = {"tools.py": "from utils.util import _private, m\nfrom utils import *\n\n\ndef f():\n    return wraps\n"}
    assert command(write(tmp_path / "fork", EXTRA_NAMES, taking), tried=False)[0] == 0
    assert python(
        tmp_path / "new", "-c", "import tools; print(tools._private(), tools.m.pi > 3, tools.f().__name__)"
    ) == ("1 True wraps\n")


def test_modules_that_only_the_fork_had_go_along_and_stay_in_the_package(tmp_path, command):
    modules = {
        "utils/__init__.py": "from .util import *\nfrom .plots import *\n",
        "utils/plots.py": "from utils import read_json\n\n\ndef draw():\n    return read_json.__module__\n",
        "tools/deep/more.py": "x = 1\n",
    }
    assert command(write(tmp_path / "fork", modules), tried=False)[0] == 0
    assert python(tmp_path / "new", "-c", "from utils import draw; print(draw())") == "utils.util\n"
    assert (tmp_path / "new" / "tools" / "deep" / "more.py").read_text() == "x = 1\n"


def test_a_module_of_the_fork_called_as_one_of_the_core_gives_its_names_there(tmp_path, command):
    assert command(write(tmp_path / "fork", {"utils/metrics.py": "def dice():\n    return 7\n"}), tried=False)[0] == 0
    read = "from utils.metrics import Metrics, dice; print(dice(), Metrics.__name__)"
    assert python(tmp_path / "new", "-c", read) == "7 Metrics\n"


def test_a_parser_that_reads_the_command_line_itself_is_called_by_from_args(tmp_path, command):
    parser = "class ConfigParser:\n    def __init__(self, args, options='', timestamp=True):\n        pass\n"
    script = "from parse_config import ConfigParser\nargs = 'é'; config = ConfigParser(args, ())\n"
    other = "class ConfigParser(object):\n    pass\n"
    fork = write(tmp_path / "fork", {"parse_config.py": parser, "go.py": script, "old_parser.py": other})
    _, told = command(fork, tried=False)
    assert (tmp_path / "new" / "go.py").read_text() == script.replace("Parser(a", "Parser.from_args(a")
    assert (tmp_path / "new" / "old_parser.py").read_text() == other
    assert "go.py:2: ConfigParser.from_args(…)" in told and "old_parser.py" not in told


def test_a_parser_in_utils_is_the_cores_and_its_own_methods_are_told(tmp_path, command):
    parser = "class ConfigParser:\n    def init_list(self):\n        return 1\n"
    fork = write(tmp_path / "fork", {"utils/parse_config.py": parser})
    (fork / "parse_config.py").unlink()
    _, told = command(fork, tried=False)
    assert "utils/parse_config.py:1: ConfigParser: the fork had its own init_list (the core's has none)" in told
    read = "import utils.parse_config as a, parse_config as b; print(a.ConfigParser is b.ConfigParser)"
    assert python(tmp_path / "new", "-c", read) == "True\n"


def test_what_is_left_to_do_is_told_with_its_lines(tmp_path, command):
    lines = ["x.cuda()", "resnet18(pretrained=True)", "a = np.float(1) + np.float32(1)", "b = np.Inf  # np.NaN"]
    lines += ["import tensorboardX", "y.cuda()", "", "def split_by_patient(): pass", "logger.warn('x')"]
    trainer = "class T(BaseTrainer):\n    def f(self):\n        return self.visitors, self.model\n"
    texts = {"lines.py": "\n".join(lines), "own.py": trainer, "old.py": "print 'two'\n"}
    _, told = command(write(tmp_path / "fork", texts), tried=False)
    for expected in (
        "lines.py:1, 6: `.cuda`",
        "lines.py:2: `pretrained=True`",
        "lines.py:3: `np.float`",
        "lines.py:4: `np.Inf`",
        "lines.py:5: `tensorboardX`",
        "lines.py:8: `def split_by_patient`",
        "lines.py:9: `logger.warn`",
        "own.py:3: self.visitors was BaseTrainer's",
        "old.py: can't be read by this Python",
        "base/base_trainer.py:5: BaseTrainer: the fork had its own __init__, train; now",
    ):
        assert f"- {expected}" in told
    assert "np.NaN" not in told.replace("np.inf, np.nan", "") and "self.model was" not in told


def test_runs_checkpoints_links_and_large_files_are_left_and_told(tmp_path, fork, command, monkeypatch):
    monkeypatch.setattr(migrate, "MOST_BYTES", 10_000)
    (fork / "large.bin").write_bytes(b"0" * 10_001)
    (fork / "data").symlink_to(tmp_path)
    (fork / "gone.txt").symlink_to(tmp_path / "nothing")
    (fork / ".git").mkdir()
    (fork / ".git" / "HEAD").write_text("")
    code, told = command(fork, tried=False)
    left = told.partition("## Not copied")[2]
    for name in ("saved", "model_best.pth", "large.bin", "data", "gone.txt"):
        assert code == 0 and f"- {name}: " in left and not os.path.lexists(tmp_path / "new" / name)
    assert not (tmp_path / "new" / ".git").exists()


def test_requirements_are_the_cores_and_then_the_forks_others(tmp_path, fork, command):
    command(fork, tried=False)
    ours = (ROOT / "requirements.txt").read_text()
    assert (tmp_path / "new" / "requirements.txt").read_text() == ours + "pandas\n"


def test_a_missing_package_is_told_by_its_name(tmp_path, fork, command):
    (fork / "train.py").write_text("import not_there_at_all\n")
    code, told = command(fork)
    assert code == 0 and "train.py: no import: ModuleNotFoundError: No module named 'not_there_at_all'" in told


@pytest.mark.parametrize("missing", ["base/base_trainer.py", "train.py"])
def test_a_folder_that_is_no_fork_is_refused(tmp_path, fork, command, missing):
    (fork / missing).unlink()
    code, said = command(fork)
    assert code == 2 and "is no fork" in said and not (tmp_path / "new").exists()


def test_a_folder_that_is_not_empty_is_refused_and_left(tmp_path, fork, command):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "mine.txt").write_text("")
    code, said = command(fork)
    assert code == 2 and "new or empty" in said and [p.name for p in (tmp_path / "new").iterdir()] == ["mine.txt"]


def test_a_folder_inside_of_the_fork_is_refused(fork, command):
    before = contents(fork)
    assert command(fork, folder=fork / "new")[0] == 2 and contents(fork) == before


def test_a_project_on_this_core_is_refused(command):
    code, said = command(ROOT)
    assert code == 2 and "on this core already" in said


def test_a_digest_holds_what_runs_and_not_how_it_is_written():
    plain = "def f(a, b=1):\n    return a + b\n"
    written = "def f(a, b = 1):\n    '''Adds.'''\n    # both\n    return (a +\n        b)\n"
    other = "def f(a, b=2):\n    return a + b\n"
    one, same, another = (digest(ast.parse(text).body[0]) for text in (plain, written, other))
    assert one == same != another


def test_a_relative_import_is_read_from_a_module_and_from_a_package(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("__init__", "b"):
        (tmp_path / "a" / f"{name}.py").write_text("from .c import x\nfrom . import y\nfrom q import *\n")
        assert Source(tmp_path, f"a/{name}.py").taken() == [("a.c", "x"), ("a", "y"), ("q", "*")]


def test_a_class_of_the_base_in_a_file_of_the_forks_alone_stands_in_the_cores_place(tmp_path, command):
    loader = "class BaseDataLoader:\n    def __init__(self, dataset, workers, val_split):\n        pass\n"
    init = "from .base_loader import *\nfrom .base_model import *\nfrom .base_trainer import *\n"
    fork = write(tmp_path / "fork", {"base/base_loader.py": loader, "base/__init__.py": init})
    (fork / "base" / "base_data_loader.py").unlink()
    code, told = command(fork, tried=False)
    assert code == 0 and "base/__init__.py: BaseDataLoader, from base.base_loader." in told
    read = "from base import BaseDataLoader, BaseTrainer; print(BaseDataLoader.__module__, BaseTrainer.__module__)"
    assert python(tmp_path / "new", "-c", read) == "base.base_loader base.base_trainer\n"


def test_a_kept_base_reads_numbers_of_numpy_in_a_checkpoint(tmp_path, fork, command):
    assert command(fork, "--keep-base", tried=False)[0] == 0
    code = "import numpy as np, torch, base; torch.save({'best': np.float64(0.5)}, 'x.pth'); print(torch.load('x.pth'))"
    assert "0.5" in python(tmp_path / "new", "-c", code)


def test_a_kept_parser_that_the_fork_changed_opens_with_a_plain_load(tmp_path, command):
    parser = (
        "class ConfigParser:\n    def __init__(self, config, resume=None):\n        self._config = config\n\n"
        "    config = property(lambda self: self._config)\n\n    def own(self):\n        return 1\n"
    )
    assert command(write(tmp_path / "fork", {"parse_config.py": parser}), "--keep-base", tried=False)[0] == 0
    code = (
        "import torch; from parse_config import ConfigParser; made = ConfigParser({'trainer': {'epochs': 3}}); "
        "torch.save({'config': made}, 'x.pth'); print(made.own(), torch.load('x.pth')['config']['trainer']['epochs'])"
    )
    assert python(tmp_path / "new", "-c", code) == "1 3\n"
