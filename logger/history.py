"""metrics.jsonl: a run's numbers, one JSON object a line."""

import json
import math
from pathlib import Path

from utils.util import for_json, replacing


def append_numbers(path, numbers):
    """Add a line to the file; a number that is not finite is written as null, as JSON knows no NaN."""
    known = {name: None if isinstance(n, float) and not math.isfinite(n) else n for name, n in numbers.items()}
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(known, default=for_json) + "\n")


def cut_numbers(path, lines, source=None):
    """Begin the file with the first `lines` lines of `source`, another run's, or else of its own."""
    source = Path(source or path)
    if source.exists():
        kept = source.read_text(encoding="utf-8").splitlines(keepends=True)[:lines]
        with replacing(path) as temporary:
            temporary.write_text("".join(kept), encoding="utf-8")


def line_of(log, epochs):
    """An epoch's numbers in one line that aligns with the next epoch's."""
    words = [f"epoch {log['epoch']:>{len(str(epochs))}}"]
    if "seconds" not in log:  # inside an epoch
        words.append(f"step {log['step']}")
    for name, value in log.items():
        if name == "seconds":
            words.append(f"{value:.1f} s")
        elif name not in ("epoch", "step", "lr", "samples_per_second", "data_wait", "partial"):
            words.append(f"{name} {_short(value)}")
    return "  ".join(words)


def _short(value):
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.3g}"
