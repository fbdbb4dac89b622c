"""Holds config.schema.json, by which editors complete and check a config, to the description of the keys.

python tests/test_schema.py    write config.schema.json
"""

import functools
import json
import operator
import re
import sys
from pathlib import Path

import noisy
import pytest
import test_readme
import toy
from jsonschema import Draft202012Validator

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from utils.description import ABSENT, REQUIRED, every_key, keys_in, problems, sections, with_defaults, words_of

ROOT = Path(__file__).resolve().parents[1]
SCHEMA = ROOT / "config.schema.json"
AGAIN = "run `python tests/test_schema.py`, which writes config.schema.json from the description of the keys."

TYPES = {  # what a kind is to JSON Schema
    "text": {"type": "string"},
    "whole": {"type": "integer", "exclusiveMaximum": 2**63},  # below, every key has a limit of its own
    "number": {"type": "number", "exclusiveMaximum": 1e300},
    "switch": {"type": "boolean"},
    "null": {"type": "null"},
    "section": {"type": "object"},
    "args": {"type": "object"},
    "monitor": {"type": "string", "pattern": r"^(off|(min|max)\s+\S+)$"},
    "name": {"type": "string", "pattern": r"^[^/\\\0]*[^/\\\0.][^/\\\0]*$", "maxLength": 200},
}
FOLDER = {"pattern": r"^(?=[\s\S]*\S)[^/\0]{0,255}(/[^/\0]{0,255})*$"}
LIMITS = {">=": "minimum", ">": "exclusiveMinimum", "<=": "maximum", "<": "exclusiveMaximum"}
SEVERAL = {  # objects by name
    "type": "object",
    "minProperties": 1,
    "propertyNames": {"pattern": "^[^.]*$", "not": {"enum": [key.path for key in words_of()]}},
}


def schema():
    """The JSON Schema (draft 2020-12) of a config file."""
    top, trainer = ([key for key in every_key() if key.path.rpartition(".")[0] == at] for at in ("", "trainer"))
    top = [key for key in top if key.kinds != "section"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A config: what to train, on what, and how",
        "$comment": "made by `python tests/test_schema.py`",
        "type": "object",
        "properties": {
            **{key.path: property_of(key) for key in top},
            "trainer": {
                **property_of(keys_in()["trainer"]),
                "properties": {key.path.removeprefix("trainer."): property_of(key) for key in trainer},
                "additionalProperties": False,
            },
        },
        "additionalProperties": False,
        "if": {"required": ["extends"]},
        "else": {
            "required": [*(key.path for key in top if key.default == REQUIRED), "trainer"],
            "properties": {
                **{key.path: whole(key) for key in top if whole(key)},
                "trainer": {
                    "type": "object",
                    "properties": {key.path.removeprefix("trainer."): whole(key) for key in trainer if whole(key)},
                    "anyOf": [
                        {"required": [name], "properties": {name: {"$ref": "#/$defs/given"}}}
                        for name in ("epochs", "max_steps")
                    ],
                },
            },
        },
        "$defs": {
            "object": object_of(()),
            **{section: object_of(words_of(section)) for section in sections() if words_of(section)},
            "given": {"not": {"type": "null"}},
            "whole": {
                "if": {"type": "object"},
                "then": {"required": ["type"], "additionalProperties": {"$ref": "#/$defs/given"}},
            },
            "wholes": {
                "if": SEVERAL,
                "then": {"additionalProperties": {"allOf": [{"$ref": "#/$defs/given"}, {"$ref": "#/$defs/whole"}]}},
                "else": {"$ref": "#/$defs/whole"},
            },
        },
    }


def property_of(key):
    """What a key may be: null, too, which takes away what stands in the config that this one extends."""
    made = {"description": key.text, **({} if key.default in (REQUIRED, ABSENT) else {"default": key.default})}
    kinds = key.kinds.split()
    if kinds == ["anything"]:
        return made
    if key.choices:
        return {**made, "anyOf": [{"enum": list(key.choices)}, {"type": "null"}]}
    if key.path in ("$schema", "extends"):
        return {**made, **TYPES["text"]}
    if set(kinds) <= TYPES.keys():
        for kind in kinds:
            made |= TYPES[kind]
        made |= {LIMITS[sign]: int(limit) for sign, limit in re.findall(r"([<>]=?) (\S+)", key.bounds)}
        types = list(dict.fromkeys([*(TYPES[kind]["type"] for kind in kinds), "null"]))
        return {**made, **(FOLDER if key.path == "trainer.save_dir" else {}), "type": types}
    one = {"$ref": f"#/$defs/{key.path if words_of(key.path) else 'object'}"}
    ways = {"object": one, "objects": {**SEVERAL, "additionalProperties": one}, "list": {"type": "array", "items": one}}
    return {**made, "anyOf": [*(ways[kind] for kind in kinds if kind in ways), {"type": "null"}]}


