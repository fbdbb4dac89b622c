"""Lines for people: on the console at once, in train.log as soon as there is one."""

import logging
import re

import pytest

from logger import close_log, get_logger, open_log


@pytest.fixture(autouse=True)
def _as_in_a_new_process(monkeypatch):
    """No handler of an earlier test, nothing that waits for a file; afterwards everything as before."""
    monkeypatch.delenv("RANK", raising=False)
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    yield
    close_log()
    root.handlers = before


def lines(path):
    return [line.split(maxsplit=3)[3] for line in path.read_text(encoding="utf-8").splitlines()]


def test_lines_from_before_the_runs_folder_reach_its_log(tmp_path):
    get_logger("early").info("first")
    get_logger("other").warning("second")
    open_log(tmp_path / "train.log")
    get_logger("early").info("third")
    close_log()
    assert lines(tmp_path / "train.log") == ["first", "second", "third"]


def test_a_line_says_when_it_was_written_and_how_grave_it_is(tmp_path):
    get_logger("a").warning("careful")
    open_log(tmp_path / "train.log")
    close_log()
    line = (tmp_path / "train.log").read_text()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  WARNING +careful\n", line)


def test_a_log_that_was_opened_before_anyone_asked_for_a_logger_is_written(tmp_path):
    open_log(tmp_path / "train.log")
    get_logger("a").info("first")
    close_log()
    assert lines(tmp_path / "train.log") == ["first"]


def test_a_resumed_run_appends_to_its_log(tmp_path):
    for text in ("first", "second"):
        get_logger("a")
        open_log(tmp_path / "train.log")
        get_logger("a").info(text)
        close_log()
    assert lines(tmp_path / "train.log") == ["first", "second"]


def test_what_one_run_wrote_is_not_in_the_next_ones_log(tmp_path):
    for name in ("one", "two"):
        get_logger("a")
        open_log(tmp_path / f"{name}.log")
        get_logger("a").info(name)
    close_log()
    assert lines(tmp_path / "two.log") == ["two"]


def test_a_line_is_on_the_console_once_whoever_asks_for_a_logger(capsys):
    get_logger("a")
    get_logger("b")
    get_logger("a").info("hello")
    assert capsys.readouterr().out == "hello\n"


def test_a_warning_says_that_it_is_one(capsys):
    get_logger("a").warning("careful")
    assert capsys.readouterr().out == "warning: careful\n"


@pytest.mark.parametrize(
    ("verbosity", "shown"),
    [(0, "warning: w\n"), (1, "i\nwarning: w\n"), (2, "d\ni\nwarning: w\n"), (9, "d\ni\nwarning: w\n")],
)
def test_verbosity_says_how_much_is_shown(capsys, verbosity, shown):
    logger = get_logger("a", verbosity)
    logger.debug("d")
    logger.info("i")
    logger.warning("w")
    assert capsys.readouterr().out == shown


def test_a_process_that_is_not_the_first_says_errors_only(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    get_logger("a").warning("careful")
    get_logger("a").error("broken")
    assert capsys.readouterr().out == "error: broken\n"
