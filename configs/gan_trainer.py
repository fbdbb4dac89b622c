"""A Trainer of networks that are trained against each other: the five-step loop once for each of them."""

import torch

from trainer.trainer import Trainer
from utils import processes
from utils.checkpoint import unwrapped
from utils.errors import ConfigError


class GanTrainer(Trainer):
    """Each optimizer of the config in turn, in their order, moves its own weights down the loss of its own name.

    The criterion gives {"loss": what is watched, NAME: what the optimizer of that name minimises, …}. The model has
    `noise(count, generator)` and `picture(noise)`, what it makes of it: after every epoch TensorBoard gets a picture of
    `samples` images, always of the same noise. In one process alone. Of an update of several batches only the last
    shows a network the step of the one before it.
    """

    def __init__(self, *args, samples=64, **kwargs):
        super().__init__(*args, **kwargs)
        if not isinstance(self.optimizer, dict) or not processes.is_alone():
            raise ConfigError("trainer.type: GanTrainer wants several optimizers, by name, and one process.")
        self.steppers = self.stepper.each()
        drawn = torch.Generator().manual_seed(0)  # so that no other random number is another for it
        self.noise = unwrapped(self.model).noise(samples, generator=drawn).to(self.device)

    def _train_epoch(self, epoch):
        self.model.train()
        for images, target in self.batches(epoch):
            for name, stepper in self.steppers.items():
                stepper.zero_grad()
                with stepper.autocast():
                    output = self.predict(self.model, images)
                    loss = self.criterion(output, target)
                stepper.backward(loss[name])
                stepper.step()
            self.train_metrics.update(output, target, loss)
        return self.train_metrics.result()

    @torch.no_grad()
    def on_epoch_end(self, epoch, log):
        with self.stepper.averaged():
            self.writer.add_image("generated", unwrapped(self.model).eval().picture(self.noise), self.step)
