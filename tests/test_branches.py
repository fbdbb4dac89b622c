"""Where a project leaves the beaten path: loops, losses and optimizers of its own, or several of them."""

import json

import noisy
import pytest
import toy
from lab import TESTS, differences_of_checkpoints, history, load

FORKS = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def assert_resumed_is_unbroken(lab, config):
    """Every bit of the last checkpoint and every number, of four epochs at once and of two and two."""
    assert lab.train(config, "--run-id", "unbroken").code == 0
    lab.train(config, "--run-id", "broken", "trainer.epochs=2")
    assert lab.resume(lab.saved / "noisy/broken/latest.pth", "trainer.epochs=4").code == 0
    assert_same(lab)


def assert_same(lab):
    unbroken, broken = lab.saved / "noisy/unbroken", lab.saved / "noisy/broken"
    assert not differences_of_checkpoints(unbroken / "latest.pth", broken / "latest.pth")
    assert history(unbroken) == history(broken)


# --- a loop, a loss, optimizers of one's own -------------------------------------------------------------------------


def test_loop_of_ones_own_that_a_signal_stops_goes_on_from_its_last_epoch(lab):
    """It counts no batches, so nothing may be saved inside an epoch; batch 12 of seven an epoch is in the second."""
    config = noisy.config(lab.saved, trainer={"type": "own.Loop"})
    lab.train(config, "--run-id", "unbroken")
    assert lab.train(config, "--run-id", "broken", INTERRUPT="train 12 SIGTERM").code == 143
    broken = lab.saved / "noisy/broken"
    assert not differences_of_checkpoints(broken / "latest.pth", broken / "checkpoint-epoch1.pth")
    assert lab.resume(broken / "latest.pth").code == 0
    assert_same(lab)


def test_loss_with_running_statistics_goes_on_as_if_it_never_was_stopped(lab):
    assert_resumed_is_unbroken(lab, noisy.config(lab.saved, loss="own.Centred"))


def test_list_of_optimizers_goes_on_as_if_it_never_was_stopped(lab):
    config = noisy.config(lab.saved, optimizer="SGD", lr_scheduler=None, trainer={"type": "own.Pair"})
    assert_resumed_is_unbroken(lab, config)


def test_checkpoint_holds_the_state_of_each_optimizer_in_a_list(lab):
    """Two epochs of seven batches are 14 steps of both."""
    config = noisy.config(lab.saved, optimizer="SGD", lr_scheduler=None, trainer={"type": "own.Pair", "epochs": 2})
    lab.train(config)
    movers = load(lab.run / "latest.pth")["objects"]["movers"]
    assert [int(mover["state"][0]["step"]) for mover in movers] == [14, 14]


# --- data that is told its pass, workers -----------------------------------------------------------------------------


@FORKS
def test_set_that_is_told_its_pass_trains_alike_with_and_without_workers(lab):
    """Validation shares it and tells it the epoch; training stands in another pass: five batches each, two an epoch."""
    dataset = {"type": "own.Passing", "args": {"n": 50}}
    args = {"dataset": dataset, "batch_size": 8, "shuffle": True, "validation_split": 10}
    config = noisy.config(lab.saved, data_loader={"type": "DataLoader", "args": args}, trainer={"len_epoch": 2})
    lab.train(config, "--run-id", "unbroken")
    assert lab.train(config, "--run-id", "broken", "data_loader.args.num_workers=2").code == 0
    assert_same(lab)


@FORKS
def test_persistent_workers_end_with_the_run(lab):
    data = noisy.loader(50, batch_size=8, num_workers=1, persistent_workers=True)
    config = noisy.config(lab.saved, data_loader=data, valid_data_loader=data)
    lab.train(config, "trainer.epochs=1", "trainer.type=own.Leaving")
    assert lab.probe("left") == [0]


def test_data_set_that_is_given_as_text_is_told_how_to_write_it(lab):
    done = lab.train(noisy.config(lab.saved), "data_loader.args.dataset=noisy.Noisy")
    assert done.code == 2 and '{"type": NAME' in done.err
    assert 'command line: data_loader.args.dataset: "noisy.Noisy" is no object' in done.err


