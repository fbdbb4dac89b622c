"""torch's optimizers, leaner and put back right; each compared with torch's own class."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau, StepLR

from utils import optim
from utils.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]

OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    "Adam": (torch.optim.Adam, {"lr": 0.01}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}),
    "fused AdamW": (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
    "foreach AdamW": (torch.optim.AdamW, {"lr": 0.01, "foreach": True}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5}),
    "NAdam": (torch.optim.NAdam, {"lr": 0.01}),
    "RAdam": (torch.optim.RAdam, {"lr": 0.01}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.01}),
    "LBFGS": (torch.optim.LBFGS, {"lr": 0.5, "max_iter": 4}),
}
each = pytest.mark.parametrize(("cls", "args"), OPTIMIZERS.values(), ids=OPTIMIZERS.keys())


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def some_model(channels_last=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 16, 2))
    return model.to(memory_format=torch.channels_last) if channels_last else model


def train(model, optimizer, steps=6, first=0):
    for step in range(first, first + steps):
        inputs = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(step))

        def closure(inputs=inputs):
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    return [parameter.detach().clone() for parameter in model.parameters()]


def same_bits(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


# --- lean ---


@each
def test_a_lean_optimizer_gives_the_bits_of_torchs_own(cls, args):
    ours, theirs = some_model(), some_model()
    lean, plain = optim.lean(cls)(ours.parameters(), **args), cls(theirs.parameters(), **args)
    assert same_bits(train(ours, lean), train(theirs, plain))


@each
def test_a_lean_optimizer_is_an_instance_of_torchs_own(cls, args):
    lean = optim.lean(cls)(some_model().parameters(), **args)
    assert isinstance(lean, cls) and type(lean).__name__ == cls.__name__


@each
def test_a_lean_optimizers_state_goes_on_in_torchs_own_with_the_same_bits(cls, args):
    model = some_model()
    lean = optim.lean(cls)(model.parameters(), **args)
    train(model, lean, 3)
    other = copy.deepcopy(model)
    plain = cls(other.parameters(), **args)
    plain.load_state_dict(copy.deepcopy(lean.state_dict()))
    assert same_bits(train(model, lean, 3, 3), train(other, plain, 3, 3))


@each
def test_a_state_of_torchs_own_goes_on_in_a_lean_optimizer_with_the_same_bits(cls, args):
    model = some_model()
    plain = cls(model.parameters(), **args)
    train(model, plain, 3)
    other = copy.deepcopy(model)
    lean = optim.lean(cls)(other.parameters(), **args)
    lean.load_state_dict(copy.deepcopy(plain.state_dict()))
    assert same_bits(train(model, plain, 3, 3), train(other, lean, 3, 3))


def test_a_lean_optimizer_steps_without_a_closure():
    model, reference = some_model(), some_model()
    for one, optimizer in (
        (model, optim.lean(torch.optim.SGD)(model.parameters(), lr=0.1)),
        (reference, torch.optim.SGD(reference.parameters(), lr=0.1)),
    ):
        one(torch.ones(1, 3, 6, 6)).sum().backward()
        optimizer.step()
    assert same_bits(model.parameters(), reference.parameters())


def test_a_lean_optimizer_calls_its_step_hooks():
    model, called = some_model(), []
    optimizer = optim.lean(torch.optim.SGD)(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    train(model, optimizer, 2)
    assert called == ["after", "after"]


def test_an_optimizer_of_ones_own_is_left_as_it_is():
    class Own(torch.optim.SGD):
        pass

    assert optim.lean(Own) is Own


def test_a_lean_optimizer_with_a_schedule_and_clipping_never_imports_dynamo():
    program = """
