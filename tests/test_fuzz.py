"""One mistake, anywhere in a config: the command trains, or says where the mistake is and leaves nothing behind."""

import copy
import functools
import gzip
import json
import math
import operator
import re
import shutil
import struct
import traceback
from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from lab import ROOT
from test_suggestions import one_letter_wrong

from extras import versions
from utils import imports
from utils.description import sections

ONE_OF_EACH = {
    "name": "fuzz",
    "seed": 3,
    "device": "cpu",
    "parallel": "auto",
    "n_gpu": 0,
    "cudnn_benchmark": False,
    "arch": {"type": "MnistModel", "args": {"num_classes": {"from": "data_loader.num_classes"}}},
    "data_loader": {
        "type": "MnistDataLoader",
        "args": {"data_dir": "digits", "batch_size": 8, "shuffle": True, "drop_last": True},
    },
    "valid_data_loader": {
        "type": "DataLoader",
        "args": {
            "dataset": {
                "type": "torch.utils.data.Subset",
                "args": {
                    "dataset": {
                        "type": "data_loader.datasets.IdxImages",
                        "args": {"data_dir": "digits", "train": False, "mean": 0.13},
                    },
                    "indices": [0, 3, 1],
                },
            },
            "batch_size": 2,
        },
    },
    "test_data_loader": None,
    "optimizer": {"type": "AdamW", "args": {"lr": 0.01, "betas": [0.9, 0.99], "amsgrad": False}},
    "lr_scheduler": {"type": "OneCycleLR", "args": {"pct_start": 0.25, "anneal_strategy": "cos"}, "interval": "step"},
    "loss": {"type": "torch.nn.CrossEntropyLoss", "args": {"label_smoothing": 0.1, "weight": None}},
    "metrics": ["accuracy", {"type": "top_k_accuracy", "args": {"k": 2}, "name": "top"}],
    "trainer": {
        "type": "Trainer",
        "args": {},
        "epochs": 1,
        "max_steps": 2,
        "len_epoch": 2,
        "save_dir": "saved/",
        "save_period": 2,
        "save_steps": 5,
        "keep_last": 1,
        "valid_steps": 1,
        "monitor": "max val_top",
        "early_stop": 3,
        "min_delta": 0.01,
        "verbosity": 2,
        "log_step": 1,
        "amp": "off",
        "accumulate": 1,
        "clip_grad_norm": 1.0,
        "ema_decay": 0.9,
        "channels_last": False,
        "overfit": None,
        "tensorboard": False,
    },
    "extra": {"note": "mine"},
}
SEVERAL = {
    "name": "several",
    "arch": "noisy.Net",
    "data_loader": {
        "type": "DataLoader",
        "args": {"dataset": {"type": "noisy.Noisy", "args": {"n": 12}}, "batch_size": 4, "num_workers": 0},
    },
    "valid_data_loader": {
        "near": {"type": "DataLoader", "args": {"dataset": {"type": "noisy.Noisy", "args": {"n": 4}}, "batch_size": 2}},
        "far": {"type": "DataLoader", "args": {"dataset": {"type": "noisy.Noisy", "args": {"n": 3}}}},
    },
    "optimizer": {
        "first": {"type": "SGD", "args": {"lr": 0.1, "momentum": 0.9, "nesterov": True}, "params": "0.*"},
        "rest": {"type": "torch.optim.Adam", "params": "[!0].*"},
    },
    "lr_scheduler": {
        "first": {"type": "MultiStepLR", "args": {"milestones": [1, 2], "gamma": 0.5}},
        "rest": {"type": "ReduceLROnPlateau", "args": {"factor": 0.5, "patience": 1}},
    },
    "loss": {"type": "torch.nn.functional.mse_loss", "args": {"reduction": "mean"}},
    "metrics": [{"type": "noisy.size", "name": "magnitude"}, "noisy.Largest", {"type": "noisy.Median", "args": {}}],
    "trainer": {
        "epochs": 2,
        "max_steps": 2,
        "accumulate": 2,
        "save_dir": "saved/",
        "monitor": "min val_near_magnitude",
        "tensorboard": False,
    },
}
# What a mistake in one place may be told by: the place that names it.
REFERS = {
    "metrics": "trainer.monitor",
    "valid_data_loader": "trainer.monitor",
    "trainer.monitor": "trainer.early_stop",
    "data_loader": "arch.args.num_classes",
    "optimizer": "lr_scheduler",
    "lr_scheduler": "trainer.monitor",
}
BIG = {"n": (1000,), "num_workers": (3,)}  # examples that are all computed, processes: as many as take a moment
TWICE = "#twice"  # behind a key's name: the key is written a second time
OTHERS = [1, 1.5, "text", True, [1], ["a"], {"a": 1}, {"type": "x"}, {"from": "arch.x"}]
ODD_TEXTS = ["é", "日本語", "😀", "a\u0000b", "\ud800", "\u2028", "\u202eabc", "İ", " "]
MILD = ("delete", "another number", "the other")  # often harmless; drawn oftener, so that many a run trains
EXAMPLES = 500


