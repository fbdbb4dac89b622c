"""What is said of a mistake: the nearest name, a value as the config has it, and the code that a script leaves with."""

import errno
import json

import pytest

from utils.errors import ConfigError, Failure, SaveError, Stopped, exit_code, hint, near, shown

# --- names ---


@pytest.mark.parametrize(
    ("name", "meant"),
    [("epoch", "epochs"), ("EPOCHS", "epochs"), ("t_MAX", "T_max"), ("ADAMWW", "AdamW"), ("adam", "Adam"), (3, "3d")],
)
def test_the_nearest_name_is_found_whatever_its_letters_case(name, meant):
    assert near(name, ["epochs", "T_max", "Adam", "AdamW", "3d"]) == f"Did you mean '{meant}'?"


def test_a_name_that_is_like_none_is_answered_with_nothing():
    assert near("zzz", ["epochs", "T_max"]) == near("zzz", []) == ""


def test_a_higher_cutoff_wants_a_nearer_name():
    assert near("dropuot", ["dropout"], cutoff=0.8) and not near("drop", ["dropout"], cutoff=0.8)
    assert near("drop", ["dropout"])


def test_a_hint_is_the_nearest_name_or_else_all_of_them():
    assert hint("epoch", ["epochs", "amp"]) == "Did you mean 'epochs'?"
    assert hint("zzz", ["epochs", "amp"]) == "It accepts epochs, amp."
    assert hint("zzz", []) == "It accepts none."


# --- values ---


@pytest.mark.parametrize("value", [None, True, 0.1, "grün", ["a", 1], {"type": "Net", "args": {}}], ids=str)
def test_a_value_is_shown_as_it_stands_in_a_config(value):
    assert json.loads(shown(value)) == value and "\\u" not in shown(value)


def test_a_long_value_is_cut_and_ends_in_dots():
    assert shown("x" * 200) == '"' + "x" * 78 + "…"
    assert shown("x" * 78) == '"' + "x" * 78 + '"'
    assert shown([1, 2, 3, 4], 5) == "[1, …"


def test_a_value_that_json_has_no_word_for_is_shown_as_text():
    assert shown({"a": ValueError("b")}) == '{"a": "b"}'


# --- the end of a script ---


def raising(error):
    raise error


def test_a_script_that_ends_well_leaves_with_0(capsys):
    assert exit_code(print, "done") == 0
    assert tuple(capsys.readouterr()) == ("done\n", "")


@pytest.mark.parametrize("kind", Failure.__subclasses__())
def test_a_failure_is_told_without_a_traceback_and_leaves_with_its_code(kind, capsys):
    error = Stopped(15, "a\nb") if kind is Stopped else kind("a\nb")
    assert exit_code(raising, error) == error.exit_code
    assert tuple(capsys.readouterr()) == ("", "a\nb\n")


def test_the_traceback_of_a_failure_is_shown_where_it_is_asked_for(capsys):
    assert exit_code(raising, ConfigError("a"), traceback=True) == 2
    err = capsys.readouterr().err
    assert err.startswith("Traceback ") and "in raising" in err and err.endswith("\na\n")


@pytest.mark.parametrize("error", [ValueError("of the user's code"), OSError(errno.ENOENT, "gone")], ids=repr)
def test_an_error_in_the_users_code_is_not_told_but_raised(error, capsys):
    with pytest.raises(type(error)) as caught:
        exit_code(raising, error)
    assert caught.value is error and capsys.readouterr().err == ""


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_disk_that_takes_no_more_is_told_with_the_file(number, capsys):
    assert exit_code(raising, OSError(number, "no space", "saved/latest.pth")) == SaveError.exit_code == 5
    assert capsys.readouterr().err == "saved/latest.pth: could not be written: no space. Make room.\n"


def test_an_interrupt_leaves_with_the_shells_code_and_says_nothing(capsys):
    assert exit_code(raising, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == ""
