"""Checkpoints in parts: exact, whole or absent at any moment, loaded by any number of processes. They run this file."""

import hashlib
import json
import os
import pickle
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from lab import ROOT, TESTS, differences, history

from utils import checkpoint, imports, runs
from utils.errors import CheckpointError, SaveError

USERS_MODULE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 6)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.1)) for _ in range(2))
        self.gate = nn.Linear(6, 1)  # one row: only one process has it
        self.head = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        self.seen += self.training * torch.ones(2)
        x = self.inner(x)
        for block in self.blocks:
            x = block(x) + x
        return self.head(x * self.gate(x))


class Rows(TensorDataset):
    def __init__(self, count, seed):
        drawn = torch.Generator().manual_seed(seed)
        super().__init__(torch.randn(count, 4, generator=drawn), torch.randint(3, (count,), generator=drawn))
"""


def config(folder, **trainer):
    """Epochs of five updates, the last of 2 rows, so that two of three processes have one and the third none."""
    return {
        "name": "toy",
        "n_gpu": 0,
        "seed": 3,
        "arch": {"type": "spread_net.Net"},
        "parallel": {"type": "fsdp", "args": {"sharded": True}},
        "data_loader": {"type": "DataLoader", "args": {"dataset": rows(18, 1), "batch_size": 4, "shuffle": True}},
        "valid_data_loader": {"type": "DataLoader", "args": {"dataset": rows(7, 2), "batch_size": 4}},
        "optimizer": {"type": "AdamW", "args": {"lr": 0.02}},
        "lr_scheduler": {"type": "StepLR", "interval": "step", "args": {"step_size": 4, "gamma": 0.5}},
        "loss": "torch.nn.functional.cross_entropy",
        "metrics": ["accuracy"],
        "trainer": {
            "epochs": 3,
            "ema_decay": 0.8,
            "save_dir": str(folder / "saved"),
            "save_period": 1,
            "keep_last": 2,
            "monitor": "min val_loss",
            "tensorboard": False,
            **trainer,
        },
    }


def rows(count, seed):
    return {"type": "spread_net.Rows", "args": {"count": count, "seed": seed}}


# What a process does


def work(folder):
    """Run each of commands.json; the main process notes their exit codes in codes.json."""
    from lab import Lab

    from utils import processes
    from utils.errors import exit_code

    torch.set_num_threads(1)
    imports.NOTE = folder / "config_folders"
    processes.leave = lambda: None  # the group of one command is the next one's
    codes = []
    for command in json.loads((folder / "commands.json").read_text()):
        Lab.as_in_a_new_process()
        codes.append(exit_code(lambda command=command: run(folder, **command)))
    if processes.is_main():
        (folder / "codes.json").write_text(json.dumps(codes))


def run(folder, words, note=None, moments=None, kill_at=None, full=False):
    """train.py WORDS. note: load alone, and save the whole state under this name. moments, kill_at, full: see below."""
    import train
    from base import trainer_state
    from parse_config import ConfigParser
    from utils import processes

    sys.argv = ["train.py", *words]
    config = ConfigParser.from_args(train.parser(), train.OPTIONS)
    if moments:
        snap_at_every_change(folder / "saved" / "toy" / moments, folder / "moments")
    if kill_at:
        kill_before_commit(kill_at)
    if not note:
        with limited(1000) if full and not processes.is_main() else nullcontext():
            return train.main(config)

    def noted(trainer):
        trainer_state.restore_rest(trainer, trainer._restored, config.resume)
        trainer.model.saves_in_parts = False
        content = trainer_state.state_of(trainer)
        if processes.is_main():
            checkpoint.save(content, folder / note)

    return train.main(config, noted)


@contextmanager
def limited(size):
    """Within the block no file of this process gets larger, in bytes: the disk is full for it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def snap_at_every_change(run_folder, moments):
    """Before the main process changes any file of the run, copy the run's folder: what a kill would leave there."""
    from utils import processes

    moments.mkdir(exist_ok=True)
    one_at_a_time = threading.Lock()

    def changed(event, given):
        writes = event == "open" and isinstance(given[1], str) and set(given[1]) & set("wa+x")
        if not (writes or event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link")):
            return
        inside = processes.is_main() and str(run_folder) in f"{given[0]}" and run_folder.exists()
        if inside and one_at_a_time.acquire(blocking=False):
            try:
                shutil.copytree(run_folder, moments / f"{len(list(moments.iterdir())):03}")
            finally:
                one_at_a_time.release()

    sys.addaudithook(changed)


def kill_before_commit(step):
    """At this step all parts are written, and every process is gone before the file that names them is."""
    sharded = imports.optional("extras.sharded", "the test")
    written = sharded.written

    def killed(content, folder):
        content = written(content, folder)
        if content["step"] == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return content

    sharded.written = killed


def launch(folder, count, *commands):
    """Exit codes of the commands, run by `count` processes; None where these did not come to the end."""
    (folder / "commands.json").write_text(json.dumps(commands))
    (folder / "codes.json").unlink(missing_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    group |= {"PYTHONPATH": f"{ROOT}:{TESTS}", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, folder],
            env={**os.environ, **group, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        said = [process.communicate(timeout=150)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    print("\n".join(said))
    codes = folder / "codes.json"
    return json.loads(codes.read_text()) if codes.exists() else None


@pytest.fixture(scope="module")
def lab_of_two(tmp_path_factory):
    """The folder of runs of two processes: whole, gathered (in one file), stopped and resumed; whole.pth, ddp.pth."""
    folder = tmp_path_factory.mktemp("sharded")
    (folder / "spread_net.py").write_text(USERS_MODULE)
    (folder / "config.json").write_text(json.dumps(config(folder)))
    new, saved = ["-c", str(folder / "config.json"), "--run-id"], folder / "saved" / "toy"
    last, in_ddp = str(saved / "whole" / "latest.pth"), ["parallel.type=ddp", "parallel.args={}"]
    codes = launch(
        folder,
        2,
        {"words": [*new, "whole"]},
        {"words": [*new, "gathered", "parallel.args.sharded=false"]},
        {"words": [*new, "inside", "trainer.max_steps=7"]},
        {"words": ["-r", str(saved / "inside"), "trainer.max_steps=null"]},
        {"words": [*new, "between", "trainer.epochs=2"]},
        {"words": ["-r", str(saved / "between"), "trainer.epochs=3"]},
        {"words": ["-r", last], "note": "whole.pth"},
        {"words": ["-r", last, *in_ddp], "note": "ddp.pth"},
        {
            "words": [*new, "snapped", "trainer.epochs=2", "trainer.save_steps=2", "trainer.keep_last=1"],
            "moments": "snapped",
        },
        {"words": [*new, "full"], "full": True},
    )
    assert codes[:9] == [0] * 9
    (folder / "code_of_full").write_text(f"{codes[9]}")
    return folder


@pytest.fixture
def copied(lab_of_two, lab, monkeypatch):
    """A copy of the run `whole`, to be damaged."""
    monkeypatch.setattr(imports, "NOTE", lab_of_two / "config_folders")
    return Path(shutil.copytree(lab_of_two / "saved" / "toy" / "whole", lab.saved / "toy" / "whole"))


def state(path):
    """What is trained, of a checkpoint in parts or in one file."""
    content = in_memory(checkpoint.load(path))
    return {name: content[name] for name in ("state_dict", "train_state_dict", "optimizer", "lr_scheduler")}


def in_memory(value):
    if isinstance(value, dict):
        return {key: in_memory(one) for key, one in value.items()}
    return (
        [in_memory(one) for one in value]
        if isinstance(value, list)
        else value.read()
        if hasattr(value, "read")
        else value
    )


def parts_of(path):
    """The folder that a checkpoint names."""
    return path.parent / torch.load(path, weights_only=True)["parts"]["folder"]


def test_a_checkpoint_in_parts_holds_the_bits_of_one_file(lab_of_two):
    saved = lab_of_two / "saved" / "toy"
    for name in ("latest.pth", "model_best.pth", "checkpoint-epoch2.pth"):
        assert differences(state(saved / "whole" / name), state(saved / "gathered" / name)) == []
        assert not torch.load(saved / "whole" / name, weights_only=True)["state_dict"]["inner.weight"].numel()


@pytest.mark.parametrize("stopped", ["inside", "between"])
def test_a_resumed_run_ends_with_the_bits_of_an_unbroken_one(lab_of_two, stopped):
    """Stopped inside an epoch, and between two."""
    saved = lab_of_two / "saved" / "toy"
    assert differences(state(saved / "whole" / "latest.pth"), state(saved / stopped / "latest.pth")) == []
    assert history(saved / "whole") == history(saved / stopped)


@pytest.mark.parametrize("name", ["whole.pth", "ddp.pth"])
def test_two_processes_load_it_whole_in_fsdp_and_in_ddp(lab_of_two, name):
    assert differences(state(lab_of_two / "saved" / "toy" / "gathered" / "latest.pth"), state(lab_of_two / name)) == []


def test_one_process_loads_it_whole(lab_of_two, copied):
    words = ["-r", str(copied / "latest.pth"), "parallel.type=none", "parallel.args={}"]
    run(copied, words, note="one.pth")
    assert differences(state(lab_of_two / "saved" / "toy" / "gathered" / "latest.pth"), state(copied / "one.pth")) == []


def test_an_evaluation_in_one_process_measures_what_the_run_did(copied, lab):
    done = lab.test(copied / "latest.pth", "--split", "val")
    assert done.code == 0, done.err
    line = history(copied)[-1]
    assert done.numbers == {name: pytest.approx(line[name], abs=1e-6) for name in ("val_loss", "val_accuracy")}


@pytest.mark.slow
def test_three_processes_load_it_whole(lab_of_two):
    words = ["-r", str(lab_of_two / "saved" / "toy" / "whole" / "latest.pth")]
    assert launch(lab_of_two, 3, {"words": words, "note": "three.pth"}) == [0]
    assert differences(state(lab_of_two / "whole.pth"), state(lab_of_two / "three.pth")) == []


@pytest.mark.slow
def test_a_run_killed_between_its_parts_and_their_commit_resumes_with_the_bits_of_an_unbroken_one(lab_of_two):
    saved = lab_of_two / "saved" / "toy"
    new = ["-c", str(lab_of_two / "config.json"), "--run-id", "killed", "trainer.save_steps=1"]
    assert launch(lab_of_two, 2, {"words": new, "kill_at": 7}) is None
    assert checkpoint.load(saved / "killed" / "latest.pth")["step"] == 6
    assert (saved / "killed" / "parts-step7").exists()
    assert launch(lab_of_two, 2, {"words": ["-r", str(saved / "killed"), "trainer.save_steps=null"]}) == [0]
    assert differences(state(saved / "whole" / "latest.pth"), state(saved / "killed" / "latest.pth")) == []
    assert not (saved / "killed" / "parts-step7").exists()


def test_at_every_moment_of_a_save_each_file_is_whole_with_its_parts(lab_of_two):
    moments = sorted((lab_of_two / "moments").iterdir())
    steps = [{path.name: checkpoint.load(path)["step"] for path in moment.glob("*.pth")} for moment in moments]
    latest = [found["latest.pth"] for found in steps if "latest.pth" in found]
    assert latest == sorted(latest) and set(latest) == {2, 4, 5, 6, 8, 10}
    assert len(moments) > 50


def test_parts_that_no_file_names_any_more_are_removed_by_a_later_save(lab_of_two):
    """The last save may leave those of the save before it."""
    folder = lab_of_two / "saved" / "toy" / "snapped"
    named = {parts_of(path).name for path in folder.glob("*.pth")}
    assert named <= {path.name for path in folder.glob("parts-*")} <= named | {"parts-step8"}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_two_saves_at_one_step_have_folders_of_their_own(tmp_path):
    sharded = imports.optional("extras.sharded", "the test")
    for value in (1.0, 2.0):
        content = sharded.written({"step": 3, "state_dict": {"weight": torch.tensor(value)}}, tmp_path)
        checkpoint.save(content, tmp_path / f"{value}.pth")
    found = [checkpoint.load(tmp_path / f"{value}.pth")["state_dict"]["weight"].read() for value in (1.0, 2.0)]
    assert found == [1.0, 2.0]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_parts_whose_file_is_still_being_written_are_not_removed(tmp_path, monkeypatch):
    sharded, save, writer = imports.optional("extras.sharded", "the test"), checkpoint.save, checkpoint.Writer()
    monkeypatch.setattr(checkpoint, "save", lambda *args: time.sleep(0.5) or save(*args))
    for step in (1, 2):
        content = sharded.written({"step": step, "state_dict": {"weight": torch.tensor(float(step))}}, tmp_path)
        writer.write(content, [tmp_path / f"{step}.pth"])
    writer.wait()
    assert checkpoint.load(tmp_path / "1.pth")["state_dict"]["weight"].read() == 1


def test_where_one_process_can_not_write_its_part_all_end_with_the_error_of_saving(lab_of_two):
    assert (lab_of_two / "code_of_full").read_text() == "5"
    assert list((lab_of_two / "saved" / "toy" / "full").glob("*.pth")) == []


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_parts_that_can_not_be_written_are_told_with_the_place_and_the_cause(tmp_path):
    sharded = imports.optional("extras.sharded", "the test")
    with limited(1000), pytest.raises(SaveError, match=r"parts-step3: could not be saved: File too large"):
        sharded.written({"step": 3, "state_dict": {"weight": torch.zeros(5000)}}, tmp_path)


def flip(folder):
    path = folder / "__1_0.distcp"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(folder):
    path = folder / "__0_0.distcp"
    path.write_bytes(path.read_bytes()[:-1])


def lose(folder):
    (folder / "__1_0.distcp").unlink()


def plant(folder):
    class Malicious:
        def __reduce__(self):
            return os.mkdir, (str(folder.parent / "code was run"),)

    (folder / ".metadata").write_bytes(pickle.dumps(Malicious()))


@pytest.mark.parametrize("harm", [flip, cut, lose, plant, shutil.rmtree])
def test_harmed_parts_are_refused_and_the_checkpoint_before_is_taken(copied, harm):
    folder, said = parts_of(copied / "latest.pth"), []
    harm(folder)
    with pytest.raises(CheckpointError, match=f"latest.pth: its part .*{folder.name}"):
        checkpoint.load(copied / "latest.pth")
    path, content = runs.newest_checkpoint(copied, said.append)
    assert (path.name, content["epoch"], len(said)) == ("checkpoint-epoch2.pth", 2, 2)
    assert not (copied / "code was run").exists()


def test_harmed_parts_end_a_command_with_3(copied, lab):
    shutil.rmtree(parts_of(copied / "latest.pth"))
    for done in (lab.resume(copied / "latest.pth"), lab.test(copied / "latest.pth")):
        assert done.code == 3 and len(done.err.splitlines()) == 1 and "parts-step15" in done.err


@pytest.mark.parametrize("place", ["folder", "files", "tensors"])
def test_a_file_that_names_what_is_not_its_own_is_refused(copied, place):
    content = torch.load(copied / "latest.pth", weights_only=True)
    parts = content["parts"]
    if place == "folder":
        parts["folder"] = "../whole/parts-step15"
    elif place == "files":
        parts["files"]["../latest.pth"] = parts["files"].pop("__0_0.distcp")
    else:
        parts["tensors"]["state_dict.inner.weight"][2][0][0] = "/etc/hostname"
    checkpoint.save(content, copied / "latest.pth")
    with pytest.raises(CheckpointError, match="'parts'"):
        checkpoint.load(copied / "latest.pth")


def test_without_extras_loading_says_what_is_missing(copied, monkeypatch):
    monkeypatch.setitem(sys.modules, "extras.sharded", None)
    with pytest.raises(
        imports.Missing, match=r"latest.pth, a checkpoint in parts, wants extras.sharded; bring it back"
    ):
        checkpoint.load(copied / "latest.pth")


def test_torchs_own_tool_makes_one_file_of_the_parts(copied, lab_of_two):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(parts_of(copied / "latest.pth"), copied / "single.pth")
    single = torch.load(copied / "single.pth", weights_only=True)
    gathered = torch.load(lab_of_two / "saved" / "toy" / "gathered" / "latest.pth", weights_only=True)
    assert "seen" in single["state_dict"] and differences(single["state_dict"], dict(gathered["state_dict"])) == []


def test_the_sums_beside_the_parts_are_those_that_sha256sum_checks(copied):
    folder = parts_of(copied / "latest.pth")
    lines = [line.split("  ") for line in (folder / "SHA256SUMS").read_text().splitlines()]
    assert {name for _, name in lines} == {"__0_0.distcp", "__1_0.distcp", ".metadata"}
    assert all(hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest for digest, name in lines)


if __name__ == "__main__":
    work(Path(sys.argv[1]))