def object_of(keys):
    """A bare name, or {"type", "args"} and these words."""
    properties = {key.path: property_of(key) for key in (*words_of(), *keys)}
    inside = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"anyOf": [{"type": "string"}, inside, {"type": "null"}]}


def whole(key):
    """What a key has to be beyond `property_of` in a config that extends none, in which nothing is left out or null."""
    kinds = key.kinds.split()
    if key.path in ("$schema", "extends") or "anything" in kinds:
        return {}
    given, one, several = ({"$ref": f"#/$defs/{name}"} for name in ("given", "whole", "wholes"))
    ways = {"objects": several, "object": one, "list": {"items": {"allOf": [given, one]}}}
    all_of = [*([] if "null" in kinds else [given]), *[way for kind, way in ways.items() if kind in kinds][:1]]
    return all_of[0] if len(all_of) == 1 else {"allOf": all_of} if all_of else {}


def text():
    return json.dumps(schema(), indent=4, ensure_ascii=False) + "\n"


def found_by_check(config):
    return list(problems(config))


def refused(config):
    """Whether the file's schema refuses a config, by another's reader."""
    return not Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))).is_valid(config)


def a_config(**sections):
    trainer = {"epochs": 2, "monitor": "min val_loss", **sections.pop("trainer", {})}
    return {
        "name": "sound",
        "arch": "MnistModel",
        "data_loader": {"type": "MnistDataLoader", "args": {"batch_size": 8}},
        "optimizer": {"type": "AdamW", "args": {"lr": 0.1}},
        "loss": "nll_loss",
        **sections,
        "trainer": trainer,
    }


def with_value(path, value):
    """A sound config, but for the value of the key at this path."""
    if path.startswith("trainer."):
        return a_config(trainer={path.removeprefix("trainer."): value})
    several = path == "lr_scheduler" and isinstance(value, dict) and not {"type", "args"} & value.keys()
    by_name = {name: {"type": "SGD"} for name in [*value, "b"]} if several else {}  # as the schedules are
    return {**a_config(), **({"optimizer": by_name} if several else {}), path: value}


VALUES = r"""
[true, false, null, 0, 1, -1, 0.5, -0.5, 1.5, 9223372036854775807, 9223372036854775808, 9e299, 1e300, -1e300]
["", " ", "text", "a/b", "..", "a\u0000b", "off", "min val_loss", "max  x", "min", "least val_loss", "min val loss"]
[[], ["A"], [1], [null], [["A"]], [{"type": "A"}], [{"args": {}}], ["A", {"type": "A", "word": 1}]]
[{}, {"key": 1}, {"epochs": 1}]
[{"type": "A"}, {"type": "A", "args": {}}, {"type": "A", "args": []}, {"type": "A", "args": null}]
[{"type": 1}, {"type": null}, {"args": {}}, {"type": "A", "word": 1}, {"type": "A", "arg": {}}]
[{"a": "A"}, {"a": null}, {"a": 1}, {"a": {"type": "A"}}, {"a": {"args": {}}}, {"a": {"type": "A", "word": 1}}]
[{"type": "A", "name": "x"}, {"type": "A", "name": 1}, {"type": "A", "params": "x"}, {"type": "A", "params": null}]
[{"type": "A", "interval": "step"}, {"type": "A", "interval": "x"}, {"b": {"type": "A", "interval": null}}]
[{"source": {"type": "A"}, "target": {"type": "A", "args": {}}}, {"a.b": "A"}, {"a": "A", "b.": {"type": "A"}}]
"""


def values_for(key):
    """Values of every kind, some of them right, and those beside the key's limits and words.

    No whole number that is written 1.0: it is an integer to JSON Schema, and none to the check.
    """
    limits = [int(limit) for limit in re.findall(r"[<>]=? (\S+)", key.bounds)]
    beside = [limit + by for limit in limits for by in (-1, -0.5, 0, 0.5, 1)]
    words = [form for word in key.choices for form in (word, word + "x", word[1:])]
    anywhere = [value for line in VALUES.strip().splitlines() for value in json.loads(line)]
    return [*anywhere, *("x" * size for size in (200, 201, 255, 256)), *beside, *words]


def test_the_file_is_the_schema_of_the_description():
    assert SCHEMA.read_text(encoding="utf-8") == text(), AGAIN


def test_the_file_is_a_schema():
    Draft202012Validator.check_schema(json.loads(SCHEMA.read_text(encoding="utf-8")))


def test_the_config_of_the_project_names_the_schema_and_fits_it():
    config = json.loads((ROOT / "config.json").read_text(encoding="utf-8"))
    assert next(iter(config.items())) == ("$schema", f"./{SCHEMA.name}")
    assert not refused(config)


