"""extras/ may be deleted: what is left trains, resumes and evaluates, and says in a line what is missing."""

import shutil

import pytest
from lab import history

SMALL = ("trainer.max_steps=2", "trainer.save_dir=saved", "trainer.tensorboard=false", "data_loader.args.batch_size=64")


@pytest.fixture
def without(checkout):
    shutil.rmtree(checkout.root / "extras")
    return checkout


@pytest.mark.slow
def test_without_extras_the_default_config_trains_resumes_and_is_evaluated(without):
    words = (*SMALL, "trainer.epochs=2", "trainer.len_epoch=2", "trainer.max_steps=null")
    done = without.run("train.py", "-c", "config.json", *words, "--run-id", "a")
    assert done.code == 0, done.err
    assert done.out.count("wants extras.doctor; bring it back") == 1
    run = without.root / "saved" / "mnist" / "a"
    resumed = without.run("train.py", "-r", run / "checkpoint-epoch1.pth", "--run-id", "b")
    assert resumed.code == 0, resumed.err
    assert history(run.with_name("b")) == history(run)
    assert without.run("test.py", "-r", run / "latest.pth").code == 0
    changed = without.run("train.py", "-r", run, "trainer.epochs=4")
    assert changed.code == 2 and "a change of trainer.epochs wants extras.changes; bring it back." in changed.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (("--check",), "extras.doctor"),
        (("--dry-run",), "extras.dry_run"),
        (("--folds", "3"), "extras.folds"),
        (("data_loader.args.stratify=true",), "extras.splits"),
    ],
)
def test_without_extras_what_wants_them_says_so_in_a_line(without, words, missing):
    done = without.run("train.py", "-c", "config.json", *SMALL, *words)
    assert done.code == 2 and f"{missing}; bring it back" in done.err and len(done.err.splitlines()) == 1
    assert not (without.root / "saved").exists()
