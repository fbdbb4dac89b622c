"""Numbers are sums over examples, kept where they are computed."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from utils import checkpoint
from utils.metrics import Metrics


def accuracy(output, target):
    return (output.argmax(dim=1) == target).float().mean()


class Largest:
    """A metric object without a state_dict: the largest output so far."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.largest = torch.tensor(-math.inf)

    def update(self, output, target):
        self.largest = torch.maximum(self.largest, output.max())

    def compute(self):
        return self.largest


class Kept(Largest):
    """One with a state_dict of its own."""

    def state_dict(self):
        return {"kept": self.largest}

    def load_state_dict(self, state):
        self.largest = state["kept"]


class Median:
    """One that keeps a list: the median of all outputs."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.outputs = []

    def update(self, output, target):
        self.outputs.append(output.flatten())

    def compute(self):
        return torch.cat(self.outputs).median()


class NoWait(TorchDispatchMode):
    """Refuses what would wait for a device: reading a tensor's value, or moving it to another device."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function is not torch.ops.aten._local_scalar_dense.default, "a tensor's value was read"
        return function(*args, **(kwargs or {}))


def some_batches(sizes=(4, 4, 1), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 3, generator=generator), torch.randint(3, (size,), generator=generator)) for size in sizes
    ]


def add(metrics, batches, criterion=F.cross_entropy):
    for output, target in batches:
        metrics.expect(len(target))
        metrics.update(output, target, criterion(output, target))


def all_of(batches):
    return torch.cat([output for output, _ in batches]), torch.cat([target for _, target in batches])


def test_numbers_of_unequal_batches_are_those_of_all_examples_at_once():
    metrics, batches = Metrics([accuracy]), some_batches()
    add(metrics, batches)
    output, target = all_of(batches)
    right = sum(int(row.argmax()) == int(true) for row, true in zip(output, target))
    assert metrics.result()["accuracy"] == pytest.approx(right / 9)
    assert metrics.result()["loss"] == pytest.approx(F.cross_entropy(output, target).item())


def test_a_loss_with_its_own_count_is_the_sum_of_sums_over_the_sum_of_counts():
    class_weights = torch.tensor([1.0, 2.0, 5.0])

    def weighted(output, target):
        return F.cross_entropy(output, target, class_weights, reduction="sum"), class_weights[target].sum()

    metrics, batches = Metrics([]), some_batches()
    add(metrics, batches, weighted)
    expected = F.cross_entropy(*all_of(batches), class_weights).item()
    assert metrics.result()["loss"] == pytest.approx(expected)


def test_a_count_in_half_precision_goes_on_beyond_256():
    """Where bfloat16 itself stops: 256 + 1 is 256 there."""
    metrics = Metrics([])
    for _ in range(300):
        metrics.expect(1)
        metrics.update(None, None, (torch.ones((), dtype=torch.bfloat16), torch.ones((), dtype=torch.bfloat16)))
    assert metrics.loss_so_far() == (300.0, 300.0)


def test_a_metric_that_gives_text_is_named():
    def words(output, target):
        return "much"

    metrics = Metrics([words])
    metrics.expect(1)
    with pytest.raises(TypeError, match="'words' gave much, where a number is wanted"):
        metrics.update(torch.zeros(1), torch.zeros(1), torch.zeros(()))


def test_a_batch_that_only_keeps_step_counts_nowhere():
    metrics, batches = Metrics([accuracy, Largest()]), some_batches()
    add(metrics, batches)
    before = metrics.result()
    metrics.expect(0)
    metrics.update(torch.full((1, 3), 9e9), torch.zeros(1, dtype=torch.long), torch.tensor(9e9))
    assert metrics.result() == before


def test_a_sum_over_many_batches_keeps_the_small_ones():
    metrics = Metrics([])
    metrics.expect(1)
    for loss in (1e8, *[1.0] * 100):  # in float32, 1e8 + 1 is 1e8
        metrics.update(None, None, torch.tensor(loss))
    assert metrics.result()["loss"] == pytest.approx((1e8 + 100) / 101, rel=1e-12)


def test_a_metric_object_is_updated_computed_and_reset():
    metrics, batches = Metrics([Largest()]), some_batches()
    add(metrics, batches)
    assert metrics.result()["Largest"] == pytest.approx(all_of(batches)[0].max().item())
    metrics.reset()
    add(metrics, batches[2:])
    assert metrics.result()["Largest"] == pytest.approx(batches[2][0].max().item())


@pytest.mark.parametrize("kind", [Largest, Kept, Median])
def test_numbers_go_on_after_a_checkpoint_in_the_middle_of_an_epoch(tmp_path, kind):
    unbroken, first, second = Metrics([accuracy, kind()]), Metrics([accuracy, kind()]), Metrics([accuracy, kind()])
    batches = some_batches()
    add(unbroken, batches)
    add(first, batches[:2])
    checkpoint.save(checkpoint.plain(first.state_dict()), tmp_path / "a.pth")
    second.load_state_dict(checkpoint.load(tmp_path / "a.pth"))
    add(second, batches[2:])
    assert second.result() == unbroken.result()


def test_one_metric_object_given_twice_keeps_sums_of_its_own():
    shared, batches = Largest(), some_batches()
    first, second = Metrics([shared]), Metrics([shared])
    add(first, batches[:1])
    add(second, batches[1:])
    assert first.result()["Largest"] == pytest.approx(batches[0][0].max().item())


def test_an_update_reads_no_tensor():
    class_weights = torch.tensor([1.0, 2.0, 5.0])
    metrics, batches = Metrics([accuracy, Largest()]), some_batches()
    with NoWait():
        add(metrics, batches)
        add(
            metrics,
            batches,
            lambda o, t: (F.cross_entropy(o, t, class_weights, reduction="sum"), class_weights[t].sum()),
        )


def test_an_update_keeps_no_graph():
    metrics, weight = Metrics([]), torch.ones(1, requires_grad=True)
    metrics.expect(1)
    metrics.update(None, None, weight.sum() * 2)
    assert not any(kept.requires_grad for kept in metrics.state_dict()["sums"].values())


def test_every_name_has_the_prefix():
    metrics = Metrics([accuracy, Largest()], "val_")
    add(metrics, some_batches())
    assert list(metrics.result()) == ["val_loss", "val_accuracy", "val_Largest"]


def test_numbers_are_python_floats():
    metrics = Metrics([accuracy, Largest()])
    add(metrics, some_batches())
    assert {type(value) for value in metrics.result().values()} == {float}


def test_where_nothing_was_measured_the_numbers_are_nan():
    assert all(math.isnan(value) for value in Metrics([accuracy]).result().values())


def test_the_loss_of_a_stretch_is_the_difference_of_two_readings():
    metrics, batches = Metrics([]), some_batches()
    add(metrics, batches[:1])
    before = metrics.loss_so_far()
    add(metrics, batches[1:])
    after = metrics.loss_so_far()
    expected = F.cross_entropy(*all_of(batches[1:])).item()
    assert (after[0] - before[0]) / (after[1] - before[1]) == pytest.approx(expected)
