"""Config files: what is read, and what is said of one that is not sound."""

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
        ("a.yaml", "trainer:\n  epochs: 1\n  epochs: 2\n"),
        ("a.yml", "trainer: {epochs: 1, epochs: 2}\n"),
    ],
)
def test_a_key_that_stands_twice_is_named(tmp_path, name, text):
    assert "the key 'epochs' stands twice" in message(tmp_path, text, name)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_word_that_json_has_no_number_for_is_refused(tmp_path, word):
    assert f"{word} is not a number that JSON knows" in message(tmp_path, f'{{"lr": {word}}}')


@pytest.mark.parametrize("word", [".nan", ".inf"])
def test_yaml_has_no_numbers_that_json_lacks(tmp_path, word):
    assert "not a number" in message(tmp_path, f"lr: {word}\n", "a.yaml")


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
    with pytest.raises(ConfigError, match=r"none.json: there is no such file. Give a config with -c FILE"):
        config_file.read(tmp_path / "none.json")


def test_a_file_that_is_not_utf8_is_said_to_be_so(tmp_path):
    assert "can't be read as UTF-8" in message(tmp_path, "{}".encode("utf-16"))


def test_a_folder_in_place_of_a_file_is_a_config_error(tmp_path):
    with pytest.raises(ConfigError, match="can't be read"):
        config_file.read(tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-3", 1e-3),
        ("true", True),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ('"3"', "3"),
        ("AdamW", "AdamW"),
        ("saved/", "saved/"),
        ("NaN", "NaN"),
        ("", ""),
    ],
)
def test_a_value_of_the_command_line_is_json_where_it_parses_else_text(text, value):
    found = config_file.value_of(text)
    assert found == value and type(found) is type(value)
