"""What, beside config and seed, made a run what it is: code, packages, machine."""

import platform
import subprocess
from importlib import metadata
from typing import Any

import torch

from utils import imports


def everything():
    """{name: text} for environment.json; git's are None where there is no git or no repository."""
    packages = {d.metadata["Name"]: d.version for d in metadata.distributions()}
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "device": _device(),
        "git_commit": _git("rev-parse", "HEAD").strip() or None,
        "git_diff": _git("diff", "HEAD")[:1_000_000] or None,
        "packages": dict(sorted(packages.items(), key=lambda item: str(item[0]).lower())),
    }


def _device():
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}"
    return str(torch.accelerator.current_accelerator() or "cpu")


def _git(*arguments):
    """What git prints, '' where there is no git or no repository."""
    how: dict[str, Any] = {"text": True, "errors": "replace", "timeout": 20, "stderr": subprocess.DEVNULL}
    try:
        return subprocess.check_output(["git", *arguments], cwd=imports.ROOT, **how)
    except (OSError, subprocess.SubprocessError):
        return ""
