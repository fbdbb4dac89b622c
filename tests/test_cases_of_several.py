"""Faults that people have really met with several processes, each as a small run of two with the right outcome."""

import json
import os
import random
import shutil
import signal
import sys
from collections import Counter, OrderedDict

import numpy as np
import pytest
import several
import torch
import toy
from lab import history, load
from torch import nn
from torch.utils.data import Dataset

import train
from base import BaseTrainer
from parse_config import ConfigParser
from utils import processes
from utils.errors import ConfigError, Failure, Stopped

HERE = "test_cases_of_several"


class Drawn(Dataset):
    """8 examples, each what the three libraries draw for it."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        drawn = [np.random.randint(1 << 20), random.randrange(1 << 20), int(torch.randint(1 << 20, ()))]
        return torch.tensor(drawn, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)


class Telling(nn.Linear):
    """Notes what it is trained on."""

    def __init__(self):
        super().__init__(3, 1, dtype=torch.float64)

    def forward(self, x):
        if self.training:
            toy.say(drawn=x.tolist())
        return super().forward(x) * 0


class Single(several.Net):
    """In float32."""

    def __init__(self):
        super().__init__()
        self.float()

    def forward(self, x):
        return super().forward(x.float())


class Noting(torch.optim.SGD):
    """Keeps the gradients of its first step in the file FIRST."""

    def step(self, closure=None):
        if not os.path.exists(os.environ["FIRST"]):
            torch.save([p.grad for group in self.param_groups for p in group["params"]], os.environ["FIRST"])
        return super().step(closure)


class Forks(BaseTrainer):
    """A loop of a fork's own, whose loss each process measures on its own rows: only the main one's gets better."""

    def __init__(self, model, criterion, metric_ftns, optimizer, config, **parts):
        super().__init__(model, criterion, metric_ftns, optimizer, config)
        self.data_loader, self.is_to_stop = parts["data_loader"], config["name"] == "stopped"

    def _train_epoch(self, epoch):
        if self.is_to_stop and epoch == 3 and not processes.is_main():
            os.kill(os.getpid(), signal.SIGTERM)
        return {"loss": 0.0, "val_loss": 1 / epoch if processes.is_main() else float(epoch)}


class Total:
    """How many rows were seen; summed over processes as torchmetrics' objects do, by which attribute it passes."""

    dist_sync_fn = None

    def __init__(self):
        self.reset()

    def reset(self):
        self.rows = torch.zeros(())

    def update(self, output, target):
        self.rows += len(output)

    def compute(self):
        return processes.sum_over_all(self.rows.clone())


def run(folder, name, config, resume=None):
    """Train; what the modules note goes into NAME-RANK.jsonl."""
    os.environ["PROBE"] = str(folder / f"{name}-{processes.process_number()}.jsonl")
    return train.main(ConfigParser({**config, "name": name}, resume=resume, run_id="run"))


def noted(folder, name, key):
    """[what a process has noted under the key] by process."""
    files = sorted(folder.glob(f"{name}-*.jsonl"))
    lines = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return [[line[key] for line in of_one if key in line and line.get("train", True)] for of_one in lines]


def seen(folder, name):
    """[{index of a row: how often it was trained on}] by step, over all processes."""
    by_process = noted(folder, name, "x")
    return [Counter(row for part in parts for row in part) for parts in zip(*by_process, strict=True)]


def padded(folder):
    """Five examples to validate on, of which a sampler that pads would count the last or the first twice."""
    rows = toy.rows(5, [0.0, 0.0, 0.0, 0.0, 10.0], batch_size=2)
    return toy.config(folder, valid_data_loader=rows, loss="toy.mean_target", trainer={"epochs": 1})


