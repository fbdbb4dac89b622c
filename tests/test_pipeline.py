"""A model in stages, each in a process: it trains as one process does with the whole of it. The processes run this."""

import copy
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import toy
from torch import nn
from torch.utils.data import TensorDataset

ROOT = Path(__file__).resolve().parents[1]
CLASS_WEIGHTS = torch.tensor([0.1, 1.0, 7.3], dtype=torch.float64)
SPLITS = {2: ["blocks.1"], 3: ["blocks.1", "head"]}
SCHEDULES = ("GPipe", "1F1B")


class Block(nn.Module):
    """Not traceable: its course depends on its input."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return x if x.isnan().any() else x + torch.tanh(self.layer(x))


class Net(nn.Module):
    """Has a value that skips stages, a parameter of its own, and gives a dict."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.shift = nn.Parameter(torch.zeros(8))
        self.head = nn.Linear(8, 3)

    def forward(self, x, mask=None):
        first = torch.tanh(self.stem(x))
        masked = first if mask is None else first * mask
        return {"logits": self.head(self.blocks(masked) + first + self.shift), "first": [first]}


class Noisy(nn.Sequential):
    """Dropout in both stages, and BatchNorm of the inputs, whose statistics can be worked out by hand."""

    def __init__(self):
        half = (nn.BatchNorm1d(4), nn.Linear(4, 8), nn.Dropout())
        super().__init__(nn.Sequential(*half), nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 3)))


class Bare(nn.Module):
    """Logits alone of Net, as accuracy wants them."""

    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x):
        return self.net(x)["logits"]


def accuracy(output, target):
    return (output.argmax(dim=1) == target).double().mean()


def counted_loss(output, target):
    """Class-weighted, as (sum, count)."""
    return F.cross_entropy(output, target, CLASS_WEIGHTS, reduction="sum"), CLASS_WEIGHTS[target].sum()


def some_rows(count, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 4, dtype=torch.float64, generator=generator)
    return TensorDataset(inputs, torch.randint(3, (count,), generator=generator))


def train(folder, model, cut, rows=13, shuffle=True, resume=None, **settings):
    """Train on batches of 6, two an update, in float64; the run is folder/toy/run. cut: (split, schedule) or None.

    Validation has batches of 6 and 3 rows, which go in three parts both.
    """
    from base import BaseDataLoader
    from parse_config import ConfigParser
    from trainer import Trainer, parallel

    torch.manual_seed(0)
    model = model().double()
    section = {
        "epochs": 3,
        "accumulate": 2,
        "clip_grad_norm": 0.2,
        "ema_decay": 0.8,
        "monitor": "min val_loss",
        "save_dir": str(folder),
        "save_period": 1,
        "tensorboard": False,
        "verbosity": 0,
        **settings,
    }
    config = ConfigParser(
        {
            "name": "toy",
            "arch": "MnistModel",
            "data_loader": "DataLoader",
            "optimizer": "AdamW",
            "loss": "nll_loss",
            "lr_scheduler": {"type": "OneCycleLR", "interval": "step"},
            "trainer": section,
        },
        run_id="run",
        resume=resume,
    )
    cpu = torch.device("cpu")
    called = model if cut is None else parallel.pipeline(model, cpu, *cut, micro_batches=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=9)
    schedule.interval = "step"
    trainer = Trainer(
        called,
        counted_loss,
        [accuracy],
        optimizer,
        config,
        cpu,
        BaseDataLoader(some_rows(rows, seed=1), 6, shuffle=shuffle),
        BaseDataLoader(some_rows(9, seed=2), 6),
        schedule,
    )
    trainer.train()
    return folder / "toy" / "run" / "latest.pth"


def bare_split(split):
    return [f"net.{name}" for name in split]


def differences_of_gradients(model, cut, micro_batches, step):
    """The largest between the cut model's own and the whole one's; step: model → loss. Also the names that have one."""
    from trainer import parallel

    torch.manual_seed(3)
    model = model()
    whole = copy.deepcopy(model)
    cut = parallel.pipeline(model, torch.device("cpu"), *cut, micro_batches)
    loss, same = step(cut), step(whole)
    loss.backward()
    same.backward()
    pairs = zip(model.named_parameters(), whole.parameters())
    found = {name: (one.grad - other.grad).abs().max() for (name, one), other in pairs if one.grad is not None}
    largest = float(max(found.values(), default=0.0))
    return {"loss": float((loss - same).detach().abs()), "gradients": largest, "names": list(found)}


def of_a_dict(model):
    """The loss of both outputs; the mask is given by its name."""
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)).double()
    output = model(inputs, mask=(inputs > 0).double().repeat(1, 2))
    return output["logits"].square().mean() + output["first"][0].sum()


def of_images(model):
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return model.eval()(images.double().to(memory_format=torch.channels_last)).square().mean()


def in_bfloat16(model):
    inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        return model(inputs)["logits"].float().square().mean()


def frozen():
    model = Net().double()
    model.stem.requires_grad_(False)
    model.blocks[0].requires_grad_(False)
    return model


