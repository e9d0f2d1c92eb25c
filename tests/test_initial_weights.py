"""`--init`: weights that somebody else wrote, under whatever prefixes, and on every rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ranks import outcomes, run_ranks
from rankwise.checkpoint.initial import load_initial
from rankwise.errors import UsageError


class Net(nn.Module):
    """With a buffer, and a part whose name is that of DistributedDataParallel's."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.module = nn.Linear(2, width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.norm(self.module(inputs))


def expected() -> dict[str, torch.Tensor]:
    """The state of a net like no other."""
    return {name: torch.full_like(value, 5 + number) for number, (name, value) in enumerate(Net().state_dict().items())}


def prefixed(prefix: str) -> dict[str, torch.Tensor]:
    return {prefix + name: value for name, value in expected().items()}


def require_loaded(module: nn.Module) -> None:
    for name, value in module.state_dict().items():
        assert torch.equal(value, expected()[name.replace("_orig_mod.", "")]), name


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("nested", [(), ("state_dict",), ("model",), ("model_state_dict",)])
def test_a_file_of_torch_save_is_read_whatever_wrapped_the_model(tmp_path: Path, prefix: str,
                                                                 nested: tuple[str, ...]) -> None:
    content: dict[str, Any] = prefixed(prefix)
    for name in reversed(nested):
        content = {name: content, "epoch": 3}
    torch.save(content, tmp_path / "weights.pth")
    net = Net()
    load_initial(tmp_path / "weights.pth", net)
    require_loaded(net)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")   # of torch's compiler, which is imported here
def test_a_safetensors_file_and_a_compiled_model(tmp_path: Path) -> None:
    """Metadata of other libraries is no name of a tensor."""
    save_file(prefixed("module."), tmp_path / "weights.safetensors", {"format": "pt", "made_by": "somebody"})
    net = Net()
    load_initial(tmp_path / "weights.safetensors", torch.compile(net, backend="eager"))
    require_loaded(net)


def test_keys_and_shapes_that_differ_are_named(tmp_path: Path) -> None:
    state = {**prefixed("module."), "module.head.weight": torch.zeros(1)}
    del state["module.norm.bias"]
    torch.save(state, tmp_path / "weights.pt")
    net = Net(width=4)
    before = net.module.weight.clone()
    with pytest.raises(UsageError) as caught:
        load_initial(tmp_path / "weights.pt", net)
    for words in ("missing: norm.bias", "not in the model: module.head.weight",
                  "module.weight [3, 2], here [4, 2]"):
        assert words in caught.value.truth
    assert torch.equal(before, net.module.weight)


def test_what_cannot_be_read_or_only_at_a_risk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_initial(tmp_path / "weights.pt", Net())
    torch.save(Net(), tmp_path / "module.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    (tmp_path / "text.pt").write_text("no weights")
    (tmp_path / "text.safetensors").write_text("no weights")
    (tmp_path / "key.pt").write_text("hello\n")
    for name, truth in (("module.pt", "more than tensors"), ("list.pt", "a list, not a state dict"),
                        ("text.pt", "It "), ("key.pt", "It is no file of weights"),
                        ("text.safetensors", "It is no file of weights")):
        with pytest.raises(UsageError, match=truth):
            load_initial(tmp_path / name, Net())


def _start(run: Any) -> tuple[list[float], list[float], float]:
    net, other = run.prepare(Net(), Net())
    optimizer = run.prepare(torch.optim.SGD(net.parameters(), 0.5))
    before: list[float] = []
    for _ in run.epochs(1):
        before = [value.double().mean().item() for value in net.state_dict().values()]
        for inputs in run.loader(torch.ones(5, 2), 5):
            run.step(net(inputs).sum(), optimizer)
        run.save()
    after = [value.double().mean().item() for value in net.state_dict().values()]
    return before, after, other.module.weight.mean().item()


@pytest.mark.parametrize(("world_size", "options"), [(1, {}), (1, {"mode": "dp", "devices": 2}), (3, {}),
                                                     (2, {"exact": 4})])
def test_the_first_model_of_every_rank_starts_from_the_file(tmp_path: Path, world_size: int, options: dict[str, Any]
                                                            ) -> None:
    torch.save(prefixed("module."), tmp_path / "weights.pt")
    for before, after, other in run_ranks(_start, world_size, init=str(tmp_path / "weights.pt"), **options):
        assert before == [5, 6, 7, 8, 9, 10, 11]
        assert before != after
        assert other < 1


def test_a_failure_of_rank_0_is_the_error_of_every_rank(tmp_path: Path) -> None:
    for told in outcomes(_start, 2, init=str(tmp_path / "nowhere.pt")):
        assert "UsageError: --init is" in told


def _start_in(run: Any, folder: Path) -> tuple[list[float], str]:
    """The same in a folder that outlives the ranks; the weights at the start, and what was told."""
    told: list[str] = []
    run._monitor.tell = told.append
    run._saving._checkpoints._folder = folder / "checkpoints"
    return _start(run)[0], "\n".join(told)


def test_a_run_that_goes_on_leaves_the_file_aside(tmp_path: Path) -> None:
    """Where all of its checkpoints are damaged it starts afresh, and so from the file."""
    torch.save(expected(), tmp_path / "weights.pt")
    first, again = (run_ranks(_start_in, 2, tmp_path, init=str(tmp_path / "weights.pt")) for _ in range(2))
    assert first[1][0] == [5, 6, 7, 8, 9, 10, 11]
    assert again[1][0] == []   # no epoch was left
    assert "--init is left aside: the run goes on from" in again[0][1]
    (tmp_path / "checkpoints" / "step-000001" / "position.json").write_text("{}")
    afresh = run_ranks(_start_in, 2, tmp_path, init=str(tmp_path / "weights.pt"))
    assert afresh[1][0] == [5, 6, 7, 8, 9, 10, 11]
    assert "step-000001 was to be loaded. Its position.json cannot be read" in afresh[0][1]
    assert "the training starts afresh" in afresh[0][1]
