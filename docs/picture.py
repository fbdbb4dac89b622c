"""Make docs/picture.png, the picture in the README.

python docs/picture.py          about 20 seconds on two CPU cores; python docs/picture.py FILE writes it elsewhere

It runs train.py three times with config.json: once unbroken, once until SIGTERM reaches it inside epoch 6, once more to
resume. Then it runs test.py on the first run's best checkpoint and keeps what the model said.
"""

import io
import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
STOP_AT = 313  # the training batch during which SIGTERM comes; 57 make an epoch
VALID_STEPS = 19  # three validations an epoch
TIMES = ("seconds", "samples_per_second", "data_wait")
INK, PALE, GRID = "#24292f", "#6e7781", "#e4e7eb"
TRAIN, VALID, RING = "#8c959f", "#0969da", "#cf222e"
ROWS, COLUMNS = 4, 7


def command(script, *words):
    """The exit code of `python SCRIPT.py WORDS`, run in this process."""
    from utils.errors import exit_code

    sys.argv = [f"{script.__name__}.py", *map(str, words)]
    return exit_code(script.run)


def train(folder, *words):
    """(exit code, the run's folder) of train.py."""
    import train as script

    code = command(script, *words, f"trainer.save_dir={folder}", f"trainer.valid_steps={VALID_STEPS}")
    return code, next(folder.glob("mnist/*"))


def stopped_and_resumed(folder):
    """The folder of a run that SIGTERM has stopped during batch STOP_AT, and that was then resumed."""
    batches = []

    def interrupt(module, inputs, output):
        if type(module).__name__ == "MnistModel" and module.training:
            batches.append(1)
            if len(batches) == STOP_AT:
                os.kill(os.getpid(), signal.SIGTERM)

    hook = torch.nn.modules.module.register_module_forward_hook(interrupt)
    code, run = train(folder, "-c", "config.json")
    hook.remove()
    assert code == 128 + signal.SIGTERM, code
    code, _ = train(folder, "-r", run / "latest.pth")
    assert code == 0, code
    return run


def history(run):
    """The lines of metrics.jsonl, without the times, which no two runs share."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def mistakes(checkpoint):
    """(images, guesses, truths, tested) of the test digits that the model gets wrong in test.py; the surest first."""
    import test as script  # this project's, not Python's own
    from data_loader.datasets import IdxImages

    outputs = []

    def keep(module, inputs, output):
        if type(module).__name__ == "MnistModel":
            outputs.append(output)

    hook = torch.nn.modules.module.register_module_forward_hook(keep)
    code = command(script, "-r", checkpoint)
    hook.remove()
    assert code == 0, code
    digits = IdxImages(ROOT / "data" / "mnist10k", train=False)
    sure, guesses = torch.cat(outputs).max(dim=1)
    wrong = (guesses != digits.labels).nonzero().flatten()
    wrong = wrong[sure[wrong].argsort(descending=True, stable=True)]
    return digits.images[wrong], guesses[wrong].tolist(), digits.labels[wrong].tolist(), len(digits)


def draw_curves(axes, unbroken, resumed):
    """Loss against epochs: the unbroken run as lines, the resumed one as rings on top."""
    epochs = unbroken[-1]["epoch"]
    per_epoch = unbroken[-1]["step"] / epochs
    stop = STOP_AT / per_epoch
    for name, color, words, above in (
        ("loss", TRAIN, "training, with dropout", 27),
        ("val_loss", VALID, "validation", 11),
    ):
        for lines, broken in ((unbroken, False), (resumed, True)):
            points = [(line["step"] / per_epoch, line[name]) for line in lines if name in line]
            x, y = zip(*points)
            if broken:
                axes.plot(x, y, "o", ms=6.5, mfc="none", mec=RING, mew=1.0, zorder=4)
            else:
                axes.plot(x, y, "-o", color=color, lw=1.8, ms=3, zorder=3)
                axes.annotate(
                    words, (epochs + 0.1, y[-1]), (0, above), textcoords="offset points", color=color, ha="right"
                )
    axes.axvline(stop, color=RING, lw=1.1, ls=(0, (4, 3)), zorder=1)
    axes.annotate(
        f"SIGTERM during batch {STOP_AT},\ninside epoch {int(stop) + 1}; then resumed",
        (stop, 1.55), (7, 0), textcoords="offset points", color=RING, va="center", linespacing=1.4,
    )  # fmt: skip
    axes.set(yscale="log", xlim=(0, epochs + 0.3), xticks=range(0, epochs + 1, 3), xlabel="epoch", ylim=(0.05, 2.6))
    axes.set_yticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
    axes.minorticks_off()
    axes.grid(axis="y", color=GRID, lw=0.8)
    axes.tick_params(length=0, colors=PALE)
    axes.xaxis.label.set_color(PALE)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(GRID)


def draw_digits(figure, area, images, guesses, truths):
    """A grid of digits, dark on light; under each the guess in red and the truth in grey."""
    cells = area.subgridspec(ROWS, COLUMNS, wspace=0.12, hspace=0.34)
    for i, (image, guess, truth) in enumerate(zip(images[: ROWS * COLUMNS], guesses, truths)):
        axes = figure.add_subplot(cells[i // COLUMNS, i % COLUMNS])
        axes.imshow(255 - image.numpy(), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set_color(GRID)
        axes.text(0.42, -0.06, guess, transform=axes.transAxes, color=RING, weight="bold", ha="right", va="top")
        axes.text(0.58, -0.06, truth, transform=axes.transAxes, color=PALE, ha="left", va="top")


def draw(file, unbroken, resumed, wrong):
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from PIL import Image

    images, guesses, truths, total = wrong
    mpl.rcParams.update({"font.family": "DejaVu Sans", "font.size": 10, "text.color": INK})
    figure = plt.figure(figsize=(11, 4.7), dpi=150, facecolor="white")
    margins = {"left": 0.045, "right": 0.985, "top": 0.8, "bottom": 0.105}
    left, right = figure.add_gridspec(1, 2, width_ratios=(1, 1.02), wspace=0.09, **margins)
    draw_curves(figure.add_subplot(left), unbroken, resumed)
    draw_digits(figure, right, images, guesses, truths)
    for x, title, below in (
        (
            0.016,
            "Stopped inside an epoch and resumed: the same loss",
            "Lines: never stopped. Rings: stopped and resumed.",
        ),
        (
            right.get_position(figure).x0,
            f"Wrong on {len(images)} of {total:,} held-out digits",
            "The surest mistakes: the guess in red, the truth in grey.",
        ),
    ):
        figure.text(x, 0.925, title, size=12.5, weight="bold")
        figure.text(x, 0.865, below, color=PALE)
    with io.BytesIO() as drawn:
        figure.savefig(drawn)
        Image.open(drawn).convert("RGB").quantize(96).save(file, format="PNG", optimize=True)


def main(file=ROOT / "docs" / "picture.png"):
    file = Path(file).absolute()
    sys.path.insert(0, str(ROOT))
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        code, unbroken = train(Path(folder) / "unbroken", "-c", "config.json")
        assert code == 0, code
        resumed = stopped_and_resumed(Path(folder) / "stopped")
        assert history(unbroken) == history(resumed), "the resumed run differs from the unbroken one"
        draw(file, history(unbroken), history(resumed), mistakes(unbroken / "model_best.pth"))


if __name__ == "__main__":
    main(*sys.argv[1:])
