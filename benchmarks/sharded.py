"""Save a model in one file and in parts:  torchrun --nproc-per-node 2 benchmarks/sharded.py [MIB]

The weights, of MIB (512) mebibytes, and AdamW's two averages of them lie on the processes by `fsdp`. Prints how long it
takes to save both ways until the checkpoint is on the disk, and to load the parts; and by how much the main process's
memory grew at most, beside the model that it has. On the CPU, in a temporary folder. Linux only.
"""

import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from extras import sharded
from trainer import parallel
from utils import checkpoint, processes

WIDTH = 1024  # a layer's weights: 4 MiB


def mib(name):
    """VmHWM, the most that this process has had in memory, or VmRSS, what it has now; in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def measured(what, act):
    """Act; the main process prints how long it took, and by how much its memory grew at most."""
    processes.wait_for_all()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM from here
    before, started = mib("VmRSS"), time.perf_counter()
    done = act()
    processes.wait_for_all()
    if processes.is_main():
        print(f"{what:<22} {time.perf_counter() - started:6.1f} s  {mib('VmHWM') - before:+7.0f} MiB", flush=True)
    return done


def main(size=512):
    torch.set_num_threads(1)
    processes.join()
    layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(size // 4))
    model = parallel.fsdp(torch.nn.Sequential(*layers), torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, WIDTH)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

    def content():
        return {"format": 1, "step": 1, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}

    def on_main(tensor, path):
        return processes.whole(tensor)

    def save(made, path):
        if processes.is_main():
            writer = checkpoint.Writer()
            writer.write(made, [path])
            writer.wait()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(processes.from_main(lambda: name))
        parts, one = folder / "parts.pth", folder / "one.pth"
        measured("saved in parts", lambda: save(sharded.written(content(), folder), parts))
        read = measured("opened, parts checked", lambda: checkpoint.load(parts))
        measured("read into the model", lambda: checkpoint.load_weights(model, read["state_dict"], parts))
        measured("saved in one file", lambda: save(checkpoint.plain(content(), on_main), one))
    sys.stdout.flush()
    processes.leave()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
