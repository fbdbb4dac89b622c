"""Config files: what is read, what one extends, and what is said of one that is not sound."""

import json

import pytest

from utils import config_file
from utils.errors import ConfigError


def read(tmp_path, content, name="config.json"):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return config_file.read(path)


def message(*args):
    with pytest.raises(ConfigError) as caught:
        read(*args)
    return str(caught.value)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["bare", "byte-order mark"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize(
    ("name", "lines"),
    [("a.json", [b"{", '"name": "grün",'.encode(), b'"seed": 3}']), ("a.yaml", ["name: grün".encode(), b"seed: 3"])],
    ids=["JSON", "YAML"],
)
def test_a_file_is_read_with_either_line_ending_and_with_or_without_a_mark(tmp_path, mark, end, name, lines):
    assert read(tmp_path, mark + end.join(lines), name) == {"name": "grün", "seed": 3}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"trainer": {"epochs": 1, "epochs": 2}}'),
        ("a.json", '{"trainer": {"epochs": 1, "epochs": {"lr": 2}}}'),
        ("a.yaml", "trainer:\n  epochs: 1\n  epochs: 2\n"),
        ("a.yml", "trainer: {epochs: 1, epochs: [2]}\n"),
    ],
)
def test_a_key_that_stands_twice_is_named_with_its_path(tmp_path, name, text):
    said = message(tmp_path, text, name)
    assert said == f"{tmp_path / name}: trainer.epochs: stands twice in one object; keep one of them."


def test_a_key_may_stand_in_two_objects(tmp_path):
    assert read(tmp_path, '{"a": {"x": 1}, "b": [{"x": 2}, {"x": 3}]}') == {"a": {"x": 1}, "b": [{"x": 2}, {"x": 3}]}


@pytest.mark.parametrize(
    ("name", "text", "number"),
    [
        ("a.json", '{"optimizer": {"betas": [0.9, NaN]}}', "NaN"),
        ("a.json", '{"optimizer": {"betas": [0.9, Infinity]}}', "Infinity"),
        ("a.json", '{"optimizer": {"betas": [0.9, -Infinity]}}', "-Infinity"),
        ("a.json", '{"optimizer": {"betas": [0.9, 1e999]}}', "Infinity"),
        ("a.yaml", "optimizer:\n  betas: [0.9, .nan]\n", "NaN"),
        ("a.yaml", "optimizer:\n  betas:\n  - 0.9\n  - .inf\n", "Infinity"),
        ("a.yaml", "optimizer: {betas: [0.9, -.inf]}\n", "-Infinity"),
    ],
)
def test_a_number_that_json_lacks_is_named_with_its_path(tmp_path, name, text, number):
    assert message(tmp_path, text, name) == (
        f"{tmp_path / name}: optimizer.betas.1: {number} is not a number that JSON knows; give a finite one."
    )


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", '{"arch": {"type": "Net\\ud83d"}}'), ("a.yaml", 'arch:\n  type: "Net\\ud83d"\n')]
)
def test_half_a_character_is_named_with_its_path(tmp_path, name, text):
    assert message(tmp_path, text, name) == (
        f"{tmp_path / name}: arch.type: 'Net\\ud83d' holds half a character; write it whole."
    )


def test_half_a_character_in_a_key_is_refused(tmp_path):
    assert "half a character" in message(tmp_path, '{"extra": {"Net\\ud83d": 1}}')


@pytest.mark.parametrize("text", ['{"name": "\\ud83d\\ude00"}', '{"name": "😀"}'], ids=["escaped", "as it is"])
def test_a_character_of_two_halves_is_one(tmp_path, text):
    assert read(tmp_path, text) == {"name": "😀"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '{"a": NaN, "b": {"c": 1, "c": 2}, "d": "\\ud83d"}'),
        ("a.yaml", "a: .nan\nb: {c: 1, c: 2}\nd: '1'\nd: 2"),
    ],
)
def test_all_that_a_file_may_not_hold_is_told_at_once(tmp_path, name, text):
    lines = message(tmp_path, text, name).split("\n")
    assert [line.split(": ")[1] for line in lines] == ["a", "b.c", "d"]


@pytest.mark.parametrize("number", ["1e-3", "1E5", "-2.5e+3", "1.e2", ".5e1", "3", "0.25", "-7"])
def test_yaml_reads_a_number_as_python_does(tmp_path, number):
    value = read(tmp_path, f"lr: {number}\n", "a.yaml")["lr"]
    assert value == float(number) and not isinstance(value, str)


@pytest.mark.parametrize("word", ["1e", "e3", "1e-3x", "v1e3"])
def test_yaml_leaves_words_that_only_begin_like_numbers(tmp_path, word):
    assert read(tmp_path, f"name: {word}\n", "a.yaml") == {"name": word}


@pytest.mark.parametrize("word", ["off", "on", "no", "yes"])
def test_yaml_reads_off_as_the_word_that_amp_and_monitor_take(tmp_path, word):
    assert read(tmp_path, f"amp: {word}\n", "a.yaml") == {"amp": word}


