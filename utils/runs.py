"""A run's folder: made once, found again, locked while it trains, with what is needed to repeat the run."""

import itertools
import os
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from utils import config_file, imports
from utils.errors import CheckpointError, ConfigError
from utils.util import write_json

_held: dict = {}  # folder → its open lock file; the lock is the process's, and goes with it


def create(parent, run_id=None):
    """Make the folder of a new run in `parent`: `run_id`, or the time; with -2, -3 … where another run was first."""
    parent = Path(parent)
    name = run_id or datetime.now().strftime("%Y%m%d-%H%M%S")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for i in itertools.count(1):
            with suppress(FileExistsError):
                folder = parent / (name if i == 1 else f"{name}-{i}")
                folder.mkdir()
                return folder
    except OSError as error:
        raise ConfigError(f"trainer.save_dir: {parent.absolute()} can't be written to: {error.strerror}.") from error


def newest_first(parent):
    """The runs in a folder, the latest begun first."""
    noted = Path(parent).glob("*/environment.json")
    begun = {path.parent: datetime.fromisoformat(config_file.read(path)["time"]) for path in noted}
    return sorted(begun, key=begun.__getitem__, reverse=True)


def checkpoints(folder):
    """The checkpoints of a run that a resume may start from, newest first: latest.pth, then the kept ones by epoch."""
    kept = [path for _, path in reversed(kept_checkpoints(folder))]
    return [path for path in (Path(folder) / "latest.pth", *kept) if path.exists()]


def kept_checkpoints(folder):
    """[(epoch, path)] of the checkpoint-epochN.pth in a run's folder, by number."""
    named = {path.stem.removeprefix("checkpoint-epoch"): path for path in Path(folder).glob("checkpoint-epoch*.pth")}
    return sorted((int(number), path) for number, path in named.items() if number.isdecimal())


def newest_checkpoint(folder, warn):
    """(path, content) of a run's newest sound checkpoint, (None, {}) where it holds none at all.

    An unsound one is named with `warn` and passed over; CheckpointError where all are.
    """
    from utils import checkpoint

    refused = []
    for path in checkpoints(folder):
        try:
            return path, checkpoint.load(path, warn)
        except CheckpointError as error:
            refused.append(str(error).split("\n")[0])
            warn(refused[-1])
    if refused:
        raise CheckpointError("\n".join([f"{Path(folder).absolute()}: no checkpoint can be read:", *refused[:4]]))
    return None, {}


def find_checkpoint(resume, runs_dir, run_id, warn, trust=False):
    """(path, content) of what -r asks for: a file, a run's folder, "latest" or "auto"; (None, {}): nothing to resume.

    runs_dir: where the runs of this name are. Runs that another process trains are passed over; ConfigError if it is
    the one that was named. trust: a file may also be one of pytorch-template's own.
    """
    if isinstance(resume, Path) and not resume.is_dir():
        if not resume.exists():
            raise ConfigError(f"-r {resume}: there is no such checkpoint.")
        from utils import checkpoint

        reader = imports.optional("extras.old_checkpoints", "--trust") if trust else checkpoint
        return resume, reader.load(resume, warn)
    named = resume if isinstance(resume, Path) else runs_dir / run_id if run_id else None
    for folder in [named] if named else newest_first(runs_dir):
        if is_locked(folder):
            if named:
                lock(folder)
            warn(f"{folder} is being trained by another process; passed over.")
            continue
        path, content = newest_checkpoint(folder, warn)
        if path is not None and not (resume == "auto" and not named and content.get("finished")):
            return path, content
    if resume != "auto":
        raise ConfigError(f"-r {resume}: there is no checkpoint in {named or runs_dir}.")
    return None, {}


def agreed_checkpoint(resume, runs_dir, run_id, warn, trust=False):
    """The same; of several processes the first finds it and all others read that file."""
    from utils import processes

    found = []

    def find():
        found.extend(find_checkpoint(resume, runs_dir, run_id, warn, trust))
        return found[0]

    processes.join()
    path = processes.from_main(find)
    return found or ((None, {}) if path is None else find_checkpoint(path, None, None, warn, trust))


def is_newest(path, content):
    """Whether a checkpoint, with this content, is in a run's folder and the newest there."""
    if not (path.parent / "environment.json").exists():
        return False
    newest = {}
    if not (path.parent / "latest.pth").exists() or not path.samefile(path.parent / "latest.pth"):
        with suppress(CheckpointError):  # where all others are damaged, this one is the newest
            newest = newest_checkpoint(path.parent, lambda line: None)[1]
    newest_stands, stands = ((one.get("epoch", 0), one.get("step", 0)) for one in (newest, content))
    return newest_stands <= stands


def config_folders(folder, known):
    """The folders that a run's user modules came from, as far as they are among the `known` ones."""
    path = Path(folder) / "environment.json"
    noted = config_file.read(path).get("config_folders", []) if path.exists() else []
    return [Path(name) for name in noted if name in known]


def lock(folder):
    """Hold the run's folder for this process, which trains it; ConfigError where another process does."""
    if not _held_by_us(folder):
        raise ConfigError(f"{folder}: another process is training this run. Wait for its end or stop it.")


def unlock(folder):
    if file := _held.pop(Path(folder).resolve(), None):
        file.close()


def is_locked(folder):
    """Whether another process trains this run."""
    folder = Path(folder).resolve()
    if folder in _held or not (folder / ".lock").exists():
        return False
    ours = _held_by_us(folder)
    unlock(folder)
    return not ours


def _held_by_us(folder):
    """Take the folder's lock; False where another process has it."""
    folder = Path(folder).resolve()
    if os.name == "posix" and folder not in _held:
        import fcntl

        file = open(folder / ".lock", "a+", encoding="ascii")  # noqa: SIM115 (held until the run ends)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not inherited by loader workers, unlike flock
        except OSError:
            file.close()
            return False
        _held[folder] = file
    return True


def write_environment(folder, **more):
    """environment.json: what, beside the config, made the run what it is. A resume adds its own under "resumes"."""
    path = Path(folder) / "environment.json"
    now = {"time": datetime.now().astimezone().isoformat(), "command": [sys.executable, *sys.argv], **more}
    now |= imports.extra("versions", "everything", dict)()
    if path.exists():
        first = config_file.read(path)
        now = {**first, "resumes": [*first.get("resumes", []), now]}
    write_json(now, path)
