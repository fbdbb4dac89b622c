"""Holds the README to the code: its examples run, its quotations are quotations, its files are there.

python tests/test_readme.py    write the loop and the table of keys into the README
"""

import fnmatch
import importlib
import json
import re
import shlex
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
AGAIN = "run `python tests/test_readme.py`, which writes the loop and the table of keys into the README."
EXAMPLES = ("model", "data set", "loader of your own", "metric", "loss", "sum of losses", "trainer")
BETWEEN = {  # what stands between two comments of the README
    "loop": (r"<!-- loop -->\n", r"<!-- end of loop -->"),
    "keys": (r"<!-- keys: .*? -->\n", r"<!-- end of keys -->"),
}


def readme():
    return README.read_text(encoding="utf-8")


def blocks(text, language):
    """The contents of the fenced blocks in a language; "" for those that name none."""
    return [inside for word, inside in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S) if word == language]


def between(text, name):
    start, end = BETWEEN[name]
    return re.search(start + "(.*?)" + end, text, re.S).group(1)


def loop():
    """`Trainer._train_epoch` as it is in the source, in a fenced block."""
    source = (ROOT / "trainer" / "trainer.py").read_text(encoding="utf-8")
    found = re.search(r"^    def _train_epoch.*?(?=^    def )", source, re.M | re.S).group(0)
    return f"```python\n{textwrap.dedent(found).strip()}\n```\n"


def table():
    """The description's keys: key, default, meaning."""
    from utils.description import ABSENT, REQUIRED, every_key

    lines = ["| key | default | meaning |", "|---|---|---|"]
    for key in every_key():
        default = "" if key.default == ABSENT else f"`{json.dumps(key.default)}`"
        default = "required" if key.default == REQUIRED else default
        choices = f": {', '.join(f'`{word}`' for word in key.choices)}" if key.choices else ""
        lines.append(f"| `{key.path}` | {default} | {key.text}{choices} |")
    return "\n".join(lines) + "\n"


def example(name):
    """([(file, code)], sections of a config) of the part of "Make it yours" on a model, a data set, …"""
    (part,) = re.findall(rf"^\*\*A {name}\*\*.*?(?=^\*\*A |^## )", readme(), re.M | re.S)
    code = [(block.partition("\n")[0].removeprefix("# "), block) for block in blocks(part, "python")]
    (sections,) = blocks(part, "json")
    return code, json.loads(f"{{{sections}}}")


@pytest.fixture
def edit():
    """Put code into a module as if it stood at the end of its file; afterwards the module is as it was."""
    before = {}

    def put(file, code):
        module = vars(importlib.import_module(file.removesuffix(".py").replace("/", ".")))
        before.setdefault(file, (module, dict(module)))
        exec(compile(code, file, "exec"), module)

    yield put
    for module, names in before.values():
        module.clear()
        module.update(names)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_the_readme_trains_and_is_evaluated(name, lab, edit):
    code, sections = example(name)
    for file, text in code:
        edit(file, text)
    config = json.loads((ROOT / "config.json").read_text(encoding="utf-8"))
    trainer = config["trainer"] | sections.pop("trainer", {})
    trainer |= {"epochs": 1, "len_epoch": 2, "save_dir": str(lab.saved), "tensorboard": False}
    done = lab.train({**config, **sections, "trainer": trainer})
    assert done.code == 0, done.err
    tested = lab.test(lab.run / "latest.pth")
    assert tested.code == 0, tested.err
    assert "val_loss" in done.numbers
    assert tested.numbers.keys() == {name.replace("val_", "test_") for name in done.numbers if name.startswith("val_")}


def test_every_example_of_the_readme_is_run():
    assert re.findall(r"^\*\*A (.*?)\*\*", readme(), re.M) == list(EXAMPLES)


def test_the_metrics_of_the_readme_are_what_they_say(edit):
    import torch

    ((file, text),) = example("metric")[0]
    edit(file, text)
    metric = importlib.import_module("model.metric")
    target = torch.tensor([0, 0, 0, 0, 1, 1])
    output = torch.eye(2)[torch.tensor([0, 0, 0, 1, 1, 0])]
    assert metric.error_rate(output, target).item() == pytest.approx(2 / 6)
    recall = metric.MeanRecall(2)
    recall.update(output[:4], target[:4])
    recall.update(output[4:], target[4:])
    assert recall.compute().item() == pytest.approx((3 / 4 + 1 / 2) / 2)