def test_yaml_reads_true_false_and_null(tmp_path):
    text = "a: true\nb: false\nc: null\nd:\n"
    assert read(tmp_path, text, "a.yaml") == {"a": True, "b": False, "c": None, "d": None}


def test_yaml_makes_no_objects(tmp_path):
    marker = tmp_path / "ran"
    said = message(tmp_path, f"a: !!python/object/apply:os.system ['touch {marker}']\n", "a.yaml")
    assert "not YAML" in said and not marker.exists()


@pytest.mark.parametrize(("name", "text"), [("a.json", "[1, 2]"), ("a.yaml", "- 1\n- 2\n"), ("a.yaml", "")])
def test_a_file_that_holds_no_sections_is_refused(tmp_path, name, text):
    assert "a config is an object of sections" in message(tmp_path, text, name)


@pytest.mark.parametrize("text", ["", "\n"])
def test_an_empty_json_file_is_refused(tmp_path, text):
    assert "not JSON" in message(tmp_path, text)


def test_a_slip_in_json_is_shown_with_its_line(tmp_path):
    said = message(tmp_path, '{\n  "name": "a"\n  "seed": 1\n}')
    assert 'line 3, column 3: "seed": 1' in said


def test_a_missing_file_is_named_with_what_to_give(tmp_path):
    with pytest.raises(ConfigError, match=r"none.json: No such file or directory. Give a config with -c FILE"):
        config_file.read(tmp_path / "none.json")


def test_a_file_that_is_not_utf8_is_said_to_be_so(tmp_path):
    assert "not UTF-8 text" in message(tmp_path, "{}".encode("utf-16"))


def test_a_folder_in_place_of_a_file_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="Is a directory"):
        config_file.read(tmp_path)


def test_what_yaml_has_and_json_lacks_is_to_be_given_as_text(tmp_path):
    said = message(tmp_path, "name: !!set {a, b}\n", "a.yaml")
    assert said.startswith(f"{tmp_path / 'a.yaml'}: ") and said.endswith("Give it as text.")


def test_a_date_in_yaml_is_text(tmp_path):
    assert read(tmp_path, "name: 2024-01-31\n", "a.yaml") == {"name": "2024-01-31"}


# --- KEY=VALUE ---


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-3", 1e-3),
        ("true", True),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ('{"type": "SGD"}', {"type": "SGD"}),
        ('"3"', "3"),
        ("AdamW", "AdamW"),
        ("saved/", "saved/"),
        ("a=b", "a=b"),
        ("-inf", "-inf"),
        ("", ""),
    ],
)
def test_a_value_of_the_command_line_is_json_where_it_parses_else_text(text, value):
    path, found = config_file.key_and_value(f"optimizer.args.x={text}")
    assert path == "optimizer.args.x" and found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("seed", "'seed' is not KEY=VALUE."),
        ("trainer.amp=True", "trainer.amp: write true, not True."),
        ("trainer.amp=False", "trainer.amp: write false, not False."),
        ("lr_scheduler=None", "lr_scheduler: write null, not None."),
        ("optimizer.args.lr=NaN", "optimizer.args.lr: NaN is not a number that JSON knows; give a finite one."),
        ('extra=[1, {"a": -Infinity}]', "extra.1.a: -Infinity is not a number that JSON knows; give a finite one."),
        ('extra={"a": {"b": 1, "b": 2}}', "extra.a.b: stands twice in one object; keep one of them."),
        ("name=\ud83d", "name: '\\ud83d' holds half a character; write it whole."),
    ],
)
def test_an_override_that_does_not_do_is_named_with_its_path(override, said):
    with pytest.raises(ConfigError) as caught:
        config_file.key_and_value(override)
    assert str(caught.value) == f"command line: {said}"


# --- one file extends another ---


@pytest.fixture
def write(tmp_path):
    """Write a config into tmp_path by its file's name; returns the path."""

    def write(file, /, **config):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(config))
        return path

    return write


def refusal(path):
    with pytest.raises(ConfigError) as caught:
        config_file.resolve(path)
    return str(caught.value)


def test_a_file_that_extends_none_is_what_it_says(write):
    path = write("a.json", name="a", optimizer={"type": "SGD", "args": {"lr": 1}})
    assert config_file.resolve(path)[:2] == (
        {"name": "a", "optimizer": {"type": "SGD", "args": {"lr": 1}}},
        {"name": "a.json", "optimizer.type": "a.json", "optimizer.args.lr": "a.json"},
    )


def test_a_chain_of_three_is_merged_from_the_far_end(write):
    write("far.json", name="far", seed=1, trainer={"epochs": 1, "amp": "off", "monitor": "off"}, metrics=["a", "b"])
    write("middle.json", extends="far.json", seed=2, trainer={"epochs": 2, "amp": "bf16"})
    near = write("near.json", extends="middle.json", trainer={"epochs": 3}, metrics=["c"])
    assert config_file.resolve(near)[0] == {
        "name": "far",
        "seed": 2,
        "trainer": {"epochs": 3, "amp": "bf16", "monitor": "off"},
        "metrics": ["c"],
    }


