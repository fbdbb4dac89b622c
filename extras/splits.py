"""Stratified, grouped and k-fold splits: the same for every seed, fresh, resumed and on every process."""

import numpy as np

from utils.errors import ArgumentError, shown


def split(dataset, count, share=0.0, stratify=False, group_by=None, folds=None, fold=0):
    """(training rows, validation rows) of `count` examples, (N,) and (M,) int64.

    share: of the examples, or their number. stratify: both sides have the classes' shares, to one example. group_by:
    name of an attribute of the set, (count,) values; examples of one value stay together, so sizes are as near as they
    go. folds, fold: instead of a share, the fold-th of `folds` parts that together are everything.
    """
    order = np.arange(count)
    np.random.RandomState(0).shuffle(order)
    groups = _values_of(dataset, group_by, count)[order] if group_by else None
    if stratify and group_by:
        raise ArgumentError("stratify: can't be had together with group_by; leave one of them out.")
    if stratify:
        order = _spread(order, labels_of(dataset))
    elif groups is not None:
        firsts, inverse = np.unique(groups, return_index=True, return_inverse=True)[1:]
        kept = np.argsort(firsts[inverse], kind="stable")  # groups in the order of their first examples
        order, groups = order[kept], groups[kept]
    if folds is None and fold:
        raise ArgumentError(f"fold: {shown(fold)}, but of how many? Give folds, too.")
    if folds is None:
        first, last, name = 0, share if isinstance(share, int) else int(count * share), "validation_split"
    else:
        if not (isinstance(folds, int) and folds >= 2 and isinstance(fold, int) and 0 <= fold < folds):
            raise ArgumentError(f"fold: {shown(fold)} of {shown(folds)} folds; there have to be 2 or more, from 0 on.")
        first, last, name = count * fold // folds, count * (fold + 1) // folds, "folds"
    if groups is not None:
        first, last = _whole_groups(groups, first), _whole_groups(groups, last)
    if not 0 < last - first < count:
        left = f"leaves {last - first} to validate and {count - last + first} to train on"
        raise ArgumentError(f"{name}: {shown(share if folds is None else folds)} of {count} examples {left}.")
    return np.concatenate([order[:first], order[last:]]), order[first:last]


def labels_of(dataset, wanted_by="stratify"):
    """The class of every example, (N,): the set's `targets` or `labels`, else the second item of each example."""
    if isinstance(getattr(dataset, "indices", None), (list, np.ndarray)) and hasattr(dataset, "dataset"):
        return labels_of(dataset.dataset, wanted_by)[dataset.indices]  # a Subset
    found = next((getattr(dataset, name) for name in ("targets", "labels") if hasattr(dataset, name)), None)
    try:
        labels = np.asarray([dataset[i][1] for i in range(len(dataset))] if found is None else found)
    except (TypeError, IndexError, KeyError) as error:
        kind = type(dataset).__name__
        why = f"a {kind} has neither 'targets' nor 'labels', one an example, and its items are no pairs."
        raise ArgumentError(f"{wanted_by}: {why} Give it one of them.") from error
    if labels.shape != (len(dataset),):
        raise ArgumentError(f"{wanted_by}: wants one label an example, and {labels.shape} are there.")
    return labels


def _values_of(dataset, name, count):
    values = np.asarray(getattr(dataset, name, ()))
    if values.shape != (count,):
        raise ArgumentError(
            f"group_by: the set has no '{name}' with a value for each of its {count} examples. Name one that has."
        )
    return values


def _spread(order, labels):
    """The rows so ordered that any stretch of them has the classes' shares."""
    place = np.empty(len(order))
    for label, size in zip(*np.unique(labels, return_counts=True)):
        if size < 2:
            raise ArgumentError(f"stratify: class {label} has {size} example, too few for two sides. Leave it out.")
        place[labels[order] == label] = (np.arange(size) + 0.5) / size
    return order[np.argsort(place, kind="stable")]


def _whole_groups(groups, position):
    """The border between two groups that is nearest to a position."""
    borders = np.flatnonzero(np.append(np.insert(groups[1:] != groups[:-1], 0, True), True))
    return int(borders[np.abs(borders - position).argmin()])
