"""`python train.py … --dry-run`: one training and one validation batch, and what they met; nothing is written."""

import sys

import torch

from extras.explain import described, parts
from utils import inf_loop, optim, processes
from utils.checkpoint import unwrapped
from utils.errors import ConfigError, Failure

MIB = 2**20
ASIDE = ("lr", "samples_per_second", "data_wait")  # numbers of an epoch that one batch does not tell


def show(trainer):
    """Run one batch through a complete trainer and print data, layers, memory and numbers; return the numbers."""
    say = print if processes.is_main() else lambda line: None
    loaders = trainer._loaders()
    for name, loader in loaders.items():
        say(f"data     {name}: {type(loader.dataset).__name__}, {_sizes(loader)}")
    _keep_first_batches(trainer)
    layers = {name: module for name, module in unwrapped(trainer.model).named_modules() if _is_layer(module)}
    outputs: dict[str, str] = {}
    hooks = [module.register_forward_hook(_noting(outputs, name)) for name, module in layers.items()]
    try:
        for loader in list(loaders.values())[:1]:
            say(f"batch    {described(next(iter(loader.first_batches(1)), None))}")
        numbers = trainer._run_epoch(1)
    except Exception as error:
        if not isinstance(error, Failure):
            say(parts(trainer._parsed.config))
        raise
    finally:  # where a layer raises, those before it are what one wants to see
        say(_table(trainer.model, layers, outputs))
        for hook in hooks:
            hook.remove()
        for loader in trainer._loaders().values():
            loader.close()
    if trainer.mnt_metric and trainer.mnt_metric not in numbers:
        there = ", ".join(name for name, value in numbers.items() if isinstance(value, float))
        raise ConfigError(f"trainer.monitor: nothing measured '{trainer.mnt_metric}'; there is {there}.")
    say(f"memory   {_memory(trainer)}")
    told = [f"{name} {value:.4g}" for name, value in numbers.items() if name not in ASIDE and isinstance(value, float)]
    say(f"numbers  {'  '.join(told)}")
    return numbers


def _keep_first_batches(trainer):
    """Leave a batch in every loader, and write nothing."""
    for name, value in list(vars(trainer).items()):
        if isinstance(value, dict):
            setattr(trainer, name, {key: _first_batch(inner) for key, inner in value.items()})
        elif isinstance(value, inf_loop):
            setattr(trainer, name, inf_loop(_first_batch(value.data_loader)))
        else:
            setattr(trainer, name, _first_batch(value))
    trainer.len_epoch = 1
    trainer.settings["valid_period"] = 1
    trainer.writer.enabled = False


def _first_batch(value):
    return value.first_batches(1) if hasattr(value, "first_batches") else value


def _sizes(loader):
    examples = f"{loader.n_samples:,} examples" if loader.n_samples is not None else "a stream"
    batches = f" in {len(loader):,} batches" if loader.n_samples is not None else ""
    return f"{examples}{batches} of {loader.batch_size}"


def _is_layer(module):
    return not any(module.children()) or len(list(module.parameters(recurse=False))) > 0


def _noting(outputs, name):
    """A hook that keeps what a layer gave at its first call."""

    def note(module, inputs, output):
        outputs.setdefault(name, described(output).replace(" float32", ""))

    return note


def _table(model, layers, outputs):
    """A line a layer: its name, its type, its output, its own parameters; and the model's sum."""
    rows = [("layer", "type", "output", "parameters")]
    for name, module in layers.items():
        own = list(module.parameters(recurse=False))
        frozen = " frozen" if own and not any(parameter.requires_grad for parameter in own) else ""
        count = f"{sum(parameter.numel() for parameter in own):,}{frozen}"
        rows.append((name, type(module).__name__, outputs.get(name, "not called"), count))
    wide = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [f"{row[0]:<{wide[0]}}  {row[1]:<{wide[1]}}  {row[2]:<{wide[2]}}  {row[3]:>10}" for row in rows]
    return "\n".join([*lines, optim.counts(model)])


def _memory(trainer):
    """What the weights take, what the optimizer keeps, and the most that was taken at once."""
    import resource  # which Windows has not

    parameters = list(trainer.model.parameters())
    optimizers = trainer.optimizer.values() if isinstance(trainer.optimizer, dict) else [trainer.optimizer]
    kept = [value for one in optimizers for state in one.state.values() for value in state.values()]
    weights, states = (sum(map(_bytes, values)) / MIB for values in (parameters, kept))
    if trainer.device.type == "cuda":
        most = f"{torch.cuda.max_memory_allocated(trainer.device) / MIB:,.0f} MiB at most on {trainer.device}"
    else:
        unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
        most = f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB:,.0f} MiB at most in this process"
    return f"weights {weights:.1f} MiB, optimizer {states:.1f} MiB, {most}"


def _bytes(value):
    return value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0