def all_runs(folder):
    """In one process and in two, but for what only two can do."""
    run(folder, "two epochs", toy.config(folder, trainer={"epochs": 2}))
    processes.wait_for_all()
    kept = folder / "epoch1.pth"
    if processes.is_main():
        shutil.copy(folder / "two epochs" / "run" / "checkpoint-epoch1.pth", kept)
    processes.wait_for_all()
    run(folder, "resumed", toy.config(folder, trainer={"epochs": 2}), kept)
    run(folder, "padded", padded(folder))
    loader = {"type": "DataLoader", "args": {"dataset": {"type": f"{HERE}.Drawn"}, "batch_size": 4, "shuffle": True}}
    drawing = {"arch": f"{HERE}.Telling", "data_loader": loader, "valid_data_loader": None}
    run(folder, "drawn", toy.config(folder, **drawing, trainer={"epochs": 2, "monitor": "off"}))
    os.environ["FIRST"] = str(folder / f"first-{processes.process_number()}.pth")
    noting = {"arch": f"{HERE}.Single", "optimizer": {"type": f"{HERE}.Noting", "args": {"lr": 0.1}}}
    run(folder, "float32", several.config(folder, **noting, lr_scheduler=None, trainer={"epochs": 1}))


class Unlike(several.Net):
    """Its weights are drawn by a seed of each process's own."""

    def __init__(self):
        torch.manual_seed(100 + processes.process_number())
        super().__init__()


class Uneven(several.Rows):
    """A row less on process 1."""

    def __init__(self):
        super().__init__(13 - processes.process_number())


def refused(folder, name, **sections):
    """Note by what words a run is refused."""
    try:
        run(folder, name, several.config(folder, **sections))
    except Failure as failure:
        (folder / f"{name}-{processes.process_number()}").write_text(str(failure))


def in_two(folder):
    all_runs(folder)
    for parallel in ("ddp", "fsdp", {"type": "pipeline", "args": {"split": ["module"]}}):
        refused(
            folder,
            f"unlike {parallel if isinstance(parallel, str) else 'pipeline'}",
            arch=f"{HERE}.Unlike",
            parallel=parallel,
        )
    uneven = {"type": "DataLoader", "args": {"dataset": {"type": f"{HERE}.Uneven"}, "batch_size": 4}}
    refused(folder, "uneven", data_loader=uneven)
    if processes.is_main():
        shutil.copy(folder.parent / "one" / "padded" / "run" / "latest.pth", folder / "one.pth")
    processes.wait_for_all()
    run(folder, "from one", toy.config(folder, trainer={"epochs": 2}), folder / "one.pth")

    uneven = {"dataset": {"type": "several.Rows"}, "batch_size": 3}  # of a batch, two rows and one
    counting = {"data_loader": {"type": "DataLoader", "args": uneven}, "metrics": [f"{HERE}.Total"]}
    counting = several.config(folder, **counting, lr_scheduler=None, trainer={"epochs": 1, "max_steps": 1})
    run(folder, "inside", counting)
    counting["trainer"]["max_steps"] = None
    run(folder, "inside", counting, folder / "inside/run/latest.pth")
    own_loop = {"type": f"{HERE}.Forks", "epochs": 30, "early_stop": 2}
    run(folder, "own numbers", toy.config(folder, trainer=own_loop))
    try:
        run(folder, "stopped", toy.config(folder, trainer=own_loop))
    except Stopped as stop:
        (folder / f"stopped-{processes.process_number()}").write_text(str(stop))

    def refuse():
        raise ConfigError("said by the main process")

    try:
        processes.from_main(refuse)
    except ConfigError as error:
        (folder / f"refused-{processes.process_number()}").write_text(str(error))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """(runs of one process, the same runs of two)."""
    made, threads = tmp_path_factory.mktemp("cases"), torch.get_num_threads()
    one, two = made / "one", made / "two"
    one.mkdir()
    two.mkdir()
    torch.set_num_threads(1)
    before = dict(os.environ)
    all_runs(one)
    os.environ.clear()
    os.environ.update(before)
    torch.set_num_threads(threads)
    several.together(2, sys.modules[__name__], "in_two", two)
    return one, two


def test_every_epoch_deals_every_row_once_and_in_another_order(folders):
    steps = seen(folders[1], "two epochs")
    assert steps[0] + steps[1] == steps[2] + steps[3] == Counter(map(float, range(8)))
    assert steps[:2] != steps[2:]


