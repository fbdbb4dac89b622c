"""How often "Did you mean …?" is right: every name that a config can hold, with one letter wrong."""

import copy
import importlib
import inspect
import json
import random
import re
import string
from collections import Counter
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from parse_config import ConfigParser
from utils.description import every_key, homes, sections, with_defaults, words_of
from utils.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
BY_THE_CODE = {"optimizer": {"params"}, "lr_scheduler": {"optimizer"}, "data_loader": {"dataset"}}


def a_config():
    """The project's config, complete."""
    config = json.loads((ROOT / "config.json").read_text(encoding="utf-8"))
    del config["$schema"]
    return with_defaults(config)


def one_letter_wrong(word, others):
    """Every deletion, every swap of neighbours, three substitutions and three insertions that are no other's name."""
    draw = random.Random(word)
    letters = string.ascii_lowercase + "_"
    anywhere = [(draw.randrange(len(word)), draw.choice(letters)) for _ in range(6)]
    made = [word[:i] + word[i + 1 :] for i in range(len(word))]
    made += [word[:i] + word[i + 1] + word[i] + word[i + 2 :] for i in range(len(word) - 1)]
    made += [word[:i] + letter + word[i + 1 :] for i, letter in anywhere[:3]]
    made += [word[:i] + letter + word[i:] for i, letter in anywhere[3:]]
    return sorted({form for form in made if form and form not in (word, *others)})


def suggested(config, path):
    """What the command's check suggests for the name at a dotted path; None where it suggests nothing."""
    with pytest.raises(ConfigError) as caught:
        ConfigParser(config).check()
    lines = [line for line in str(caught.value).splitlines() if line.startswith(f"config: {path}: ")]
    found = [re.search(r"Did you mean '(.*?)'\?", line) for line in lines]
    return next((match[1] for match in found if match), None)


def renamed(holder, name, form):
    """Put `form` in the place of the key, whether it is there or left out."""
    holder[form] = holder.pop(name, 1)


def keys():
    """(right name, wrong name, what is suggested) of every key, at the top and in `trainer`."""
    for key in every_key():
        section, _, name = key.path.rpartition(".")
        others = [other.path.rpartition(".")[2] for other in every_key() if other.path.rpartition(".")[0] == section]
        for form in one_letter_wrong(name, others if section else [*others, "trainer"]):
            config = a_config()
            renamed(config[section] if section else config, name, form)
            yield name, form, suggested(config, f"{section}.{form}".lstrip("."))


def words():
    """The same of every word of an object, in every section."""
    for section in sections():
        known = ["type", "args", *(key.path for key in words_of(section))]
        for name in known:
            for form in one_letter_wrong(name, known):
                one = {"type": "A", "args": {}}
                renamed(one, name, form)
                config = a_config() | {section: [one] if section == "metrics" else one}
                yield name, form, suggested(config, f"{section}{'.0' if section == 'metrics' else ''}.{form}")


def public(home):
    """The names of what a module defines, it or its parts."""
    found = vars(importlib.import_module(home)).items()
    return [
        name
        for name, value in found
        if not name.startswith("_") and callable(value) and f"{value.__module__}.".startswith(f"{home}.")
    ]


def types():
    """The same of every class and function that a section's home defines."""
    for section in ("optimizer", "lr_scheduler", "arch", "loss", "metrics", "data_loader", "trainer"):
        known = public(homes()[section])
        for name in known:
            for form in one_letter_wrong(name, known):
                config = a_config()
                if section == "metrics":
                    config["metrics"] = [{"type": form, "args": {}}]
                else:
                    config[section]["type"] = form
                yield name, form, suggested(config, f"{section}{'.0' if section == 'metrics' else ''}.type")


def arguments():
    """The same of every argument that the objects of the project's config take."""
    for section in ("data_loader", "arch", "optimizer", "lr_scheduler"):
        made = getattr(importlib.import_module(homes()[section]), a_config()[section]["type"])
        taken = [*inspect.signature(made).parameters.values()]
        if section == "data_loader":  # what its **kwargs pass on
            taken += inspect.signature(DataLoader).parameters.values()
        known = {p.name for p in taken if p.kind is not p.VAR_KEYWORD} - BY_THE_CODE.get(section, set())
        for name in sorted(known):
            for form in one_letter_wrong(name, known):
                config = copy.deepcopy(a_config())
                renamed(config[section]["args"], name, form)
                yield name, form, suggested(config, f"{section}.args.{form}")


def test_of_names_with_one_letter_wrong_nineteen_in_twenty_are_told_right():
    right, wrong = Counter(), []
    for kind in (keys, words, types, arguments):
        for name, form, found in kind():
            if found == name:
                right[kind.__name__] += 1
            else:
                wrong.append(f"{kind.__name__}: '{form}' for '{name}' gave {found!r}")
    assert all(right[kind.__name__] > 100 for kind in (keys, words, types, arguments)), right
    assert right.total() >= 0.95 * (right.total() + len(wrong)), (right, len(wrong), wrong)
