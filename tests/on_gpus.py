"""What only a machine with GPUs can tell: `pytest tests/on_gpus.py`, some three minutes; without GPUs nothing runs.

The checks of two GPUs want two; those of one run on one.
"""

import json
import os
import subprocess
import sys

import pytest
import torch
from lab import ROOT, differences_of_checkpoints, history, load

GPUS = torch.cuda.device_count()
one = pytest.mark.skipif(GPUS < 1, reason="wants a GPU")
two = pytest.mark.skipif(GPUS < 2, reason="wants two GPUs")
CONFIG = ROOT / "config.json"
HALVES = (
    "import torch.nn.functional as F\nfrom torch import nn\n"
    + (ROOT / "docs" / "pipeline.md").read_text("utf-8").split("```python\n")[1].split("```")[0]
)
SHORT = ("trainer.epochs=2", "trainer.tensorboard=false", "trainer.verbosity=0")


def torchrun(folder, name, *words, count=2):
    """The run's folder of `torchrun train.py WORDS` on so many GPUs."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), "train.py", "-c", CONFIG]
    more = [*SHORT, f"trainer.save_dir={folder}", "--run-id", name, *words]
    done = subprocess.run([*map(str, command), *more], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "mnist" / name


@one
@pytest.mark.parametrize(
    "words",
    [
        (),
        ("trainer.amp=bf16",),
        ("trainer.amp=fp16",),
        ("trainer.channels_last=true",),
        ("trainer.ema_decay=0.9", "trainer.accumulate=2", "trainer.clip_grad_norm=1.0"),
        ("deterministic=true",),
        ("matmul_precision=high", "cudnn_benchmark=true"),
        ("trainer.compile=true",),
        ("data_loader.args.num_workers=2", "data_loader.args.pin_memory=true"),
    ],
)
def test_default_config_learns_on_a_gpu(lab, words):
    done = lab.train(CONFIG, *SHORT, f"trainer.save_dir={lab.saved}", *words)
    assert done.code == 0, done.err
    assert history(lab.run)[-1]["val_accuracy"] > 0.85
    assert all(tensor.device.type == "cpu" for tensor in load(lab.run / "latest.pth")["state_dict"].values())


@one
def test_run_resumed_on_a_gpu_has_every_bit_of_an_unbroken_one(lab):
    words = (*SHORT, "deterministic=true", "lr_scheduler=null")
    lab.train(CONFIG, *words, f"trainer.save_dir={lab.saved}/whole", "--run-id", "run")
    lab.train(CONFIG, *words, f"trainer.save_dir={lab.saved}/parts", "--run-id", "run", "trainer.max_steps=30")
    resumed = lab.resume(lab.saved / "parts" / "mnist" / "run" / "latest.pth", "trainer.max_steps=null")
    assert resumed.code == 0, resumed.err
    runs = [lab.saved / name / "mnist" / "run" / "latest.pth" for name in ("whole", "parts")]
    assert differences_of_checkpoints(*runs) == []


@one
def test_checkpoint_of_a_gpu_is_tested_on_the_cpu(lab):
    lab.train(CONFIG, *SHORT, f"trainer.save_dir={lab.saved}")
    there = lab.test(lab.run / "latest.pth")
    here = lab.test(lab.run / "latest.pth", "device=cpu")
    assert here.numbers["test_accuracy"] == pytest.approx(there.numbers["test_accuracy"], abs=2e-3)


@one
def test_too_little_memory_is_told_and_ends_with_6(lab):
    torch.cuda.set_per_process_memory_fraction(0.0001)
    try:
        done = lab.train(CONFIG, *SHORT, f"trainer.save_dir={lab.saved}", "--bs", "7200")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert (done.code, "batch_size" in done.err) == (6, True)


@one
def test_fsdp_of_one_gpu_offloads_to_the_host(tmp_path):
    args = {"type": "fsdp", "args": {"cpu_offload": True, "mixed_precision": "bf16"}}
    run = torchrun(tmp_path, "fsdp", f"parallel={json.dumps(args)}", count=1)
    assert history(run)[-1]["val_accuracy"] > 0.85


@two
def test_two_gpus_train_as_one(tmp_path):
    words = ("trainer.amp=off", "arch.args={}")
    one, two = (torchrun(tmp_path, str(count), *words, count=count) for count in (1, 2))
    for a, b in zip(history(one), history(two)):
        assert a["val_loss"] == pytest.approx(b["val_loss"], rel=0.1)


@two
def test_run_of_two_gpus_in_parts_goes_on(tmp_path):
    parallel = json.dumps({"type": "fsdp", "args": {"mixed_precision": "fp16", "cpu_offload": True}})
    words = (f"parallel={parallel}", "lr_scheduler=null")
    torchrun(tmp_path, "run", *words, "trainer.epochs=1")
    run = torchrun(tmp_path, "run", *words, "-r", "auto")
    assert [line["epoch"] for line in history(run)] == [1, 2]


@two
def test_model_over_two_gpus_by_hand_learns(lab):
    (lab.folder / "halves.py").write_text(HALVES)
    words = ("arch.type=halves.Halves", "parallel=manual", "device=cuda:1", f"trainer.save_dir={lab.saved}")
    config = lab.write(json.loads(CONFIG.read_text()) | {"name": "halves"})
    done = lab.train(config, *SHORT, *words)
    assert done.code == 0, done.err
    assert history(lab.run)[-1]["val_accuracy"] > 0.85


@two
@pytest.mark.parametrize(
    "parallel",
    [
        {"type": "ddp", "args": {"sync_batchnorm": True}},
        {"type": "fsdp", "args": {"mixed_precision": "bf16"}},
        {"type": "fsdp", "args": {"cpu_offload": True}},
        {"type": "fsdp", "args": {"sharded": True}},
    ],
    ids=json.dumps,
)
def test_two_gpus_learn(tmp_path, parallel):
    run = torchrun(tmp_path, "run", f"parallel={json.dumps(parallel)}")
    assert history(run)[-1]["val_accuracy"] > 0.85


@two
def test_data_parallel_learns_and_recommends_torchrun(lab):
    done = lab.train(CONFIG, *SHORT, f"trainer.save_dir={lab.saved}", "n_gpu=2", "trainer.verbosity=2")
    assert done.code == 0 and "torchrun --nproc-per-node 2" in done.out
    assert not any(name.startswith("module.") for name in load(lab.run / "latest.pth")["state_dict"])


@pytest.mark.skipif("SLURM_JOB_ID" in os.environ, reason="-d would overrule what SLURM gives")
@two
def test_d_chooses_the_gpu(lab):
    assert lab.train(CONFIG, *SHORT, f"trainer.save_dir={lab.saved}", "-d", "1", "trainer.max_steps=2").code == 0
