"""scripts/slurm.sbatch on two "nodes" of this machine, with commands in the place of SLURM's own."""

import inspect
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from lab import ROOT, differences_of_checkpoints, history
from launches import Launcher, config, descendants

SCRIPT = ROOT / "scripts/slurm.sbatch"
# srun starts a task a node without a shell and waits for all; a signal sent by scancel reaches every process of the
# tasks, and not the batch script. As with SLURM, srun that gets a SIGTERM itself kills its tasks.
SRUN = """#!{python}
import os, pathlib, signal, subprocess, sys
at = sys.argv.index("torchrun")
pathlib.Path("srun-said").write_text(" ".join(sys.argv[1:at]))
tasks = [subprocess.Popen(sys.argv[at:]) for _ in range(int(os.environ["SLURM_NNODES"]))]
pathlib.Path("tasks").write_text(" ".join(str(task.pid) for task in tasks))
signal.signal(signal.SIGTERM, lambda *_: [task.kill() for task in tasks])
sys.exit(max(task.wait() for task in tasks))
"""
SCANCEL = """#!{python}
import os, pathlib, signal, sys
from pathlib import Path
{descendants}
assert sys.argv[1:] == ["--signal=TERM", os.environ["SLURM_JOB_ID"]], sys.argv
for task in map(int, pathlib.Path("tasks").read_text().split()):
    for number in [*descendants(task), task]:
        os.kill(number, signal.SIGTERM)
"""
SCONTROL = """#!/bin/bash
if [ "$1" = requeue ]; then echo "$2" >>requeued; else printf 'localhost\\nlocalhost\\n'; fi
"""
TORCHRUN = """#!/bin/bash
exec {python} -m torch.distributed.run --local-addr 127.0.0.1 "$@"
"""


@pytest.fixture
def cluster(tmp_path):
    """A Launcher whose checkout has the script, and a `job(*words)` that starts it as job 4711."""
    made = Launcher(tmp_path)
    shutil.copytree(ROOT / "scripts", made.checkout.root / "scripts")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in {"srun": SRUN, "scancel": SCANCEL, "scontrol": SCONTROL, "torchrun": TORCHRUN}.items():
        (commands / name).write_text(text.format(python=sys.executable, descendants=inspect.getsource(descendants)))
        (commands / name).chmod(0o755)
    slurms = {"SLURM_JOB_ID": "4711", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node[1-2]"}
    slurms |= {"SLURM_SUBMIT_DIR": str(made.checkout.root), "SLURM_CPUS_PER_TASK": "1"}
    slurms |= {"PATH": f"{commands}:{os.environ['PATH']}"}

    def job(*words, **environment):
        return made.start("scripts/slurm.sbatch", *words, program="bash", **slurms, **environment)

    made.job = job
    yield made
    made.end()


def wait_for(is_there, process, seconds=90):
    deadline = time.monotonic() + seconds
    while not is_there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_job_saves_ahead_of_its_time_limit_is_requeued_and_goes_on_in_its_folder(cluster):
    """Its second half ends by itself; nothing is requeued then, and the run is that of one that was not stopped."""
    path = cluster.write(config(cluster.saved, trainer={"epochs": 12}))
    run, requeued = cluster.saved / "noisy/4711", cluster.checkout.root / "requeued"
    first = cluster.job(path)
    wait_for(lambda: (run / "metrics.jsonl").exists(), first)
    os.kill(first.pid, signal.SIGUSR1)
    first = cluster.ended(first)
    assert first.code != 0 and requeued.read_text() == "4711\n"
    (line,) = [line for line in first.err.splitlines() if "Go on with" in line]
    assert line == f"Stopped by SIGTERM. Go on with -r {run / 'latest.pth'}"
    assert not cluster.left()

    second = cluster.ended(cluster.job(path))
    assert second.code == 0 and requeued.read_text() == "4711\n"
    assert re.search(r"resumed  .*noisy/4711/latest.pth: epoch \d+, step \d+", second.out)
    assert cluster.run(2, "train.py", "-c", path, "--run-id", "whole").code == 0
    assert not differences_of_checkpoints(run / "latest.pth", cluster.saved / "noisy/whole/latest.pth")
    assert history(run) == history(cluster.saved / "noisy/whole")


@pytest.mark.slow
def test_job_that_fails_by_itself_is_not_requeued(cluster):
    done = cluster.ended(cluster.job(cluster.write(config(cluster.saved, arch="many.Nett"))))
    assert done.code != 0 and not (cluster.checkout.root / "requeued").exists()
    assert sum("config.json: arch" in line for line in done.err.splitlines()) == 1


def test_script_asks_for_its_signal_for_itself_alone_and_gives_up_no_nodes_save():
    text = SCRIPT.read_text()
    assert subprocess.run(["bash", "-n", SCRIPT], check=False).returncode == 0
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text, flags=re.M))
    assert asked["signal"].startswith("B:USR1@") and "requeue" in asked and asked["ntasks-per-node"] == "1"
