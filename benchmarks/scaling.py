"""Time an update in one process and in several, DDP and FSDP2:  python benchmarks/scaling.py

Strong scaling: the batch is the same, and N processes take 1/N of it each. A process for every GPU; without one, for
every core, with one thread each. All settings are started once and measured in turn, round by round, so that what else
the machine does falls on all alike; the others wait meanwhile. Data lie ready in memory: loading is not in it. Prints a
Markdown table of medians. `communication` is what an update of DDP takes longer than one under its no_sync.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from model.model import MnistModel  # noqa: E402
from trainer import parallel  # noqa: E402
from trainer.stepper import Stepper  # noqa: E402
from utils import processes  # noqa: E402

ROUNDS, SECONDS = 5, 1.0  # of each measurement
BATCH = 128
GPUS = torch.cuda.device_count()
COUNT = GPUS or os.cpu_count() or 1


def settings():
    """{name: (processes, threads of each, parallel)} on this machine."""
    threads = max((os.cpu_count() or 1) // COUNT, 1)
    one = {"1 process": (1, threads, "none")}
    if not GPUS:
        one = {"1 process, 1 thread": (1, 1, "none"), f"1 process, {COUNT} threads": (1, COUNT, "none")}
    several = {f"{COUNT} processes, {name}": (COUNT, threads, name) for name in ("ddp", "fsdp")}
    return one | several if COUNT > 1 else one


def mlp():
    """10 million weights, few numbers computed with each: the gradients to exchange are large."""
    return nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 10))


# name → (model, the shape of an example)
MODELS = {"MnistModel (default config)": (MnistModel, (1, 28, 28)), "MLP, 10 M weights": (mlp, (784,))}


class Updates:
    """A model with all that an update needs, on this process's device."""

    def __init__(self, make, shape, how, device):
        torch.manual_seed(0)
        self.model = getattr(parallel, how)(make(), device)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.stepper = Stepper(self.model, optimizer, device=device)
        self.here = len(range(processes.rank(), BATCH, processes.size()))
        self.inputs = torch.randn(self.here, *shape, device=device)
        self.target = torch.randint(10, (self.here,), device=device)
        self.device = device

    def run(self, count, apart=False):
        """Seconds of `count` updates; apart: without the exchange of gradients."""
        processes.wait_for_all()
        started = time.perf_counter()
        with self.model.no_sync() if apart else nullcontext():
            for _ in range(count):
                self.stepper.expect(self.here, BATCH)
                self.stepper.zero_grad()
                self.stepper.backward(nn.functional.cross_entropy(self.model(self.inputs), self.target))
                self.stepper.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        processes.wait_for_all()
        return time.perf_counter() - started


def work(folder, name):
    """What each process of a setting does: measure whenever the setting's turn has come."""
    _, threads, how = settings()[name]
    torch.set_num_threads(threads)
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if GPUS else torch.device("cpu")
    if GPUS:
        torch.cuda.set_device(device)
    processes.join()
    made = {model: Updates(*what, how, device) for model, what in MODELS.items()}
    counts = {}
    for one, updates in made.items():
        updates.run(3)
        counts[one] = max(int(SECONDS / max(processes.gather(updates.run(3) / 3))), 1)
    for i in range(-1, ROUNDS):  # the first says that all is built
        processes.from_main(lambda number=i: wait_for(folder / f"{name} {number}"))
        found = {}
        for one, updates in made.items() if i >= 0 else ():
            whole = updates.run(counts[one]) / counts[one]
            apart = updates.run(counts[one], apart=True) / counts[one] if how == "ddp" else None
            found[one] = {"seconds": whole, "apart": apart}
        if processes.is_main():
            (folder / "writing").write_text(json.dumps(found))
            (folder / "writing").rename(folder / f"{name} {i} done")
    processes.leave()


def wait_for(path, process=None):
    while not path.exists():
        if process is not None and process.poll() is not None:
            sys.exit(f"{path.name}: ended with {process.returncode}")
        time.sleep(0.002)


def start(folder, name):
    count, threads, _ = settings()[name]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)] if count > 1 else []
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    return subprocess.Popen([sys.executable, *launch, __file__, "--work", folder, name], env=environment)


def main():
    found = {name: [] for name in settings()}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        started = {}
        for i in range(-1, ROUNDS):
            for name in found:
                if i < 0:
                    started[name] = start(made, name)
                (folder / f"{name} {i}").touch()
                done = folder / f"{name} {i} done"
                wait_for(done, started[name])
                found[name] += [json.loads(done.read_text())] if i >= 0 else []
        for process in started.values():
            process.wait()
    print(f"torch {torch.__version__}, {GPUS or 'no'} GPU, {os.cpu_count()} cores; batch {BATCH}; {ROUNDS} rounds\n")
    print("| model | setting | ms per step (least–most) | samples/s | times the first | communication |")
    print("|---|---|---|---|---|---|")
    for model in MODELS:
        first = None
        for name, rounds in found.items():
            seconds = [one[model]["seconds"] for one in rounds]
            middle = statistics.median(seconds)
            first = first or middle
            apart = [one[model]["apart"] / one[model]["seconds"] for one in rounds if one[model]["apart"]]
            share = f"{max(1 - statistics.median(apart), 0):.0%}" if apart else "–"
            spread = f"{1000 * middle:.1f} ({1000 * min(seconds):.1f}–{1000 * max(seconds):.1f})"
            print(f"| {model} | {name} | {spread} | {BATCH / middle:,.0f} | {first / middle:.2f} | {share} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(Path(sys.argv[2]), sys.argv[3])
    else:
        main()
