"""What docs/ shows can be done: its parts of a config are checked, its Trainer measures, its model computes."""

import json
import re

import pytest
import torch
from lab import ROOT
from torch import nn

from base import BaseDataLoader
from parse_config import ConfigParser
from trainer import Trainer
from trainer.evaluate import evaluate
from utils.metrics import Metrics

TEXT = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
PIPELINE = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
PARTS = {
    f"{path.name} {i}": part
    for path in sorted((ROOT / "docs").glob("*.md"))
    for i, part in enumerate(re.findall(r"```json\n(.*?)```", path.read_text("utf-8"), flags=re.S))
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_each_part_of_a_config_is_accepted(part, tmp_path):
    config = json.loads((ROOT / "config.json").read_text())
    del config["$schema"]
    sections = json.loads("{" + part + "}")
    if "valid_data_loader" in sections:
        config["data_loader"]["args"]["validation_split"] = 0
    trainer = config["trainer"] | {"save_dir": str(tmp_path)} | sections.pop("trainer", {})
    ConfigParser({**config, **sections, "trainer": trainer}).check()


def test_trainer_of_pairs_measures_pairs():
    code = TEXT.partition("```python\n")[2].partition("```")[0]
    made = {"Trainer": Trainer}
    exec(code, made)

    class Same(nn.Module):
        def forward(self, left, right):
            return (left - right).abs()

    data = [{"left": torch.tensor(float(i)), "right": torch.tensor(1.0), "same": torch.tensor(0.0)} for i in range(3)]
    how = {"device": torch.device("cpu"), "memory_format": torch.contiguous_format, "autocast": torch.no_grad()}
    metrics, loader = Metrics([], "test_"), BaseDataLoader(data, 2)
    numbers = evaluate(made["PairTrainer"], Same(), loader, nn.functional.l1_loss, metrics, **how)
    assert numbers == {"test_loss": pytest.approx(2 / 3)}


def test_model_in_halves_computes():
    made = {"nn": nn, "F": nn.functional}
    exec(PIPELINE.partition("```python\n")[2].partition("```")[0], made)
    output = made["Halves"]("cpu", "cpu")(torch.zeros(2, 1, 28, 28))
    assert output.exp().sum(dim=1).tolist() == pytest.approx([1, 1])
