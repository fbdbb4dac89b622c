"""A run's folder: made once, found again, locked while it trains, with what is needed to repeat the run."""

import json
import os
import platform
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import IO

from utils import imports
from utils.errors import CheckpointError, ConfigError

_held: dict[Path, IO[str]] = {}  # folder → its open lock file; the lock is the process's, and goes with it


def create(parent, run_id=None):
    """Make the folder of a new run in `parent`: `run_id`, or the time; with -2, -3 … where another run was first."""
    parent = Path(parent)
    name = run_id or datetime.now().strftime("%Y%m%d-%H%M%S")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for folder in (parent / (name if i == 1 else f"{name}-{i}") for i in range(1, 10_000)):
            try:
                folder.mkdir()
                return folder
            except FileExistsError:
                continue
    except OSError as error:
        raise ConfigError(f"trainer.save_dir: {parent.absolute()} can't be written to: {error.strerror}.") from error
    raise ConfigError(f"trainer.save_dir: {parent.absolute()} holds 10,000 runs of the name {name}.")


def newest_first(parent):
    """The runs in a folder, the latest begun first."""
    begun = {path.parent: _begun(path) for path in Path(parent).glob("*/environment.json")}
    return sorted(begun, key=lambda folder: begun[folder], reverse=True)


def _begun(path):
    return datetime.fromisoformat(json.loads(path.read_text(encoding="utf-8"))["time"])


def checkpoints(folder):
    """The checkpoints of a run that a resume may start from, newest first: latest.pth, then the kept ones by epoch."""
    kept = sorted(kept_checkpoints(folder), reverse=True)
    latest = Path(folder) / "latest.pth"
    return ([latest] if latest.exists() else []) + [path for _, path in kept]


def kept_checkpoints(folder):
    """[(epoch, path)] of the checkpoint-epochN.pth in a run's folder, by number."""
    found = []
    for path in Path(folder).glob("checkpoint-epoch*.pth"):
        number = path.stem.removeprefix("checkpoint-epoch")
        if number.isdecimal():
            found.append((int(number), path))
    return sorted(found)


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


def find_checkpoint(resume, runs_dir, run_id, warn):
    """(path, content) of what -r asks for: a file, a run's folder, "latest" or "auto"; (None, {}): nothing to resume.

    runs_dir: where the runs of this name are. Runs that another process trains are passed over.
    """
    if isinstance(resume, Path) and not resume.is_dir():
        if not resume.exists():
            raise ConfigError(f"-r {resume}: there is no such checkpoint.")
        from utils import checkpoint

        return resume, checkpoint.load(resume, warn)
    folders = [runs_dir / run_id] if run_id else [resume] if isinstance(resume, Path) else newest_first(runs_dir)
    for folder in folders:
        if is_locked(folder):
            warn(f"{folder} is being trained by another process; passed over.")
            continue
        path, content = newest_checkpoint(folder, warn)
        if path is not None and not (resume == "auto" and not run_id and content.get("finished")):
            return path, content
    if resume != "auto":
        raise ConfigError(f"-r {resume}: there is no checkpoint in {runs_dir if resume == 'latest' else resume}.")
    return None, {}


def is_newest(path, content):
    """Whether a checkpoint, with this content, is the newest of its run."""
    latest = path.with_name("latest.pth")
    if not latest.exists() or latest.samefile(path):
        return True
    _, newest = newest_checkpoint(path.parent, lambda line: None)
    return newest.get("step", 0) <= content.get("step", 0)


def config_folders(folder, known):
    """The folders that a run's user modules came from, as far as they are among the `known` ones."""
    path = Path(folder) / "environment.json"
    noted = json.loads(path.read_text(encoding="utf-8")).get("config_folders", []) if path.exists() else []
    return [Path(name) for name in noted if name in known]


def lock(folder):
    """Hold the run's folder for this process, which trains it; ConfigError where another process does."""
    folder = Path(folder).resolve()
    if os.name != "posix" or folder in _held:
        return
    import fcntl

    file = open(folder / ".lock", "a+", encoding="ascii")  # noqa: SIM115 (held until the run ends)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # not inherited by loader workers, unlike flock
    except OSError:
        file.close()
        raise ConfigError(f"{folder}: another process is training this run. Wait for its end or stop it.") from None
    _held[folder] = file


def unlock(folder):
    file = _held.pop(Path(folder).resolve(), None)
    if file is not None:
        file.close()


def is_locked(folder):
    """Whether another process trains this run."""
    path = Path(folder).resolve() / ".lock"
    if os.name != "posix" or Path(folder).resolve() in _held or not path.exists():
        return False
    import fcntl

    with open(path, "a+", encoding="ascii") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def write_environment(folder, **more):
    """environment.json: what, beside the config, made the run what it is. A resume adds its own under "resumes"."""
    path = Path(folder) / "environment.json"
    now = {
        "time": datetime.now().astimezone().isoformat(),
        "command": [sys.executable, *sys.argv],
        **_versions(),
        **more,
    }
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        before.setdefault("resumes", []).append(now)
        now = before
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(now, indent=1), encoding="utf-8")
    os.replace(temporary, path)


def _versions():
    from importlib import metadata

    packages = {d.metadata["Name"]: d.version for d in metadata.distributions()}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "git_commit": _git("rev-parse", "HEAD").strip() or None,
        "git_diff": _git("diff", "HEAD")[:1_000_000] or None,
        "packages": dict(sorted(packages.items(), key=lambda item: str(item[0]).lower())),
    }


def _git(*arguments):
    """What git prints, '' where there is no git or no repository."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=imports.ROOT, capture_output=True, text=True, errors="replace", timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
