"""metrics.jsonl: a run's numbers, one JSON object a line."""

import json
import math
import os
from pathlib import Path


class History:
    """Appends lines to the file at `path`; a number that is not finite is written as null, as JSON knows no NaN."""

    def __init__(self, path):
        self.path = Path(path)

    def append(self, numbers):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps({name: _plain(value) for name, value in numbers.items()}) + "\n")

    def read(self):
        """The lines as dicts; none where there is no file. A last line that a kill cut short is left out."""
        if not self.path.exists():
            return []
        with open(self.path, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def cut(self, epoch, step):
        """Drop what a resume writes again: epochs after the complete `epoch`, but for what lies before update `step`.

        The line of an epoch's part goes, too: the resume trains all of it.
        """
        lines = self.read()
        kept = [line for line in lines if line["epoch"] <= epoch or 0 < line["step"] <= step]
        kept = [line for line in kept if not line.get("partial")]
        if self.path.exists():
            temporary = self.path.with_suffix(".tmp")
            temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
            os.replace(temporary, self.path)


def _plain(value):
    value = value.tolist() if hasattr(value, "tolist") else value  # a tensor, a numpy scalar
    return None if isinstance(value, float) and not math.isfinite(value) else value


def line_of(log, epochs):
    """An epoch's numbers in one line that aligns with the next epoch's."""
    words = [f"epoch {log['epoch']:>{len(str(epochs))}}"]
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
