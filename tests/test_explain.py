"""What does not fit at the model's door is explained: labels, pixels, shapes, what can't be sent to workers."""

import pytest
import torch
import toy
from torch import nn

from extras import explain
from utils.errors import Failure

SETS = """
import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset


class Items(Dataset):
    def __init__(self, inputs, target=0):
        self.inputs, self.target = inputs, target

    def __len__(self):
        return 4

    def __getitem__(self, index):
        made = {
            "pixels": torch.zeros(1, 4, 4, dtype=torch.uint8),
            "double": torch.zeros(3, dtype=torch.float64),
            "short": torch.zeros(2),
            "right": torch.zeros(3),
        }
        return made[self.inputs], self.target


class Classes(nn.Module):
    def __init__(self, images=False):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)) if images else nn.Linear(3, 3)

    def forward(self, x):
        return self.layers(x)


class Unsendable(Items):
    def __init__(self):
        super().__init__("right")
        self.change = lambda x: x
"""


def config(lab, inputs, target=0, images=False, **loader):
    data = {"type": "explained.Items", "args": {"inputs": inputs, "target": target}}
    return toy.config(
        lab.saved,
        arch={"type": "explained.Classes", "args": {"images": images}},
        data_loader={"type": "DataLoader", "args": {"dataset": data, "batch_size": 2, **loader}},
        valid_data_loader=None,
        optimizer={"type": "SGD", "args": {"lr": 0.1}},
        loss="torch.nn.CrossEntropyLoss",
        trainer={"monitor": "off", "epochs": 1},
    )


@pytest.mark.parametrize(
    ("inputs", "target", "images", "facts", "advice"),
    [
        ("right", 7, False, "target (2) int64 from 7 to 7", "labels 0 to C - 1"),
        ("pixels", 0, True, "inputs (2, 1, 4, 4) uint8", "Pixels are uint8"),
        ("double", 0, False, "inputs (2, 3) float64", "return float32"),
        ("short", 0, False, "inputs (2, 2) float32", "--dry-run shows"),
    ],
)
def test_what_does_not_fit_is_told_with_its_shape_its_type_and_what_to_do(
    lab, module, caplog, inputs, target, images, facts, advice
):
    module("explained", SETS)
    with pytest.raises((RuntimeError, IndexError)):
        lab.train(config(lab, inputs, target, images))
    assert facts in caplog.text and advice in caplog.text and "weights float32" in caplog.text
    assert "explained.Classes" in caplog.text


def test_what_can_not_be_sent_to_workers_is_named(lab, module, caplog):
    module("explained", SETS)
    made = config(lab, "right", num_workers=1, multiprocessing_context="spawn")
    made["data_loader"]["args"]["dataset"] = {"type": "explained.Unsendable", "args": {}}
    with pytest.raises(Exception, match="pickle"):
        lab.train(made)
    assert "data_loader.args.dataset: can't be sent to worker processes" in caplog.text
    assert "collate_fn: can't" not in caplog.text


class Stand:
    """As much of a trainer as the labels' check looks at."""

    def __init__(self, target, criterion):
        self.model, self.criterion = nn.Linear(2, 3), criterion
        self.batch = (torch.zeros(2, 2), torch.tensor(target))


@pytest.mark.parametrize(("target", "reach"), [([0, 3], "from 0 to 3"), ([-1, 2], "from -1 to 2")])
def test_label_beyond_the_models_classes_is_found_before_the_criterion_meets_it_on_the_device(target, reach):
    trainer = Stand(target, nn.CrossEntropyLoss())
    explain.watch_labels(trainer)
    with pytest.raises(Failure, match=reach):
        trainer.model(trainer.batch[0])


def test_labels_are_looked_at_once():
    trainer = Stand([0, 2], nn.CrossEntropyLoss())
    explain.watch_labels(trainer)
    trainer.model(trainer.batch[0])
    trainer.batch = (trainer.batch[0], torch.tensor([9, 9]))
    trainer.model(trainer.batch[0])


def test_criterion_that_takes_other_labels_is_left_alone():
    trainer = Stand([0, 9], lambda output, target: nn.Embedding(10, 3)(target).mul(output).sum())
    explain.watch_labels(trainer)
    trainer.model(trainer.batch[0])


def test_the_parts_are_the_objects_that_are_named_a_line_each():
    config = {
        "name": "mnist",
        "seed": 3,
        "data_loader": {"type": "MnistDataLoader", "args": {"batch_size": 128}},
        "valid_data_loader": None,
        "loss": "nll_loss",
    }
    assert [line.split(maxsplit=1) for line in explain.parts(config).split("\n")] == [
        ["data_loader", '{"type": "MnistDataLoader", "args": {"batch_size": 128}}'],
        ["loss", '{"type": "nll_loss", "args": {}}'],
    ]
