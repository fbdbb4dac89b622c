"""Launches by torchrun: processes are killed, stopped, fail and hang; what is left is that of an undisturbed run."""

import json
import re

import noisy
import pytest
from lab import differences_of_checkpoints, history
from launches import Launcher, config, free_port

slow = pytest.mark.slow


@pytest.fixture
def launcher(tmp_path):
    made = Launcher(tmp_path)
    yield made
    made.end()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """The folder of a run of two processes that nothing disturbed."""
    made = Launcher(tmp_path_factory.mktemp("unbroken"))
    done = made.run(2, "train.py", "-c", made.write(config(made.saved)), "--run-id", "run")
    made.end()
    assert done.code == 0, done.err
    return made.saved / "noisy/run"


def assert_same(run, unbroken):
    assert not differences_of_checkpoints(run / "latest.pth", unbroken / "latest.pth")
    assert not differences_of_checkpoints(run / "model_best.pth", unbroken / "model_best.pth")
    assert history(run) == history(unbroken)


def codes(done):
    """{process: exit code} of those that torchrun has reported, of the last attempt."""
    report = done.err.rpartition("FAILED")[2]
    return {int(n): int(code) for n, code in re.findall(r"rank +: (\d+) .*\n +exitcode +: (-?\d+)", report)}


# Kills


@slow
def test_run_whose_workers_are_killed_goes_on_by_itself_to_the_bits_of_an_unbroken_one(launcher, unbroken):
    """First process 0, in the first epoch, then process 1, in the third; the run saves every fifth step."""
    path = launcher.write(config(launcher.saved, trainer={"save_steps": 5}))
    words = ("--max-restarts", 2, "train.py", "-c", path, "-r", "auto", "--run-id", "X")
    done = launcher.run(2, *words, TROUBLE="train 30 0 SIGKILL\ntrain 131 1 SIGKILL")
    assert done.code == 0, done.err
    assert done.out.count(f"run      {launcher.saved}") == 3 and "resumed" in done.out
    assert_same(launcher.saved / "noisy/X", unbroken)


def on_two_nodes(launcher, *words, **environment):
    """What two agents with a worker each leave, which find one another at a port of this machine."""
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "job")
    started = [launcher.agent(1, "--nnodes", 2, *meeting, *words, **environment) for _ in range(2)]
    return [launcher.ended(agent) for agent in started]


@slow
def test_two_machines_with_a_worker_each_give_the_bits_of_one_with_two(launcher, unbroken):
    path = launcher.write(config(launcher.saved))
    done = on_two_nodes(launcher, "train.py", "-c", path, "--run-id", "X")
    assert [one.code for one in done] == [0, 0], done
    assert_same(launcher.saved / "noisy/X", unbroken)


@slow
def test_two_machines_go_on_when_the_worker_of_one_is_killed(launcher, unbroken):
    path = launcher.write(config(launcher.saved, trainer={"save_steps": 5}))
    words = ("--max-restarts", 2, "train.py", "-c", path, "-r", "auto", "--run-id", "X")
    done = on_two_nodes(launcher, *words, TROUBLE="train 60 1 SIGKILL")
    assert [one.code for one in done] == [0, 0], done
    assert_same(launcher.saved / "noisy/X", unbroken)


# Stops


@slow
@pytest.mark.parametrize(
    ("trouble", "stand"),
    [("train 12 1 stop", r"epoch 0, step ([6-9]|1\d|2[0-5])"), ("valid 6 0 stop", "epoch 0, step 26")],
    ids=["training", "validation"],
)
def test_torchrun_that_is_told_to_stop_saves_once_and_goes_on_later(launcher, unbroken, trouble, stand):
    """An epoch has 26 updates and a validation 50 batches; the processes agree within 20 of either."""
    path = launcher.write(config(launcher.saved))
    done = launcher.run(2, "train.py", "-c", path, "--run-id", "X", TROUBLE=trouble)
    run = launcher.saved / "noisy/X"
    assert done.code == 1 and not launcher.left()
    assert own_lines(done) == [f"Stopped by SIGTERM. Go on with -r {run / 'latest.pth'}"]

    done = launcher.run(2, "train.py", "-r", run / "latest.pth")
    assert done.code == 0, done.err
    assert re.search(rf"resumed .*: {stand}$", done.out, flags=re.M), done.out
    assert_same(run, unbroken)


