"""A fork goes on after a stop with every bit, whatever year its code is of and whatever it keeps of its own."""

import argparse
import collections
import functools
import itertools
import json
import logging
import shlex
import sys
from pathlib import Path

import forks
import numpy as np
import pytest
import torch
from lab import differences, history, load
from torch import nn
from torch.utils.data import DataLoader

from extras import versions
from logger import TensorboardWriter
from parse_config import ConfigParser
from utils.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_versions(monkeypatch):
    """environment.json without the packages; to list them takes longer than a run here."""
    monkeypatch.setattr(versions, "everything", dict)


def parsed(*how, **more):
    """(sections, resume) → a trainer that has trained, from a ConfigParser of them."""
    return lambda sections, resume=None: forks.trained(ConfigParser(sections, resume), *how, **more)


def stopped_and_resumed(lab, train, stop=1, epochs=2, **settings):
    """Trainers that `train(sections, resume)` gave: of an unbroken run, and of the rest of one stopped after `stop`."""
    whole = train(forks.config(lab.saved, epochs=epochs, **settings))
    stopped = train(forks.config(lab.saved, epochs=stop, **settings))
    assert stopped.checkpoint_dir != whole.checkpoint_dir
    resumed = train(forks.config(lab.saved, epochs=epochs, **settings), stopped.checkpoint_dir / "latest.pth")
    assert resumed.start_epoch == stop + 1
    return whole, resumed


def differences_of_states(one, other):
    """What differs between two checkpoints but for the config and for whether the run is at its planned end."""
    apart = {"config": None, "finished": None}
    return differences({**load(one), **apart}, {**load(other), **apart})


def assert_same(whole, resumed):
    """Weights, states, random numbers, the best so far, and the numbers of every epoch, each to the bit."""
    one, other = whole.checkpoint_dir, resumed.checkpoint_dir
    assert not differences_of_states(one / "latest.pth", other / "latest.pth")
    assert history(one) == history(other)
    assert not differences(whole.best_log, resumed.best_log) and whole.mnt_best == resumed.mnt_best


def assert_goes_on(lab, train, **settings):
    whole, resumed = stopped_and_resumed(lab, train, **settings)
    assert_same(whole, resumed)
    assert len(history(whole.checkpoint_dir)) == 2
    return whole, resumed


# --- 2018: a dict as config, other names, another order --------------------------------------------------------------


@pytest.mark.parametrize("trainer", [forks.Of2018, forks.Of2018ByName], ids=["by place", "by name"])
def test_a_fork_of_2018_goes_on_from_the_config_in_its_checkpoint(lab, trainer):
    def train(sections, resume=None):
        if resume is not None:
            epochs, sections = sections["trainer"]["epochs"], torch.load(resume)["config"]
            sections["trainer"]["epochs"] = epochs
        return forks.trained_2018(sections, resume, trainer)

    whole, resumed = assert_goes_on(lab, train)
    best = (trainer.checkpoint_dir / "model_best.pth" for trainer in (whole, resumed))
    assert not differences_of_states(*best)


def test_lists_of_metrics_are_logged_under_the_metrics_names(lab):
    trainer = forks.trained_2018(forks.config(lab.saved, monitor="max val_top_two"))
    names = ("accuracy", "top_two")
    for line, returned in zip(history(lab.run), trainer.returned, strict=True):
        assert [line[name] for name in names] == returned["metrics"]
        assert [line[f"val_{name}"] for name in names] == returned["val_metrics"]
        assert "metrics" not in line and "val_metrics" not in line
    assert trainer.mnt_best == max(returned["val_metrics"][1] for returned in trainer.returned)


def test_a_train_logger_of_2018_is_told_every_epochs_numbers(lab):
    class Entries(list):
        add_entry = list.append

    entries = Entries()
    forks.trained_2018(forks.config(lab.saved), train_logger=entries)
    assert [{name: entry[name] for name in line} for entry, line in zip(entries, history(lab.run), strict=True)] == (
        history(lab.run)
    )


def test_a_monitor_and_its_mode_in_two_keys_find_the_best(lab):
    trainer = forks.trained_2018(forks.config(lab.saved, monitor="val_loss", monitor_mode="max"))
    assert trainer.mnt_best == max(line["val_loss"] for line in history(lab.run))
    assert (lab.run / "model_best.pth").exists()


@pytest.mark.parametrize("train", [forks.trained_2018, parsed()], ids=["a dict", "a parser made of a dict"])
def test_from_an_older_checkpoint_a_new_run_begins_and_the_old_one_stays(lab, train):
    old = train(forks.config(lab.saved, epochs=3)).checkpoint_dir
    before = {path.name: path.read_bytes() for path in old.iterdir()}
    new = train(forks.config(lab.saved), str(old / "checkpoint-epoch1.pth")).checkpoint_dir
    assert new != old and {path.name: path.read_bytes() for path in old.iterdir()} == before
    assert history(new) == history(old)[:2]


