"""A run that was stopped and resumed is the run that never was stopped; and what a resume may change, it says."""

import json
import multiprocessing
import os
import shutil

import noisy
import pytest
import torch
import toy
from lab import differences, differences_of_checkpoints, history, load

from utils import runs

FORKS = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def assert_same_runs(one, other):
    """Every bit of the last checkpoint and every line of metrics.jsonl, but for the times."""
    assert not differences_of_checkpoints(one / "latest.pth", other / "latest.pth")
    assert history(one) == history(other)


def stopped_by_an_error(lab, config, batch, *words):
    """The folder of a run whose model raised at a training batch."""
    with pytest.raises(RuntimeError, match="the interruption"):
        lab.train(config, "--run-id", "broken", *words, INTERRUPT=f"train {batch} raise")
    return lab.saved / "noisy/broken"


def unbroken(lab, config, *words):
    lab.train(config, "--run-id", "unbroken", *words)
    return lab.saved / "noisy/unbroken"


# --- exactness -------------------------------------------------------------------------------------------------------


def test_run_stopped_at_an_epochs_end_goes_on_as_if_it_never_was(lab):
    schedule = {"type": "OneCycleLR", "args": {"max_lr": 0.05, "total_steps": 12}, "interval": "step"}
    config = noisy.everything(lab.saved, lr_scheduler=schedule)
    whole = unbroken(lab, config)
    lab.train(config, "--run-id", "broken", "trainer.epochs=2")
    assert lab.resume(lab.saved / "noisy/broken/latest.pth", "trainer.epochs=3").code == 0
    assert_same_runs(whole, lab.saved / "noisy/broken")


@FORKS
@pytest.mark.parametrize("workers", [0, 2])
def test_run_stopped_inside_an_epoch_goes_on_as_if_it_never_was(lab, workers):
    """Seven batches make four updates an epoch, the last of a lone batch; batch 12 is in update 7."""
    config = noisy.everything(lab.saved, trainer={"save_steps": 5})
    config["data_loader"]["args"]["num_workers"] = workers
    whole = unbroken(lab, config)
    broken = stopped_by_an_error(lab, config, 12)
    assert load(broken / "latest.pth")["step"] == 5
    assert lab.resume(broken / "latest.pth").code == 0
    assert_same_runs(whole, broken)


def test_run_stopped_twice_in_one_epoch_goes_on_as_if_it_never_was(lab):
    config = noisy.everything(lab.saved, trainer={"save_steps": 1})
    whole = unbroken(lab, config)
    broken = stopped_by_an_error(lab, config, 10)
    with pytest.raises(RuntimeError, match="the interruption"):
        lab.resume(broken / "latest.pth", INTERRUPT="train 3 raise")
    assert load(broken / "latest.pth")["step"] == 6
    lab.resume(broken / "latest.pth")
    assert_same_runs(whole, broken)


def test_run_saved_at_the_last_update_of_an_epoch_goes_on_as_if_it_never_was(lab):
    config = noisy.everything(lab.saved, trainer={"save_steps": 4})
    whole = unbroken(lab, config)
    broken = stopped_by_an_error(lab, config, 8)
    assert load(broken / "latest.pth")["step"] == 4
    lab.resume(broken / "latest.pth")
    assert_same_runs(whole, broken)


STEPWISE = {"type": "ExponentialLR", "args": {"gamma": 0.9}, "interval": "step"}


def test_run_that_max_steps_ended_inside_an_epoch_goes_on_as_if_it_never_was(lab):
    config = noisy.everything(lab.saved, lr_scheduler=STEPWISE)
    whole = unbroken(lab, config)
    lab.train(config, "--run-id", "broken", "trainer.max_steps=6")
    broken = lab.saved / "noisy/broken"
    assert history(broken)[-1]["partial"] is True
    lab.resume(broken / "latest.pth", "trainer.max_steps=null")
    assert_same_runs(whole, broken)