class Mistake(NamedTuple):
    """places: the dotted paths that it is at, of the old name and of a new one."""

    how: str
    places: list[str]
    config: dict

    def text(self):
        return json.dumps(self.config).replace(TWICE, "")

    def __repr__(self):
        return f"{self.how} at {' → '.join(map(ascii, self.places))} in\n{self.text()}\n"


def paths(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inside in items:
        yield (*path, name)
        yield from paths(inside, (*path, name))


def at(config, path):
    return functools.reduce(operator.getitem, path, config)


def spoilt(value, name):
    """{how: what may stand in the value's place}."""
    ways = {
        "wrong type": OTHERS,
        "null": [None],
        "empty": ["", [], {}],
        "one level deeper": [{name: value}, [value], {"type": value}, {"args": value}, {"value": value}],
        "unicode": ODD_TEXTS,
    }
    if type(value) in (int, float):
        ways |= {
            "negative": [-1, -0.5, -value],
            "zero": [0, 0.0, -0.0],
            "huge": [*BIG.get(name, (10**6, 1e6)), *([2**63, 10**400] if type(value) is int else [])],
            "another number": [value + 1, value / 2, 1e-30],
            "no number": [math.nan, math.inf, -math.inf],
            "text for a number": [str(value), "ten", "1e-3", "true"],
        }
    if isinstance(value, bool):
        ways |= {"the other": [not value], "text for a switch": ["true", "false", "yes"]}
    if isinstance(value, str):
        long = [value * 100, value + "/" + "x" * 300]
        ways |= {
            "one letter": one_letter_wrong(value, ()),
            "more text": [f"{value}.x", f".{value}", f"{value} ", *long],
        }
    return ways


@st.composite
def mistakes(draw, config):
    config = copy.deepcopy(config)
    *above, name = draw(st.sampled_from(list(paths(config))))
    holder, path = at(config, above), ".".join(map(str, [*above, name]))
    value = holder[name]
    ways = spoilt(value, name) | {"delete": []}
    if isinstance(name, str):
        ways |= {"rename": one_letter_wrong(name, holder), "add": [*one_letter_wrong(name, holder), *ODD_TEXTS]}
        ways |= {"twice": [name + TWICE]}
    how = draw(st.sampled_from([*ways, *[way for way in MILD if way in ways] * 3]))
    if how == "delete":
        del holder[name]
        return Mistake(how, [path, path.removesuffix(".type")], config)  # an object without a type is told as a whole
    new = draw(st.sampled_from(ways[how]))
    if how not in ("rename", "add", "twice"):
        holder[name] = new
        return Mistake(how, [path], config)
    if how == "rename":
        del holder[name]
    holder[new] = value
    return Mistake(how, [path, ".".join(map(str, [*above, new.removesuffix(TWICE)]))], config)


def is_told(message, place):
    """Whether a line is about this place: its path, or for an argument, its object's path and the argument's name."""
    related = [other for name, other in REFERS.items() if f"{place}.".startswith(f"{name}.")]
    cuts = [(place[: cut.start()], place[cut.end() :]) for cut in re.finditer(r"\.args\b\.?", place)]
    objects = [(path, inside.partition(".")[0]) for path, inside in cuts]
    return any(
        any(is_at(line, path) for path in (place, *related))
        or any(is_at(line, path) and argument in line for path, argument in objects)
        for line in message.split("\n")
    )


def is_at(line, path):
    path = path.encode(errors="backslashreplace").decode()  # half a character, as it is printed
    return re.search(rf"(^|config\.json: ){re.escape(path)}[.:]", line) is not None


def is_named(printed, mistake):
    """Whether a line says the mistake's section and the type or the arguments of its object."""
    section = mistake.places[0].partition(".")[0]
    if section not in sections():
        return mistake.places[0] in printed
    found = mistake.config.get(section)
    several = isinstance(found, dict) and "type" not in found
    ones = found if isinstance(found, list) else found.values() if several else [found]
    words = [json.dumps(word) for one in ones for word in (one.values() if isinstance(one, dict) else [one])]
    return any(section in line and any(word in line for word in words) for line in printed.splitlines())


def longest(message):
    """Lines of the problem that takes most; each begins with its file's name."""
    sizes = [0]
    for line in message.strip().split("\n"):
        sizes = [*sizes, 1] if "config.json: " in line else [*sizes[:-1], sizes[-1] + 1]
    return max(sizes)


def write_digits(folder, count=20):
    """The first digits of either part, in files of the same format."""
    folder.mkdir()
    for path in (ROOT / "data/mnist10k").glob("*.gz"):
        content = gzip.decompress(path.read_bytes())
        head = 4 + 4 * content[3]
        _, *size = struct.unpack_from(f">{content[3]}I", content, 4)
        cut = content[head : head + count * math.prod(size)]
        (folder / path.stem).write_bytes(content[:4] + struct.pack(">I", count) + content[8:head] + cut)


class Tried(NamedTuple):
    """code: what the command leaves with. files: what it left. steps: the last of each line of a metrics.jsonl."""

    code: int
    out: str
    err: str
    files: list[str]
    steps: list[int]


def hold(mistake, tried):
    """Assert all that is promised of a command with one mistake in its config."""
    code, out, err, files, steps = tried
    assert code in (0, 1, 2), (code, err)
    if code == 0:
        assert steps and max(steps) >= 1 and "latest.pth" in files
    if code == 1:
        assert is_named(out + err, mistake), out + err
    if code == 2:
        assert any(is_told(err, place) for place in mistake.places), err
        assert longest(err) <= 5 and "Traceback" not in out + err, err
        assert files == []


@pytest.fixture
def attempt(lab, monkeypatch, capsys):
    """A function: the text of a config → what `python train.py -c` with it left, which is removed again."""
    root = lab.folder.parent
    monkeypatch.setattr(imports, "ROOT", root)  # what relative paths in a config are relative to
    monkeypatch.setattr(
        versions, "everything", functools.cache(versions.everything)
    )  # of packages; slow, and ever the same
    write_digits(root / "digits")
    lab.write({})
    before = {*root.rglob("*"), root / "config_folders"}

    def run(text):
        try:
            code, out, err, _ = lab.train(lab.write(text))
        except Exception:
            code, out, err = 1, capsys.readouterr().out, traceback.format_exc()
        left = [path for path in root.rglob("*") if path not in before and "__pycache__" not in path.parts]
        lines = [line for path in left if path.name == "metrics.jsonl" for line in path.read_text().splitlines()]
        for path in left:
            if path.parent not in left:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return Tried(code, out, err, [path.name for path in left], [json.loads(line)["step"] for line in lines])

    return run


@pytest.mark.parametrize("config", [ONE_OF_EACH, SEVERAL], ids=["one of each", "several"])
def test_a_mistake_anywhere_in_a_config_is_told_by_its_place_or_harmless(attempt, config):
    codes, texts = Counter(), set()

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(mistakes(config))
    def try_one(mistake):
        tried = attempt(mistake.text())
        hold(mistake, tried)
        codes[tried.code] += 1
        texts.add(mistake.text())

    try_one()
    assert len(texts) >= 400 and codes[0] >= 80 and codes[2] >= 250, (codes, len(texts))