@pytest.mark.parametrize("make", [toy.config, noisy.config, noisy.everything], ids=lambda make: make.__qualname__)
def test_a_config_that_the_tests_train_fits_the_schema(make):
    assert not refused(make("saved"))


@pytest.mark.parametrize("name", test_readme.EXAMPLES)
def test_an_example_of_the_readme_fits_the_schema(name):
    assert not refused({**a_config(), **test_readme.example(name)[1]})


def test_a_complete_config_fits_the_schema():
    assert not refused(with_defaults(a_config()))


@pytest.mark.parametrize("key", [key for key in every_key() if key.path != "extends"], ids=lambda key: key.path)
def test_the_schema_refuses_a_value_exactly_where_the_check_does(key):
    configs = {json.dumps(value): with_value(key.path, value) for value in values_for(key)}
    by_check = [value for value, config in configs.items() if found_by_check(config)]
    assert [value for value, config in configs.items() if refused(config)] == by_check
    assert by_check or key.kinds == "anything"
    assert len(by_check) < len(configs)


PLACES = [
    (),
    ("trainer",),
    *[(section,) for section in sections() if section != "metrics"],
    ("metrics", 1),
    *[(section, "a") for section in ("valid_data_loader", "optimizer", "lr_scheduler")],
]


def with_objects(place):
    """A sound config with an object in every section; several by name in the one where `place` wants them."""
    one = {"type": "A", "args": {}}
    config = a_config(**{section: dict(one) for section in sections()}) | {"metrics": ["accuracy", dict(one)]}
    if place[1:] == ("a",):
        config |= {"optimizer": {"a": dict(one), "b": "B"}, "lr_scheduler": {"a": dict(one)}}
        config["valid_data_loader"] = {"a": dict(one), "b": "B"}
    return config


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)) or "top")
def test_the_schema_refuses_an_unknown_key_wherever_the_check_does(place):
    config = with_objects(place)
    assert not refused(config) and not found_by_check(config)
    functools.reduce(operator.getitem, place, config)["of_my_own"] = 1
    assert refused(config) and found_by_check(config)


@pytest.mark.parametrize("place", [("extra",), ("trainer", "args"), ("arch", "args"), ("metrics", 1, "args")])
def test_any_key_may_stand_in_arguments_and_in_extra(place):
    config = with_objects(place) | {"extra": {}}
    config["trainer"]["args"] = {}
    functools.reduce(operator.getitem, place, config)["of_my_own"] = {"type": 1}
    assert not refused(config) and not found_by_check(config)


@pytest.mark.parametrize("left_out", ["name", "arch", "data_loader", "optimizer", "loss", "trainer", "trainer.epochs"])
def test_what_every_run_needs_is_wanted_only_of_a_config_that_extends_none(left_out):
    config = a_config()
    section, _, name = left_out.rpartition(".")
    del (config[section] if section else config)[name]
    assert refused(config) and found_by_check(config)
    assert not refused({"extends": "other.json", **config})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"trainer": {"epochs": None, "max_steps": 5}, "seed": None},
        {"optimizer": {"args": {"lr": 0.1}}, "lr_scheduler": {"interval": None}, "metrics": None},
        {"optimizer": {"head": {"params": "head.*"}}},
        {"trainer": None},
    ],
)
def test_a_config_that_extends_another_may_change_a_part_and_take_away(changes):
    assert not refused({"extends": "other.json", **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"extends": 1},
        {"optimiser": {"args": {}}},
        {"trainer": {"epoch": 1}},
        {"arch": {"arg": {}}},
        {"optimizer": {"type": "SGD", "arg": {}}},
        {"optimizer": {"head": {"param": "head.*"}}},
        {"trainer": {"epochs": "ten"}},
        {"trainer": {"epochs": 0}},
        {"trainer": {"amp": "bf17"}},
    ],
)
def test_a_slip_is_refused_in_a_config_that_extends_another_too(changes):
    assert refused({"extends": "other.json", **changes})


@pytest.mark.parametrize("key", every_key(), ids=lambda key: key.path)
def test_an_editor_finds_what_a_key_means_its_default_its_words_and_its_limits(key):
    found = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for name in key.path.split("."):
        found = found["properties"][name]
    assert found["description"] == key.text
    assert found.get("default", ABSENT) == (ABSENT if key.default == REQUIRED else key.default)
    assert [way["enum"] for way in found.get("anyOf", []) if "enum" in way] == (
        [list(key.choices)] if key.choices else []
    )
    limits = {LIMITS[sign]: int(limit) for sign, limit in re.findall(r"([<>]=?) (\S+)", key.bounds)}
    largest = {"exclusiveMaximum": 2**63 if "whole" in key.kinds else 1e300} if limits else {}
    assert {word: found[word] for word in LIMITS.values() if word in found} == {**largest, **limits}


def main():
    SCHEMA.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main()