def test_two_processes_see_the_batches_of_one_in_their_order(folders):
    assert seen(folders[1], "two epochs") == seen(folders[0], "two epochs")


def test_resumed_run_sees_the_second_epoch_of_an_unbroken_one(folders):
    assert seen(folders[1], "resumed") == seen(folders[1], "two epochs")[2:]


def test_validation_counts_no_example_twice(folders):
    for folder in folders:
        (line,) = history(folder / "padded" / "run")
        assert line["val_loss"] == 2.0


def test_transforms_draw_in_two_processes_what_they_draw_in_one(folders):
    one, two = ([row for of_one in noted(f, "drawn", "drawn") for part in of_one for row in part] for f in folders)
    assert sorted(two) == sorted(one)
    assert len({tuple(row) for row in one}) == 16


def test_first_gradients_in_float32_are_those_of_one_process(folders):
    one, *two = [load(path) for folder in folders for path in sorted(folder.glob("first-*.pth"))]
    assert len(two) == 2
    for gradients in two:
        assert all(float((a - b).abs().max()) <= 1e-6 * float(a.abs().max()) + 1e-8 for a, b in zip(one, gradients))


def test_keys_of_two_processes_carry_no_prefix(folders):
    assert list(load(folders[1] / "padded" / "run" / "latest.pth")["state_dict"]) == ["w", "n"]


def test_checkpoint_of_two_processes_is_tested_by_one(lab, folders):
    done = lab.test(folders[1] / "padded" / "run" / "latest.pth", "--split", "val", config=padded(lab.saved))
    assert (done.code, done.err, done.numbers) == (0, "", {"val_loss": 2.0})


def test_checkpoint_with_prefixed_keys_is_tested(lab, folders, tmp_path):
    content = load(folders[0] / "padded" / "run" / "latest.pth")
    content["state_dict"] = OrderedDict((f"module.{key}", value) for key, value in content["state_dict"].items())
    torch.save(content, tmp_path / "prefixed.pth")
    done = lab.test(tmp_path / "prefixed.pth", "--split", "val", config=padded(lab.saved))
    assert (done.code, done.err, done.numbers) == (0, "", {"val_loss": 2.0})


def test_checkpoint_of_one_process_goes_on_in_two(folders):
    assert load(folders[1] / "from one" / "run" / "latest.pth")["epoch"] == 2


@pytest.mark.parametrize("parallel", ["ddp", "fsdp", "pipeline"])
def test_models_that_each_process_has_drawn_for_itself_are_refused_before_they_are_spread(folders, parallel):
    for number in (0, 1):
        said = (folders[1] / f"unlike {parallel}-{number}").read_text()
        assert said.startswith(
            "At the start 'first.weight' (6 of 6 parameters) is another on process 1 than on process 0"
        )


def test_a_set_of_another_length_on_one_process_is_refused_on_all(folders):
    for number in (0, 1):
        said = (folders[1] / f"uneven-{number}").read_text()
        assert said == "config: data_loader: [13, 12] examples, by process. Every process reads the same set."


def test_what_the_main_process_refuses_all_refuse(folders):
    assert [(folders[1] / f"refused-{i}").read_text() for i in (0, 1)] == ["said by the main process"] * 2


def test_loop_of_a_forks_own_ends_on_all_processes_by_the_main_ones_numbers(folders):
    assert [line["epoch"] for line in history(folders[1] / "own numbers" / "run")] == list(range(1, 31))


def test_signal_to_one_process_ends_a_loop_of_a_forks_own_on_all_behind_the_same_epoch(folders):
    """The processes ask one another after 20 epochs at most, where these are short."""
    run = folders[1] / "stopped" / "run"
    said = [(folders[1] / f"stopped-{i}").read_text() for i in (0, 1)]
    assert said == [f"Stopped by SIGTERM. Go on with -r {run / 'latest.pth'}"] * 2
    assert 3 <= load(run / "latest.pth")["epoch"] == len(history(run)) < 30


def test_metric_object_of_each_process_goes_on_inside_an_epoch_with_its_own_rows(folders):
    (line,) = history(folders[1] / "inside" / "run")
    assert line["Total"] == 13