def test_the_loss_of_the_readme_is_torchs_own_weighted_mean(edit):
    import torch

    ((file, text),) = example("loss")[0]
    edit(file, text)
    output, target = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).log_softmax(1), torch.arange(6) % 3
    total, count = importlib.import_module("model.loss").weighted_nll_loss(output, target, [1, 2, 5])
    own = torch.nn.functional.nll_loss(output, target, torch.tensor([1.0, 2.0, 5.0]))
    torch.testing.assert_close(total / count, own)


def test_the_loop_in_the_readme_is_the_one_in_the_source():
    assert between(readme(), "loop") == loop(), AGAIN


def test_the_table_in_the_readme_is_the_description_of_the_keys():
    assert between(readme(), "keys") == table(), AGAIN


def test_every_file_that_the_readme_links_or_lists_is_there():
    text = readme()
    linked = [link for link in re.findall(r"\]\(([^)]*)\)", text) if not re.match(r"https?:|#", link)]
    (tree,) = [block for block in blocks(text, "") if block.startswith("config.json        the")]
    listed = [line.split()[0] for line in tree.splitlines()]
    inside = [
        folder + file
        for folder, files in re.findall(r"^(\w+/) +((?:\w+\.py[,: ]).*)", tree, re.M)
        for file in re.findall(r"\w+\.py", files)
    ]
    named = re.findall(r"`((?:\w+/)*\w+\.(?:py|md|json|txt))`", text) + re.findall(r"^# (\w+/\w+\.py)$", text, re.M)
    of_runs_and_users = {"mine.py"}
    missing = [name for name in {*linked, *listed, *inside, *named} - of_runs_and_users if not (ROOT / name).exists()]
    assert missing == []


def test_the_commands_of_the_readme_are_commands():
    from lab import _test_script

    import train
    from parse_config import ConfigParser
    from utils.config_file import key_and_value

    lines = [line.rpartition("&& ")[2] for block in blocks(readme(), "") for line in block.splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("python ")]
    assert len(commands) > 5
    for _, script, *words in commands:
        parser = {"train.py": train, "test.py": _test_script()}[script].parser()
        if script == "train.py":
            for flags, kind, _ in train.OPTIONS:
                parser.add_argument(*flags, type=kind)
        given = parser.parse_intermixed_args(words)
        changed = dict(map(key_and_value, given.overrides))
        ConfigParser(json.loads((ROOT / "config.json").read_text(encoding="utf-8")))._set_all(changed).check()


def test_what_the_readme_says_a_mistake_is_told_is_what_is_told(lab):
    block = re.search(r"<!-- told -->\n```\n(.*?)```", readme(), re.S).group(1)
    commands = re.findall(r"^\$ python train.py -c config.json (.*)\n((?:[^$].*\n)+)", block, re.M)
    assert len(commands) == block.count("$ ") > 1
    for words, told in commands:
        assert lab.train(ROOT / "config.json", *shlex.split(words)).err == told


def test_the_exit_codes_in_the_readme_are_those_of_the_errors():
    from utils.errors import Failure, Stopped

    told = re.findall(r"^\| (\d+(?:, \d+)*) \|", readme(), re.M)
    codes = {int(code) for line in told for code in line.split(", ")}
    own = {kind.exit_code for kind in Failure.__subclasses__() if kind is not Stopped}
    assert codes == {0, 1, *own, 130, 143}


def test_a_run_leaves_the_files_that_the_readme_lists(lab):
    (listed,) = [block for block in blocks(readme(), "") if "metrics.jsonl  " in block]
    patterns = [line.split()[0] for line in listed.splitlines()]
    config = json.loads((ROOT / "config.json").read_text(encoding="utf-8"))
    config["trainer"] |= {"epochs": 1, "len_epoch": 2, "save_dir": str(lab.saved)}
    assert lab.train(config).code == 0
    assert lab.test(lab.run).code == 0
    left = [path.name for path in lab.run.iterdir() if not path.name.startswith(".")]
    assert [name for name in left if not any(fnmatch.fnmatch(name, p) for p in patterns)] == []
    assert [pattern for pattern in patterns if not fnmatch.filter(left, pattern)] == []


@pytest.mark.slow
def test_the_picture_of_the_readme_can_be_made_again(checkout):
    docs = checkout.root / "docs"
    docs.mkdir()
    (docs / "picture.py").write_text((ROOT / "docs" / "picture.py").read_text(encoding="utf-8"), encoding="utf-8")
    done = checkout.run("docs/picture.py")
    assert done.code == 0, done.err
    assert (docs / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert (docs / "picture.png").stat().st_size < 150_000


def main():
    sys.path.insert(0, str(ROOT))
    text = readme()
    for name, made in (("loop", loop()), ("keys", table())):
        start, end = BETWEEN[name]
        text = re.sub(f"({start}).*?({end})", lambda found, made=made: found[1] + made + found[2], text, flags=re.S)
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
