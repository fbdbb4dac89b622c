"""Draw when each stage of a pipeline computes, and when it waits:  python benchmarks/pipeline.py

Starts itself with torchrun, two processes of one thread each; prints a table of each run's quickest step, and writes
docs/pipeline.png.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STAGES, ROWS, WIDTH, LAYERS = 2, 512, 768, 8
RUNS = (("naive", "GPipe", 1), ("GPipe", "GPipe", 4), ("1F1B", "1F1B", 4), ("GPipe", "GPipe", 8), ("1F1B", "1F1B", 8))
STEPS, WARM = 20, 2  # of each run, and those before that are not counted
INK, IDLE = "#24292f", "#eaeef2"
COLORS = {"forward, no graph": "#b6e3ff", "forward, computed anew": "#54aeff", "backward": "#fa8c5a"}


def watched(kind, name, labels, spans):
    """Note in `spans` when each call of a stage's method began and ended: (label, number of the part, from, to).

    labels: without gradients, and with.
    """
    import torch

    method = getattr(kind, name)

    def timed(self, part, *args, **kwargs):
        began = time.monotonic()  # one clock for all processes of a machine
        found = method(self, part, *args, **kwargs)
        spans.append((labels[torch.is_grad_enabled()], part, began, time.monotonic()))
        return found

    setattr(kind, name, timed)


def work(folder):
    """What each process does: every run, and what it noted into the folder."""
    sys.path.insert(0, str(ROOT))
    import torch
    from torch.distributed.pipelining import PipelineStage

    from trainer import parallel
    from utils import processes

    torch.set_num_threads(1)
    processes.join()
    spans, noted = [], []
    labels = list(COLORS)
    watched(PipelineStage, "forward_one_chunk", labels[:2], spans)
    watched(PipelineStage, "backward_one_chunk", [labels[2]] * 2, spans)
    for _, schedule, parts in RUNS:
        torch.manual_seed(0)
        layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(LAYERS)]
        split = [str(LAYERS // STAGES * number) for number in range(1, STAGES)]
        model = parallel.pipeline(torch.nn.Sequential(*layers), torch.device("cpu"), split, schedule, parts)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        inputs, steps = torch.randn(ROWS, WIDTH), []
        for _ in range(WARM + STEPS):
            processes.wait_for_all()
            spans.clear()
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            steps.append(list(spans))
            optimizer.step()
        noted.append(steps[WARM:])
    (folder / f"{processes.process_number()}.json").write_text(json.dumps(noted))
    processes.leave()


def quickest(processes):
    """(seconds, idle share, rows of spans) of the step that other work on the machine has disturbed least.

    Times are from the step's beginning; idle is what no stage's method fills.
    """
    found = []
    for step in zip(*processes):
        spans = [[span for span in one if span[3] - span[2] > 1e-4] for one in step]  # the others are of no backward
        began = min(span[2] for row in spans for span in row)
        seconds = max(span[3] for row in spans for span in row) - began
        busy = sum(to - start for row in spans for _, _, start, to in row)
        rows = [[(label, part, start - began, to - began) for label, part, start, to in row] for row in spans]
        found.append((seconds, 1 - busy / seconds / len(rows), rows))
    return min(found)


def draw(results, path):
    """results: [(name, parts, seconds, idle share, rows)]."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(results), 1, figsize=(11, 1.55 * len(results)), sharex=True)
    longest = max(seconds for _, _, seconds, _, _ in results)
    for axis, (name, parts, seconds, idle, rows) in zip(axes, results):
        for number, spans in enumerate(rows):
            axis.barh(number, 1000 * seconds, height=0.8, color=IDLE, zorder=1)
            for label, part, start, to in spans:
                how = {"height": 0.8, "color": COLORS[label], "edgecolor": "white", "linewidth": 0.6}
                axis.barh(number, 1000 * (to - start), left=1000 * start, **how)
                axis.text(500 * (start + to), number, part + 1, ha="center", va="center", fontsize=7, color=INK)
        many = "whole batch at once" if parts == 1 else f"{parts} micro-batches"
        axis.set_title(f"{name}, {many}: idle {idle:.0%}, {1000 * seconds:.0f} ms", loc="left", fontsize=10, color=INK)
        axis.set_yticks(range(len(rows)), [f"stage {number}" for number in range(len(rows))])
        axis.set_xlim(0, 1000 * longest)
        axis.invert_yaxis()
        axis.spines[["top", "right", "left", "bottom"]].set_visible(False)
        axis.tick_params(length=0, labelsize=8, colors=INK)
    axes[-1].set_xlabel("ms of a training step", fontsize=9, color=INK)
    colors = {**COLORS, "idle": IDLE}
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=color) for color in colors.values()]
    figure.legend(handles, list(colors), ncols=4, loc="upper right", frameon=False, fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def main():
    with tempfile.TemporaryDirectory() as folder:
        start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(STAGES), __file__, folder]
        subprocess.run(start, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
        noted = [json.loads((Path(folder) / f"{number}.json").read_text()) for number in range(STAGES)]
    results = []
    print("| schedule | micro-batches | ms per step | idle, measured | idle, (p−1)/(m+p−1) |\n|---|---|---|---|---|")
    for (name, _, parts), *of_each in zip(RUNS, *noted):
        seconds, idle, rows = quickest(of_each)
        formula = (STAGES - 1) / (parts + STAGES - 1)
        print(f"| {name} | {parts} | {1000 * seconds:.0f} | {idle:.0%} | {formula:.0%} |")
        results.append((name, parts, seconds, idle, rows))
    draw(results, ROOT / "docs" / "pipeline.png")


if __name__ == "__main__":
    work(Path(sys.argv[1])) if "RANK" in os.environ else main()
