"""Data in whole runs: what is refused, what is told when data have changed, what test.py makes of them."""

import json

import pytest
import torch
import toy
from lab import history, load
from torch.utils.data import BatchSampler, SequentialSampler, default_convert

from base import BaseDataLoader

OWN = """
import torch
from base import BaseDataLoader
from data_loader.data_loaders import DataLoader
from toy import Rows
from trainer import Trainer


class Warm(Trainer):
    def __init__(self, *args, temperature=1.0, **kwargs):
        super().__init__(*args, **kwargs)

    def inputs_and_target(self, batch):
        return batch

    def predict(self, model, inputs):
        return model(inputs)


class OwnFold(BaseDataLoader):
    '''Its `fold` is its own, and says which rows there are.'''

    def __init__(self, batch_size, fold=0, training=True):
        super().__init__(Rows(values=[100.0 * fold + i for i in range(4 if training else 3)]), batch_size)
"""


def test_hooks_of_a_trainer_of_ones_own_may_be_ordinary_methods_for_test_py_too(lab, module):
    module("own_parts", OWN)
    config = toy.config(lab.saved, trainer={"type": "own_parts.Warm", "args": {"temperature": 2.0}, "epochs": 1})
    assert lab.train(config).code == 0
    done = lab.test(lab.run / "latest.pth")
    assert done.code == 0, done.err


def test_a_fold_that_is_a_loaders_own_argument_is_kept_for_its_test_part(lab, module):
    module("own_parts", OWN)
    config = toy.config(
        lab.saved,
        data_loader={"type": "own_parts.OwnFold", "args": {"batch_size": 2, "fold": 3}},
        metrics=["toy.mean_target"],
        trainer={"epochs": 1},
    )
    assert lab.train(config).code == 0
    assert lab.test(lab.run / "latest.pth").numbers["test_mean_target"] == 301.0


def test_a_sampler_without_a_set_beside_it_does_not_get_that_of_another_loader(lab):
    sampler = {"type": "torch.utils.data.SequentialSampler"}
    args = {"data_dir": "data/mnist10k", "batch_size": 4, "shuffle": False, "sampler": sampler}
    done = lab.train(toy.config(lab.saved, valid_data_loader={"type": "MnistDataLoader", "args": args}))
    assert done.code == 2 and "valid_data_loader.args.sampler.args.data_source: missing." in done.err


@pytest.mark.parametrize("how", [{"folds": 2}, {"validation_split": 2}], ids=str)
def test_rows_are_not_set_apart_beside_validation_data_of_their_own(lab, how):
    config = toy.config(lab.saved)
    config["data_loader"]["args"] |= how
    done = lab.train(config)
    assert done.code == 2 and f"data_loader.args.{next(iter(how))}: sets examples apart" in done.err


def test_folds_of_runs_that_end_inside_an_epoch_have_numbers(lab):
    config = toy.config(lab.saved, valid_data_loader=None, trainer={"epochs": None, "max_steps": 1})
    assert lab.train(config, "--folds", 2, "--run-id", "cv").code == 0
    assert "val_loss" in json.loads((lab.saved / "toy" / "cv-folds.json").read_text())


def test_data_that_have_grown_are_told_on_resume(lab, caplog):
    config = toy.config(lab.saved, valid_data_loader=None, trainer={"epochs": 1})
    config["data_loader"]["args"]["validation_split"] = 2
    assert lab.train(config).code == 0
    content = load(lab.run / "latest.pth")
    torch.save({**content, "examples": {"data_loader": 5, "valid_data_loader": 2}}, lab.run / "latest.pth")
    with caplog.at_level("WARNING"):
        assert lab.resume(lab.run / "latest.pth", "trainer.epochs=2").code == 0
    told = [record.message for record in caplog.records if "examples when it was saved" in record.message]
    assert len(told) == 1 and told[0].startswith("data_loader: 5 examples when it was saved, 6 now")


def test_a_validation_loader_that_has_been_read_gets_its_transform_too():
    loader = BaseDataLoader(torch.arange(4.0), 2, train_transform=torch.neg, eval_transform=torch.square)
    assert [batch.tolist() for batch in loader] == [[0, -1], [-2, -3]]
    assert [batch.tolist() for batch in loader.evaluating()] == [[0, 1], [4, 9]]


def test_without_a_batch_size_an_example_is_converted_as_torch_does():
    data = [(torch.ones(3), torch.zeros(())), (torch.zeros(3), torch.ones(()))]
    (inputs, target), _ = list(BaseDataLoader(data, batch_size=None))
    expected = default_convert(data[0])
    assert inputs.tolist() == expected[0].tolist() and target.tolist() == expected[1].tolist()


def test_batches_of_a_sampler_may_be_arrays_or_tensors():
    class Tensors(BatchSampler):
        def __iter__(self):
            return iter([torch.tensor([2, 0]), torch.tensor([1])])

    loader = BaseDataLoader(torch.arange(3.0), batch_sampler=Tensors(SequentialSampler(range(3)), 2, False))
    assert [batch.tolist() for batch in loader] == [[2, 0], [1]]


def test_resumed_text_run_keeps_the_vocabulary_it_learned_though_the_file_has_grown(lab, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    rows = [f'"{1 + i % 2}","","word{i} word{i % 3} shared"' for i in range(12)]
    for name in ("train.csv", "test.csv"):
        (folder / name).write_text("\n".join(rows) + "\n")
    config = {
        "name": "texts",
        "arch": {
            "type": "model.text.BagOfWords",
            "args": {"dim": 4} | {name: {"from": f"data_loader.{name}"} for name in ("vocabulary_size", "num_classes")},
        },
        "data_loader": {"type": "data_loader.text.TextDataLoader", "args": {"data_dir": str(folder), "batch_size": 4}},
        "optimizer": {"type": "SGD", "args": {"lr": 0.1}},
        "loss": "torch.nn.CrossEntropyLoss",
        "trainer": {"epochs": 1, "save_dir": str(lab.saved), "tensorboard": False},
    }
    assert lab.train(config).code == 0
    (folder / "train.csv").write_text("\n".join([*rows, '"1","","brand new words"']) + "\n")
    done = lab.resume(lab.run / "latest.pth", "trainer.epochs=2")
    assert done.code == 0 and len(history(lab.run)) == 2
