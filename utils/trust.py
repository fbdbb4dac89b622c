"""Which objects a checkpoint's own config may name. A config that you give with -c is yours and is not judged here.

An object is judged by where it is *defined*, not by the path written, so that a path through a harmless module does not
reach a harmful function.
"""

import inspect
import sys
from pathlib import Path

SCRIPTS = {"train", "test", "predict", "export", "tune", "compare", "new_project", "parse_config"}
NEVER = {"utils", "base", "logger", "extras", "tests", "benchmarks", "docs", *SCRIPTS}
OURS = {"model", "data_loader", "trainer"}
# Modules, each with a dot behind it, so that "torch.nn." is not the beginning of "torch.nnx.".
OF_TORCH = ("torch.nn.", "torch.optim.", "torch.utils.data._utils.collate.")
OF_OTHERS = ("torchvision.models.", "torchvision.transforms.", "torchvision.ops.", "torchmetrics.")
CLASSES_OF = ("torch.utils.data.", "torchvision.datasets.")
NOT_OF = "torch.utils.data.datapipes."


def may_import(name):
    """Whether a module of this name may be imported to look for an object: not Python's own, none of our tools."""
    top = name.partition(".")[0]
    return top not in sys.stdlib_module_names and top not in NEVER


def is_allowed(found, path, folders):
    """Whether a checkpoint's config may use `found`, which it named by the dotted `path`.

    folders: the user's import folders; what is defined in a file there is the user's own.
    """
    import torch

    module = getattr(found, "__module__", None) or ""
    if path == "torch.Generator" or (path.startswith("torch.nn.functional.") and inspect.isbuiltin(found)):  # made in C
        return True
    if not (inspect.isclass(found) or inspect.isroutine(found)) or not may_import(module):
        return False
    if module.partition(".")[0] in OURS or _is_in_a_users_file(module, folders):
        return True
    within = f"{module}."
    if within.startswith(OF_TORCH + OF_OTHERS):
        return True
    if within.startswith(NOT_OF) or not inspect.isclass(found):
        return False
    bases = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.utils.data.Sampler)
    return within.startswith(CLASSES_OF) or issubclass(found, bases)


def _is_in_a_users_file(module, folders):
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or {"site-packages", "dist-packages"} & set(Path(file).parts):
        return False
    return any(Path(file).resolve().is_relative_to(Path(folder).resolve()) for folder in folders)
