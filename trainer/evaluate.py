"""Measuring a model on a set, for validation and for test.py alike."""

import torch

from utils import devices, processes, signals


@torch.no_grad()
def evaluate(trainer, model, loader, criterion, metrics, *, device, memory_format, autocast, epoch=1):
    """{name: number} over every example of the loader, each counted once.

    trainer: a Trainer or its class, which has inputs_and_target and predict. metrics: utils.metrics.Metrics, reset
    before and after. epoch: what random transforms of the set depend on. The model is left in the mode that it was in.
    A signal is heeded between batches.
    """
    was_training = model.training
    model.eval()
    metrics.reset()
    processes.share_buffers(model)
    try:
        for planned in loader.planned(epoch):
            signals.check(together=True)
            inputs, target = trainer.inputs_and_target(devices.move(next(planned.source), device, memory_format))
            metrics.expect(planned.here)
            with autocast:
                output = trainer.predict(model, inputs)
                loss = criterion(output, target)
            metrics.update(output, target, loss)
        return metrics.result()
    finally:
        metrics.reset()
        model.train(was_training)
