"""Metrics: (output, target) → mean over the batch's examples, a tensor of one element or a number."""


def accuracy(output, target):
    """Share of examples whose largest output is the true class, in [0, 1].

    output: (B, classes), any scale. target: (B,) class indices.
    """
    return (output.argmax(dim=1) == target).float().mean()


def top_k_accuracy(output, target, k=3):
    """Share of examples whose true class is among the k largest outputs, in [0, 1].

    output: (B, classes), any scale. target: (B,) class indices. Raises RuntimeError if k exceeds the classes.
    """
    nearest = output.topk(k, dim=1).indices  # (B, k)
    return (nearest == target.unsqueeze(1)).any(dim=1).float().mean()


top_k_acc = top_k_accuracy  # its older name
