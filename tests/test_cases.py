"""Faults that people have really met in training templates, each as a small run with the right outcome."""

import hashlib
import json
import multiprocessing
import zipfile

import noisy
import pytest
import torch
import toy
from lab import differences_of_checkpoints, history, load
from torch.utils.data import IterableDataset

from base import BaseDataLoader
from utils import runs

FORKS = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def of_epochs(rates, steps=2):
    """One rate an epoch, of the rates of all steps."""
    assert all(rates[i] == rates[i - i % steps] for i in range(len(rates)))
    return pytest.approx(rates[::steps])


def test_schedule_goes_on_after_a_resume_where_it_stood(lab):
    config = toy.config(lab.saved)
    lab.train(config)
    unbroken = lab.probe("lr")
    assert of_epochs(unbroken) == [1, 1, 0.1, 0.1, 0.01, 0.01]

    lab.forget()
    lab.train(config, "trainer.epochs=3", "--run-id", "broken")
    lab.forget()
    lab.resume(lab.saved / "toy/broken/latest.pth", "trainer.epochs=6")
    assert lab.probe("lr") == unbroken[6:]


@FORKS
@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_run_has_every_bit_of_an_unbroken_one(lab, workers):
    config = noisy.config(lab.saved)
    config["data_loader"]["args"]["num_workers"] = workers
    lab.train(config, "--run-id", "unbroken")
    lab.train(config, "trainer.epochs=2", "--run-id", "broken")
    done = lab.resume(lab.saved / "noisy/broken/latest.pth", "trainer.epochs=4")
    assert done.code == 0
    assert not differences_of_checkpoints(*(folder / "latest.pth" for folder in lab.runs()))


def test_best_score_survives_a_resume(lab):
    lab.train(toy.config(lab.saved, script=[1, 3, 2]), "trainer.epochs=2")
    best = lab.run / "model_best.pth"
    before = hashlib.sha256(best.read_bytes()).digest()
    lab.resume(lab.run / "latest.pth", "trainer.epochs=3")
    assert (load(best)["epoch"], load(best)["monitor_best"]) == (1, 1.0)
    assert hashlib.sha256(best.read_bytes()).digest() == before


FALLS_ONCE = [5, 4, 4.5, 4.6, 4.7, 4.8, 4.9]


def test_early_stop_ends_after_so_many_epochs_without_improvement(lab):
    done = lab.train(toy.config(lab.saved, script=FALLS_ONCE), "trainer.epochs=7", "trainer.early_stop=3")
    assert done.code == 0
    assert [line["epoch"] for line in history(lab.run)] == [1, 2, 3, 4, 5]
    assert (lab.run / "checkpoint-epoch5.pth").exists()
    assert "val_loss has not improved in 3 validations" in (lab.run / "train.log").read_text()


def test_early_stop_of_zero_never_stops(lab):
    lab.train(toy.config(lab.saved, script=FALLS_ONCE), "trainer.epochs=7", "trainer.early_stop=0")
    assert len(history(lab.run)) == 7