# Errors


ROWS_OF_ONE = {"type": "DataLoader", "args": {"dataset": {"type": "many.Elsewhere"}, "batch_size": 8}}


@slow
@pytest.mark.parametrize(
    ("sections", "said", "code"),
    [
        ({"optimzer": {"type": "SGD"}}, "config.json: optimzer: unknown. Did you mean 'optimizer'?", 2),
        ({"arch": {"type": "MnistModel", "args": {"num_classes": "ten"}}}, "config.json: arch: MnistModel(", 2),
        ({"-r": "x" * 4000}, "damaged.pth: incomplete, or not a checkpoint.", 3),
    ],
    ids=["config", "object", "checkpoint"],
)
def test_what_all_processes_find_wrong_is_told_once_in_all_attempts(launcher, sections, said, code):
    damaged = launcher.folder / "damaged.pth"
    damaged.write_text(sections.pop("-r", ""))
    more = ("-r", damaged) if damaged.stat().st_size else ()
    path = launcher.write(config(launcher.saved, **sections))
    done = launcher.run(2, "--max-restarts", 2, "train.py", "-c", path, *more)
    assert done.err.count(f"failed (exitcode: {code})") == 3, "three attempts"
    assert done.err.count(said) == 1, done.err
    assert code in codes(done).values() and done.code == 1


def test_what_one_process_alone_finds_wrong_is_told_by_it_and_nothing_by_the_others(launcher):
    path = launcher.write(config(launcher.saved, data_loader=ROWS_OF_ONE))
    done = launcher.run(2, "train.py", "-c", path)
    (line, *others) = own_lines(done)
    assert line.startswith("process 1: config.json: data_loader.args.dataset: Elsewhere()") and "rows.npy" in line
    assert not others
    assert codes(done)[1] == 2


def own_lines(done):
    """What is on stderr before torchrun's own report, but for torchrun's log."""
    before = done.err.partition('Traceback (most recent call last):\n  File "<frozen runpy>')[0]
    return [line for line in before.splitlines() if line and not re.match(r"[WEI]\d{4} ", line)]


def test_exception_of_the_model_on_all_processes_has_one_traceback_and_one_word_with_what(launcher):
    path = launcher.write(config(launcher.saved))
    done = launcher.run(2, "train.py", "-c", path, TROUBLE="train 6 * raise")
    assert sum("Traceback" in line for line in own_lines(done)) == 1
    others = [line for line in own_lines(done) if not line.startswith("[rank")]
    assert others in ([], ["process 1: KeyError: 'the trouble that was asked for'"]), others
    assert done.out.count("error: KeyError in epoch 1, step 3") == 1
    assert 1 in codes(done).values()


@pytest.mark.slow
def test_exception_of_the_model_on_one_process_is_told_by_it(launcher):
    path = launcher.write(config(launcher.saved))
    done = launcher.run(2, "train.py", "-c", path, TROUBLE="train 6 1 raise")
    theirs = [line for line in own_lines(done) if not line.startswith("[rank1]:")]
    assert any("KeyError: 'the trouble that was asked for'" in line for line in own_lines(done))
    assert all(line.startswith("Another process has gone (Connection") for line in theirs) and len(theirs) <= 1, theirs


def test_loss_that_is_nan_on_one_process_alone_ends_all_with_that_word_said_once(launcher):
    path = launcher.write(config(launcher.saved))
    done = launcher.run(2, "train.py", "-c", path, "trainer.log_step=5", TROUBLE="train 6 1 nan")
    assert own_lines(done)[0].startswith("The training loss is nan in epoch 1, step 5") and len(own_lines(done)) == 2
    assert 4 in codes(done).values()