# --- a dict in today's order -----------------------------------------------------------------------------------------


def trained_by_itself(sections, resume=None):
    return forks.trained(sections, forks.ResumedByItself, resume=resume)


def test_a_fork_with_a_dict_that_calls_resume_itself_goes_on(lab):
    whole, resumed = stopped_and_resumed(lab, trained_by_itself)
    assert not differences_of_states(whole.checkpoint_dir / "latest.pth", resumed.checkpoint_dir / "latest.pth")
    assert history(whole.checkpoint_dir)[-1] == history(resumed.checkpoint_dir)[-1]
    assert whole.mnt_best == resumed.mnt_best


def test_the_log_of_a_fork_that_calls_resume_itself_is_whole(lab):
    whole, resumed = stopped_and_resumed(lab, trained_by_itself)
    assert history(whole.checkpoint_dir) == history(resumed.checkpoint_dir)


# --- several models, optimizers, schedules ---------------------------------------------------------------------------


@pytest.mark.parametrize("gan", [forks.GanOfAttributes, forks.GanOfDicts, forks.GanOfLists])
def test_two_networks_go_on_with_their_optimizers_and_schedules(lab, gan):
    whole, resumed = assert_goes_on(lab, functools.partial(forks.trained_gan, trainer=gan), monitor="min loss_g")
    optimizers = resumed.parts()[1]
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == pytest.approx([0.001] * 2)
    for one, other in zip(whole.parts()[0], resumed.parts()[0], strict=True):
        assert not differences(one.state_dict(), other.state_dict())


def test_a_schedule_goes_on_beside_a_place_that_has_none(lab):
    train = functools.partial(forks.trained_gan, trainer=forks.GanWithOneSchedule)
    _, resumed = assert_goes_on(lab, train, monitor="off")
    assert [optimizer.param_groups[0]["lr"] for optimizer in resumed.parts()[1]] == pytest.approx([0.001, 0.01])


def test_a_schedule_on_plateau_set_behind_the_bases_init_goes_on(lab):
    _, resumed = assert_goes_on(lab, parsed(forks.OnPlateau))
    assert resumed.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


@pytest.mark.parametrize("schedule", [forks.WarmingUp, forks.in_sequence], ids=["of its own", "torch's"])
def test_a_schedule_that_holds_another_goes_on(lab, schedule):
    _, resumed = assert_goes_on(lab, parsed(forks.Scheduled, schedule=schedule))
    assert resumed.optimizer.param_groups[0]["lr"] == pytest.approx(0.001)


def test_a_schedule_without_a_state_lets_the_run_be_saved(lab):
    _, resumed = assert_goes_on(lab, parsed(forks.Scheduled, schedule=forks.Halving))
    assert resumed.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 / 4)


def test_an_object_that_makes_its_state_of_its_parts_goes_on(lab):
    whole, resumed = assert_goes_on(lab, parsed(forks.Averaged))
    assert whole.average.updates == resumed.average.updates == 8
    assert not differences(whole.average.model.state_dict(), resumed.average.model.state_dict())


# --- folds -----------------------------------------------------------------------------------------------------------


def train_of(fold, folds):
    """The training of a fold, its loaders new ones each time."""

    def train(sections, resume=None):
        return parsed(loader=forks.FoldLoader(fold, folds))(sections, resume)

    return train


def test_folds_in_one_process_have_a_folder_and_a_split_of_their_own(lab):
    folders = [train_of(fold, 4)(forks.config(lab.saved, epochs=1)).checkpoint_dir for fold in range(4)]
    assert len(set(folders)) == 4 and all(len(history(folder)) == 1 for folder in folders)
    splits = [json.loads((folder / "split.json").read_text()) for folder in folders]
    assert sorted(row for split in splits for row in split["valid"]) == list(range(forks.COUNT))
    for fold, split in enumerate(splits):
        assert sorted(split["valid"]) == list(range(fold, forks.COUNT, 4))
        assert sorted(split["train"] + split["valid"]) == list(range(forks.COUNT))


def test_every_fold_goes_on_with_its_own_rows(lab):
    runs_of_folds = [stopped_and_resumed(lab, train_of(fold, 2)) for fold in range(2)]
    for whole, resumed in runs_of_folds:
        assert_same(whole, resumed)
    (first, _), (second, _) = runs_of_folds
    assert differences_of_states(first.checkpoint_dir / "latest.pth", second.checkpoint_dir / "latest.pth")


