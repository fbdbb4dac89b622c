"""Train each config of configs/ and evaluate its best checkpoint:  python benchmarks/examples.py [NAME ...] [--seeds N]

Prints a line an example: what it reached on its test data with each seed, and the seconds of training, start included.
Runs go to a temporary folder.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_NUMBERS = ("checkpoint", "epoch", "split", "examples")


def run(name, seed, folder):
    """(numbers of test.json, seconds that training took)."""
    words = [sys.executable, "train.py", "-c", f"configs/{name}.json", f"seed={seed}", f"trainer.save_dir={folder}"]
    started = time.perf_counter()
    subprocess.run([*words, "--run-id", f"seed{seed}"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - started
    (run_folder,) = Path(folder).glob(f"*/seed{seed}")
    best = run_folder / "model_best.pth"
    checkpoint = best if best.exists() else run_folder / "latest.pth"
    subprocess.run([sys.executable, "test.py", "-r", checkpoint], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    numbers = json.loads((run_folder / "test.json").read_text())
    return {key: value for key, value in numbers.items() if key not in NOT_NUMBERS}, seconds


def main():
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = sorted(path.stem for path in (ROOT / "configs").glob("*.json"))
    asked.add_argument("names", nargs="*", help=f"of {', '.join(every)}")
    asked.add_argument("--seeds", type=int, default=1)
    given = asked.parse_args()
    for name in given.names or every:
        with tempfile.TemporaryDirectory() as folder:
            done = [run(name, seed, folder) for seed in range(given.seeds)]
        told = [f"{key} {' '.join(f'{numbers[key]:.4f}' for numbers, _ in done)}" for key in done[0][0]]
        print(f"{name:<18} {'  '.join(told)}  {' '.join(f'{seconds:.0f}' for _, seconds in done)} s", flush=True)


if __name__ == "__main__":
    main()
