"""Exact mode: the same bits on 1 to 12 ranks, of all that a training leaves; and each of its parts is needed."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import rankwise as rw
from ranks import outcomes, run_groups, run_ranks
from rankwise import processor
from rankwise.errors import UsageError
from rankwise.group import Group
from rankwise.modes import open_mode, resolve, sameness
from rankwise.modes.shardbuffers import ShardBuffers
from rankwise.monitor import Monitor
from rankwise.orderfree import pipeline
from rankwise.orderfree.pipeline import Pipeline
from rankwise.orderfree.shardsum import ShardSum
from rankwise.run import Run
from rankwise.settings import Settings
from rankwise.stepagreement import StepAgreement
from rankwise.world import World
from training import mlp, state_of

SHARDS = 12
WORLDS = (1, 2, 3, 4, 6, 12)
ROWS, BATCH, EPOCHS = 100, 30, 13   # 4 steps an epoch, the last of 10 rows: two of its shards are empty
WORDS = 11

Model = Any
Batch = Any


# Trainings


def convnet() -> nn.Module:
    """Convolutions with BatchNorm and dropout; a layer whose one value a channel has no variance in a shard of one."""
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3),
                         nn.Flatten(), nn.Linear(54, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


class Transformer(nn.Module):
    """Predicts each next word; padding is word 0. Input and output words share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16, padding_idx=0)
        layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(16, WORDS)
        self.output.weight = self.words.weight

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        return self.output(self.encoder(self.words(text), mask=mask, is_causal=True))  # type: ignore[no-any-return]


class Counting(nn.Module):
    """An MLP with a frozen layer, one that is never used, one that some shards do not use, and a buffer of its own."""

    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh())
        self.body[0].requires_grad_(False)
        self.head, self.sometimes, self.idle = nn.Linear(12, 3), nn.Linear(12, 3), nn.Linear(12, 3)
        self.register_buffer("latest", torch.zeros(12))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.body(inputs)
        if self.training and len(inputs):
            self.latest = hidden.detach()[0].clone()
        outputs = self.head(hidden)
        return outputs + self.sometimes(hidden) if inputs.sum() > 0 else outputs  # type: ignore[no-any-return]


class Images(torch.utils.data.Dataset[Any]):
    """Samples with randomness of their own, of three kinds."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        noise = torch.rand(3, 8, 8) + random.random() + float(torch.randn(()))
        return noise + index % 4, index % 4


def images() -> Any:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(4, (ROWS,), generator=generator)
    return torch.randn(ROWS, 3, 8, 8, generator=generator) + labels.view(-1, 1, 1, 1), labels


def texts() -> Any:
    """Rows of up to 9 words; some have none to predict."""
    generator = torch.Generator().manual_seed(2)
    text = torch.randint(1, WORDS, (ROWS, 9), generator=generator)
    lengths = torch.randint(1, 10, (ROWS, 1), generator=generator)
    return text * (torch.arange(9) < lengths)


def table() -> Any:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(ROWS, 6, generator=generator), torch.randint(3, (ROWS,), generator=generator)


def classified(model: Model, batch: Batch) -> tuple[torch.Tensor, Any]:
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels), None


def next_word(model: Model, text: Batch) -> tuple[torch.Tensor, Any]:
    """The mean over this part's words, and their number."""
    told, wanted = text[:, :-1], text[:, 1:]
    return F.cross_entropy(model(told).transpose(1, 2), wanted, ignore_index=0), (wanted > 0).sum()


CLASS_WEIGHTS = torch.tensor([0.1, 1.7, 0.3])


def class_weighted(model: Model, batch: Batch) -> tuple[torch.Tensor, Any]:
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels, CLASS_WEIGHTS), CLASS_WEIGHTS[labels].sum()


def adam(model: Model) -> torch.optim.Optimizer:
    return torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], 1e-2, fused=True)