def test_a_split_with_a_random_sampler_for_validation_goes_on_in_a_new_folder(lab):
    names = itertools.count()

    def train(sections, resume=None):
        config = forks.OwnParser(sections, resume, f"run{next(names)}")
        return forks.trained(config, loader=forks.FoldLoader(0, 4))

    assert_goes_on(lab, train)


# --- a base or a parser of one's own ---------------------------------------------------------------------------------


@pytest.fixture
def from_words(lab, monkeypatch):
    """A command line → what a fork's train.py makes of it, its options included."""

    def parse(*words):
        lab.as_in_a_new_process()
        parser = argparse.ArgumentParser()
        for flags in (("-c", "--config"), ("-r", "--resume"), ("-d", "--device")):
            parser.add_argument(*flags)
        option = collections.namedtuple("option", "flags type target")
        monkeypatch.setattr(sys, "argv", ["train.py", *map(str, words)])
        return ConfigParser.from_args(parser, [option(["--epochs"], int, "trainer;epochs")])

    return parse


def test_a_base_of_ones_own_goes_on_by_a_plain_torch_load(lab, from_words):
    def train(*words):
        data = forks.Points()
        loaders = DataLoader(data, 8, shuffle=True), DataLoader(data, 8)
        return forks.trained(from_words(*words), forks.OnOwnBase, *loaders)

    path = lab.write(forks.config(lab.saved))
    whole, stopped = train("-c", path), train("-c", path, "--epochs", 1)
    one, other = (trainer.config.save_dir for trainer in (whole, stopped))
    resumed = train("-r", other / "checkpoint-epoch1.pth", "--epochs", 2)
    assert one != other and resumed.config.save_dir == other and whole.mnt_best == resumed.mnt_best
    contents = [torch.load(str(folder / "checkpoint-epoch2.pth")) for folder in (one, other)]
    assert contents[0]["epoch"] == 2 and not differences(*contents)


def trained_by_own_parser(trainer=forks.Tracking):
    """(sections, resume) → a trainer that has trained, from a parser that a fork keeps; a new folder each time."""
    names = itertools.count()
    return lambda sections, resume=None: forks.trained(forks.OwnParser(sections, resume, f"run{next(names)}"), trainer)


def test_a_parser_of_ones_own_goes_on_in_the_folder_that_it_names(lab):
    _, resumed = assert_goes_on(lab, trained_by_own_parser())
    assert resumed.checkpoint_dir == Path(lab.saved, "models", "fork", "run2")
    assert torch.load(resumed.checkpoint_dir / "latest.pth")["config"]["trainer"]["epochs"] == 2


def test_a_parser_of_ones_own_is_the_trainers_config(lab):
    config = forks.OwnParser(forks.config(lab.saved))
    assert forks.BaseTrainer(*forks.parts(), config).config is config


def test_the_checkpoint_that_a_run_names_at_its_end_is_there(lab, capsys):
    """Also where the best was found before the run went on in another folder."""
    stopped_and_resumed(lab, trained_by_own_parser(forks.Scored), monitor="max val_score")
    words = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert words[:2] == ["test", "it"] and Path(words[-1]).exists()


# --- 2019: what has to survive a stop --------------------------------------------------------------------------------


@pytest.mark.parametrize("len_epoch", [None, 3], ids=["one pass", "inf_loop"])
def test_patience_and_the_best_survive_in_a_fork_that_takes_its_device_from_the_base(lab, len_epoch):
    """The scores fall: two bad epochs are all the patience there is, one of them before the stop."""
    settings = {"stop": 2, "epochs": 4, "early_stop": 2, "monitor": "max val_score"}
    whole, resumed = stopped_and_resumed(lab, parsed(forks.Scored, len_epoch=len_epoch), **settings)
    assert_same(whole, resumed)
    best = (trainer.checkpoint_dir / "model_best.pth" for trainer in (whole, resumed))
    assert not differences_of_states(*best)
    assert resumed.mnt_best == 0.5 and resumed.best_log["epoch"] == 1
    assert [line["epoch"] for line in history(resumed.checkpoint_dir)] == [1, 2, 3]


@pytest.mark.parametrize("patience", [0, None, -1])
def test_no_patience_at_all_never_ends_a_run(lab, patience):
    trainer = parsed(forks.Scored)(forks.config(lab.saved, monitor="max val_score", early_stop=patience))
    assert trainer.epoch == 2


# --- what forks put where we expect nothing --------------------------------------------------------------------------


def test_arguments_behind_the_config_are_kept(lab):
    config = ConfigParser(forks.config(lab.saved))
    assert forks.BaseTrainer(*forks.parts(), config, 3, fold="b").extra_arguments == (3, "b")


