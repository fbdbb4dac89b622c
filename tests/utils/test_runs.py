"""A run's folder: made once, found again, locked while it trains."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from utils import checkpoint, runs
from utils.errors import CheckpointError, ConfigError

ROOT = Path(__file__).resolve().parents[2]


def python(program, *arguments, **more):
    """A Python of its own that runs `program` in the project."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE, text=True, **more
    )


# --- a new folder ---


def test_processes_that_begin_runs_at_once_get_folders_of_their_own(tmp_path):
    program = "import sys; from utils import runs\nfor _ in range(25): print(runs.create(sys.argv[1], 'now').name)"
    racing = [python(program, tmp_path) for _ in range(4)]
    made = [name for process in racing for name in process.communicate(timeout=60)[0].split()]
    assert sorted(made) == sorted(["now", *(f"now-{i}" for i in range(2, 101))])


def test_a_run_is_called_by_the_time(tmp_path):
    assert re.fullmatch(r"\d{8}-\d{6}", runs.create(tmp_path).name)


def test_the_folders_above_a_run_are_made(tmp_path):
    assert runs.create(tmp_path / "a" / "b", "run").is_dir()


def test_a_place_that_can_not_be_written_to_is_a_config_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"trainer.save_dir: .*file.* can't be written to"):
        runs.create(tmp_path / "file" / "runs")


# --- finding runs and checkpoints ---


def begun(parent, name, time):
    (parent / name).mkdir()
    (parent / name / "environment.json").write_text(json.dumps({"time": time}))


def test_runs_are_ordered_by_when_they_began_not_by_name(tmp_path):
    begun(tmp_path, "b", "2024-01-02T00:00:00+00:00")
    begun(tmp_path, "a", "2024-01-03T00:00:00+00:00")
    begun(tmp_path, "c", "2024-01-02T23:00:00-05:00")  # 04:00 of the third in UTC
    (tmp_path / "no run").mkdir()
    assert [folder.name for folder in runs.newest_first(tmp_path)] == ["c", "a", "b"]


def test_where_there_are_no_runs_none_is_found(tmp_path):
    assert runs.newest_first(tmp_path / "nowhere") == []


def with_checkpoints(folder, *names):
    for name in names:
        (folder / name).write_text("")
    return folder


def test_kept_checkpoints_are_ordered_by_number(tmp_path):
    with_checkpoints(tmp_path, "checkpoint-epoch10.pth", "checkpoint-epoch9.pth", "checkpoint-epoch100.pth")
    with_checkpoints(tmp_path, "checkpoint-epochlast.pth", "model_best.pth", "latest.pth")
    assert [epoch for epoch, _ in runs.kept_checkpoints(tmp_path)] == [9, 10, 100]


def test_a_resume_takes_the_latest_then_the_kept_ones_newest_first(tmp_path):
    with_checkpoints(tmp_path, "checkpoint-epoch2.pth", "checkpoint-epoch10.pth", "model_best.pth", "latest.pth")
    names = [path.name for path in runs.checkpoints(tmp_path)]
    assert names == ["latest.pth", "checkpoint-epoch10.pth", "checkpoint-epoch2.pth"]


def sound(folder, *names):
    for name in names:
        checkpoint.save({"name": name}, folder / name)


def test_a_broken_checkpoint_is_named_and_passed_over(tmp_path):
    sound(tmp_path, "checkpoint-epoch2.pth")
    with_checkpoints(tmp_path, "latest.pth", "checkpoint-epoch10.pth")  # empty
    lines = []
    path, content = runs.newest_checkpoint(tmp_path, lines.append)
    assert path.name == content["name"] == "checkpoint-epoch2.pth"
    assert ["latest.pth" in lines[0], "checkpoint-epoch10.pth" in lines[1], len(lines)] == [True, True, 2]


def test_the_newest_of_sound_checkpoints_is_taken(tmp_path):
    sound(tmp_path, "checkpoint-epoch2.pth", "checkpoint-epoch10.pth")
    path, _ = runs.newest_checkpoint(tmp_path, lambda line: None)
    assert path.name == "checkpoint-epoch10.pth"


