"""Ctrl-C and a scheduler's SIGTERM end a run between two updates, saved."""

import itertools
import os
import signal
import time
from pathlib import Path

import noisy
import pytest
from lab import differences_of_checkpoints, history, load

from base import BaseTrainer
from utils import signals

CODES = {"SIGINT": 130, "SIGTERM": 143}


def stopped(lab, config, interrupt, *words):
    done = lab.train(config, "--run-id", "broken", *words, INTERRUPT=interrupt)
    return done, lab.saved / "noisy/broken"


@pytest.mark.parametrize("name", CODES)
def test_signal_ends_the_run_after_its_update_with_a_line_that_says_how_to_go_on(lab, name):
    """Batch 12 is the first of the seventh update's two."""
    done, broken = stopped(lab, noisy.everything(lab.saved), f"train 12 {name}")
    assert done.code == CODES[name]
    assert load(broken / "latest.pth")["step"] == 7
    (line,) = done.err.splitlines()
    assert f"Stopped by {name}." in line and f"-r {broken / 'latest.pth'}" in line


@pytest.mark.parametrize("interrupt", ["train 1 SIGINT", "train 7 SIGTERM", "train 12 SIGTERM", "train 21 SIGINT"])
def test_run_that_a_signal_stopped_goes_on_as_if_it_never_was(lab, interrupt):
    """At the first batch of the run, at an epoch's last, inside an epoch, and at the run's last."""
    config = noisy.everything(lab.saved)
    lab.train(config, "--run-id", "unbroken")
    done, broken = stopped(lab, config, interrupt)
    assert done.code in CODES.values()
    assert lab.resume(broken / "latest.pth").code == 0
    assert not differences_of_checkpoints(lab.saved / "noisy/unbroken/latest.pth", broken / "latest.pth")
    assert history(lab.saved / "noisy/unbroken") == history(broken)


@pytest.mark.parametrize(
    "words", [(), ("trainer.valid_steps=3", "trainer.save_steps=3")], ids=["epoch's end", "inside"]
)
def test_signal_in_a_validation_stops_it_and_the_resumed_run_validates_again(lab, words):
    """A validation has four batches; the sixth is in the second one."""
    config = noisy.everything(lab.saved)
    lab.train(config, "--run-id", "unbroken", *words)
    done, broken = stopped(lab, config, "valid 6 SIGTERM", *words)
    assert done.code == 143
    assert lab.resume(broken / "latest.pth").code == 0
    assert not differences_of_checkpoints(lab.saved / "noisy/unbroken/latest.pth", broken / "latest.pth")
    assert history(lab.saved / "noisy/unbroken") == history(broken)


def test_run_killed_before_it_saved_what_it_had_reported_has_each_epoch_once_in_the_end(lab, monkeypatch):
    """Stopped in the second epoch's validation, when its last update was done; killed after that epoch's report."""
    config = noisy.everything(lab.saved)
    lab.train(config, "--run-id", "unbroken")
    done, broken = stopped(lab, config, "valid 6 SIGTERM")
    assert done.code == 143 and len(history(broken)) == 1

    def killed(*args, **kwargs):
        raise KeyError("killed")

    with monkeypatch.context() as changed:
        changed.setattr(BaseTrainer, "_save_checkpoint", killed)
        with pytest.raises(KeyError, match="killed"):
            lab.resume(broken / "latest.pth")
    assert len(history(broken)) == 2
    assert lab.resume(broken / "latest.pth").code == 0
    assert history(broken) == history(lab.saved / "noisy/unbroken")