def test_the_origin_of_a_value_is_the_last_file_that_set_it(write):
    write("far.json", name="far", seed=1, trainer={"epochs": 1, "amp": "off", "monitor": "off"})
    write("middle.json", extends="far.json", seed=2, trainer={"epochs": 2, "amp": "bf16"})
    near = write("near.json", extends="middle.json", trainer={"epochs": 3})
    assert config_file.resolve(near)[1] == {
        "name": "far.json",
        "seed": "middle.json",
        "trainer.monitor": "far.json",
        "trainer.amp": "middle.json",
        "trainer.epochs": "near.json",
    }


def test_what_a_middle_file_takes_away_a_nearer_one_gives_anew(write):
    write("far.json", lr_scheduler={"type": "StepLR", "args": {"step_size": 1}})
    write("middle.json", extends="far.json", lr_scheduler=None)
    near = write("near.json", extends="middle.json", lr_scheduler={"args": {"gamma": 0.5}, "type": "StepLR"})
    assert config_file.resolve(near)[0] == {"lr_scheduler": {"args": {"gamma": 0.5}, "type": "StepLR"}}


def test_what_a_nearer_file_drops_has_no_origin(write):
    write("base.json", arch={"type": "Net", "args": {"classes": 3}}, metrics=["a", "b"])
    config, origins, _ = config_file.resolve(
        write("a.json", extends="base.json", arch={"type": "Other"}, metrics=["c"])
    )
    assert config == {"arch": {"type": "Other"}, "metrics": ["c"]}
    assert origins == {"arch.type": "a.json", "metrics.0": "a.json"}


def test_a_file_that_only_extends_is_the_origin_of_nothing(write):
    write("base.json", name="base")
    assert config_file.resolve(write("a.json", extends="base.json"))[:2] == ({"name": "base"}, {"name": "base.json"})


def test_a_path_is_relative_to_the_file_that_names_it(write, tmp_path, monkeypatch):
    write("shared/far.json", name="far")
    write("shared/middle.json", extends="far.json", seed=2)
    near = write("near.json", extends="shared/middle.json")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert config_file.resolve(near)[0] == {"name": "far", "seed": 2}


def test_an_absolute_path_is_taken_as_it_is(write, tmp_path):
    far = write("shared/far.json", name="far")
    assert config_file.resolve(write("near.json", extends=str(far)))[0] == {"name": "far"}


def test_yaml_extends_json_and_json_yaml(write, tmp_path):
    write("far.json", seed=1, trainer={"epochs": 1, "amp": "bf16"})
    (tmp_path / "middle.yaml").write_text("extends: far.json\ntrainer:\n  amp: off\n")
    near = write("near.json", extends="middle.yaml", name="near")
    assert config_file.resolve(near)[:2] == (
        {"seed": 1, "trainer": {"epochs": 1, "amp": "off"}, "name": "near"},
        {"seed": "far.json", "trainer.epochs": "far.json", "trainer.amp": "middle.yaml", "name": "near.json"},
    )


def test_the_editors_schema_is_no_part_of_the_config(write):
    write("base.json", **{"$schema": "far/config.schema.json"}, name="base")
    near = write("near.json", **{"$schema": "../config.schema.json", "extends": "base.json"}, seed=1)
    assert config_file.resolve(near)[0] == {"name": "base", "seed": 1}


def test_a_file_that_extends_itself_is_refused(write):
    path = write("a.json", extends="a.json")
    assert refusal(path) == f"{path}: extends: 'a.json' extends this file in turn. Take one of the two out."


def test_files_that_extend_each_other_are_refused(write):
    write("a.json", extends="b.json")
    write("b.json", extends="folder/../c.json")
    write("folder/d.json")
    path = write("c.json", extends="a.json")
    said = refusal(path)
    assert "b.json: extends: 'folder/../c.json' extends this file in turn" in said


def test_a_file_that_is_not_there_is_named_beside_the_one_that_extends_it(write, tmp_path):
    path = write("a.json", extends="bass.json")
    assert refusal(path) == (
        f"{path}: extends: there is no file {tmp_path / 'bass.json'}. Give the path of a config, relative to this one."
    )


@pytest.mark.parametrize("name", ["", ".", "x" * 300, "a\0b"], ids=["empty", "a folder", "too long", "a null byte"])
def test_what_no_file_can_be_called_is_no_file(write, name):
    assert "extends: there is no file" in refusal(write("a.json", extends=name))


@pytest.mark.parametrize(("value", "shown"), [(3, "3"), (True, "true"), (["b.json"], '["b.json"]'), ({}, "{}")])
def test_what_is_not_a_path_is_refused(write, value, shown):
    path = write("a.json", extends=value)
    assert refusal(path) == f"{path}: extends: {shown} is no path. Give the path of a config, relative to this one."


def test_a_slip_in_an_extended_file_is_told_with_its_own_path(write, tmp_path):
    (tmp_path / "base.json").write_text('{"trainer": {"epochs": 1, "epochs": 2}}')
    assert refusal(write("a.json", extends="base.json")).startswith(f"{tmp_path / 'base.json'}: trainer.epochs: stands")