def test_a_run_whose_checkpoints_are_all_broken_is_a_checkpoint_error(tmp_path):
    with_checkpoints(tmp_path, "latest.pth")
    with pytest.raises(CheckpointError, match="no checkpoint can be read"):
        runs.newest_checkpoint(tmp_path, lambda line: None)


def test_a_run_without_checkpoints_has_no_newest(tmp_path):
    assert runs.newest_checkpoint(tmp_path, lambda line: None) == (None, {})


def test_the_newest_unfinished_run_is_the_one_that_auto_goes_on_with(tmp_path):
    for day, finished in (("1", False), ("2", False), ("3", True)):
        begun(tmp_path, day, f"2024-01-0{day}T00:00:00+00:00")
        checkpoint.save({"finished": finished}, tmp_path / day / "latest.pth")
    path, _ = runs.find_checkpoint("auto", tmp_path, None, lambda line: None)
    assert path.parent.name == "2"


def test_the_latest_run_is_taken_whether_it_is_finished_or_not(tmp_path):
    for day, finished in (("1", False), ("2", True)):
        begun(tmp_path, day, f"2024-01-0{day}T00:00:00+00:00")
        checkpoint.save({"finished": finished}, tmp_path / day / "latest.pth")
    path, _ = runs.find_checkpoint("latest", tmp_path, None, lambda line: None)
    assert path.parent.name == "2"


def test_where_there_is_no_run_auto_begins_one_and_latest_is_a_config_error(tmp_path):
    assert runs.find_checkpoint("auto", tmp_path, None, lambda line: None) == (None, {})
    with pytest.raises(ConfigError, match="-r latest"):
        runs.find_checkpoint("latest", tmp_path, None, lambda line: None)


# --- the lock ---


@pytest.fixture
def locked(tmp_path):
    runs.lock(tmp_path)
    yield tmp_path
    runs.unlock(tmp_path)


SEEN_ELSEWHERE = "import sys; from utils import runs; print(runs.is_locked(sys.argv[1]))"


def is_locked_for_another(folder):
    return python(SEEN_ELSEWHERE, folder).communicate(timeout=60)[0].strip() == "True"


def test_another_process_sees_the_lock(locked):
    assert is_locked_for_another(locked)


def test_another_process_sees_when_the_lock_is_given_back(locked):
    runs.unlock(locked)
    assert not is_locked_for_another(locked)


def test_another_process_can_not_train_a_locked_run(locked):
    program = "import sys; from utils import runs; runs.lock(sys.argv[1])"
    process = python(program, locked, stderr=subprocess.PIPE)
    assert "another process is training this run" in process.communicate(timeout=60)[1]


def test_the_process_itself_does_not_take_its_own_run_for_anothers(locked):
    assert not runs.is_locked(locked)
    assert is_locked_for_another(locked)  # and asking has not given the lock away


def test_a_lock_ends_with_its_process_and_not_with_a_child_of_it(tmp_path):
    program = f"""
import os, subprocess, sys
from utils import runs
runs.lock(sys.argv[1])
if os.fork() == 0:
    os._exit(0)
os.wait()
print(subprocess.run([sys.executable, "-c", {SEEN_ELSEWHERE!r}, sys.argv[1]], capture_output=True, text=True).stdout)
"""
    assert python(program, tmp_path).communicate(timeout=60)[0].strip() == "True"
    assert not runs.is_locked(tmp_path)


# --- what a run was made with ---


def test_a_runs_environment_says_when_and_with_what_it_began(tmp_path):
    runs.write_environment(tmp_path, config_folders=["here"])
    noted = json.loads((tmp_path / "environment.json").read_text())
    assert noted["config_folders"] == ["here"] and "numpy" in noted["packages"] and noted["command"][1:] == sys.argv


def test_a_resume_adds_to_the_environment_and_changes_nothing_there(tmp_path):
    runs.write_environment(tmp_path)
    before = json.loads((tmp_path / "environment.json").read_text())
    runs.write_environment(tmp_path, changes=["lr"])
    after = json.loads((tmp_path / "environment.json").read_text())
    assert after.pop("resumes")[0]["changes"] == ["lr"] and after == before