@pytest.mark.parametrize("interrupt", ["none 0", "train 3 SIGTERM"])
def test_signal_handlers_are_put_back_after_a_run(lab, interrupt):
    def mine(number, frame):
        raise AssertionError("a signal of the run came here")

    before = {number: signal.signal(number, mine) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        lab.train(noisy.config(lab.saved), INTERRUPT=interrupt)
        assert all(signal.getsignal(number) is mine for number in before)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_second_interrupt_leaves_at_once(lab):
    """Without finishing the update: nothing is saved that was not before."""
    done, broken = stopped(lab, noisy.config(lab.saved), "train 10 SIGINT SIGINT")
    assert done.code == 130
    assert load(broken / "latest.pth")["step"] == 7  # the first epoch's end


def test_second_signal_of_another_kind_still_saves(lab):
    """A scheduler sends SIGTERM to a run that Ctrl-C is already ending."""
    done, broken = stopped(lab, noisy.config(lab.saved), "train 10 SIGINT SIGTERM")
    assert done.code == 130 and load(broken / "latest.pth")["step"] == 10


def test_signal_of_an_earlier_run_in_the_process_does_not_stop_the_next(lab):
    config = noisy.config(lab.saved)
    stopped(lab, config, "train 3 SIGINT")
    assert lab.train(config, "--run-id", "next").code == 0


def test_slow_updates_are_asked_between_from_the_first_ones_on(monkeypatch):
    """Of 3 s each; nothing of what was before the first took time."""
    now, asked = [0.0], []
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    pace = signals._Pace()
    for update in range(20):
        now[0] += 3 if update else 1e-6
        pace.agreed(0)
        asked += [update] if pace.left == pace.calls else []
    assert all(later - earlier <= 2 for earlier, later in itertools.pairwise(asked)) and asked[-1] >= 18


def test_run_in_another_thread_needs_no_handlers(lab):
    """Python allows handlers in the main thread alone; a notebook or a tuner trains in others."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(lab.train, noisy.config(lab.saved), "trainer.epochs=1").result()
    assert done.code == 0 and len(history(lab.run)) == 1


def left_of_session(session, seconds=5):
    """The processes that a session still has after a while; Python's resource tracker outlives its parent a little."""
    deadline = time.monotonic() + seconds
    while (found := of_session(session)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def of_session(session):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, number = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(number) == session and state != "Z":
            found.append(path.parent.name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("args", [{}, {"persistent_workers": True}], ids=["", "persistent"])
@pytest.mark.parametrize(("interrupt", "code"), [("none 0", 0), ("train 3 raise", 1), ("train 3 SIGTERM", 143)])
def test_run_with_workers_comes_to_its_end(lab, checkout, monkeypatch, interrupt, code, args):
    """Python ends what is left of them by SIGTERM, which they leave to their parent, and waits for that."""
    monkeypatch.setenv("INTERRUPT", interrupt)
    config = noisy.config(lab.saved, trainer={"epochs": 1})
    config["data_loader"] = noisy.loader(400, batch_size=8, num_workers=2, **args)
    process = checkout.start("train.py", "-c", lab.write(config))
    process.communicate(timeout=60)
    assert process.returncode == code
    assert not left_of_session(process.pid)


@pytest.mark.slow
def test_run_whose_workers_can_not_read_an_example_ends_at_once_and_leaves_none(lab, checkout):
    config = noisy.config(lab.saved)
    dataset = {"type": "own.Broken", "args": {"n": 400}}
    config["data_loader"] = {"type": "DataLoader", "args": {"dataset": dataset, "batch_size": 8, "num_workers": 2}}
    process = checkout.start("train.py", "-c", lab.write(config))
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1 and "an example that can't be read" in err
    assert not left_of_session(process.pid)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for left processes in /proc")
@pytest.mark.parametrize(
    "workers", [{}, {"multiprocessing_context": "spawn", "persistent_workers": True}], ids=["forked", "spawned"]
)
@pytest.mark.parametrize("name", CODES)
def test_signal_to_the_whole_group_ends_it_without_traceback_or_orphans(lab, checkout, name, workers):
    """The workers get it, too, and are needed until the update of 25 batches is done."""
    config = noisy.config(lab.saved, lr_scheduler=None, trainer={"epochs": 100_000, "accumulate": 25})
    config["data_loader"] = noisy.loader(400, batch_size=8, shuffle=True, num_workers=2, **workers)
    process = checkout.start("train.py", "-c", lab.write(config), "--run-id", "one")
    folder = lab.saved / "noisy/one"
    deadline = time.monotonic() + 60
    while not (folder / "metrics.jsonl").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, getattr(signal, name))
    out, err = process.communicate(timeout=60)
    assert process.returncode == CODES[name]
    assert "Traceback" not in out + err and len(err.splitlines()) == 1, err
    assert not left_of_session(process.pid)

    epoch = load(folder / "latest.pth")["epoch"]
    assert lab.train(config, "-r", folder / "latest.pth", f"trainer.epochs={epoch + 1}").code == 0
    assert [line["epoch"] for line in history(folder)] == list(range(1, epoch + 2))