def test_epochs_of_a_given_length_go_on_as_if_they_never_were_stopped(lab):
    """Five batches an epoch over passes of seven; the run stops in the second epoch, which spans two passes."""
    config = noisy.everything(lab.saved, trainer={"len_epoch": 5, "save_steps": 1, "epochs": 4})
    whole = unbroken(lab, config)
    broken = stopped_by_an_error(lab, config, 10)
    lab.resume(broken / "latest.pth")
    assert_same_runs(whole, broken)


@pytest.mark.parametrize("batch", [6, 8, 13])
def test_validations_inside_an_epoch_are_neither_lost_nor_doubled(lab, batch):
    """Both come at every second update; the run stops just after a save, at an epoch's start, and between."""
    config = noisy.everything(lab.saved, trainer={"valid_steps": 2, "save_steps": 2, "early_stop": 9})
    whole = unbroken(lab, config)
    broken = stopped_by_an_error(lab, config, batch)
    lab.resume(broken / "latest.pth")
    assert_same_runs(whole, broken)


def test_stream_goes_on_where_it_was_stopped(lab):
    stream = {"type": "DataLoader", "args": {"dataset": {"type": "toy.Stream"}, "batch_size": 4}}
    config = toy.config(lab.saved, data_loader=stream, trainer={"epochs": 4, "save_steps": 1})
    config["arch"]["args"]["steps"] = 5
    lab.train(config, "--run-id", "unbroken")
    lab.train(config, "--run-id", "broken", "trainer.max_steps=7")
    lab.resume(lab.saved / "toy/broken/latest.pth", "trainer.max_steps=null")
    assert_same_runs(lab.saved / "toy/unbroken", lab.saved / "toy/broken")