import sys, torch
from utils import optim
model = torch.nn.Linear(2, 2)
optimizer = optim.lean(torch.optim.AdamW)(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
optimizer.load_state_dict(optimizer.state_dict())
optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
print(sorted({"torch._dynamo", "sympy"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "[]", done.stderr


# --- a state from a file ---


def contiguous(state):
    """What a file holds that was written by a program without channels_last."""
    return {
        **state,
        "state": {
            index: {n: v.contiguous() if isinstance(v, torch.Tensor) else v for n, v in kept.items()}
            for index, kept in copy.deepcopy(state["state"]).items()
        },
    }


def test_a_loaded_state_has_the_strides_of_its_parameters():
    model = some_model(channels_last=True)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 1)
    optim.load_state(optimizer, contiguous(optimizer.state_dict()))
    for parameter, kept in optimizer.state.items():
        assert kept["exp_avg"].stride() == kept["exp_avg_sq"].stride() == parameter.stride()


@pytest.mark.parametrize("fused", [True, False])
def test_a_channels_last_model_goes_on_from_a_contiguous_state_as_if_never_stopped(fused):
    model = some_model(channels_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    train(model, optimizer, 3)
    other = copy.deepcopy(model)
    resumed = torch.optim.AdamW(other.parameters(), lr=0.01, fused=fused)
    optim.load_state(resumed, contiguous(optimizer.state_dict()))
    assert same_bits(train(model, optimizer, 3, 3), train(other, resumed, 3, 3))


def test_a_state_of_another_precision_keeps_it_beside_a_parameter_of_other_strides():
    model = some_model(channels_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, 1)
    state = contiguous(optimizer.state_dict())
    optim.load_state(optimizer, state)
    saved = state["state"][0]["momentum_buffer"]
    assert torch.equal(optimizer.state[model[0].weight]["momentum_buffer"], saved)


# --- which parameters learn ---


def test_a_pattern_finds_the_parameters_of_that_name_in_the_models_order():
    model = some_model()
    assert optim.trainable(model, "0.*") == [model[0].weight, model[0].bias]


def test_a_frozen_parameter_is_not_trained():
    model = some_model()
    model[0].requires_grad_(False)
    assert optim.trainable(model) == [model[3].weight, model[3].bias]


def test_a_pattern_that_matches_nothing_names_its_place_and_what_there_is():
    with pytest.raises(ConfigError, match=r"^optimizer.head.params: 'head\.\*' matches no parameter.*0.weight, 0.bias"):
        optim.trainable(some_model(), "head.*", "optimizer.head.params")


def test_a_model_without_anything_to_learn_is_a_config_error():
    with pytest.raises(ConfigError, match="none that learns"):
        optim.trainable(nn.ReLU())


# --- what a schedule is told of the plan ---


def planned(cls, given, updates=120, updates_per_epoch=40, rates=(0.1, 0.2), mode="max"):
    return optim.planned_arguments(cls, given, updates, updates_per_epoch, list(rates), mode)


@pytest.mark.parametrize(
    ("cls", "given", "told"),
    [
        (OneCycleLR, {"max_lr": 0.1}, {"total_steps": 120}),
        (OneCycleLR, {"max_lr": 0.1, "total_steps": 50}, {}),
        (OneCycleLR, {"max_lr": 0.1, "epochs": 3}, {"steps_per_epoch": 40}),
        (OneCycleLR, {"max_lr": 0.1, "epochs": 3, "steps_per_epoch": 7}, {}),
        (OneCycleLR, {"max_lr": 0.1, "epochs": 3, "total_steps": 50}, {}),
        (OneCycleLR, {"max_lr": 0.1, "steps_per_epoch": 7}, {"total_steps": 120}),
        (CosineAnnealingLR, {}, {"T_max": 120}),
        (CosineAnnealingLR, {"T_max": 5}, {}),
        (StepLR, {"step_size": 3}, {}),
    ],
)
def test_a_schedule_is_told_the_lengths_that_its_config_leaves_out(cls, given, told):
    assert planned(cls, given) == told


@pytest.mark.parametrize(
    ("given", "length"),
    [
        ({}, 120),
        ({"total_steps": 50}, 50),
        ({"epochs": 2}, 80),
        ({"epochs": 2, "steps_per_epoch": 7}, 14),
        ({"steps_per_epoch": 7}, 120),
        ({"epochs": 2, "total_steps": 50}, 50),
        ({"epochs": 2, "total_steps": 50, "steps_per_epoch": 7}, 50),
    ],
    ids=str,
)
def test_one_cycle_has_the_length_of_the_run_or_the_one_given(given, length):
    optimizer = torch.optim.SGD(some_model().parameters(), lr=0.1)
    assert OneCycleLR(optimizer, **given, **planned(OneCycleLR, given, rates=[0.1])).total_steps == length


def test_a_stream_without_a_length_leaves_the_schedules_length_open():
    assert planned(OneCycleLR, {"max_lr": 0.1}, None, None) == {}
    assert planned(CosineAnnealingLR, {}, None, None) == {}


def test_one_cycle_climbs_to_the_rates_of_the_optimizer_where_none_is_given():
    model = some_model()
    groups = [{"params": model[0].parameters(), "lr": 0.3}, {"params": model[3].parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    told = planned(OneCycleLR, {}, rates=[group["lr"] for group in optimizer.param_groups])
    schedule, highest = OneCycleLR(optimizer, **told), [0.0, 0.0]
    for _ in range(119):
        optimizer.step()
        schedule.step()
        highest = [max(pair) for pair in zip(highest, schedule.get_last_lr())]
    assert highest == pytest.approx([0.3, 0.1], rel=1e-3)


def test_one_cycle_climbs_to_the_rate_that_is_given():
    assert "max_lr" not in planned(OneCycleLR, {"max_lr": 0.5})


@pytest.mark.parametrize("mode", ["min", "max"])
def test_plateau_waits_for_what_the_monitor_calls_better(mode):
    assert planned(ReduceLROnPlateau, {"patience": 3}, mode=mode) == {"mode": mode}


def test_plateau_waits_for_what_its_own_mode_calls_better():
    assert planned(ReduceLROnPlateau, {"mode": "min"}, mode="max") == {}


def test_a_schedule_of_ones_own_is_told_what_it_takes_and_no_more():
    class Own(StepLR):
        def __init__(self, optimizer, total_steps, mode="x", max_lr=1):
            super().__init__(optimizer, total_steps)

    assert planned(Own, {}) == {"total_steps": 120}
