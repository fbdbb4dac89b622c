"""Pipeline parallelism: the model in stages, one a process, through which a batch goes in parts (micro-batches).

GPipe: Huang et al. 2019, arXiv:1811.06965. 1F1B: Narayanan et al. 2019 (PipeDream), arXiv:1806.03377. The schedules and
the sending are torch.distributed.pipelining's; here a model is cut, and fitted to a loop that calls it as any other.
"""

import inspect
from bisect import bisect_right
from functools import lru_cache, partial

import torch
import torch.distributed as dist
from torch import fx
from torch.autograd.function import once_differentiable
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils._pytree import tree_leaves, tree_map

from utils import processes, seeds
from utils.errors import ArgumentError, ConfigError, first_line, near
from utils.util import named

KINDS = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}


class Pipelined(torch.nn.Module):
    """Called as `model` is, with the same whole batch in every process; each computes the layers of its own stage.

    Forward keeps no graph: backward runs the schedule, which computes each micro-batch anew (activation checkpointing),
    and gives a parameter its gradient in the process that owns it. device: where this stage computes. The other
    arguments: trainer.parallel.pipeline.
    """

    wraps = property(lambda self: self.module, doc="The user's own module.")

    def __init__(self, model, device, split, schedule, micro_batches):
        super().__init__()
        self.number, self.last, there = processes.process_number(), len(split), processes.process_count()
        if schedule not in KINDS or micro_batches < 1:
            raise ArgumentError(f"schedule: {schedule} with {micro_batches} micro_batches; give GPipe or 1F1B, >= 1.")
        if there != self.last + 1:
            start = f"Start torchrun --nproc-per-node {self.last + 1} …, or give parallel=auto, which cuts nothing."
            raise ArgumentError(f"split: makes {self.last + 1} stages, one a process, and there is {there}. {start}")
        if model._compiled_call_impl is not None:
            raise ConfigError("trainer.compile: a compiled model can't be cut into stages. Set it to false.")
        processes.share_rows()
        self.module, self.device, self.split, self.micro_batches = model, device, split, micro_batches
        self.kind, self.owner, self._signature = KINDS[schedule], {}, inspect.signature(model.forward)
        self._anchor = torch.zeros((), requires_grad=True)  # what makes autograd ask for gradients
        self._cut, self._schedule = lru_cache(self._cut), lru_cache(8)(self._schedule)  # buffers, for so many shapes
        self._cut(*self._how({name: known.default for name, known in self._signature.parameters.items()}))

    def forward(self, *args, **kwargs):
        """The whole batch's output, in every process."""
        given = self._signature.bind(*args, **kwargs)
        given.apply_defaults()
        stage, structure, nodes = self._cut(*self._how(given.arguments))
        inputs, kind = {name: given.arguments[name] for name in stage.inputs}, self.device.type
        precision = torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        # Drawn alike in every process, for each to draw its own dropout from, in forward and again in backward.
        seed = int(torch.randint(2**62, ())) + self.number
        leaves = tree_leaves(given.arguments)
        rows = next(len(one) for one in leaves if torch.is_tensor(one))
        # Of all inputs, also where this stage gets none of them: a schedule is a new one in every process or in none.
        alike = [str(getattr(one, "shape", one)) for one in leaves]
        compute = partial(self._compute, stage, inputs, precision, seed, alike, rows)
        outputs = _Recomputed.apply(self._anchor, stage, compute) if torch.is_grad_enabled() else compute()
        return fx.node.map_arg(structure, dict(zip(nodes, outputs)).__getitem__)

    def _compute(self, stage, inputs, precision, seed, alike, rows, grads=None):
        """The outputs of the last stage; or, of `grads`, the loss's by them, those of this stage's parameters."""
        # A batch that does not divide goes in fewer parts, of one row (which BatchNorm refuses) only where it has one.
        most = self.micro_batches if rows % self.micro_batches == 0 else max(min(self.micro_batches, rows // 2), 1)
        count, backward = next(n for n in range(most, 0, -1) if rows % n == 0), grads is not None
        learns = [parameter.requires_grad for parameter in self.module.parameters()]
        with seeds.untouched_devices(), precision, torch.set_grad_enabled(backward):
            seeds.seed_everything(seed)
            autocast, self._grads = torch.is_autocast_enabled(self.device.type), grads
            sender, schedule = self._schedule(stage, count, backward, autocast, *learns, *alike)
            outputs = schedule.step(**inputs, target=torch.arange(rows) if backward else None)
        sender.clear_runtime_states()
        if backward:
            return None
        told = [[(one.shape, one.dtype) for one in outputs or ()]]
        dist.broadcast_object_list(told, src=self.last)
        if wrong := [tuple(shape) for shape, _ in told[0] if shape[0] != rows]:
            raise ConfigError(f"parallel: an output of shape {wrong[0]} for {rows} rows. Give a pipeline rows first.")
        outputs = outputs or tuple(torch.empty(shape, dtype=dtype, device=self.device) for shape, dtype in told[0])
        for one in outputs:
            dist.broadcast(one, src=self.last)
        return outputs

    def _schedule(self, stage, count, backward, *_):
        """What sends for this stage, and torch's schedule of `count` micro-batches for it."""
        sender = PipelineStage(stage, self.number, self.last + 1, self.device)
        kind = self.kind if backward and count > self.last else ScheduleGPipe  # torch's 1F1B wants as many as stages
        return sender, kind(sender, count, loss_fn=self._product if backward else None, scale_grads=False)

    def _product(self, outputs, rows):
        """A micro-batch's loss, whose gradient by its outputs is the one that the loop's loss has."""
        pairs = zip(tree_leaves(outputs), self._grads)
        return sum((one * grad[rows[0] : rows[-1] + 1]).sum() for one, grad in pairs if one.requires_grad)

    def _how(self, arguments):
        """(which arguments are left at their defaults, which modules train): what a forward's course depends on."""
        known = self._signature.parameters
        left = (name for name, one in arguments.items() if one is known[name].default is not inspect.Parameter.empty)
        return tuple(left), tuple(module.training for module in self.module.modules())

    def _cut(self, left, _):
        """(this process's stage, the structure of the model's output, its nodes)."""
        output, stages = _stages(self.module, self.split, {n: self._signature.parameters[n].default for n in left})
        for name, tensor in self.module.state_dict(keep_vars=True).items():
            used = [i for i, stage in enumerate(stages) if any(tensor is one for one in _tensors(stage))]
            self.owner[name] = used[0] if used else 0
            if len(used) > 1 and isinstance(tensor, torch.nn.Parameter):
                where = " and ".join(map(str, used))
                raise ArgumentError(f"split: stages {where} share '{name}', and would part it. Cut elsewhere.")
        for tensor in _tensors(stages[self.number]):
            tensor.data = tensor.data.to(self.device)
        return stages[self.number], output.args[0], output.all_input_nodes

    def gathered(self, content, optimizer):
        """A checkpoint's content with each stage's weights, buffers and state of the optimizer."""
        tables = [(content[n], {k: k for k in content[n]}) for n in ("state_dict", "train_state_dict") if n in content]
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        states = content["optimizer"] if isinstance(optimizer, dict) else {"": content["optimizer"]}
        for key, one in named(optimizer).items():
            moved = [names.get(id(parameter)) for group in one.param_groups for parameter in group["params"]]
            tables.append((states[key]["state"], dict(enumerate(moved))))
        for table, names in tables:
            mine = [key for key, name in names.items() if self.owner.get(name, 0) == self.number and key in table]
            own = {key: table[key] for key in mine}
            parts = processes.gather(tree_map(lambda one: one.cpu() if torch.is_tensor(one) else one, own))
            table.clear()
            table.update((key, part[key]) for key in names for part in parts if key in part)
        return content

    def whole_norm(self, norm):
        """The norm over all stages, from each one's own."""
        squares = norm.to(self.device, torch.float64) ** 2
        dist.all_reduce(squares)
        return squares.sqrt().to(norm.dtype)


class _Recomputed(torch.autograd.Function):
    """Outputs without a graph, whose gradients are handed to a second computation."""

    @staticmethod
    def forward(ctx, anchor, stage, compute):
        ctx.compute, before = compute, [buffer.clone() for buffer in stage.buffers()]
        outputs = compute()
        for buffer, value in zip(stage.buffers(), before):  # BatchNorm counts in backward: what is seen twice, once
            buffer.copy_(value)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads):
        return ctx.compute(grads), None, None


def _stages(model, split, fixed):
    """(the output's node of the model's forward, [stage]).

    A stage gets by position what the one before passes on, and by name its `inputs`. Only modules that a stage begins
    in are gone into; any other is called as it is, whatever its code does.
    """
    tracer = fx.Tracer()
    tracer.proxy_buffer_attributes = True
    tracer.is_leaf_module = lambda _, path: not any(name.startswith(f"{path}.") for name in split)
    try:
        graph = tracer.trace(model, fixed)
    except Exception as error:  # of the user's own code, which is called with stand-ins for tensors
        why = f"a forward that it lies in can't be traced: {first_line(error)}. Cut at a module outside of it."
        raise ArgumentError(f"split: {why}") from error
    calls = [f"{node.target}." if node.op == "call_module" else "" for node in graph.nodes]
    begins = [next((i for i, call in enumerate(calls) if call.startswith(f"{name}.")), None) for name in split]
    if None in begins:
        name, modules = split[begins.index(None)], dict(model.named_modules())
        advice = near(name, modules) or f"It has {', '.join(list(modules)[1:9])}."
        raise ArgumentError(f"split: the model's forward calls no '{name}'. {advice}")
    at = {node: bisect_right(begins, i) for i, node in enumerate(graph.nodes)}
    # fx asserts that what is fixed has its value, which isn't given to the stages.
    graph.eliminate_dead_code(lambda node: not any(word in str(node.target) for word in ("_assert", "function eq")))
    at = {node: at[node] for node in graph.nodes}
    crossing = (n for n in at if max(map(at.get, n.users), default=0) > at[n])
    if n := next((n for n in crossing if n.target in ("size", "dim", "numel", getattr)), None):
        raise ArgumentError(f"split: '{n.name}', no tensor, would pass from stage {at[n]} to the next. Cut elsewhere.")
    stages = [_stage(model, at, number, len(split)) for number in range(len(split) + 1)]
    if begins != sorted(begins) or not all(list(stage.parameters()) for stage in stages):
        raise ArgumentError(f"split: {', '.join(split)}: in this order, a stage has no parameters. Cut elsewhere.")
    return next(iter(reversed(graph.nodes))), stages


def _stage(model, at, number, last):
    """A module of the nodes that are `at` this stage."""
    made = [n for n in at if n.op.startswith("call")]
    passed = [[n for n in made if at[n] <= cut < max(map(at.get, n.users), default=0)] for cut in (number - 1, number)]
    used = {node for n in at if at[n] == number for node in n.all_input_nodes}
    inputs = [n for n in at if n.op == "placeholder" and n in used]
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.target if node in inputs else node.name) for node in (*passed[0], *inputs)}
    copies |= {node: graph.call_function(_received, (copies[node],)) for node in passed[0]}
    for node in at:
        if (node in made and at[node] == number) or (node.op == "get_attr" and node in used):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    outputs = list(at)[-1].all_input_nodes if number == last else passed[1]
    graph.output(tuple(graph.call_method("contiguous", (copies[node],)) for node in outputs))  # what can be sent
    stage = fx.GraphModule(model, graph)
    stage.inputs = [node.target for node in inputs]
    return stage


def _received(passed):
    """The same, its gradient in the order that can be sent."""
    passed = passed.view_as(passed)  # a hook on the buffer itself would stay
    if passed.requires_grad:
        passed.register_hook(torch.Tensor.contiguous)
    return passed


def _tensors(stage):
    return [*stage.parameters(), *stage.buffers()]
