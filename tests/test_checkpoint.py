"""Checkpoints: whole or not at all, plain to read, refused when they do not fit, and the same news on all ranks."""

from __future__ import annotations

import json
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import nn
from torch.optim.swa_utils import AveragedModel

from ranks import run_groups, run_ranks
from rankwise.checkpoint import folder as folders
from rankwise.checkpoint.ranks import Checkpoints
from rankwise.checkpoint.state import export_weights
from rankwise.errors import CheckpointError
from rankwise.group import Group
from rankwise.world import World

POSITION = {"epoch": 3, "steps": 7, "loaders": [{"passes": 3, "batch": 1}], "scaler": {}, "layout": None}


class Tied(nn.Module):
    """A decoder that shares the embedding's weight, with a buffer, an extra state and a tensor safetensors lacks."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, width)
        self.norm = nn.BatchNorm1d(width)
        self.decode = nn.Linear(width, 5, bias=False)
        self.decode.weight = self.embed.weight
        self.register_buffer("phase", torch.ones(2, dtype=torch.complex128))
        self.seen = 0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen += len(tokens)
        return self.decode(self.norm(self.embed(tokens)))

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


def build(seed: int = 0, width: int = 4) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = Tied(width).double()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20)
    return {"model": model, "optimizer": optimizer, "schedule": schedule, "model_2": AveragedModel(model)}


def train(things: dict[str, Any], steps: range) -> None:
    for step in steps:
        tokens = torch.tensor([step % 5, (step + 1) % 5, 3])
        nn.functional.cross_entropy(things["model"](tokens), (tokens + 1) % 5).backward()
        things["optimizer"].step()
        things["optimizer"].zero_grad()
        things["schedule"].step()
        things["model_2"].update_parameters(things["model"])


def alone(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", Group(World(), torch.device("cpu")))


def kept(checkpoints: Checkpoints, step: int, things: dict[str, Any], position: dict[str, Any] = POSITION) -> Path:
    """Save, and wait for the disk."""
    folder, _ = checkpoints.save(step, things, position)
    checkpoints.require_written(folder)
    return folder


def saved(tmp_path: Path, step: int = 7) -> Path:
    things = build()
    train(things, range(min(step, 9)))
    return kept(alone(tmp_path), step, things)


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_restored_training_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    """The weights, moments, learning rates and averages after 7 + 8 steps are those of 15 steps, bit for bit."""
    uninterrupted = build()
    start = {name: value.clone() for name, value in uninterrupted["model"].state_dict().items() if "weight" in name}
    train(uninterrupted, range(15))
    moved = uninterrupted["model"].state_dict()
    assert all((value - moved[name]).abs().max() > 1e-3 for name, value in start.items())

    folder = saved(tmp_path)
    resumed = build(seed=1)
    assert alone(tmp_path).load(folder, resumed) == POSITION
    assert resumed["model"].seen == 7 * 3
    assert resumed["model"].decode.weight is resumed["model"].embed.weight
    train(resumed, range(7, 15))
    for name in ("model", "model_2"):
        for key, value in uninterrupted[name].state_dict().items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, resumed[name].state_dict()[key]), key
    assert uninterrupted["schedule"].get_last_lr() == resumed["schedule"].get_last_lr()


def test_the_files_are_read_by_plain_safetensors_and_torch(tmp_path: Path) -> None:
    """A tied tensor is stored once; the metadata maps its other name to the stored one."""
    folder = saved(tmp_path)
    assert folder.name == "step-000007"
    assert sorted(file.name for file in folder.iterdir()) == [
        "model.safetensors", "model_2.safetensors", "position.json", "state.pt"]
    assert len({file.stat().st_mode for file in folder.iterdir()}) == 1
    weights = load_file(folder / "model.safetensors")
    assert "embed.weight" in weights
    assert "decode.weight" not in weights
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata()["decode.weight"] == "embed.weight"
    state = torch.load(folder / "state.pt", weights_only=True)
    assert state["model"]["_extra_state"] == {"seen": 21}
    torch.optim.Adam(Tied().parameters()).load_state_dict(state["optimizer"])
    assert json.loads((folder / "position.json").read_text())["position"] == POSITION


def test_safetensors_own_loader_restores_a_tied_model(tmp_path: Path) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight

    model, other = Pair(), Pair()
    folder = kept(alone(tmp_path), 1, {"model": model}, POSITION)
    assert load_model(other, folder / "model.safetensors") == (set(), [])
    assert torch.equal(model.second.weight, other.second.weight)


def test_a_view_is_saved_without_the_storage_around_it(tmp_path: Path) -> None:
    """Views into one flat buffer are neither taken for tied tensors nor saved with the whole buffer."""
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            flat = torch.arange(100_000.0)
            self.first, self.second = nn.Parameter(flat[:4]), nn.Parameter(flat[4:8].view(2, 2).t())

    folder = kept(alone(tmp_path), 1, {"model": Flat()}, POSITION)
    assert (folder / "model.safetensors").stat().st_size < 1000
    restored = Flat()
    nn.init.zeros_(restored.second)
    alone(tmp_path).load(folder, {"model": restored})
    assert restored.second.tolist() == [[4.0, 6.0], [5.0, 7.0]]
    export_weights(Flat(), tmp_path / "flat.pth")
    assert (tmp_path / "flat.pth").stat().st_size < 5000


@pytest.mark.filterwarnings("ignore::DeprecationWarning")   # of torch's compiler, which is imported here
def test_compiled_and_plain_models_read_each_others_checkpoints(tmp_path: Path) -> None:
    """The names that torch.compile adds are in no file."""
    plain, compiled = nn.Linear(2, 2), torch.compile(nn.Linear(2, 2), backend="eager")   # inductor starts a process
    folder = kept(alone(tmp_path), 1, {"model": compiled}, POSITION)
    assert set(load_file(folder / "model.safetensors")) == {"weight", "bias"}
    alone(tmp_path).load(folder, {"model": plain})
    assert torch.equal(plain.weight, compiled.weight)
    nn.init.zeros_(compiled.weight)
    alone(tmp_path).load(folder, {"model": compiled})
    assert torch.equal(plain.weight, compiled.weight)


def test_the_newest_sound_checkpoint_is_found_and_the_damaged_ones_are_named(tmp_path: Path) -> None:
    """One flipped bit, a missing file and a cut position.json are each noticed; a folder being written is not seen."""
    for step in (99, 100, 1_000_000, 1_000_001):
        saved(tmp_path, step)
    parent = tmp_path / "checkpoints"
    damage(parent / "step-1000001" / "model.safetensors")
    (parent / "step-1000000" / "state.pt").unlink()
    (parent / "step-000100" / "position.json").write_text("{")
    (parent / ".step-1000002.part").mkdir()
    folder, passed_over = folders.find(tmp_path)
    assert folder == parent / "step-000099"
    assert ["step-1000001" in str(passed_over[0]), "SHA-256" in passed_over[0].truth] == [True, True]
    assert "state.pt cannot be read" in passed_over[1].truth
    assert "position.json cannot be read" in passed_over[2].truth


@pytest.mark.parametrize("name", ["model.safetensors", "model_2.safetensors", "state.pt", "position.json"])
def test_every_bit_and_every_byte_of_every_file_counts(tmp_path: Path, name: str) -> None:
    """A flipped bit (in each byte of position.json, in some elsewhere), and a file that is cut, is found."""
    folder = saved(tmp_path)
    folders.require_sound(folder)
    whole = (folder / name).read_bytes()
    generator = np.random.default_rng(0)
    bits = generator.integers(0, 8 * len(whole), 40)
    if name == "position.json":   # whose last byte is the end of a line
        bits = np.arange(len(whole) - 1) * 8 + generator.integers(0, 8, len(whole) - 1)
    for bit in bits:
        broken = bytearray(whole)
        broken[bit // 8] ^= 1 << (bit % 8)
        (folder / name).write_bytes(broken)
        with pytest.raises(CheckpointError):
            folders.require_sound(folder)
    for length in (0, 1, len(whole) // 2, len(whole) - 2):
        (folder / name).write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            folders.require_sound(folder)
    (folder / name).write_bytes(whole)
    folders.require_sound(folder)


def test_a_checkpoint_asked_for_by_name_is_never_replaced_by_another(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    folder = saved(tmp_path, 2)
    assert folders.find(folder) == (folder, [])
    damage(folder / "state.pt")
    with pytest.raises(CheckpointError, match=r"is damaged: state\.pt (has|does not have)"):
        folders.find(folder)


def test_a_run_without_a_sound_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(CheckpointError, match="It holds none yet"):
        folders.find(tmp_path)
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="It cannot be read"):
        folders.find(tmp_path)
    (tmp_path / "checkpoints").unlink()
    damage(saved(tmp_path) / "state.pt")
    with pytest.raises(CheckpointError, match=r"no checkpoint that can be loaded(.|\n)*state\.pt"):
        folders.find(tmp_path)
    with pytest.raises(CheckpointError, match=r"position\.json cannot be read"):
        folders.find(tmp_path / "elsewhere")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    content = json.loads((folder / "position.json").read_text())
    (folder / "position.json").write_text(json.dumps({**content, "format": 2}))
    with pytest.raises(CheckpointError, match="checkpoint format 2"):
        folders.find(folder)


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    saved(tmp_path, 7)
    things = build(seed=5)
    folder = kept(alone(tmp_path), 7, things, {**POSITION, "epoch": 4})
    assert json.loads((folder / "position.json").read_text())["position"]["epoch"] == 4
    assert [path.name for path in folder.parent.iterdir()] == ["step-000007"]


def test_what_a_killed_writer_left_is_put_in_order_by_the_next_start(tmp_path: Path) -> None:
    """A checkpoint that had stepped aside for a newer of its step gets its name back, unless the newer is there."""
    folder = saved(tmp_path)
    folder.rename(folder.with_name("step-000007.old"))
    (folder.parent / ".step-000008.part").mkdir()
    (folder.parent / ".step-000008.part" / "model.safetensors").write_text("half")
    assert folders.find(tmp_path)[0] == folder.with_name("step-000007.old")
    assert alone(tmp_path).begin(None) == (folder, [])
    assert [path.name for path in folder.parent.iterdir()] == ["step-000007"]
    shutil.copytree(folder, folder.with_name("step-000007.old"))
    assert alone(tmp_path).begin(None) == (folder, [])
    assert [path.name for path in folder.parent.iterdir()] == ["step-000007"]


def test_what_was_prepared_must_be_what_was_saved(tmp_path: Path) -> None:
    """Things that are missing, too many or of another class are named, and nothing is loaded."""
    folder = saved(tmp_path)
    things = build(seed=1)
    before = things["model"].embed.weight.clone()
    del things["schedule"]
    things["optimizer"] = torch.optim.SGD(things["model"].parameters(), 0.1)
    things["optimizer_2"] = torch.optim.SGD([things["model"].embed.weight], 0.1)
    with pytest.raises(CheckpointError) as caught:
        alone(tmp_path).load(folder, things)
    for words in ("optimizer was Adam and is SGD", "schedule was OneCycleLR and is not prepared",
                  "optimizer_2 was not there and is SGD"):
        assert words in caught.value.truth
    assert torch.equal(before, things["model"].embed.weight)


def test_keys_and_shapes_that_differ_are_named(tmp_path: Path) -> None:
    folder = kept(alone(tmp_path), 1, {"model": nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))}, POSITION)
    other = nn.Sequential(nn.Linear(2, 4), nn.Identity(), nn.Linear(3, 1))
    with pytest.raises(CheckpointError) as caught:
        alone(tmp_path).load(folder, {"model": other})
    assert "missing: 2.weight, 2.bias" in caught.value.truth
    assert "not in the model: 1.bias, 1.weight" in caught.value.truth
    assert "0.weight [3, 2], here [4, 2]" in caught.value.truth


def test_an_optimizer_over_other_parameters_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    folder = kept(alone(tmp_path), 1, {"optimizer": torch.optim.Adam(model.parameters())}, POSITION)
    with pytest.raises(CheckpointError, match="Its optimizer does not fit"):
        alone(tmp_path).load(folder, {"optimizer": torch.optim.Adam([model.weight])})


def test_a_state_that_could_not_be_read_safely_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    class Count:
        def state_dict(self) -> dict[str, Any]:
            return {"count": np.float64(3)}

    with pytest.raises(CheckpointError, match=r"numpy(.|\n)*Convert them in the state_dict"):
        kept(alone(tmp_path), 1, {"state": Count()}, POSITION)
    assert not (tmp_path / "checkpoints").exists()


def test_export_leaves_a_plain_state_dict_with_tied_tensors_shared(tmp_path: Path) -> None:
    model = Tied()
    export_weights(model, tmp_path / "new" / "weights.pth")
    state = torch.load(tmp_path / "new" / "weights.pth", weights_only=True)
    assert state.keys() == model.state_dict().keys()
    assert state["embed.weight"].data_ptr() == state["decode.weight"].data_ptr()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["weights.pth"]


# On several ranks


def _save_and_load(group: Group, scratch: Path) -> tuple[str, Any, torch.Tensor]:
    torch.set_num_threads(1)
    things = build(seed=0 if group.is_main else 9)   # only rank 0's state is kept
    train(things, range(5))
    checkpoints = Checkpoints(scratch / "checkpoints", group)
    folder = kept(checkpoints, 5, things)
    assert folder.is_dir()
    resumed = build(seed=4)
    position = checkpoints.load(folders.find(scratch)[0], resumed)
    return folder.name, position, resumed["model"].embed.weight.detach()


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_rank_gets_the_state_of_rank_0(tmp_path: Path, world_size: int) -> None:
    expected = build()
    train(expected, range(5))
    for name, position, weight in run_groups(_save_and_load, world_size, tmp_path):
        assert name == "step-000005"
        assert position == POSITION
        assert torch.equal(weight, expected["model"].embed.weight)


def _fill_the_disk(group: Group, scratch: Path) -> list[str]:
    """No file may grow beyond 100 kB from the second save on: the write fails as on a full disk."""
    checkpoints = Checkpoints(scratch / "checkpoints", group)
    model = nn.Linear(200, 200)
    kept(checkpoints, 1, {"model": model})
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    told = []
    for action in (lambda: kept(checkpoints, 2, {"model": model}),
                   lambda: kept(checkpoints, 2, {"optimizer": _adam_with_state(model)}),
                   lambda: checkpoints.export(model, scratch / "weights.pth")):
        try:
            action()
        except CheckpointError as error:
            told.append(error.given)
    found = folders.find(scratch)[0]
    return [*told, found.name]


def _adam_with_state(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 200)).sum().backward()
    optimizer.step()
    return optimizer


def test_a_full_disk_is_one_clear_error_on_every_rank_and_harms_nothing(tmp_path: Path) -> None:
    for told in run_groups(_fill_the_disk, 2, tmp_path):
        assert told == [f"{tmp_path / 'checkpoints' / 'step-000002'} could not be written."] * 2 + [
            f"{tmp_path / 'weights.pth'} could not be written.", "step-000001"]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000001"]


def _refused(group: Group, folder: Path, own_folder: bool) -> str:
    """What each rank is told when rank 1 alone sees no checkpoint, or another one."""
    source = folder if group.is_main or not own_folder else folder.parent / "of-another-machine"
    try:
        Checkpoints(folder.parent, group).load(source, build())
    except CheckpointError as error:
        return str(error)
    return "loaded"


def test_a_rank_that_cannot_read_the_checkpoint_is_named_on_every_rank(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    assert run_groups(_refused, 2, folder, False) == ["loaded", "loaded"]
    for told in run_groups(_refused, 2, folder, True):
        assert "Rank 1:" in told
        assert "of-another-machine" in told


def test_a_rank_that_reads_another_checkpoint_is_named_on_every_rank(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    kept(alone(tmp_path), 1, build(seed=3), POSITION).rename(folder.parent / "of-another-machine")
    for told in run_groups(_refused, 2, folder, True):
        assert "Rank 1 sees other files there than rank 0" in told


def test_ranks_read_one_checkpoint_whose_loss_is_not_a_number(tmp_path: Path) -> None:
    """Not a number is not equal to itself; the files are the same all the same."""
    folder = kept(alone(tmp_path), 1, build(), {**POSITION, "loss": float("nan")})
    assert run_groups(_refused, 2, folder, False) == ["loaded", "loaded"]


def test_nothing_is_written_where_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="could not be written"):
        saved(tmp_path)


def test_an_interrupted_save_leaves_nothing_behind(tmp_path: Path) -> None:
    class Interrupted:
        def state_dict(self) -> dict[str, Any]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept(alone(tmp_path), 1, {"model": nn.Linear(2, 2), "state": Interrupted()}, POSITION)
    assert not (tmp_path / "checkpoints").exists()


# Whole runs


def _part(run: Any, source: Path | None, target: Path, stop: int) -> dict[str, Any]:
    """Train to step `stop` of 9 (three epochs of batches of 8, 8 and 5 rows), save there, and tell what came out."""
    run._saving.resume_from = source
    inputs = torch.linspace(-1, 1, 21, dtype=torch.float64)[:, None]
    model = nn.Linear(1, 1, dtype=torch.float64)
    nn.init.constant_(model.weight, 1.0 if source is None else 77.0)
    nn.init.zeros_(model.bias)
    model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    schedule = run.prepare(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8))
    loader = run.loader((inputs, inputs.exp()), 8)
    for _ in run.epochs(3):
        for batch, goal in loader:
            if run.step((model(batch) - goal).square().mean(), optimizer):
                schedule.step()
            if run.steps == stop and stop % 3:   # in the middle of an epoch
                _keep(run, target)
                break
        if run.steps == stop:
            if stop % 3 == 0:
                _keep(run, target)
            break
    run._monitor.finished()
    run._monitor.close()
    lines = (run.folder / "metrics.jsonl").read_text().splitlines() if run.is_main else []
    losses = [json.loads(line)["epoch_loss"] for line in lines if "epoch_loss" in line]
    return {"weights": [model.weight.item(), model.bias.item()], "lr": schedule.get_last_lr(), "losses": losses}


def _keep(run: Any, target: Path) -> None:
    folder = run.save(wait=True)
    if run.is_main:
        shutil.copytree(folder, target)


def _plain() -> tuple[list[float], list[float]]:
    """The same in plain PyTorch, written out: the weights after 9 steps, and the mean loss of each epoch."""
    inputs = torch.linspace(-1, 1, 21, dtype=torch.float64)
    weights, moments, lr, losses = [torch.tensor(v, dtype=torch.float64) for v in (1.0, 0.0)], [0.0, 0.0], 0.1, []
    for _ in range(3):
        total = 0.0
        for batch in inputs.split(8):
            residual = weights[0] * batch + weights[1] - batch.exp()
            total += residual.square().sum().item()
            gradients = (2 * residual * batch).mean(), (2 * residual).mean()
            moments = [0.9 * moment + gradient for moment, gradient in zip(moments, gradients, strict=True)]
            weights = [weight - lr * moment for weight, moment in zip(weights, moments, strict=True)]
            lr *= 0.8
        losses.append(total / 21)
    return [weight.item() for weight in weights], losses


Layout = tuple[int, dict[str, Any]]
SINGLE, DP = (1, {}), (1, {"mode": "dp", "devices": 2})


@pytest.mark.parametrize(("before", "after", "stop"), [
    (SINGLE, (3, {}), 4), ((3, {}), (2, {}), 4), ((2, {}), SINGLE, 5), ((2, {}), (3, {}), 6), (DP, (4, {}), 4),
    ((4, {}), DP, 5), ((2, {}), (3, {"exact": 4}), 4), ((3, {"exact": 4}), (2, {"exact": 4}), 5),
    ((1, {"exact": 4}), DP, 4)])
def test_a_run_is_resumed_in_another_layout(tmp_path: Path, before: Layout, after: Layout, stop: int) -> None:
    """Saved in the middle of an epoch or at its end, it comes to the weights and epoch losses of one plain process."""
    expected, losses = _plain()
    assert abs(expected[0] - 1.0) > 0.05
    first = run_ranks(_part, before[0], None, tmp_path / "step", stop, **before[1])
    resumed = run_ranks(_part, after[0], tmp_path / "step", tmp_path / "end", 9, **after[1])
    for rank in resumed:
        assert rank["weights"] == pytest.approx(expected, abs=1e-12)
        assert rank["lr"] == pytest.approx([0.1 * 0.8 ** 9], rel=1e-12)
    assert first[0]["weights"] != rank["weights"]
    assert resumed[0]["losses"] == pytest.approx(losses[stop // 3:], abs=1e-12)
