"""How weights move: each rule against the full batch's gradient, torch's own function or a closed form."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, ReduceLROnPlateau

from trainer.stepper import Stepper
from utils.errors import OutOfMemory, exit_code

CPU = torch.device("cpu")
CLASS_WEIGHTS = torch.tensor([1.0, 2.0, 7.0], dtype=torch.float64)


def some_model(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def some_batches(sizes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(n, 4, dtype=dtype, generator=generator), torch.randint(3, (n,), generator=generator))
        for n in sizes
    ]


def weighted(output, target):
    """Class-weighted cross entropy, which does not average over examples: (sum, count)."""
    return F.cross_entropy(output, target, CLASS_WEIGHTS, reduction="sum"), CLASS_WEIGHTS[target].sum()


def ignoring(output, target):
    """Cross entropy that leaves class 0 out: (sum, count)."""
    return F.cross_entropy(output, target, ignore_index=0, reduction="sum"), (target != 0).sum()


def an_update(stepper, batches, criterion=F.cross_entropy):
    """One update of the weights from these batches, as the training loop has it."""
    total = sum(len(target) for _, target in batches)
    for i, (inputs, target) in enumerate(batches):
        stepper.expect(len(target), total, first=i == 0, last=i == len(batches) - 1)
        with stepper.update():
            stepper.zero_grad()
            with stepper.autocast():
                loss = criterion(stepper.model(inputs), target)
            stepper.backward(loss)
            stepper.step()


def gradients(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def a_stepper(model, lr=0.1, optimizer=torch.optim.SGD, **how):
    return Stepper(model, optimizer(model.parameters(), lr=lr), device=CPU, **how)


def full_gradient(model, batches, criterion=F.cross_entropy):
    """The gradient of the criterion on all examples at once."""
    model = copy.deepcopy(model)
    inputs, target = (torch.cat(parts) for parts in zip(*batches))
    criterion(model(inputs), target).backward()
    return gradients(model)


def equal(ours, theirs, tolerance=1e-12):
    return torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance)


# --- accumulation ---


@pytest.mark.parametrize("sizes", [(8,), (4, 4), (5, 2, 1)], ids=str)
def test_batches_of_one_update_give_the_full_batchs_gradient(sizes):
    model, batches = some_model(), some_batches(sizes)
    expected = full_gradient(model, batches)
    an_update(a_stepper(model, lr=0.0), batches)
    assert equal(gradients(model), expected)


def test_the_weights_move_once_an_update():
    model, batches = some_model(), some_batches((5, 2, 1))
    expected = weights(model) - 0.1 * full_gradient(model, batches)
    an_update(a_stepper(model), batches)
    assert equal(weights(model), expected)


def test_an_update_starts_without_the_gradient_of_the_last():
    model, batches = some_model(), some_batches((4, 4))
    stepper = a_stepper(model, lr=0.0)
    an_update(stepper, batches)
    an_update(stepper, batches[:1])
    assert equal(gradients(model), full_gradient(model, batches[:1]))


@pytest.mark.parametrize("sizes", [(8,), (5, 2, 1)], ids=str)
def test_a_class_weighted_loss_over_several_batches_has_the_full_batchs_gradient(sizes):
    model, batches = some_model(), some_batches(sizes)
    expected = full_gradient(model, batches, lambda output, target: F.cross_entropy(output, target, CLASS_WEIGHTS))
    an_update(a_stepper(model, lr=0.0), batches, weighted)
    assert equal(gradients(model), expected)


def test_a_loss_that_ignores_labels_has_the_full_batchs_gradient():
    model, batches = some_model(), some_batches((5, 2, 4))
    expected = full_gradient(model, batches, lambda output, target: F.cross_entropy(output, target, ignore_index=0))
    an_update(a_stepper(model, lr=0.0), batches, ignoring)
    assert equal(gradients(model), expected)


def test_a_second_update_does_not_count_what_the_first_did():
    model, batches = some_model(), some_batches((5, 3))
    stepper = a_stepper(model, lr=0.0)
    an_update(stepper, batches[:1], weighted)
    an_update(stepper, batches[1:], weighted)
    expected = full_gradient(model, batches[1:], lambda output, target: F.cross_entropy(output, target, CLASS_WEIGHTS))
    assert equal(gradients(model), expected)


def test_an_update_whose_labels_are_all_ignored_leaves_the_weights():
    model = some_model()
    before = weights(model)
    an_update(a_stepper(model), [(torch.ones(3, 4, dtype=torch.float64), torch.zeros(3, dtype=torch.long))], ignoring)
    assert torch.equal(weights(model), before)


def test_examples_are_counted_exactly_where_the_loss_is_in_half_precision():
    model, batches = some_model(torch.float32), some_batches((256, *[1] * 256), torch.float32)  # bfloat16 has no 257
    expected = full_gradient(model, batches)
    an_update(
        a_stepper(model, lr=0.0),
        batches,
        lambda output, target: (F.cross_entropy(output, target, reduction="sum").bfloat16(), len(target)),
    )
    assert equal(gradients(model), expected, 1e-4)


# --- clipping ---


def test_clipping_limits_the_norm_of_the_whole_updates_gradient():
    model, batches = some_model(), some_batches((5, 2, 1))
    expected = full_gradient(model, batches)
    assert expected.norm() > 0.01
    an_update(a_stepper(model, lr=0.0, clip_grad_norm=0.01), batches)
    assert equal(gradients(model), expected * 0.01 / expected.norm(), 1e-4)  # torch divides by norm + 1e-6


def test_a_gradient_below_the_limit_is_left_as_it_is():
    model, batches = some_model(), some_batches((5, 3))
    an_update(a_stepper(model, lr=0.0, clip_grad_norm=1e6), batches)
    assert equal(gradients(model), full_gradient(model, batches))


def test_clipping_of_a_class_weighted_loss_is_on_its_true_gradient():
    model, batches = some_model(), some_batches((5, 2, 1))
    expected = full_gradient(model, batches, lambda output, target: F.cross_entropy(output, target, CLASS_WEIGHTS))
    an_update(a_stepper(model, lr=0.0, clip_grad_norm=0.01), batches, weighted)
    assert equal(gradients(model), expected * 0.01 / expected.norm(), 1e-4)


def test_clipping_in_fp16_is_on_true_gradients_not_on_scaled_ones():
    model, batches = some_model(torch.float32), some_batches((5, 3), torch.float32)
    expected = full_gradient(model, batches)
    stepper = a_stepper(model, lr=0.0, amp="fp16", clip_grad_norm=10.0)
    assert expected.norm() < 10.0 < expected.norm() * stepper.scaler.get_scale()
    an_update(stepper, batches)
    assert equal(gradients(model), expected, 1e-2)


def test_fp16_moves_the_weights_by_the_true_gradient():
    model, batches = some_model(torch.float32), some_batches((5, 3), torch.float32)
    expected = weights(model) - 0.1 * full_gradient(model, batches)
    an_update(a_stepper(model, amp="fp16"), batches)
    assert equal(weights(model), expected, 1e-3)


def test_fp16_skips_an_update_that_overflows_and_lowers_the_scale():
    model, (batch,) = some_model(torch.float32), some_batches((4,), torch.float32)
    stepper, before = a_stepper(model, amp="fp16"), weights(model)
    an_update(stepper, [batch], lambda output, target: F.cross_entropy(output, target) * math.inf)
    assert torch.equal(weights(model), before) and stepper.scaler.get_scale() == 2.0**15


# --- precision ---


@pytest.mark.parametrize(("amp", "dtype"), [("off", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_a_batch_is_computed_in_the_chosen_precision(amp, dtype):
    model, seen = some_model(torch.float32), []
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    an_update(a_stepper(model, amp=amp), some_batches((4,), torch.float32))
    assert seen == [dtype]


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_the_weights_stay_in_full_precision(amp):
    model = some_model(torch.float32)
    an_update(a_stepper(model, amp=amp), some_batches((4,), torch.float32))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


# --- the moving average ---


def test_the_evaluated_weights_are_the_exponential_average_of_all_from_the_first_on():
    model, decay = some_model(), 0.7
    stepper = a_stepper(model, ema_decay=decay)
    expected = weights(model)
    for batch in some_batches((4, 4, 4, 4)):
        an_update(stepper, [batch])
        expected = decay * expected + (1 - decay) * weights(model)
    trained = weights(model)
    with stepper.averaged():
        assert equal(weights(model), expected)
    assert torch.equal(weights(model), trained)


def test_the_average_moves_once_an_update_not_once_a_batch():
    accumulated, at_once = some_model(), some_model()
    batches = some_batches((4, 4, 4, 4))
    first, second = a_stepper(accumulated, ema_decay=0.7), a_stepper(at_once, ema_decay=0.7)
    for i in (0, 2):
        an_update(first, batches[i : i + 2])
        an_update(second, [tuple(torch.cat(parts) for parts in zip(*batches[i : i + 2]))])
    with first.averaged(), second.averaged():
        assert equal(weights(accumulated), weights(at_once))


def test_tied_weights_have_one_average_under_both_names():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False)).double()
    model[2].weight = model[0].weight
    stepper = a_stepper(model, ema_decay=0.9)
    an_update(stepper, [(torch.randn(4, 3).double(), torch.tensor([0, 1, 2, 0]))])
    averages = stepper.averages()
    assert list(averages) == ["0.weight", "2.weight"] and averages["0.weight"] is averages["2.weight"]


def test_without_an_average_the_models_own_weights_are_evaluated():
    model = some_model()
    stepper, own = a_stepper(model), weights(model)
    with stepper.averaged():
        assert torch.equal(weights(model), own)
    assert stepper.averages() == {}


def test_an_average_goes_on_from_its_state():
    batches = some_batches((4, 4, 4))
    unbroken, first = some_model(), some_model()
    whole, before = a_stepper(unbroken, ema_decay=0.7), a_stepper(first, ema_decay=0.7)
    for batch in batches:
        an_update(whole, [batch])
    for batch in batches[:2]:
        an_update(before, [batch])
    second = copy.deepcopy(first)
    after = a_stepper(second, ema_decay=0.7)
    for name, average in after.averages().items():
        average.copy_(before.averages()[name])
    after.load_state_dict(before.state_dict())
    an_update(after, batches[2:])
    with after.averaged(), whole.averaged():
        assert torch.equal(weights(second), weights(unbroken))


# --- the schedule ---


def scheduled(interval, kind=ExponentialLR, **how):
    model = some_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = kind(optimizer, **(how or {"gamma": 0.5}))
    schedule.interval = interval
    return Stepper(model, optimizer, schedule, device=CPU)


def test_a_schedule_by_step_counts_updates_not_batches():
    stepper = scheduled("step")
    for _ in range(3):
        an_update(stepper, some_batches((4, 4)))
        stepper.end_epoch()
    assert stepper.learning_rates() == [0.5**3]


def test_a_schedule_by_epoch_counts_epochs():
    stepper = scheduled("epoch")
    for _ in range(2):
        for _ in range(3):
            an_update(stepper, some_batches((4,)))
        stepper.end_epoch()
    assert stepper.learning_rates() == [0.5**2]


def test_a_plateau_lowers_the_rate_when_the_monitored_number_stands_still():
    stepper = scheduled("epoch", ReduceLROnPlateau, patience=1, factor=0.5)
    rates = []
    for number in (1.0, 1.0, 1.0, 0.1):
        an_update(stepper, some_batches((4,)))
        stepper.end_epoch(number)
        rates += stepper.learning_rates()
    assert rates == [1.0, 1.0, 0.5, 0.5]


def test_a_plateau_does_not_count_epochs_that_measured_nothing():
    stepper = scheduled("epoch", ReduceLROnPlateau, patience=0, factor=0.5)
    stepper.end_epoch(1.0)
    for _ in range(5):
        stepper.end_epoch(None)
    assert stepper.learning_rates() == [1.0]


# --- several optimizers ---


def test_every_named_optimizer_steps():
    model, batches = some_model(), some_batches((5, 3))
    gradient = full_gradient(model, batches)
    expected = weights(model) - torch.cat([0.1 * gradient[:40], 0.5 * gradient[40:]])
    optimizers = {
        "body": torch.optim.SGD(model[0].parameters(), lr=0.1),
        "head": torch.optim.SGD(model[2].parameters(), lr=0.5),
    }
    stepper = Stepper(model, optimizers, device=CPU)
    an_update(stepper, batches)
    assert equal(weights(model), expected) and stepper.learning_rates() == [0.1, 0.5]


def test_every_named_schedule_steps():
    model = some_model()
    optimizers = {name: torch.optim.SGD(model[i].parameters(), lr=1.0) for name, i in (("a", 0), ("b", 2))}
    schedules = {"a": ExponentialLR(optimizers["a"], 0.5), "b": ExponentialLR(optimizers["b"], 0.1)}
    schedules["a"].interval = "step"
    stepper = Stepper(model, optimizers, schedules, device=CPU)
    for _ in range(2):
        an_update(stepper, some_batches((4,)))
    stepper.end_epoch()
    assert stepper.learning_rates() == [0.25, 0.1]  # each counts what its own interval says


# --- memory ---


def test_running_out_of_memory_ends_with_6_and_says_what_to_do(capsys):
    def too_much():
        with a_stepper(some_model()).update():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB.\nmore")

    assert exit_code(too_much) == OutOfMemory.exit_code == 6
    said = capsys.readouterr().err
    assert "Tried to allocate 20 GiB" in said and "batch_size" in said and "trainer.accumulate" in said
    assert len(said.splitlines()) <= 5


def test_any_other_error_in_an_update_is_the_users_own():
    with pytest.raises(ZeroDivisionError), a_stepper(some_model()).update():
        raise ZeroDivisionError