# --- several optimizers and schedules --------------------------------------------------------------------------------

NAMED = {
    "first": {"type": "SGD", "args": {"lr": 0.01}, "params": "[01].*"},
    "last": {"type": "SGD", "args": {"lr": 0.01}, "params": "3.*"},
}


def test_each_named_schedule_counts_what_its_own_interval_says(lab):
    """Two epochs of seven updates."""
    schedules = {
        "first": {"type": "ExponentialLR", "args": {"gamma": 0.9}, "interval": "step"},
        "last": {"type": "ExponentialLR", "args": {"gamma": 0.5}},
    }
    lab.train(noisy.config(lab.saved, optimizer=NAMED, lr_scheduler=schedules), "trainer.epochs=2")
    optimizers = load(lab.run / "latest.pth")["optimizer"]
    rates = {name: state["param_groups"][0]["lr"] for name, state in optimizers.items()}
    assert rates == pytest.approx({"first": 0.01 * 0.9**14, "last": 0.01 * 0.25})


def test_plateau_schedule_that_is_to_count_updates_is_refused(lab):
    schedule = {"type": "ReduceLROnPlateau", "interval": "step"}
    done = lab.train(toy.config(lab.saved, lr_scheduler=schedule))
    assert done.code == 2 and "lr_scheduler.interval" in done.err and not lab.saved.exists()


def test_one_cycle_without_a_peak_climbs_to_the_optimizers_rate(lab):
    """Of ten steps the third is the peak."""
    schedule = {"type": "OneCycleLR", "interval": "step"}
    done = lab.train(toy.config(lab.saved, lr_scheduler=schedule), "trainer.epochs=5", "optimizer.args.lr=0.5")
    assert done.code == 0 and max(lab.probe("lr")) == lab.probe("lr")[2] == pytest.approx(0.5)


def test_parameters_that_no_optimizer_moves_are_named(lab):
    optimizers = {**NAMED, "first": {**NAMED["first"], "params": "0.*"}}
    done = lab.train(noisy.config(lab.saved, optimizer=optimizers, lr_scheduler=None), "trainer.epochs=1")
    assert done.code == 0 and "warning: optimizer: none moves 1.weight, 1.bias;" in done.out


# --- what is measured ------------------------------------------------------------------------------------------------


def test_each_of_several_validation_sets_is_tested_under_its_name(lab):
    sets = {"a": toy.rows(values=[1.0] * 3, batch_size=2), "b": toy.rows(values=[2.0, 4.0], batch_size=2)}
    lab.train(toy.config(lab.saved, valid_data_loader=sets, loss="toy.mean_target", trainer={"monitor": "off"}))
    assert lab.test(lab.run / "latest.pth", "--split", "val").numbers == {"val_a_loss": 1.0, "val_b_loss": 3.0}
    written = json.loads((lab.run / "test-val.json").read_text())
    assert (written["val_a_loss"], written["val_b_loss"], written["examples"]) == (1.0, 3.0, 5)


@pytest.mark.parametrize("name", ["epoch", "lr"])
def test_metric_may_not_take_the_name_of_a_column_of_the_log(lab, name):
    done = lab.train(toy.config(lab.saved, metrics=[{"type": "toy.squared", "name": name}]))
    assert done.code == 2 and f"two numbers would be called '{name}'" in done.err


def test_memory_that_runs_out_in_a_validation_ends_with_6_and_the_remedies(lab):
    done = lab.train(toy.config(lab.saved, loss="own.too_large_to_validate"))
    assert done.code == 6 and "Tried to allocate 20 GiB" in done.err
    assert "data_loader.args.batch_size" in done.err and "trainer.accumulate" in done.err and "amp" in done.err


def test_error_in_a_users_constructor_is_told_with_file_and_line(lab):
    done = lab.train(toy.config(lab.saved, arch="own.Picky"))
    lines = (TESTS / "own.py").read_text().splitlines()
    (line,) = (number for number, text in enumerate(lines, 1) if "[][0]" in text)
    assert done.code == 2 and f"own.py, line {line}" in done.err
    assert "config.json: arch: Picky() raised IndexError" in done.err