def sgd(model: Model) -> torch.optim.Optimizer:
    return torch.optim.SGD([each for each in model.parameters() if each.requires_grad], 0.1, momentum=0.9, foreach=True)


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training as data."""

    model: Callable[[], nn.Module]
    dataset: Callable[[], Any]
    loss: Callable[[Model, Batch], tuple[torch.Tensor, Any]] = classified
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = adam
    clip_norm: float | None = None
    amp: str = "no"
    epochs: int = EPOCHS
    loader: dict[str, Any] = field(default_factory=dict)


TRAININGS = {
    "ConvNet with BatchNorm and dropout": Training(model=convnet, dataset=images,
                                                   loader={"augment": [rw.augment.Flip(), rw.augment.Crop(1)]}),
    "transformer with token weights": Training(model=Transformer, dataset=texts, loss=next_word),
    "MLP with clipping": Training(model=lambda: mlp().float(), dataset=table, optimizer=sgd, clip_norm=0.1),
    "class weights, frozen, unused and shared parameters": Training(model=Counting, dataset=table, optimizer=sgd,
                                                                    loss=class_weighted, epochs=5),
    "float64": Training(model=mlp, dataset=lambda: (table()[0].double(), table()[1]), clip_norm=0.1, epochs=5),
    "bf16": Training(model=convnet, dataset=images, amp="bf16", clip_norm=1.0, epochs=3),
    "workers": Training(model=convnet, dataset=Images, epochs=1, loader={"num_workers": 1}),
}


def settings_for(training: Training, world: int, folder: Path, **more: Any) -> Settings:
    return Settings(mode="ddp" if world > 1 else "single", devices=world, exact=SHARDS, amp=training.amp, log_every=3,
                    runs=str(folder), **more)


def train(run: Run, training: Training, stop: int | None = None) -> dict[str, str]:
    """The training as a user writes it, up to update `stop`, where it saves; digests of all that it leaves."""
    torch.manual_seed(5)
    model = run.prepare(training.model())
    optimizer = run.prepare(training.optimizer(model))
    schedule = run.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.7))
    ema = run.prepare(AveragedModel(model, use_buffers=True))
    loader = run.loader(training.dataset(), BATCH, shuffle=True, **training.loader)
    before = digest(state_of(model))
    for _ in run.epochs(training.epochs):
        for batch in loader:
            loss, weight = training.loss(model, batch)
            if run.step(loss, optimizer, weight=weight, clip_norm=training.clip_norm):
                schedule.step()
                ema.update_parameters(model)
                if run.steps in SAVED:
                    run.save()
                if run.steps == stop:
                    break
        if run.steps == stop:
            break
    assert digest(state_of(model)) != before
    found = {"weights and buffers": digest(state_of(model)), "EMA": digest(state_of(ema)), "steps": str(run.steps),
             "optimizer": digest(optimizer.state_dict()), "schedule": digest(schedule.state_dict()),
             "evaluation": digest(evaluated(run, model, training))}
    run.close()
    if run.is_main:
        found["losses"] = digest(losses(run.folder))
        found["last losses"] = digest(losses(run.folder)[-5:])
    return found


SAVED = (6, 13)


def evaluated(run: Run, model: nn.Module, training: Training) -> list[float]:
    """Two figures over all rows, in evaluation mode: a mean of real numbers, and a count."""
    model.eval()
    values = [torch.zeros(0)]
    with torch.no_grad():
        for batch in run.loader(training.dataset(), BATCH, **{**training.loader, "augment": ()}):
            inputs = batch if isinstance(batch, torch.Tensor) else batch[0]
            values.append(model(inputs).square().flatten(1).sum(1))
    model.train()
    rows = torch.cat(values)
    return [float(run.mean(rows)), float(run.sum((rows > 1).sum()))]


def losses(folder: Path) -> list[Any]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [[line["step"], line.get("loss"), line.get("epoch_loss")] for line in lines if "record" not in line]


def digest(value: Any) -> str:
    return hashlib.sha256(repr(_plain(value)).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if hasattr(value, "tobytes"):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def train_all(group: Group, names: list[str]) -> dict[str, dict[str, str]]:
    """Trainings one after the other over one group, which saves starting processes for each."""
    found = {}
    for name in names:
        training = TRAININGS[name]
        with tempfile.TemporaryDirectory() as folder:
            found[name] = train(opened(group, settings_for(training, group.size, Path(folder))), training)
    return found


def opened(group: Group, settings: Settings) -> Run:
    mode = open_mode(settings.mode, group=group, devices=group.size, amp=settings.amp, exact=settings.exact)
    folder = Path(group.broadcast_object(settings.runs))
    return Run(settings, group=group, mode=mode, monitor=Monitor(group, folder, settings), folder=folder,
               agreement=StepAgreement(None, limit_seconds=1))


REQUIRED = list(TRAININGS)[:3]
CASES = [(world, name) for world in WORLDS[1:] for name in (TRAININGS if world in (2, 3) else REQUIRED)]


@functools.cache
def results_on(world: int) -> list[dict[str, dict[str, str]]]:
    names = list(TRAININGS) if world <= 3 else REQUIRED
    return run_groups(train_all, world, names, deadline_seconds=280)


@pytest.mark.timeout(300)   # the first test of a world trains everything
@pytest.mark.parametrize(("world", "name"), CASES)
def test_every_number_of_ranks_leaves_the_same_bits(world: int, name: str) -> None:
    """Weights, buffers, optimizer, schedule, EMA, evaluation and logged losses, on every rank."""
    [expected] = results_on(1)
    for rank, found in enumerate(results_on(world)):
        assert found[name] == {key: value for key, value in expected[name].items() if rank == 0 or "losses" not in key}


def in_small_buckets(run: Run) -> tuple[dict[str, str], int]:
    """The same, in buckets so small that most of them are on their way while backward goes on; and how many were."""
    sent, send = [], Pipeline.send

    def counted(self: Pipeline, tensors: Any) -> None:
        sent.append(1)
        send(self, tensors)

    pipeline._BUCKET_BYTES, Pipeline.send = 64, counted  # type: ignore[method-assign]
    return broken(run, None, REQUIRED[0]), len(sent)


def test_sums_that_are_on_their_way_early_have_the_same_bits() -> None:
    """Where several buckets go while backward computes the rest, on ranks with one shard and with several."""
    expected = left_by(1, None)
    for world in (2, 5):
        [(found, sent), *others] = run_ranks(in_small_buckets, world, exact=SHARDS, log_every=2)
        assert found == expected
        assert sent > 20
        assert {each["weights and buffers"] for each, _ in others} == {expected["weights and buffers"]}


class Reentrant(nn.Module):
    """Uses a checkpointed layer twice, in the older form of checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            inputs = checkpoint(self.layer, inputs.requires_grad_(), use_reentrant=True)
        return self.head(inputs)  # type: ignore[no-any-return]


