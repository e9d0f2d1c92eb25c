"""`rankwise verify` on scripts with one fault each (tests/broken): the fault is found, and named for what it is."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

import pytest

from launches import RANKWISE, run
from rankwise.launcher.target import resolve
from rankwise.settings import Settings
from rankwise.verify.layouts import layouts
from rankwise.verify.verification import Result, verify
from warm import WarmJobs

pytestmark = pytest.mark.timeout(300)   # dozens of short runs each on a busy machine

BROKEN = Path(__file__).parent / "broken"

# Script, the code of the finding that comes first, and words that stand in what it says.
FAULTS = [
    ("ragged_mean", "loss_not_weighted", "In step 4 the ranks had 5 and 4 rows"),
    ("rw_masked_mean", "loss_weights", ""),
    ("unseeded_shuffle", "unseeded", "its samples, from step 1 on"),
    ("rw_unseeded_noise", "unseeded", "its samples, from step 1 on"),
    ("rank_seeded_shuffle", "samples_overlap", "a seed that depends on the rank"),
    ("rw_rank_seeded_data", "samples_overlap", "a seed that depends on the rank"),
    ("local_plateau", "learning_rate_on_ranks", "ReduceLROnPlateau was given another number on each rank"),
    ("rw_local_plateau", "learning_rate_on_ranks", "ReduceLROnPlateau was given another number on each rank"),
    ("unwrapped", "not_reduced", "(4 of 4 tensors)"),
    ("late_parameter", "not_reduced_partly", "`3.weight`, `3.bias`"),
    ("late_unfreeze", "not_reduced_partly", "`0.weight`, `0.bias`"),
    ("own_weights", "weights_differ_at_start", "with the reference's initial weights the difference vanishes"),
    ("own_buffers", "buffers_part", "After step 1 rank 1 held another buffer `1.mean`"),
    ("scaled_lr", "learning_rate_scaled", "2 times the reference's on 2 ranks"),
    ("rw_scaled_lr", "learning_rate_scaled", "2 times the reference's on 2 ranks"),
    ("clip_per_rank", "clip_per_rank", "In step 1 the norm that gradients were clipped by was"),
    ("summed_gradients", "gradient_scaled", "2 times the reference's"),
    ("padded", "samples_padded", "Step 4 had 10 samples (5 + 5 on the ranks), the reference 9"),
    ("dropped", "samples_dropped", "Step 4 had 8 samples (4 + 4 on the ranks), the reference 9"),
    ("whole_batch_each", "batch_size_scaled", "Step 1 had 24 samples (12 + 12 on the ranks), the reference 12"),
    ("not_divided", "samples_repeated", "Every rank takes the whole batch"),
    ("augmentation", "augmentation", "with randomness seeded by sample the difference vanishes"),
    ("uneven_steps", "unequal_steps", "rank 1: 6 steps"),
    ("rw_uneven_steps", "unequal_steps", "rank 1: 4 steps"),
    ("swapped", "collectives", "Ranks 0 and 1 call the same collectives in another order"),
    ("other_shape", "collectives", "Rank 1: all_reduce SUM float32 [3] at "),
    ("dropout", "dropout", "with dropout off the difference vanishes"),
    ("rw_dropout", "dropout", "with dropout off the difference vanishes"),
    ("batchnorm", "batchnorm", "with BatchNorm frozen the difference vanishes"),
    ("rw_batchnorm", "batchnorm", "with BatchNorm frozen the difference vanishes"),
]
SOUND = ["sound", "ragged_sum", "clip_mean", "shared_plateau", "rw_sound", "rw_masked_weight", "rw_sync_batchnorm"]


@cache
def verified(name: str, worlds: str = "1,2", modes: str = "single,ddp", steps: int = 8) -> Result:
    target = resolve(str(BROKEN / f"{name}.py"), as_module=False)
    chosen = layouts(worlds, modes, exact=False, uses_rankwise=target.uses_rankwise)
    with tempfile.TemporaryDirectory() as folder:
        jobs = WarmJobs(target, [], Settings(accelerator="cpu"), steps=steps, patience_seconds=20.0,
                        folder=Path(folder))
        return verify(jobs, chosen, lambda what, steps: None)


@pytest.mark.parametrize(("name", "code", "words"), FAULTS, ids=[name for name, *_ in FAULTS])
def test_a_fault_is_caught(name: str, code: str, words: str) -> None:
    """The first finding is the cause, and says what was seen."""
    result = verified(name)
    assert not result.is_same
    findings = [*result.findings, *(finding for verdict in result.verdicts for finding in verdict.findings)]
    assert findings[0].code == code, findings
    assert words in f"{findings[0].seen} {findings[0].cause}", findings
    assert findings[0].remedy


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_script_passes(name: str) -> None:
    """Nothing is found in a training that is the same on any number of devices, and its weights moved."""
    result = verified(name, worlds="1,3" if name.startswith("rw_") else "1,2")
    assert result.is_same, [verdict.findings for verdict in result.verdicts] + [result.findings]
    assert all(verdict.comparison.loss is not None and verdict.evidence.steps == 8 for verdict in result.verdicts)


def test_each_script_is_tried() -> None:
    """No file of the catalogue is left out here."""
    assert sorted([*(name for name, *_ in FAULTS), *SOUND]) == sorted(path.stem for path in BROKEN.glob("*.py"))


def test_the_first_lines_say_what_the_scripts_are() -> None:
    """A fault is a fault, and what passes is sound."""
    first = {path.stem: path.read_text().split('"""')[1].split(":")[0].split(",")[0] for path in BROKEN.glob("*.py")}
    assert {name for name, said in first.items() if said == "Sound"} == set(SOUND)
    assert {said for name, said in first.items() if name not in SOUND} == {"Fault", "No fault"}


def test_the_command_finds_a_fault(tmp_path: Path) -> None:
    """`rankwise verify --json` ends with 1 and gives the finding to machines."""
    ended = run([*RANKWISE, "verify", str(BROKEN / "ragged_mean.py"), "--worlds", "1,2", "--steps", "5", "--json"],
                tmp_path)
    assert ended.code == 1, ended.text
    result = json.loads(ended.out)
    assert result["verdict"] == "differs"
    assert [finding["code"] for finding in result["findings"]] == ["loss_not_weighted"]
    assert result["findings"][0]["step"] == 4