def test_a_config_without_arch_and_with_keys_of_its_own_trains_and_goes_on(lab, from_words):
    sections = forks.config(lab.saved, epochs=1, max_clip=0.5, swa={"start": 3})
    sections |= {"model": sections.pop("arch"), "visualizer": {"type": "", "log_dir": None}}
    run = forks.trained(from_words("-c", lab.write(sections))).checkpoint_dir
    resumed = forks.trained(from_words("-r", run / "checkpoint-epoch1.pth", "--epochs", 2))
    assert [line["epoch"] for line in history(run)] == [1, 2] and resumed.checkpoint_dir == run
    sections["trainer"]["epochs"] = 2
    assert load(run / "latest.pth")["config"] == sections


def test_a_verbosity_beyond_all_shows_everything(lab):
    parsed()(forks.config(lab.saved, verbosity=2000))
    assert logging.getLogger("trainer").isEnabledFor(logging.DEBUG)


def test_a_logger_in_the_config_is_text_in_the_checkpoint(lab):
    sections = forks.config(lab.saved) | {"logger": logging.getLogger("forks")}
    trainer = parsed()(sections)
    assert trainer.config["logger"] is sections["logger"]
    assert torch.load(lab.run / "latest.pth")["config"]["logger"] == str(sections["logger"])


def test_numbers_of_numpy_in_the_config_are_numbers_in_the_checkpoint(lab):
    config = ConfigParser(forks.config(lab.saved))
    config["arch"]["args"] = {"classes": np.int64(3), "dropout": np.float32(0.5), "sizes": np.arange(2)}
    forks.trained(config)
    expected = {"classes": 3, "dropout": 0.5, "sizes": [0, 1]}
    assert torch.load(lab.run / "latest.pth")["config"]["arch"]["args"] == expected
    assert json.loads((lab.run / "config.json").read_text())["arch"]["args"] == expected


class Thing:
    def __repr__(self):
        return "a thing"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (torch.tensor(0.25), 0.25),
        ([1, 0.5], [1, 0.5]),
        (np.eye(2), [[1.0, 0.0], [0.0, 1.0]]),
        ("text", "text"),
        (None, None),
        ([np.float32(0.5), np.int64(3)], [0.5, 3]),
        ({"cat": np.float32(0.5)}, {"cat": 0.5}),
        (Thing(), "a thing"),
    ],
    ids=lambda value: repr(value).replace("\n", ""),
)
def test_a_log_may_hold(lab, value, expected):
    class Logging(forks.Tracking):
        def _train_epoch(self, epoch):
            return {**super()._train_epoch(epoch), "value": value}

    trainer = parsed(Logging)(forks.config(lab.saved, epochs=1, monitor="off"))
    assert history(lab.run)[0]["value"] == expected == load(lab.run / "latest.pth")["counters"]["best_log"]["value"]
    assert trainer.epoch == 1


@pytest.fixture
def writer(tmp_path):
    pytest.importorskip("tensorboard")
    made = TensorboardWriter(tmp_path / "events", logging.getLogger("forks"), True)
    made.set_step(5, "valid")
    yield made
    made.close()


def events_of(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


def test_every_method_of_torchs_writer_is_reached_through_ours(writer):
    from torch.utils.tensorboard import SummaryWriter

    names = [name for name in dir(SummaryWriter) if not name.startswith("_")]
    assert [name for name in names if not callable(getattr(writer, name, None))] == []


def test_a_graph_is_written(writer, tmp_path):
    writer.add_graph(nn.Linear(2, 1), torch.zeros(3, 2))
    writer.close()
    assert events_of(tmp_path / "events").Tags()["graph"]


@pytest.mark.parametrize(
    ("method", "given", "tag"),
    [
        ("add_text", ("note", "a word"), "note/valid/text_summary"),
        ("add_pr_curve", ("curve", torch.tensor([0, 1]), torch.tensor([0.2, 0.8])), "curve/valid"),
    ],
    ids=["text", "curve"],
)
def test_what_has_a_tag_is_written_with_step_and_mode(writer, tmp_path, method, given, tag):
    getattr(writer, method)(*given)
    writer.close()
    assert [event.step for event in events_of(tmp_path / "events").Tensors(tag)] == [5]


def test_hyperparameters_are_written(writer, tmp_path):
    writer.add_hparams({"lr": 0.1}, {"score": 0.5}, run_name="tried")
    writer.close()
    events = events_of(tmp_path / "events" / "tried")
    assert [(event.step, event.value) for event in events.Scalars("score")] == [(5, 0.5)]


@pytest.mark.parametrize("given", [[1, 2], {"name": "x"}, forks.Net()], ids=["list", "no trainer", "model"])
def test_what_is_no_config_in_its_place_is_told(given):
    with pytest.raises(ConfigError, match="without a 'trainer' section is none"):
        forks.BaseTrainer(*forks.parts(), given)