def reentrant(run: Run) -> None:
    pipeline._BUCKET_BYTES = 64
    model = run.prepare(Reentrant())
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 0.1))
    for inputs, labels in run.loader(table(), 30):
        run.step(F.cross_entropy(model(inputs), labels), optimizer)


def test_a_gradient_that_comes_after_its_sum_was_sent_is_refused() -> None:
    for text in outcomes(reentrant, 2, exact=2):
        assert "A parameter got its gradient twice" in text


# Each part is needed


def with_plain_sums(run: Run) -> None:
    """Gradients added up in float32, as an all-reduce does."""
    def add(self: ShardSum, tensors: Any) -> None:
        before = getattr(self, "_plain", [None] * len(tensors))
        self._plain = [old + new if old is not None and new is not None else new if old is None else old
                       for old, new in zip(before, tensors, strict=True)]

    def total(self: ShardSum) -> Any:
        sums, self._plain = self._plain, [None] * len(self._like)
        return [each if each is None else self._group.sum(each.clone()) for each in sums]

    ShardSum.add, ShardSum.total = add, total  # type: ignore[method-assign]


def with_random_numbers_of_the_rank(run: Run) -> None:
    run._own_key += run.rank


def with_random_numbers_of_the_turn(run: Run) -> None:
    seed = run._seed_torch
    run._seed_torch = lambda part: seed(run._micro_batches_this_step)  # type: ignore[method-assign]


def with_buffers_passed_on(run: Run) -> None:
    """Each shard starts from what the one before made of the buffers."""
    ShardBuffers.restore = lambda self: None  # type: ignore[method-assign]


def with_buffers_of_the_last_shard(run: Run) -> None:
    ShardBuffers.move = lambda self, changes: None  # type: ignore[method-assign]


def with_slices_of_the_ranks(run: Run) -> None:
    """As many shards as ranks."""
    loader = run.loader

    def sliced(*args: Any, **options: Any) -> Any:
        run.settings = run.settings.having(exact=run.world_size)
        made = loader(*args, **options)
        run.settings = run.settings.having(exact=SHARDS)
        return made
    run.loader = sliced  # type: ignore[method-assign]


