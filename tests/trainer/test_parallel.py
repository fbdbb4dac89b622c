"""A model that fsdp spreads over two processes trains like one in one process."""

import logging
import sys

import pytest
import several
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

CLASS_WEIGHTS = torch.tensor([0.1, 1.0, 7.3], dtype=torch.float64)
ALL = {"accumulate": 2, "clip_grad_norm": 0.2, "ema_decay": 0.8}  # of the trainer


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.head = nn.Linear(6, 3)  # one process has two rows of it, the other has one

    def forward(self, x):
        x = self.inner(x)
        for layer in self.layers:
            x = torch.tanh(layer(x)) + x
        return self.head(x)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(self.embedding(x)).mean(1))


class Tied(nn.Module):
    """The embedding is the head, too."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.classes = nn.Linear(11, 3)

    def forward(self, x):
        return self.classes(self.head(torch.tanh(self.middle(self.embedding(x).mean(1)))))


class Convolutions(nn.Module):
    def __init__(self, between=nn.Identity):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 5, 3), between(), nn.ReLU(), nn.Conv2d(5, 4, 3))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.layers(x).mean((2, 3)))


class BorrowsWeights(nn.Module):
    """Uses its child's weights without calling it."""

    def __init__(self):
        super().__init__()
        self.child = nn.Linear(4, 3)

    def forward(self, x):
        return F.linear(x, self.child.weight)


def with_batchnorm():
    return Convolutions(lambda: nn.BatchNorm2d(5))


def in_channels_last():
    return Convolutions().to(memory_format=torch.channels_last)


def with_frozen_layers():
    model = Blocks()
    model.head.requires_grad_(False)
    model.layers[0].weight.requires_grad_(False)
    return model


def mean_loss(output, target):
    return F.cross_entropy(output, target)


def counted_loss(output, target):
    """Class-weighted, as (sum, count)."""
    return F.cross_entropy(output, target, CLASS_WEIGHTS, reduction="sum"), CLASS_WEIGHTS[target].sum()


def accuracy(output, target):
    return (output.argmax(dim=1) == target).double().mean()


def adamw(parameters, **how):
    return torch.optim.AdamW(parameters, lr=0.01, **how)


def fused_adamw(parameters):
    return adamw(parameters, fused=True)


def sgd(parameters, **how):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, **how)


def fused_sgd(parameters):
    return sgd(parameters, fused=True)


ALIKE = {  # what is trained by one process and by two, in float64
    "layers of a ModuleList": {"make": Blocks},
    "a loss of sum and count": {"make": Blocks, "criterion": counted_loss},
    "wrapped by patterns": {"make": Blocks, "fsdp": {"wrap": ["inner", "layers.*"]}},
    "kept after the forward pass": {"make": Blocks, "fsdp": {"reshard_after_forward": False}},
    "offloaded": {"make": Blocks, "fsdp": {"cpu_offload": True}},
    "a TransformerEncoder": {"make": Transformer},
    "a TransformerEncoder by pattern": {"make": Transformer, "fsdp": {"wrap": ["encoder.layers.*"]}},
    "tied weights": {"make": Tied},
    "channels_last and fused": {"make": in_channels_last, "optimizer": fused_adamw, "channels_last": True},
    "frozen layers": {"make": with_frozen_layers},
    "fused AdamW": {"make": Blocks, "optimizer": fused_adamw},
    "SGD": {"make": Blocks, "optimizer": sgd},
}
SINGLE = {"dtype": torch.float32, "clip_grad_norm": 0.2}
OTHERS = {
    "BatchNorm": {"make": with_batchnorm},
    "float32": {"make": Blocks, **SINGLE},
    "mixed_precision bf16": {"make": Blocks, "fsdp": {"mixed_precision": "bf16"}, **SINGLE},
    "amp fp16": {"make": Blocks, "amp": "fp16", **SINGLE},
    "Adafactor": {"make": Blocks, "optimizer": torch.optim.Adafactor},
    "fused SGD": {"make": Blocks, "optimizer": fused_sgd},
    "borrowed weights": {"make": BorrowsWeights},
}


def rows(make, count, seed, dtype):
    """Token numbers, images or vectors, and labels."""
    generator = torch.Generator().manual_seed(seed)
    if make in (Transformer, Tied):
        inputs = torch.randint(11, (count, 5), generator=generator)
    else:
        shape = (3, 6, 6) if make in (in_channels_last, with_batchnorm) else (4,)
        inputs = torch.randn(count, *shape, dtype=torch.float64, generator=generator).to(dtype)
    return TensorDataset(inputs, torch.randint(3, (count,), generator=generator))


