"""Losses: (output, target) → mean over the batch's examples, or (sum, count) where the mean is over something else."""

import torch.nn.functional as F


def nll_loss(output, target):
    """Negative log-likelihood. output: (B, classes) log-probabilities. target: (B,) class indices."""
    return F.nll_loss(output, target)