@slow
def test_process_that_hangs_is_found_after_the_timeout_with_where_each_of_them_stands(launcher):
    path = launcher.write(config(launcher.saved, parallel={"type": "ddp", "timeout_seconds": 15}))
    done = launcher.run(2, "train.py", "-c", path, TROUBLE="train 6 1 sleep", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="2")
    first, *stands = own_lines(done)
    assert first.startswith("Another process does not come (") and "imed out" in first
    assert re.fullmatch(r"process 0: epoch 1, step 3: .*, for \d+ s", stands[0])
    assert re.fullmatch(r"process 1: epoch 1, step 3: many.py, line \d+, trouble, for \d+ s", stands[1])
    assert len(stands) == 2 and not launcher.left()


# Rows that do not come out even


@slow
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("dataset", ["many.Seven", "noisy.Noisy"])
def test_seven_rows_in_batches_of_three_are_each_seen_once_an_epoch(launcher, count, dataset):
    """The last batch is one row: of the processes that have none, each computes one that does not count."""
    rows = {"type": "DataLoader", "args": {"dataset": {"type": dataset, "args": {"n": 7}}, "batch_size": 3}}
    sections = {"arch": "many.Finite", "data_loader": rows, "valid_data_loader": rows, "metrics": []}
    path = launcher.write(noisy.config(launcher.saved, **sections, trainer={"epochs": 2, "valid_period": 1}))
    done = launcher.run(count, "train.py", "-c", path, "--run-id", "X")
    assert done.code == 0, done.err
    alone = launcher.alone("train.py", "-c", path, "--run-id", "alone")
    assert alone.code == 0, alone.err
    for here, there in zip(history(launcher.saved / "noisy/X"), history(launcher.saved / "noisy/alone"), strict=True):
        assert here == pytest.approx(there, rel=1e-5)


# test.py


@slow
def test_evaluation_by_two_processes_gives_the_numbers_of_one_and_writes_them_once(launcher):
    path = launcher.write(config(launcher.saved, test_data_loader=noisy.loader(11, batch_size=4)))
    assert launcher.run(2, "train.py", "-c", path, "--run-id", "X").code == 0
    run = launcher.saved / "noisy/X"
    for words, name in (((), "test.json"), (("--split", "val"), "test-val.json")):
        done = launcher.run(2, "test.py", "-c", path, "-r", "latest", *words)
        assert done.code == 0, done.err
        assert done.out.count(f"written to {run / name}") == 1
        two = json.loads((run / name).read_text())
        assert launcher.alone("test.py", "-r", run / "latest.pth", *words).code == 0
        one = json.loads((run / name).read_text())
        assert {"test_loss", "val_loss"} & one.keys() and two.keys() == one.keys()
        for key, value in one.items():
            assert two[key] == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value), key


# Launches that can't be meant


@slow
@pytest.mark.parametrize(
    ("count", "sections", "said", "code"),
    [
        (
            3,
            {"data_loader": noisy.loader(404, batch_size=2)},
            "config.json: data_loader.args.batch_size: 2 examples",
            2,
        ),
        (2, {"parallel": "none"}, "parallel: none; 2 processes would train apart", 2),
        (2, {"trainer": {"type": "many.Around"}}, "After the first step '0.weight' (", 1),
    ],
    ids=["batch_size", "none", "around"],
)
def test_processes_that_would_not_train_as_one_are_refused(launcher, count, sections, said, code):
    path = launcher.write(config(launcher.saved, **sections))
    done = launcher.run(count, "train.py", "-c", path)
    assert sum(said in line for line in own_lines(done)) == 1, done.err
    assert code in codes(done).values()
    assert not list(launcher.saved.glob("*/*/*.pth"))


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"parallel": "ddp"}, "ddp: one process; start several with torchrun"),
        ({"n_gpu": 2}, "data_parallel: 2 GPUs wanted, 0 there; training on cpu alone."),
        ({"parallel": "data_parallel"}, "data_parallel: several GPUs wanted, 0 there; training on cpu"),
    ],
)
def test_one_process_that_several_devices_are_asked_of_says_so_and_trains(lab, sections, said):
    made = noisy.config(lab.saved, **{"device": "cpu", "n_gpu": None, **sections}, trainer={"epochs": 1})
    done = lab.train(made)
    assert done.code == 0 and done.out.count(said) == 1, done
    assert said in (lab.run / "train.log").read_text() and len(history(lab.run)) == 1