def train(folder, make, spread=False, fsdp=(), optimizer=adamw, criterion=mean_loss, dtype=torch.float64, **trainer):
    """Three epochs of 13 rows in batches of 4: {"weights", "averaged", "log"}, the tensors whole on each process."""
    from base import BaseDataLoader
    from parse_config import ConfigParser
    from trainer import Trainer, parallel
    from utils import optim

    torch.manual_seed(0)
    model = make().to(dtype)
    settings = trainer if dtype == torch.float32 else {**ALL, **trainer}
    settings |= {"epochs": 3, "monitor": "min val_loss", "save_dir": str(folder), "tensorboard": False, "verbosity": 0}
    sections = {"arch": "MnistModel", "data_loader": "DataLoader", "optimizer": "AdamW", "loss": "nll_loss"}
    schedule = {"lr_scheduler": {"type": "OneCycleLR", "interval": "step"}}
    config = ConfigParser({"name": "toy", **sections, **schedule, "trainer": settings}, run_id="run")
    model = parallel.fsdp(model, torch.device("cpu"), **dict(fsdp)) if spread else model
    moves = optimizer(optim.trainable(model))
    updates = 3 * (2 if "accumulate" in settings else 4)
    one_cycle = torch.optim.lr_scheduler.OneCycleLR(moves, 0.05, total_steps=updates, cycle_momentum=False)
    one_cycle.interval = "step"
    data_loader = BaseDataLoader(rows(make, 13, 1, dtype), 4, shuffle=True)  # of the last batch, one gets no row
    valid_data_loader = BaseDataLoader(rows(make, 5, 2, dtype), 4)
    parts = (
        model,
        criterion,
        [accuracy],
        moves,
        config,
        torch.device("cpu"),
        data_loader,
        valid_data_loader,
        one_cycle,
    )
    made = Trainer(*parts)
    log = made.train()
    with made.stepper.averaged():
        averaged = weights(model)
    return {"weights": weights(model), "averaged": averaged, "log": log}


def weights(model):
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([parameter.detach().double().flatten() for parameter in whole])


class Said(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def in_two(folder):
    """What each process does; its findings go into the folder."""
    from utils import processes

    found = {}
    for name, how in {**ALIKE, **OTHERS}.items():
        said = Said()
        logging.getLogger("trainer").addHandler(said)
        try:
            found[name] = train(folder / name.replace(" ", "_"), spread=True, **how)
        except (RuntimeError, NotImplementedError):
            found[name] = {"error": "\n".join(said.lines)}
        logging.getLogger("trainer").removeHandler(said)
    found["handed over"] = handed_over()
    torch.save(found, folder / f"found-{processes.rank()}.pth")


def handed_over():
    """How many numbers of the momentum of a whole checkpoint an optimizer of weights in parts gets on this process."""
    from trainer import parallel
    from utils import optim

    model, got = Blocks(), []
    whole = {i: {"momentum_buffer": torch.ones(p.shape)} for i, p in enumerate(model.parameters())}
    moves = sgd(parallel.fsdp(model, torch.device("cpu")).parameters())
    moves.register_load_state_dict_pre_hook(lambda _, state: got.extend(state["state"].values()))
    optim.load_state(moves, {**moves.state_dict(), "state": whole})
    momentum = [kept["momentum_buffer"] for kept in got]
    return sum((one.to_local() if hasattr(one, "to_local") else one).numel() for one in momentum)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What process 0 and process 1 found, by name."""
    folder = tmp_path_factory.mktemp("two")
    several.together(2, sys.modules[__name__], "in_two", folder)
    return [torch.load(folder / f"found-{rank}.pth", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize("name", ALIKE)
def test_two_processes_of_fsdp_train_like_one(two, tmp_path, name):
    """Accumulation, clipping, the moving average and a schedule by steps included; 13 examples in batches of 4."""
    alone, spread = train(tmp_path, **ALIKE[name]), two[0][name]
    assert (alone["weights"] - spread["weights"]).abs().max() <= 1e-10
    assert (alone["averaged"] - spread["averaged"]).abs().max() <= 1e-10
    for number in ("epoch", "step", "loss", "accuracy", "val_loss", "val_accuracy", "lr"):
        assert spread["log"][number] == pytest.approx(alone["log"][number], abs=1e-9), number


def test_an_optimizer_is_handed_its_own_part_of_a_whole_state(two):
    """A device may not have room for the whole."""
    everything = sum(parameter.numel() for parameter in Blocks().parameters())
    assert sum(found["handed over"] for found in two) == everything


def test_with_batchnorm_both_processes_evaluate_the_same_model(two):
    first, second = (found["BatchNorm"]["log"] for found in two)
    assert [first[name] for name in ("val_loss", "val_accuracy")] == [second["val_loss"], second["val_accuracy"]]


@pytest.mark.parametrize("name", ["mixed_precision bf16", "amp fp16"])
def test_in_half_precision_fsdp_trains_to_weights_near_those_in_full(two, name):
    difference = (two[0][name]["weights"] - two[0]["float32"]["weights"]).abs().max()
    assert 0 < difference < 0.2


@pytest.mark.parametrize("name", ["Adafactor", "fused SGD", "borrowed weights"])
def test_what_torch_can_not_compute_in_parts_is_told_with_what_to_do(two, name):
    assert "torch can't compute this on weights in parts" in two[0][name]["error"]


def test_a_pattern_that_matches_no_module_is_told_with_a_near_one():
    from trainer import parallel
    from utils.errors import ConfigError

    with pytest.raises(
        ConfigError, match=r"wrap: 'layer\.\*' matches no module of the model. Did you mean 'layers\.\d'"
    ):
        parallel.fsdp(Blocks(), torch.device("cpu"), wrap=["layer.*"])


def test_an_unknown_mixed_precision_is_told_with_those_there_are():
    from trainer import parallel
    from utils.errors import ConfigError

    with pytest.raises(ConfigError, match="mixed_precision: 'bf61'; it can be off, bf16 or fp16"):
        parallel.fsdp(Blocks(), torch.device("cpu"), mixed_precision="bf61")
