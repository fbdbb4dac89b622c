"""Time the default experiment in fresh processes, beside `import torch` alone:  python benchmarks/default_run.py

Prints the median and the range of three rounds, interleaved, and the accuracies that the last one reached.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 3


def seconds_until(word, *command):
    """Seconds from the start of a process to the line of its output that holds `word`, and to its end."""
    started, seen = time.perf_counter(), None
    with subprocess.Popen([sys.executable, "-u", *command], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        for line in process.stdout:
            if seen is None and word in line:
                seen = time.perf_counter() - started
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return seen, time.perf_counter() - started


def main():
    rows = {"import torch": [], "start to first step": [], "default run, start to end": []}
    with tempfile.TemporaryDirectory() as folder:
        train = ["train.py", "-c", "config.json", f"trainer.save_dir={folder}"]
        for i in range(ROUNDS):
            rows["import torch"].append(seconds_until(".", "-c", "import torch; print(torch.__version__)")[0])
            first, _ = seconds_until(
                "step 1 ", *train, "trainer.max_steps=1", "trainer.log_step=1", "--run-id", f"first{i}"
            )
            rows["start to first step"].append(first)
            rows["default run, start to end"].append(seconds_until("done", *train, "--run-id", f"whole{i}")[1])
        run = Path(folder) / "mnist" / f"whole{ROUNDS - 1}"
        seconds_until("written", "test.py", "-r", str(run / "model_best.pth"))
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        test = json.loads((run / "test.json").read_text())
    base = statistics.median(rows["import torch"])
    for name, seconds in rows.items():
        middle, least, most = statistics.median(seconds), min(seconds), max(seconds)
        print(f"{name:<28} {middle:5.2f} s  ({least:.2f} to {most:.2f})  {middle / base:4.2f} × import torch")
    print(f"{'its training alone':<28} {sum(line['seconds'] for line in lines):5.2f} s")
    print(f"val_accuracy {max(line['val_accuracy'] for line in lines):.4f}, test_accuracy {test['test_accuracy']:.4f}")


if __name__ == "__main__":
    main()
