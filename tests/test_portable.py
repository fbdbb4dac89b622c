"""A checkpoint of any wrapper goes on in any other, and at another number of processes."""

import itertools
import shutil
import sys

import pytest
import several
import torch

import train
from parse_config import ConfigParser
from utils import processes

COMPILED = {"trainer": {"compile": {"backend": "eager"}}}
ONE = {"one process": {}, "compiled": COMPILED, "DataParallel": {"parallel": "several.data_parallel"}}
STAGES = {"type": "pipeline", "args": {"split": ["module"], "micro_batches": 2}}
TWO = {
    "DDP of 2": {"parallel": "ddp"},
    "compiled in DDP of 2": COMPILED,
    "FSDP of 2": {"parallel": "fsdp"},
    "pipeline of 2": {"parallel": STAGES},
}
ALL = [*ONE, *TWO]


def run(folder, name, sections, resume=None):
    """Train under a name, two epochs in all; or one, where a checkpoint of that is wanted."""
    epochs = 1 if resume is None else 2
    trainer = {**sections.get("trainer", {}), "epochs": epochs}
    schedule = {"type": "OneCycleLR", "args": {"max_lr": 0.05, "total_steps": 4}, "interval": "step"}
    made = several.config(folder, **{**sections, "trainer": trainer, "lr_scheduler": schedule, "name": name})
    train.main(ConfigParser(made, resume=resume, run_id="run"))
    (folder / f"shares of {name}").write_text(str(processes.size()))


def first_epochs(folder, wrappers):
    """files/NAME.pth of each wrapper, apart from the run so that what goes on from it is another run."""
    for name, sections in wrappers.items():
        run(folder, name, sections)
        if processes.is_main():
            (folder / "files").mkdir(exist_ok=True)
            shutil.copy(folder / name / "run" / "latest.pth", folder / "files" / f"{name}.pth")
    processes.wait_for_all()


def second_epochs(folder, wrappers):
    for before, (name, sections) in itertools.product(ALL, wrappers.items()):
        run(folder, f"{before} to {name}", sections, folder / "files" / f"{before}.pth")


def in_two(folder):
    """What each of two processes does."""
    first_epochs(folder, TWO)
    second_epochs(folder, TWO)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The runs of all wrappers, and of each pair of them."""
    made, threads = tmp_path_factory.mktemp("portable"), torch.get_num_threads()
    torch.set_num_threads(1)
    first_epochs(made, ONE)
    several.together(2, sys.modules[__name__], "in_two", made)
    second_epochs(made, ONE)
    torch.set_num_threads(threads)
    return made


def kept(folder, name):
    return torch.load(folder / name / "run" / "latest.pth", weights_only=True)


def furthest(one, other):
    """The largest difference of two checkpoints' tensors of weights, averages and optimizer state."""
    pairs = []
    for name in ("state_dict", "train_state_dict"):
        assert list(one[name]) == list(other[name])
        pairs += [(one[name][key], other[name][key]) for key in one[name]]
    for key, state in one["optimizer"]["state"].items():
        pairs += [(value, other["optimizer"]["state"][key][name]) for name, value in state.items()]
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.parametrize("name", ALL)
def test_every_wrapper_trains_as_one_process_and_saves_under_the_users_own_names(folder, name):
    assert furthest(kept(folder, "one process"), kept(folder, name)) <= 1e-10
    assert list(kept(folder, name)["state_dict"]) == list(several.Net().state_dict())


@pytest.mark.parametrize(("before", "after"), list(itertools.product(ALL, ALL)))
def test_checkpoint_of_any_wrapper_goes_on_in_any_other(folder, before, after):
    unbroken = kept(folder, "one process to one process")
    assert furthest(unbroken, kept(folder, f"{before} to {after}")) <= 1e-10


@pytest.mark.parametrize(("name", "shares"), [("compiled", 1), ("DDP of 2", 2), ("FSDP of 2", 2), ("pipeline of 2", 1)])
def test_rows_are_dealt_anew_in_each_run_also_behind_one_in_stages(folder, name, shares):
    assert [(folder / f"shares of {before} to {name}").read_text() for before in ALL] == [str(shares)] * len(ALL)


@pytest.mark.parametrize(("before", "after"), list(itertools.product(ALL, ALL)))
def test_numbers_of_the_run_that_goes_on_are_those_of_one_process(folder, before, after):
    unbroken, other = (
        kept(folder, name)["counters"]["best_log"] for name in ("one process to one process", f"{before} to {after}")
    )
    for name in ("epoch", "step", "loss", "accuracy", "val_loss", "val_accuracy"):
        assert other[name] == pytest.approx(unbroken[name], abs=1e-9), name
