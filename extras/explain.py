"""What an error in the user's part of a run most likely means, with what the model and the criterion had met."""

import copy
import pickle
import re

import torch

from extras.tables import pairs
from utils.description import sections, spelt_out
from utils.errors import Failure, first_line, shown


def explained(error, trainer):
    """What there is to say of an error that was raised in training: with what, and what to do."""
    batch, lines = getattr(trainer, "batch", None), [f"with\n{parts(trainer._parsed.config)}"]
    for section, loader in trainer._loaders().items() if "pickle" in str(error).lower() else ():
        for name in ("dataset", "collate_fn", "worker_init_fn", "transform"):
            if loader.num_workers and (why := _not_picklable(getattr(loader, name))):
                how = "Define it at the top of a module, no lambda and no function inside one; or take num_workers=0."
                lines.append(f"{section}.args.{name}: can't be sent to worker processes: {why}. {how}")
    if batch is not None:
        inputs, target = batch if isinstance(batch, (tuple, list)) and len(batch) == 2 else (batch, None)
        weights = next((str(p.dtype).removeprefix("torch.") for p in trainer.model.parameters()), "none")
        lines.append(f"inputs {described(inputs)}; target {described(target)}{_reach(target)}; weights {weights}")
        if target is None:
            lines.append("A batch is no (inputs, target): say in inputs_and_target of your Trainer what is what.")
        lines += _advice(error)
    return "\n".join(lines)


def _advice(error):
    """[what to do], by the error's text; the first that fits."""
    return [words for pattern, words in pairs("advice.txt") if re.search(pattern, str(error))][:1]


def parts(config):
    """The objects that a config names, a line a section."""
    lines = [(name, value) for name, value in spelt_out(config).items() if name in sections() and value]
    return "\n".join(f"  {name:<18} {shown(value)}" for name, value in lines)


def described(value):
    """Shapes and dtypes of the tensors in a batch or an output, as text."""
    if isinstance(value, torch.Tensor):
        return f"({', '.join(map(str, value.shape))}) {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {described(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(described, value[:4])) + (", …" if len(value) > 4 else "")
    return type(value).__name__


def watch_labels(trainer):
    """On the first batch, before the device does: raise a Failure where the criterion refuses the labels.

    CUDA only says "device-side assert" and is lost for the process; the same criterion on the CPU says which label.
    """

    def check(module, inputs, output):
        handle.remove()
        try:
            target, criterion = _on_host(trainer.batch[1]), copy.deepcopy(trainer.criterion)  # with its class weights
            criterion = criterion.cpu() if isinstance(criterion, torch.nn.Module) else criterion
            criterion(_on_host(output), target)
        except IndexError as error:
            said = f"{first_line(error)} The labels of the first batch go{_reach(target)}."
            raise Failure(f"data_loader: {said} {' '.join(_advice(error))}") from error
        except Exception:
            pass

    handle = trainer.model.register_forward_hook(check)


def _on_host(value):
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def _reach(target):
    """The range of integer labels, as text."""
    if not isinstance(target, torch.Tensor) or target.is_floating_point() or target.is_cuda or target.numel() == 0:
        return ""  # CUDA may be lost by then
    return f" from {int(target.min())} to {int(target.max())}"


def _not_picklable(part):
    try:
        pickle.dumps(part)
    except Exception as error:  # whatever a class raises when it is pickled
        return first_line(error)
    return ""