def test_patience_survives_a_resume(lab):
    lab.train(toy.config(lab.saved, script=FALLS_ONCE), "trainer.epochs=4", "trainer.early_stop=3")
    lab.resume(lab.run / "latest.pth", "trainer.epochs=7")
    assert [line["epoch"] for line in history(lab.run)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("period", [4, 10])
def test_best_checkpoint_is_saved_on_an_epoch_that_is_not_due(lab, period):
    lab.train(toy.config(lab.saved, script=[3, 1, 2, 4]), "trainer.epochs=4", f"trainer.save_period={period}")
    best = load(lab.run / "model_best.pth")
    assert (best["epoch"], best["monitor_best"]) == (2, 1.0)
    assert load(lab.run / "latest.pth")["epoch"] == 4


@pytest.mark.parametrize("batch_size", [1, 3, 4, 10])
def test_validation_loss_is_the_mean_over_examples_whatever_the_batches(lab, batch_size):
    """Eight ones and two tens: 2.8. The mean over batches of four would be 4."""
    valid = toy.rows(values=[1.0] * 8 + [10.0] * 2, batch_size=batch_size)
    config = toy.config(lab.saved, valid_data_loader=valid, loss="toy.mean_target")
    lab.train(config, "trainer.epochs=1")
    assert history(lab.run)[0]["val_loss"] == pytest.approx(2.8, abs=1e-6)

    done = lab.test(lab.run / "latest.pth")
    assert done.numbers["val_loss"] == pytest.approx(2.8, abs=1e-6)


def test_evaluation_without_test_data_says_that_it_takes_the_validation_data(lab):
    lab.train(toy.config(lab.saved), "trainer.epochs=1")
    done = lab.test(lab.run / "latest.pth")
    assert "no test_data_loader" in done.out and "evaluating on the validation data" in done.out
    assert done.numbers == {"val_loss": 3.0}


def as_if_made_on_a_gpu(path):
    """Rewrite a checkpoint so that its tensors say they were on CUDA; the checksum in the zip's comment is gone."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    written = {
        name: content.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
        if name.endswith("data.pkl")
        else content
        for name, content in entries.items()
    }
    assert written != entries
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in written.items():
            archive.writestr(name, content)


def test_checkpoint_made_on_a_gpu_is_tested_on_a_cpu(lab):
    lab.train(toy.config(lab.saved), "trainer.epochs=2")
    path = lab.run / "latest.pth"
    before = lab.test(path).numbers
    path.unlink()  # it is a link to the kept one
    (lab.run / "checkpoint-epoch2.pth").rename(path)
    as_if_made_on_a_gpu(path)
    done = lab.test(path)
    assert done.code == 0 and done.numbers == before
    assert sum("carries no checksum" in line for line in done.out.splitlines()) == 1


def test_checkpoint_made_on_a_gpu_is_resumed_on_a_cpu(lab):
    config = toy.config(lab.saved)
    lab.train(config, "trainer.epochs=3", "--run-id", "unbroken")
    lab.train(config, "trainer.epochs=2", "--run-id", "broken")
    broken = lab.saved / "toy/broken"
    as_if_made_on_a_gpu(broken / "latest.pth")
    assert lab.resume(broken / "latest.pth", "trainer.epochs=3").code == 0
    assert history(broken) == history(lab.saved / "toy/unbroken")


def test_changed_learning_rate_takes_effect_on_resume_without_a_schedule(lab):
    lab.train(toy.config(lab.saved, lr_scheduler=None), "trainer.epochs=1")
    lab.forget()
    done = lab.resume(lab.run / "latest.pth", "trainer.epochs=2", "optimizer.args.lr=0.5")
    assert lab.probe("lr") == [0.5, 0.5]
    assert "optimizer.args.lr: 1.0 → 0.5" in done.out


PLATEAU = {"type": "ReduceLROnPlateau", "args": {"factor": 0.1, "patience": 0}}


def test_plateau_schedule_follows_the_monitored_number(lab):
    config = toy.config(lab.saved, script=[3, 3, 3, 3], lr_scheduler=PLATEAU)
    lab.train(config, "trainer.epochs=4")
    assert of_epochs(lab.probe("lr")) == [1, 1, 0.1, 0.01]


def test_plateau_schedule_goes_on_after_a_resume(lab):
    lab.train(toy.config(lab.saved, script=[3, 3, 3, 3], lr_scheduler=PLATEAU), "trainer.epochs=2")
    lab.forget()
    lab.resume(lab.run / "latest.pth", "trainer.epochs=4")
    assert of_epochs(lab.probe("lr")) == [0.1, 0.01]


@pytest.mark.parametrize(
    ("monitor", "said"),
    [("off", "is off, but ReduceLROnPlateau waits for a number"), ("min val_loss", "does not measure 'val_loss'")],
)
def test_plateau_schedule_without_a_monitored_number_is_refused(lab, monitor, said):
    config = toy.config(lab.saved, lr_scheduler=PLATEAU, valid_data_loader=None, trainer={"monitor": monitor})
    done = lab.train(config)
    assert done.code == 2 and len(done.err.splitlines()) <= 5
    assert "config.json: trainer.monitor: " in done.err and said in done.err
    assert not lab.runs()


STREAM = {"type": "DataLoader", "args": {"dataset": {"type": "toy.Stream"}, "batch_size": 4}}


def test_stream_is_read_to_its_end(lab):
    """20 rows in batches of four."""
    done = lab.train(toy.config(lab.saved, data_loader=STREAM), "trainer.epochs=2", "arch.args.steps=5")
    assert done.code == 0
    assert [line["step"] for line in history(lab.run)] == [5, 10]


class Drawing(IterableDataset):
    """Rows without a length, each a number that is drawn when it is read."""

    def __iter__(self):
        for _ in range(2100):
            yield torch.rand((), dtype=torch.float64)


@pytest.mark.parametrize("batch_size", [700, 2100, 10**12])
def test_rows_of_a_stream_draw_the_same_whatever_the_batches(batch_size):
    """And no batch size takes memory that the rows don't."""
    drawn, by_seven = (torch.cat(list(BaseDataLoader(Drawing(), size))) for size in (batch_size, 7))
    assert torch.equal(drawn, by_seven) and len(set(drawn.tolist())) == 2100


def test_stream_goes_on_over_epochs_of_a_given_length(lab):
    config = toy.config(lab.saved, data_loader=STREAM, trainer={"len_epoch": 3, "epochs": 2})
    config["arch"]["args"]["steps"] = 3
    lab.train(config)
    batches = [x for x, training in zip(lab.probe("x"), lab.probe("train")) if training]
    assert [x[0] for x in batches] == [0, 4, 8, 12, 16, 0]
    assert [line["step"] for line in history(lab.run)] == [3, 6]
    assert of_epochs(lab.probe("lr"), steps=3) == [1, 1]


def test_schedule_by_epoch_holds_over_a_stream(lab):
    config = toy.config(lab.saved, data_loader=STREAM, trainer={"epochs": 3})
    config["arch"]["args"]["steps"] = 5
    lab.train(config)
    assert of_epochs(lab.probe("lr"), steps=5) == [1, 1, 0.1]


def odd_window(saved, **sections):
    """Five batches of one example, two an update."""
    trainer = {"accumulate": 2, "epochs": 1, "monitor": "off"}
    given = {"valid_data_loader": None, "lr_scheduler": None, **sections}
    return toy.config(saved, data_loader=toy.rows(5, batch_size=1), trainer=trainer, **given)


def test_last_window_of_accumulated_batches_is_a_whole_update(lab):
    """Three updates of one each, since the loss's derivative is 1. Mis-scaled it is -2.5, dropped -2."""
    lab.train(odd_window(lab.saved))
    assert load(lab.run / "latest.pth")["state_dict"]["w"].item() == -3.0


def test_batches_of_unequal_size_accumulate_to_the_gradient_of_all_their_examples(lab):
    """y is 0 … 6 in batches of 2, 2, 2 and 1: the derivative of mean (w − y)² at 0 is −6, so w becomes 6.

    With each batch's mean weighted alike it would be 6.75.
    """
    config = odd_window(lab.saved, loss="toy.squared")
    config["trainer"]["accumulate"] = 4
    lab.train(config | {"data_loader": toy.rows(7, batch_size=2)})
    assert load(lab.run / "latest.pth")["state_dict"]["w"].item() == pytest.approx(6, abs=1e-6)


def test_schedule_by_step_counts_updates_and_not_batches(lab):
    schedule = {"type": "ExponentialLR", "args": {"gamma": 0.5}, "interval": "step"}
    lab.train(odd_window(lab.saved, lr_scheduler=schedule))
    assert lab.probe("lr") == [1.0, 0.5, 0.25]
    assert load(lab.run / "latest.pth")["lr_scheduler"]["last_epoch"] == 3


def make_folders(parent, barrier, count, results):
    made = []
    for _ in range(count):
        barrier.wait()  # each time all at once
        made.append(str(runs.create(parent, "run")))
    results.put(made)


@FORKS
def test_folders_of_runs_that_start_together_are_distinct(tmp_path):
    forks = multiprocessing.get_context("fork")
    barrier, results = forks.Barrier(8), forks.Queue()
    processes = [forks.Process(target=make_folders, args=(tmp_path / "new", barrier, 13, results)) for _ in range(8)]
    for process in processes:
        process.start()
    made = [path for _ in processes for path in results.get(timeout=60)]
    for process in processes:
        process.join()
    assert len(set(made)) == len(made) == 104


@pytest.mark.slow
def test_runs_that_start_in_the_same_second_each_have_a_folder_of_their_own(lab, checkout):
    path = lab.write(toy.config(lab.saved, trainer={"epochs": 1}))
    started = [checkout.start("train.py", "-c", path, f"seed={seed}") for seed in range(8)]
    for process in started:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
    folders = lab.runs()
    assert len(folders) == 8
    assert all(load(folder / "latest.pth")["epoch"] == 1 for folder in folders)
    seeds = [json.loads((folder / "config.json").read_text())["seed"] for folder in folders]
    assert sorted(seeds) == list(range(8))