BROKEN = [with_plain_sums, with_random_numbers_of_the_rank, with_random_numbers_of_the_turn, with_buffers_passed_on,
          with_buffers_of_the_last_shard, with_slices_of_the_ranks]


def broken(run: Run, breakage: Callable[[Run], None] | None, name: str) -> dict[str, str]:
    if breakage is not None:
        breakage(run)
    return train(run, TRAININGS[name], stop=5)


def left_by(world: int, breakage: Callable[[Run], None] | None, name: str = REQUIRED[0]) -> dict[str, str]:
    return run_ranks(broken, world, breakage, name, exact=SHARDS, log_every=2)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("breakage", BROKEN)
def test_without_any_of_its_parts_the_bits_differ(breakage: Callable[[Run], None]) -> None:
    """So the test above can fail: one part is taken out on one rank and on three, and the weights part."""
    assert left_by(1, breakage)["weights and buffers"] != left_by(3, breakage)["weights and buffers"]


def test_losses_added_up_by_rank_differ() -> None:
    """The logged loss is part of the promise: without a place for each shard it differs in its last digits."""
    assert left_by(1, with_losses_of_the_rank, "float64")["losses"] != left_by(
        3, with_losses_of_the_rank, "float64")["losses"]
    assert left_by(1, None, "float64") == left_by(3, None, "float64")


def with_losses_of_the_rank(run: Run) -> None:
    add = run._monitor._meter.add
    run._monitor._meter.add = lambda *args, shard, **options: add(*args, **options)  # type: ignore[method-assign]


# Checkpoints


def part(group: Group, name: str, folder: Path, source: Path | None, stop: int | None) -> dict[str, str]:
    run = opened(group, settings_for(TRAININGS[name], group.size, folder))
    run._saving.resume_from = source
    return train(run, TRAININGS[name], stop)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", REQUIRED)
def test_a_run_that_goes_on_elsewhere_in_mid_epoch_leaves_the_same_bits(tmp_path: Path, name: str) -> None:
    """3 ranks, then 2, then 4, through checkpoints at steps 6 and 13, against one rank that went through."""
    [expected] = results_on(1)
    source = None
    for world, stop in zip((3, 2, 4), (*SAVED, None), strict=True):
        folder = tmp_path / str(world)
        found = run_groups(part, world, name, folder, source, stop, deadline_seconds=120)
        source = folder
    for rank, each in enumerate(found):
        for what in ("weights and buffers", "optimizer", "schedule", "EMA", "evaluation", "steps",
                     *(["last losses"] if rank == 0 else [])):
            assert each[what] == expected[name][what], what


# What is not a number