def resnet():
    from torchvision.models import resnet18

    return resnet18(num_classes=4).double().to(memory_format=torch.channels_last)


class Branching(Net):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


class Sized(Net):
    def forward(self, x):
        rows = x.size(0)
        return self.head(self.blocks(self.stem(x))).view(rows, 3)


class Tied(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self[2].weight = self[0].weight


MISTAKES = {
    "no such module": (Net, ["blocks.7"], "GPipe", 4),
    "branching": (Branching, ["head"], "GPipe", 4),
    "a number": (Sized, ["head"], "GPipe", 4),
    "tied": (Tied, ["2"], "GPipe", 4),
    "nothing before": (Net, ["stem"], "GPipe", 4),
    "too many stages": (Net, ["blocks.1", "head"], "GPipe", 4),
    "schedule": (Net, ["head"], "Gpipe", 4),
    "no part": (Net, ["head"], "GPipe", 0),
}


def mistakes():
    """{name: the ConfigError's text} of what can't be cut."""
    from trainer import parallel
    from utils.errors import ConfigError

    told = {}
    for name, (model, *how) in MISTAKES.items():
        try:
            parallel.pipeline(model(), torch.device("cpu"), *how)
        except ConfigError as error:
            told[name] = str(error)
    return told


def main(folder):
    """What each process does; its findings go into the folder."""
    from utils import processes

    torch.set_num_threads(1)
    processes.join(timeout_seconds=120)
    count = processes.process_count()
    found = {}
    for schedule in SCHEDULES:
        train(folder / schedule, Bare, (bare_split(SPLITS[count]), schedule))
    if count == 2:
        found["mistakes"] = mistakes()
        one = folder.parent / "one" / "toy" / "run" / "checkpoint-epoch2.pth"
        train(folder / "resumed", Bare, (bare_split(SPLITS[2]), "1F1B"), resume=one)
        for name in ("noisy", "again"):
            train(folder / name, Noisy, (["1"], "1F1B"), rows=16, shuffle=False)
        how = {"cut": (["1"], "1F1B"), "rows": 16, "shuffle": False, "accumulate": 1}
        broken = train(folder / "broken", Noisy, max_steps=5, **how)
        found["position"] = torch.load(broken)["counters"]["position"]
        train(folder / "broken", Noisy, resume=broken, **how)  # goes on in its folder
        train(folder / "unbroken", Noisy, **how)
        found["resnet"] = differences_of_gradients(resnet, (["layer3"], "GPipe"), 2, of_images)
        found["bfloat16"] = differences_of_gradients(Net, (SPLITS[2], "GPipe"), 1, in_bfloat16)
        found["frozen"] = differences_of_gradients(frozen, (SPLITS[2], "1F1B"), 2, of_a_dict)
    found["dict"] = differences_of_gradients(lambda: Net().double(), (SPLITS[count], "1F1B"), 4, of_a_dict)
    (folder / f"found-{processes.process_number()}.json").write_text(json.dumps(found))
    processes.leave()


def launched(folder, count):
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, folder],
            env={**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    said = []
    try:
        said = [process.communicate(timeout=150)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * count, "\n".join(said)
    return folder, [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(count)]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The folder of a run in one process, all layers in it."""
    folder = tmp_path_factory.mktemp("pipelines") / "one"
    train(folder, Bare, None)
    return folder


@pytest.fixture(scope="module")
def two(one):
    return launched(one.parent / "two", 2)


@pytest.fixture(scope="module")
def three(one):
    return launched(one.parent / "three", 3)


@pytest.fixture(scope="module", params=["two", pytest.param("three", marks=pytest.mark.slow)])
def several(request):
    """(folder, findings of each process) of two stages, and of three."""
    return request.getfixturevalue(request.param)


def kept(folder, name="latest.pth"):
    return torch.load(folder / "toy" / "run" / name, weights_only=True)


def lines(folder):
    path = folder / "toy" / "run" / "metrics.jsonl"
    untimed = ("epoch", "step", "loss", "accuracy", "val_loss", "val_accuracy", "lr")
    return [{name: json.loads(line)[name] for name in untimed} for line in path.read_text().splitlines()]


def assert_close(one, other, where=""):
    """Equal in keys and their order, in numbers to 1e-10."""
    if isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one:
            assert_close(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for i, pair in enumerate(zip(one, other)):
            assert_close(*pair, f"{where}.{i}")
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape, where
        assert (one.double() - other.double()).abs().max() <= 1e-10, where
    elif isinstance(one, float):
        assert one == pytest.approx(other, abs=1e-10), where
    else:
        assert one == other, where


schedules = pytest.mark.parametrize("schedule", SCHEDULES)


@schedules
def test_a_model_in_stages_trains_like_one_process(one, several, schedule):
    """With accumulation, clipping, a moving average, a schedule a step, (sum, count) and a last batch of one row."""
    ours, whole = kept(several[0] / schedule), kept(one)
    assert_close(ours["train_state_dict"], whole["train_state_dict"])
    assert_close(ours["state_dict"], whole["state_dict"])


@schedules
def test_a_model_in_stages_measures_what_one_process_measures(one, several, schedule):
    assert_close(lines(several[0] / schedule), lines(one))


@schedules
def test_a_checkpoint_of_stages_is_that_of_one_process(one, several, schedule):
    ours, whole = kept(several[0] / schedule), kept(one)
    assert list(ours) == list(whole)
    for name in ("optimizer", "lr_scheduler", "arch", "data", "examples"):
        assert_close(ours[name], whole[name], name)


def test_one_process_goes_on_with_a_run_in_stages(one, two, tmp_path):
    train(tmp_path, Bare, None, resume=two[0] / "GPipe" / "toy" / "run" / "checkpoint-epoch2.pth")
    assert_close(kept(tmp_path)["state_dict"], kept(one)["state_dict"])
    assert_close(lines(tmp_path), lines(one))


def test_stages_go_on_with_a_run_of_one_process(one, two):
    ours, whole = kept(two[0] / "resumed"), kept(one)
    assert_close(ours["state_dict"], whole["state_dict"])
    assert_close(ours["optimizer"], whole["optimizer"])


def test_two_runs_in_stages_with_dropout_have_the_same_bits(two):
    first, second = kept(two[0] / "noisy"), kept(two[0] / "again")
    assert all(torch.equal(first["state_dict"][name], second["state_dict"][name]) for name in first["state_dict"])


def test_a_run_in_stages_resumed_inside_an_epoch_has_the_bits_of_an_unbroken_one(two):
    assert [found["position"] for found in two[1]] == [2, 2]
    healed, unbroken = kept(two[0] / "broken"), kept(two[0] / "unbroken")
    for weights in ("state_dict", "train_state_dict"):
        assert all(torch.equal(healed[weights][name], unbroken[weights][name]) for name in healed[weights])
    assert lines(two[0] / "broken") == lines(two[0] / "unbroken")


def test_statistics_of_a_batch_are_counted_once(two):
    """Batches of 6, 6, 4 rows in three, three and two micro-batches, three epochs; momentum 0.1."""
    weights, mean = kept(two[0] / "noisy")["state_dict"], torch.zeros(4, dtype=torch.float64)
    inputs = some_rows(16, seed=1).tensors[0]
    for part in (inputs[start : start + 2] for _ in range(3) for start in range(0, 16, 2)):
        mean = 0.9 * mean + 0.1 * part.mean(dim=0)
    assert weights["0.0.num_batches_tracked"] == 24
    assert torch.allclose(weights["0.0.running_mean"], mean, atol=1e-12)


def test_gradients_of_outputs_in_a_dict_and_of_values_that_skip_stages_are_the_whole_models(several):
    assert all(found["dict"]["loss"] <= 1e-12 and found["dict"]["gradients"] <= 1e-12 for found in several[1])
    names = [name for found in several[1] for name in found["dict"]["names"]]
    assert sorted(names) == sorted(name for name, _ in Net().named_parameters())


def test_a_resnet_in_channels_last_is_cut_at_a_layer(two):
    first, second = (found["resnet"] for found in two[1])
    assert max(first["gradients"], second["gradients"], first["loss"]) <= 1e-10
    assert {name.partition(".")[0] for name in second["names"]} == {"layer3", "layer4", "fc"}


def test_what_is_computed_anew_is_in_the_precision_it_was_in(two):
    assert [found["bfloat16"]["gradients"] for found in two[1]] == [0, 0]


def test_layers_behind_frozen_ones_get_their_gradients(two):
    first, second = (found["frozen"] for found in two[1])
    assert max(first["gradients"], second["gradients"]) <= 1e-12


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("no such module", "forward calls no 'blocks.7'"),
        ("branching", "can't be traced"),
        ("a number", "'size'"),
        ("tied", "stages 0 and 1 share"),
        ("nothing before", "a stage has no parameters"),
        ("too many stages", "torchrun --nproc-per-node 3"),
        ("schedule", "GPipe or 1F1B"),
        ("no part", "micro_batches"),
    ],
)
def test_what_can_not_be_cut_is_told_in_every_process(two, mistake, words):
    assert all(words in found["mistakes"][mistake] for found in two[1])


def test_one_process_is_told_how_many_to_start():
    from trainer import parallel
    from utils.errors import ConfigError

    with pytest.raises(ConfigError, match=r"2 stages.*torchrun --nproc-per-node 2"):
        parallel.pipeline(Net(), torch.device("cpu"), ["head"])


def test_fp16_in_stages_is_refused_before_any_work(lab):
    stages = {"type": "pipeline", "args": {"split": ["layer"]}}
    done = lab.train(toy.config(lab.saved, parallel=stages, trainer={"amp": "fp16"}))
    assert done.code == 2 and "trainer.amp: fp16" in done.err and lab.runs() == []


if __name__ == "__main__":
    main(Path(sys.argv[1]))