def test_metrics_file_has_each_epoch_once_after_a_resume_from_an_older_state(lab):
    """The run died after it wrote an epoch's line and before it saved that epoch."""
    config = noisy.everything(lab.saved)
    whole = unbroken(lab, config)
    lab.train(config, "--run-id", "broken")
    broken = lab.saved / "noisy/broken"
    shutil.copy(broken / "checkpoint-epoch1.pth", broken / "copy")
    for path in broken.glob("*.pth"):
        path.unlink()
    (broken / "copy").rename(broken / "latest.pth")
    with open(broken / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"epoch": 4, "lo')  # a kill cut this line short
    lab.resume(broken / "latest.pth")
    assert_same_runs(whole, broken)


def test_best_checkpoint_of_a_resumed_run_is_that_of_an_unbroken_one(lab):
    config = noisy.everything(lab.saved, trainer={"save_steps": 1})
    whole = unbroken(lab, config)
    broken = stopped_by_an_error(lab, config, 17)
    lab.resume(broken / "latest.pth")
    assert not differences_of_checkpoints(whole / "model_best.pth", broken / "model_best.pth")


# --- what is finished ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["latest.pth", "checkpoint-epoch2.pth"])
def test_finished_run_that_is_resumed_does_nothing_and_says_so(lab, name):
    lab.train(toy.config(lab.saved), "trainer.epochs=2")
    before = files(lab.run)
    done = lab.resume(lab.run / name)
    assert done.code == 0 and "Nothing left to do: all 2 epochs are trained." in done.out
    assert files(lab.run) == before


def test_run_that_lost_its_patience_does_nothing_when_it_is_resumed(lab):
    lab.train(toy.config(lab.saved, script=[1, 2, 3, 4, 5, 6]), "trainer.early_stop=2")
    before = files(lab.run)
    done = lab.resume(lab.run / "latest.pth")
    assert done.code == 0 and "Nothing left to do: val_loss has not improved in 2 validations" in done.out
    assert files(lab.run) == before


def test_run_that_max_steps_ended_does_nothing_when_it_is_resumed(lab):
    lab.train(toy.config(lab.saved), "trainer.max_steps=3")
    before = files(lab.run)
    done = lab.resume(lab.run / "latest.pth")
    assert done.code == 0 and "Nothing left to do: all 3 steps are trained." in done.out
    assert files(lab.run) == before


def test_run_that_lost_its_patience_inside_an_epoch_does_nothing_when_it_is_resumed(lab):
    config = toy.config(lab.saved, script=[1, 1], trainer={"valid_steps": 1, "early_stop": 2})
    config["data_loader"]["args"]["batch_size"] = 2
    config["arch"]["args"]["steps"] = 4
    lab.train(config)
    assert load(lab.run / "latest.pth")["step"] == 3
    before = files(lab.run)
    done = lab.resume(lab.run / "latest.pth")
    assert done.code == 0 and "Nothing left to do: val_loss has not improved in 2 validations" in done.out
    assert files(lab.run) == before


def test_run_whose_patience_ended_inside_an_epoch_goes_on_when_it_is_given_more(lab):
    config = toy.config(lab.saved, script=[1, 1], trainer={"valid_steps": 1, "epochs": 2})
    config["data_loader"]["args"]["batch_size"] = 2
    config["arch"]["args"]["steps"] = 4
    lab.train(config, "--run-id", "unbroken")
    lab.train(config, "--run-id", "broken", "trainer.early_stop=2")
    lab.resume(lab.saved / "toy/broken/latest.pth", "trainer.early_stop=0")
    assert_same_runs(lab.saved / "toy/unbroken", lab.saved / "toy/broken")


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# --- what is changed -------------------------------------------------------------------------------------------------


def test_more_epochs_on_resume_take_effect_and_are_printed(lab):
    lab.train(toy.config(lab.saved), "trainer.epochs=1")
    done = lab.resume(lab.run / "latest.pth", "trainer.epochs=3")
    assert "trainer.epochs: 1 → 3" in done.out
    assert len(history(lab.run)) == 3


def test_changed_learning_rate_under_a_schedule_is_refused_with_the_way_to_do_it(lab):
    lab.train(toy.config(lab.saved), "trainer.epochs=1")
    before = files(lab.run)
    done = lab.resume(lab.run / "latest.pth", "trainer.epochs=2", "optimizer.args.lr=0.5")
    assert done.code == 2 and len(done.err.splitlines()) <= 5
    assert "optimizer.args.lr: 1.0 → 0.5" in done.err and "lr_scheduler=null" in done.err
    assert files(lab.run) == before


def test_way_to_change_a_learning_rate_under_a_schedule_works(lab):
    lab.train(toy.config(lab.saved), "trainer.epochs=1")
    lab.forget()
    done = lab.resume(lab.run / "latest.pth", "trainer.epochs=2", "optimizer.args.lr=0.5", "lr_scheduler=null")
    assert done.code == 0 and lab.probe("lr") == [0.5, 0.5]


ONE_CYCLE = {"type": "OneCycleLR", "args": {"max_lr": 0.1}, "interval": "step"}


def test_more_epochs_under_a_schedule_of_fixed_shape_are_refused_with_what_to_give(lab):
    lab.train(toy.config(lab.saved, lr_scheduler=ONE_CYCLE), "trainer.epochs=2")
    before = files(lab.run)
    done = lab.resume(lab.run / "latest.pth", "trainer.epochs=4")
    assert done.code == 2 and len(done.err.splitlines()) <= 5
    assert "lr_scheduler: OneCycleLR was shaped for total_steps=4" in done.err
    assert "lr_scheduler=null optimizer.args.lr=" in done.err
    assert files(lab.run) == before


def test_way_to_give_more_epochs_to_a_schedule_of_fixed_shape_works(lab):
    lab.train(toy.config(lab.saved, lr_scheduler=ONE_CYCLE), "trainer.epochs=2")
    lab.forget()
    done = lab.resume(lab.run / "latest.pth", "trainer.epochs=4", "lr_scheduler=null", "optimizer.args.lr=0.5")
    assert done.code == 0 and lab.probe("lr") == [0.5] * 4


def test_changed_batch_size_inside_an_epoch_is_refused(lab):
    lab.train(toy.config(lab.saved), "trainer.max_steps=3")
    done = lab.resume(lab.run / "latest.pth", "trainer.max_steps=null", "--bs", "2")
    assert done.code == 2 and "data_loader.args.batch_size: 4 → 2" in done.err and "inside an epoch" in done.err


def test_another_optimizer_on_resume_is_refused(lab):
    lab.train(toy.config(lab.saved), "trainer.epochs=1")
    done = lab.resume(lab.run / "latest.pth", "trainer.epochs=2", "optimizer.type=Adam")
    assert done.code == 2 and "optimizer.type" in done.err


def test_changed_monitor_on_resume_starts_the_best_anew(lab):
    """3.0 was the least so far, and is no mark for the most."""
    lab.train(toy.config(lab.saved, script=[3, 1]), "trainer.epochs=1")
    lab.resume(lab.run / "latest.pth", "trainer.epochs=2", "trainer.monitor=max val_loss")
    best = load(lab.run / "model_best.pth")
    assert (best["epoch"], best["monitor_best"]) == (2, 1.0)


def of_no_schedule(lab, **sections):
    """The newest checkpoint of one epoch without a schedule."""
    lab.train(toy.config(lab.saved, lr_scheduler=None, **sections), "trainer.epochs=1")
    return lab.run / "latest.pth"


def group_of(path):
    (group,) = load(path)["optimizer"]["param_groups"]
    return group


@pytest.mark.parametrize("as_saved", ["Adam", {"type": "Adam"}], ids=str)
def test_changed_rate_takes_effect_where_the_saved_config_names_the_optimizer_alone(lab, as_saved):
    """An older program wrote such a config as it was given."""
    path = of_no_schedule(lab, optimizer="Adam")
    content = load(path)
    content["config"]["optimizer"] = as_saved
    torch.save(content, path)
    assert lab.resume(path, "trainer.epochs=2", "optimizer.args.lr=0.5").code == 0
    assert group_of(path)["lr"] == 0.5


def test_argument_that_a_given_optimizer_leaves_out_has_its_default_again(lab):
    """torch's SGD has a weight_decay of 0."""
    path = of_no_schedule(lab, optimizer={"type": "SGD", "args": {"lr": 0.5, "weight_decay": 0.1}})
    assert group_of(path)["weight_decay"] == 0.1
    done = lab.train({"optimizer": {"type": "SGD", "args": {"lr": 0.5}}}, "-r", path, "trainer.epochs=2")
    assert done.code == 0 and group_of(path)["weight_decay"] == 0


def test_config_of_one_section_replaces_that_section_of_the_checkpoints(lab):
    path = of_no_schedule(lab)
    done = lab.train({"loss": "toy.squared"}, "-r", path, "trainer.epochs=2")
    assert done.code == 0 and len(history(lab.run)) == 2
    now = load(path)["config"]
    assert now["loss"]["type"] == "toy.squared" and now["arch"]["type"] == "toy.Scripted"


@pytest.mark.parametrize("section", ["valid_data_loader", "optimizer"])
def test_renamed_one_of_several_is_not_what_the_checkpoint_holds(lab, section):
    """The count is the same, so that only the names tell."""
    several = {
        "valid_data_loader": {"near": toy.rows(3), "far": toy.rows(3)},
        "optimizer": {"one": {"type": "SGD", "args": {"lr": 1.0}}},
    }
    trainer = {"monitor": "off", "epochs": 1}
    lab.train(toy.config(lab.saved, lr_scheduler=None, trainer=trainer, **several))
    before = files(lab.run)
    *_, last = several[section]
    several[section]["renamed"] = several[section].pop(last)
    config = toy.config(lab.saved, lr_scheduler=None, trainer={**trainer, "epochs": 2}, **several)
    done = lab.train(config, "-r", lab.run / "latest.pth")
    assert done.code == 3 and "latest.pth: holds" in done.err and "Traceback" not in done.err
    assert files(lab.run) == before


def test_config_of_the_trainer_alone_replaces_that_of_the_checkpoint(lab):
    path = of_no_schedule(lab)
    done = lab.train({"trainer": {"epochs": 3, "save_dir": str(lab.saved), "tensorboard": False}}, "-r", path)
    assert done.code == 0 and len(history(lab.run)) == 3


ADAMW = {"type": "AdamW", "args": {"lr": 0.1}}
STEP_LR = {"type": "StepLR", "args": {"step_size": 1}}


@pytest.mark.parametrize(
    ("sections", "override"),
    [
        ({"lr_scheduler": None}, 'lr_scheduler={"type": "StepLR", "args": {"step_size": 1}}'),
        ({"optimizer": {"a": ADAMW}, "lr_scheduler": {"a": STEP_LR}}, "optimizer.a.args.lr=0.5"),
        (
            {"optimizer": ADAMW, "lr_scheduler": {"type": "OneCycleLR", "args": {"total_steps": 9, "max_lr": 0.1}}},
            "optimizer.args.betas=[0.5, 0.9]",
        ),
        ({}, "name=other"),
        ({}, "trainer.save_dir=elsewhere"),
    ],
    ids=["a schedule", "lr of a named optimizer", "betas under one cycle", "name", "save_dir"],
)
def test_change_that_a_resumed_run_can_not_take_is_refused(lab, sections, override):
    lab.train(toy.config(lab.saved, **sections), "trainer.epochs=1")
    before = files(lab.run)
    done = lab.resume(lab.run / "latest.pth", "trainer.epochs=2", override)
    assert done.code == 2 and done.err.startswith(override.partition("=")[0]) and len(done.err.splitlines()) <= 5
    assert files(lab.run) == before


# --- which run -------------------------------------------------------------------------------------------------------


def test_resume_from_an_older_checkpoint_begins_a_new_folder_and_leaves_the_old_one_alone(lab):
    lab.train(toy.config(lab.saved), "trainer.epochs=3", "--run-id", "old")
    old = lab.saved / "toy/old"
    before = files(old)
    done = lab.resume(old / "checkpoint-epoch1.pth", "trainer.epochs=2", "--run-id", "new")
    assert done.code == 0 and files(old) == before
    new = lab.saved / "toy/new"
    assert json.loads((new / "environment.json").read_text())["resumed_from"] == str(old / "checkpoint-epoch1.pth")
    assert history(new) == history(old)[:2]


def test_checkpoint_in_a_folder_that_is_no_runs_begins_a_new_one_and_leaves_that_alone(lab, monkeypatch):
    lab.train(toy.config(lab.saved), "trainer.epochs=2", "trainer.keep_last=1", "--run-id", "old")
    elsewhere = lab.folder / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(lab.saved / "toy/old/latest.pth", elsewhere)
    for name in ("thesis.tmp", "checkpoint-epoch1.pth"):
        (elsewhere / name).write_text("a stranger's")
    before = files(elsewhere)
    monkeypatch.chdir(lab.folder)  # where the user's module lies
    assert lab.resume(elsewhere / "latest.pth", "trainer.epochs=3", "--run-id", "new").code == 0
    assert files(elsewhere) == before
    assert [path.name for path in lab.runs()] == ["old", "new"] and load(lab.saved / "toy/new/latest.pth")["epoch"] == 3


def test_resume_of_the_latest_takes_the_newest_run_of_the_name(lab):
    config = toy.config(lab.saved, trainer={"epochs": 1})
    for run_id in ("b", "a"):
        lab.train(config, "--run-id", run_id)
    lab.train({**config, "name": "other"}, "--run-id", "c")
    lab.train(config, "-r", "latest", "trainer.epochs=2")
    assert {path.name: len(history(path)) for path in lab.runs()} == {"a": 2, "b": 1, "c": 1}


def test_resume_of_the_latest_without_a_run_is_refused(lab):
    done = lab.train(toy.config(lab.saved), "-r", "latest")
    assert done.code == 2 and "-r latest" in done.err and not lab.runs()


def test_auto_starts_where_there_is_no_run(lab):
    done = lab.train(toy.config(lab.saved, trainer={"epochs": 1}), "-r", "auto")
    assert done.code == 0 and len(history(lab.run)) == 1


def test_auto_goes_on_with_the_unfinished_run_and_passes_over_a_finished_one(lab):
    config = toy.config(lab.saved, trainer={"epochs": 2})
    lab.train(config, "--run-id", "unfinished", "trainer.max_steps=3")
    content = load(lab.saved / "toy/unfinished/latest.pth")
    torch.save({**content, "finished": False}, lab.saved / "toy/unfinished/latest.pth")
    lab.train(config, "--run-id", "finished")
    done = lab.train(config, "-r", "auto")
    assert done.code == 0
    assert {path.name: len(history(path)) for path in lab.runs()} == {"unfinished": 2, "finished": 2}


def test_auto_begins_a_new_run_where_all_are_finished(lab):
    config = toy.config(lab.saved, trainer={"epochs": 1})
    lab.train(config, "--run-id", "finished")
    lab.train(config, "-r", "auto", "--run-id", "next")
    assert [path.name for path in lab.runs()] == ["finished", "next"]


def test_auto_with_the_name_of_a_finished_run_has_nothing_left_to_do(lab):
    config = toy.config(lab.saved, trainer={"epochs": 1})
    lab.train(config, "--run-id", "one")
    done = lab.train(config, "-r", "auto", "--run-id", "one")
    assert done.code == 0 and "Nothing left to do" in done.out and len(lab.runs()) == 1


def test_resume_of_a_folder_takes_its_newest_checkpoint(lab):
    lab.train(toy.config(lab.saved), "trainer.epochs=2")
    lab.resume(lab.run, "trainer.epochs=3")
    assert [line["epoch"] for line in history(lab.run)] == [1, 2, 3]


def test_resume_of_a_folder_goes_on_there_whatever_name_a_new_run_would_have(lab):
    lab.train(toy.config(lab.saved), "trainer.epochs=1")
    assert lab.resume(lab.run, "--run-id", "other", "trainer.epochs=2").code == 0
    assert [line["epoch"] for line in history(lab.run)] == [1, 2]


def killed_before_its_first_save(lab):
    """The config of a run called 'job' whose folder holds no checkpoint."""
    config = noisy.config(lab.saved)
    with pytest.raises(RuntimeError, match="the interruption"):
        lab.train(config, "-r", "auto", "--run-id", "job", INTERRUPT="train 2 raise")
    assert (lab.run / "environment.json").exists() and not list(lab.run.glob("*.pth"))
    return config


def test_run_that_was_killed_before_its_first_save_begins_again_in_its_folder(lab):
    config = killed_before_its_first_save(lab)
    assert lab.train(config, "-r", "auto", "--run-id", "job").code == 0
    assert lab.run.name == "job" and [line["epoch"] for line in history(lab.run)] == [1, 2, 3, 4]


@pytest.fixture
def held_elsewhere():
    """A function that locks a run's folder in another process, until the test's end."""
    forks = multiprocessing.get_context("fork")
    locked, ended = forks.Event(), forks.Event()
    processes = []

    def hold(folder):
        runs.lock(folder)
        locked.set()
        ended.wait(60)

    def lock(folder):
        processes.append(forks.Process(target=hold, args=(folder,)))
        processes[0].start()
        assert locked.wait(60)

    yield lock
    ended.set()
    for process in processes:
        process.join()


@FORKS
def test_auto_passes_over_a_run_that_another_process_trains(lab, held_elsewhere):
    config = toy.config(lab.saved, trainer={"epochs": 3})
    lab.train(config, "--run-id", "busy", "trainer.epochs=2")
    content = load(lab.saved / "toy/busy/latest.pth")
    torch.save({**content, "finished": False}, lab.saved / "toy/busy/latest.pth")
    held_elsewhere(lab.saved / "toy/busy")
    done = lab.train(config, "-r", "auto")
    assert "is being trained by another process" in done.out
    assert len(history(lab.saved / "toy/busy")) == 2


@FORKS
def test_run_that_another_process_trains_is_not_resumed(lab, held_elsewhere):
    lab.train(toy.config(lab.saved), "trainer.epochs=1")
    held_elsewhere(lab.run)
    before = files(lab.run)
    done = lab.resume(lab.run / "latest.pth", "trainer.epochs=2")
    assert done.code == 2 and "another process is training this run" in done.err
    assert files(lab.run) == before


@FORKS
def test_run_that_another_process_began_and_has_not_saved_yet_is_not_begun_again(lab, held_elsewhere):
    config = killed_before_its_first_save(lab)
    held_elsewhere(lab.run)
    done = lab.train(config, "-r", "auto", "--run-id", "job")
    assert done.code == 2 and "another process is training this run" in done.err
    assert lab.run.name == "job"


def test_damaged_latest_is_named_and_the_newest_sound_one_taken(lab):
    config = toy.config(lab.saved, trainer={"epochs": 3})
    lab.train(config, "trainer.epochs=2")
    latest = lab.run / "latest.pth"
    content = latest.read_bytes()
    latest.unlink()  # it is a link to the kept one
    latest.write_bytes(content[: len(content) // 2])
    done = lab.train(config, "-r", "latest")
    assert done.code == 0 and "latest.pth: incomplete" in done.out
    assert len(history(lab.run)) == 3


# --- files -----------------------------------------------------------------------------------------------------------


def test_only_the_newest_kept_checkpoints_stay(lab):
    lab.train(toy.config(lab.saved), "trainer.keep_last=2")
    assert sorted(path.name for path in lab.run.glob("*.pth")) == [
        "checkpoint-epoch5.pth",
        "checkpoint-epoch6.pth",
        "latest.pth",
        "model_best.pth",
    ]


def test_best_checkpoint_outlives_the_kept_one_it_was_linked_to(lab):
    lab.train(toy.config(lab.saved, script=[1, 2, 3, 4]), "trainer.epochs=4", "trainer.keep_last=1")
    assert load(lab.run / "model_best.pth")["epoch"] == 1


def test_checkpoints_of_one_epoch_are_one_file(lab):
    lab.train(toy.config(lab.saved, script=[2, 1]), "trainer.epochs=2")
    names = ("latest.pth", "model_best.pth", "checkpoint-epoch2.pth")
    assert len({os.stat(lab.run / name).st_ino for name in names}) == 1


@pytest.mark.parametrize("gone", ["latest.pth", "model_best.pth", "checkpoint-epoch2.pth"])
def test_checkpoint_that_is_deleted_leaves_the_others_readable(lab, gone):
    lab.train(toy.config(lab.saved, script=[2, 1]), "trainer.epochs=2")
    (lab.run / gone).unlink()
    left = {path.name: load(path)["epoch"] for path in lab.run.glob("*.pth")}
    assert left == {
        name: epoch
        for name, epoch in {
            "latest.pth": 2,
            "model_best.pth": 2,
            "checkpoint-epoch2.pth": 2,
            "checkpoint-epoch1.pth": 1,
        }.items()
        if name != gone
    }


def test_next_save_leaves_the_linked_files_alone(lab):
    """The latest is replaced, not written over: the kept one and the best one share its file."""
    lab.train(toy.config(lab.saved, script=[1, 2]), "trainer.epochs=2")
    found = {path.name: load(path)["epoch"] for path in lab.run.glob("*.pth")}
    assert found == {"latest.pth": 2, "model_best.pth": 1, "checkpoint-epoch1.pth": 1, "checkpoint-epoch2.pth": 2}


def test_checkpoint_opens_with_plain_torch_load_and_names_what_it_holds(lab):
    lab.train(noisy.everything(lab.saved, trainer={"epochs": 1}))
    content = torch.load(lab.run / "latest.pth")
    named = ("arch", "epoch", "step", "state_dict", "optimizer", "lr_scheduler", "monitor_best", "config", "data")
    assert not {*named, "train_state_dict", "random", "format"} - content.keys()
    assert (content["arch"], content["epoch"], content["step"]) == ("Net", 1, 4)
    assert type(content["config"]).__name__ == "OrderedDict"
    assert content["config"]["trainer"]["epochs"] == 1


def test_moving_average_is_the_state_dict_and_what_trains_is_beside_it(lab):
    """After two updates it is 0.9 × first + 0.1 × second: torch's average begins as a copy of the first."""
    config = noisy.config(lab.saved, trainer={"ema_decay": 0.9, "max_steps": 2, "save_steps": 1, "epochs": None})
    lab.train(config, "lr_scheduler=null", "--run-id", "two")
    lab.train(config, "lr_scheduler=null", "--run-id", "one", "trainer.max_steps=1")
    one, two = (load(lab.saved / "noisy" / name / "latest.pth") for name in ("one", "two"))
    expected = 0.9 * one["state_dict"]["0.weight"] + 0.1 * two["train_state_dict"]["0.weight"]
    torch.testing.assert_close(two["state_dict"]["0.weight"], expected)
    assert not torch.equal(two["state_dict"]["0.weight"], two["train_state_dict"]["0.weight"])


# --- what weights do not depend on -----------------------------------------------------------------------------------


@FORKS
@pytest.mark.parametrize(
    "words",
    [
        ("valid_data_loader=null", "trainer.monitor=off"),
        ("trainer.valid_period=2",),
        ("trainer.valid_steps=1",),
        ("trainer.save_period=3", "trainer.save_steps=1"),
        ("trainer.verbosity=0", "trainer.log_step=1"),
        ("trainer.tensorboard=true",),
        ("data_loader.args.num_workers=2",),
        ("valid_data_loader.args.num_workers=1", "metrics=[]"),
    ],
    ids=lambda words: " ".join(words),
)
def test_weights_do_not_depend_on(lab, words):
    """Validation draws noise, too, from the generators that training draws its dropout from."""
    config = noisy.everything(lab.saved)
    whole = unbroken(lab, config)
    done = lab.train(config, "--run-id", "other", *words)
    assert done.code == 0, done.err
    one, other = load(whole / "latest.pth"), load(lab.saved / "noisy/other/latest.pth")
    for key in ("state_dict", "train_state_dict", "optimizer", "lr_scheduler"):
        assert not differences(one[key], other[key], key)


def test_training_numbers_do_not_depend_on_validations_inside_the_epoch(lab):
    """The metrics with a state are one object in the config, but have a state in training and another in validation."""
    config = noisy.everything(lab.saved)
    whole = unbroken(lab, config)
    lab.train(config, "--run-id", "other", "trainer.valid_steps=3")
    of_epochs = [line for line in history(lab.saved / "noisy/other") if "loss" in line]
    names = ("epoch", "step", "loss", "size", "Largest", "Median")
    assert [[line[name] for name in names] for line in of_epochs] == [
        [line[name] for name in names] for line in history(whole)
    ]


# --- strides ---------------------------------------------------------------------------------------------------------


def images(saved, **optimizer):
    section = {"type": "DataLoader", "args": {"dataset": {"type": "noisy.Images"}, "batch_size": 8, "shuffle": True}}
    return noisy.config(
        saved,
        arch="noisy.Image",
        data_loader=section,
        optimizer={"type": "AdamW", "args": {"lr": 0.01, **optimizer}},
        lr_scheduler=None,
        trainer={"epochs": 2},
    )


def test_contiguous_state_loaded_into_a_fused_channels_last_run_trains_like_the_plain_one(lab):
    lab.train(images(lab.saved, fused=False), "--run-id", "plain", "trainer.epochs=4")
    config = images(lab.saved, fused=True) | {"trainer": images(lab.saved)["trainer"] | {"channels_last": True}}
    lab.train(config, "--run-id", "fused")
    path = lab.saved / "noisy/fused/latest.pth"
    content = load(path)
    for state in content["optimizer"]["state"].values():
        state.update({name: value.contiguous() for name, value in state.items() if value.dim() == 4})
    assert any(value.dim() == 4 for value in content["optimizer"]["state"][0].values())
    torch.save(content, path)
    lab.resume(path, "trainer.epochs=4")
    plain, fused = (load(lab.saved / "noisy" / name / "latest.pth")["state_dict"] for name in ("plain", "fused"))
    for name, weight in plain.items():
        torch.testing.assert_close(fused[name], weight, rtol=0, atol=1e-6)