class Diverging(nn.Module):
    """Gives NaN for one row, which is in one shard."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        factor = torch.where(inputs[:, :1] == table()[0][17, 0], math.nan, 1.0)
        return self.first(inputs * factor) + self.second(inputs)  # type: ignore[no-any-return]


def diverge(run: Run) -> tuple[str, str]:
    torch.manual_seed(1)
    model = run.prepare(Diverging())
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 0.1))
    said: list[str] = []
    run.print = lambda *words: said.append(" ".join(map(str, words)))  # type: ignore[method-assign]
    for inputs, labels in run.loader(table(), 30):
        run.step(F.cross_entropy(model(inputs), labels), optimizer)
    return digest(state_of(model)), "; ".join(said)


def test_a_nan_in_one_shard_is_the_same_everywhere() -> None:
    """The same NaN in the same weights, and one message that names them."""
    [(weights, said)] = run_ranks(diverge, 1, exact=6)
    assert said == "step 1: the gradient of first.weight, first.bias, second.weight and 1 more is not finite"
    for world in (2, 3, 6):
        assert set(run_ranks(diverge, world, exact=6)) == {(weights, said)}


# Beside plain PyTorch


def smooth(run: Run) -> dict[str, Any]:
    model = run.prepare(mlp())
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 0.05, momentum=0.9))
    inputs, labels = table()
    for _ in run.epochs(50):
        for batch, goal in run.loader((inputs.double(), labels), 30):
            run.step(F.cross_entropy(model(batch), goal), optimizer, clip_norm=0.5)
    return state_of(model)


def smooth_and_plain() -> dict[str, Any]:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    inputs, labels = table()
    for _ in range(50):
        for start in range(0, ROWS, 30):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[start:start + 30].double()), labels[start:start + 30]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    return state_of(model)


def test_exact_mode_is_the_training_of_plain_pytorch() -> None:
    """In float64, after 200 steps, within 1e-10; the weights moved."""
    expected, start = smooth_and_plain(), state_of(mlp())
    for found in run_ranks(smooth, 2, exact=7):
        for name, weights in found.items():
            assert abs(weights - start[name]).max() > 1e-3
            assert abs(weights - expected[name]).max() < 1e-10


# What is refused


@pytest.mark.parametrize(("settings", "told"), [
    ({"mode": "dp", "devices": 2, "exact": 4}, "threads of dp add gradients up in no fixed order"),
    ({"mode": "ddp", "devices": 5, "exact": 4}, "Give --exact 5 or more, or fewer devices"),
    ({"devices": 2, "nodes": 3, "endpoint": "a:1", "exact": 4}, "Give --exact 6 or more"),
])
def test_layouts_that_exact_mode_cannot_serve(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        resolve(Settings(**settings))


def misused(run: Run, how: str) -> None:
    model = run.prepare(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)), sync_batchnorm=how == "sync")
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 0.1))
    if how == "unknown":
        optimizer = run.prepare(torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1))
    loader = run.loader(table(), 30, micro_batch=4 if how == "micro" else None)
    if how == "no loader":
        run.step(model(table()[0]).sum(), optimizer)
    for inputs, labels in loader:
        loss = F.cross_entropy(model(inputs), labels)
        if how == "chance":
            loss = loss + torch.zeros(3).put_(torch.tensor([0, 0]), inputs.new_ones(2)).sum()
        run.step(loss, optimizer)
        if how == "second":
            run.step(F.cross_entropy(model(inputs), labels), optimizer)


@pytest.mark.parametrize(("how", "told"), [
    ("sync", "A synchronised BatchNorm was prepared in exact mode"),
    ("unknown", "holds parameters of no prepared module"),
    ("micro", "Give --exact 8, or a micro_batch of 10 or more"),
    ("no loader", "rows come from no loader"),
    ("chance", "does not have a deterministic implementation"),
    ("second", "A backward pass came after an update in one loop body"),
])
def test_uses_that_exact_mode_refuses(how: str, told: str) -> None:
    """On one rank and on two: what works on one must not fail on more."""
    for world in (1, 2):
        for text in outcomes(misused, world, how, exact=3):
            assert told in text


def unlike(run: Run, what: str) -> list[str]:
    """Rank 1 differs in one thing that decides bits."""
    if run.rank == 1:
        if what == "threads":
            torch.set_num_threads(2)
        else:
            processor.model = lambda: "another"  # type: ignore[assignment]
    try:
        sameness.require_same(run._group)
    except UsageError as error:
        return [error.given, error.remedy]
    return []


@pytest.mark.parametrize(("what", "told"), [("threads", "rank 1 differs from rank 0: threads 2, not 1."),
                                            ("processor", "rank 1 differs from rank 0: processor another, not ")])
def test_ranks_that_differ_are_refused(what: str, told: str) -> None:
    for given, _ in run_ranks(unlike, 2, what, exact=2):
        assert told in given


@pytest.mark.parametrize(("device", "shards", "told"), [("cpu", 1 << 21, "Sums have at most 2097151 terms"),
                                                        ("mps", 4, "Its sums need float64, which mps lacks")])
def test_what_the_sums_cannot_do_is_refused(device: str, shards: int, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        open_mode("single", group=Group(World(), torch.device(device)), devices=1, amp="no", exact=shards)


def test_going_on_from_another_kind_of_run_is_told() -> None:
    """A checkpoint of another number of shards or of plain ddp may be gone on from, and it is said."""
    group = Group(World(), torch.device("cpu"))
    mode = open_mode("single", group=group, devices=1, amp="no", exact=4)
    assert mode.resumed(mode.layout()) == []
    [line] = mode.resumed({**mode.layout(), "virtual shards": 8, "threads": "64"})
    assert "virtual shards 4, not 8; threads" in line
    assert "virtual shards 4, not None" in mode.resumed({"world_size": 2, "bucket_bytes": []})[0]
    mode.close()
    assert not torch.are_deterministic_algorithms_enabled()
