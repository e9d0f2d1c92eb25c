"""Real runs, injured: ranks, savers and data workers are killed, and the result has the bits of a run left alone."""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from referee import (
    DATA_WORKER,
    EVALUATING,
    IN_A_STEP,
    SAVING,
    STARTING,
    STOPPED,
    Injury,
    Outcome,
    Referee,
    Scene,
    table,
)

from launches import RANKWISE, TORCHRUN, Launch, run

SCRIPTS = Path(__file__).parent / "faults"
SAVE_EVERY = 5
pytestmark = pytest.mark.timeout(600)


def command(ranks: int, epochs: int, *options: str) -> list[str]:
    return [*RANKWISE, "run", "training.py", "--devices", str(ranks), "--accelerator", "cpu", "--name", "it",
            "--timeout", "15", "--save-every", str(SAVE_EVERY), *options, "--", "--epochs", str(epochs)]


def folder_with_scripts(folder: Path) -> Path:
    folder.mkdir()
    for script in ("training.py", "by_hand.py"):
        shutil.copy(SCRIPTS / script, folder)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(folder / "final.pt", weights_only=True)
    return state


def uninterrupted(folder: Path, ranks: int, epochs: int, *options: str) -> dict[str, torch.Tensor]:
    ended = run([*command(ranks, epochs, *options), "--pace", "0"], folder_with_scripts(folder), deadline_seconds=300)
    assert ended.code == 0, ended.text
    return weights(folder)


def injured(folder: Path, ranks: int, epochs: int, injuries: list[Injury], seed: int, *options: str) -> list[Outcome]:
    """Injure a run; require that it ends well, with nothing left over; returns what the injuries cost."""
    launch = Launch(command(ranks, epochs, "--max-restarts", "1000", *options), folder_with_scripts(folder))
    referee = Referee(Scene(launch, folder, seed))
    try:
        referee.injure(injuries)
    except BaseException:
        launch.end_all()
        raise
    ended = launch.ended(deadline_seconds=300)
    assert ended.code == 0, ended.text
    assert not list(folder.glob("runs/it/checkpoints/.*")), "a temporary folder is left"
    steps = [json.loads(line)["step"] for line in (folder / "runs/it/metrics.jsonl").read_text().splitlines()
             if "held_out" in line]
    assert steps == [12 * epoch for epoch in range(1, epochs + 1)], "a number is logged twice, or not at all"
    return referee.outcomes


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_a_run_that_is_injured_ends_with_the_same_bits(tmp_path: Path) -> None:
    """Three ranks: rank 0 is killed while it saves, another in evaluation, and a data worker of one."""
    expected = uninterrupted(tmp_path / "whole", 3, 5)
    outcomes = injured(tmp_path / "injured", 3, 5, [SAVING, EVALUATING, DATA_WORKER], 1)
    print(table(outcomes))
    assert len(outcomes) == 3
    assert all(outcome.steps_lost <= 2 * SAVE_EVERY for outcome in outcomes)
    assert_equal(weights(tmp_path / "injured"), expected)


@pytest.mark.soak
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_hundred_injuries(tmp_path: Path, ranks: int) -> None:
    """Many injuries a run, of every kind; beside the times of the same training by hand under torchrun."""
    kinds = [IN_A_STEP, SAVING, EVALUATING, DATA_WORKER, STARTING, IN_A_STEP, SAVING]
    chance = random.Random(ranks)
    expected = uninterrupted(tmp_path / "whole", ranks, 45)
    outcomes = injured(tmp_path / "injured", ranks, 45, [*chance.choices(kinds, k=34), STOPPED], ranks)
    by_hand = injured_by_hand(tmp_path / "by hand", ranks, 30, [IN_A_STEP] * 5, ranks)
    print(f"\n{ranks} ranks, a checkpoint every {SAVE_EVERY} steps, {len(outcomes)} injuries survived\n"
          f"{table(outcomes)}\nby hand, torchrun --max-restarts\n{table(by_hand)}")
    assert len(outcomes) >= 30
    assert all(outcome.steps_lost <= 2 * SAVE_EVERY for outcome in outcomes)
    assert_equal(weights(tmp_path / "injured"), expected)


def injured_by_hand(folder: Path, ranks: int, epochs: int, injuries: list[Injury], seed: int) -> list[Outcome]:
    launch = Launch([*TORCHRUN, str(ranks), "--max-restarts", "100", "by_hand.py"], folder_with_scripts(folder),
                    EPOCHS=str(epochs))
    referee = Referee(Scene(launch, folder, seed))
    try:
        referee.injure(injuries)
    finally:
        launch.end_all()
        launch.process.communicate(timeout=30)
    return referee.outcomes


@pytest.mark.soak
def test_torchrun_starts_the_ranks_of_a_script_again(tmp_path: Path) -> None:
    """Killed under torchrun, the ranks of a rankwise script go on in the same folder, with the same result."""
    expected = uninterrupted(tmp_path / "whole", 2, 3)
    folder = folder_with_scripts(tmp_path / "injured")
    launch = Launch([*TORCHRUN, "2", "--max-restarts", "3", "training.py", "--epochs", "3", "--accelerator", "cpu",
                     "--save-every", str(SAVE_EVERY)], folder)
    referee = Referee(Scene(launch, folder, 1))
    referee.injure([IN_A_STEP], new_steps=(7, 9))
    ended = launch.ended()
    assert ended.code == 0, ended.text
    assert len(list((folder / "runs").iterdir())) == 1
    assert referee.outcomes[0].steps_lost <= 2 * SAVE_EVERY
    assert_equal(weights(folder), expected)


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a rank looks after its launcher once a second")
@pytest.mark.parametrize("injury", [None, IN_A_STEP, SAVING, EVALUATING, STARTING], ids=lambda each: each and each.name)
def test_a_launcher_that_is_killed_takes_its_ranks_with_it(tmp_path: Path, injury: Injury | None) -> None:
    """As soon as it has started them, in a step, while rank 0 saves, in evaluation, and while they start again."""
    folder = folder_with_scripts(tmp_path / "run")
    launch = Launch(command(3, 99, "--max-restarts", "9"), folder)
    scene = Scene(launch, folder, 1)
    try:
        assert scene.wait(lambda: bool(scene.ranks()) if injury is None else scene.step() > 3)
        if injury is not None:
            assert injury.strike(scene) is not None
        launch.process.kill()
        assert launch.none_left() == []
    finally:
        launch.end_all()
        launch.process.communicate(timeout=30)
