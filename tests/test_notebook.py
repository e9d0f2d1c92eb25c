"""`rankwise.launch` from a notebook, in a real Jupyter kernel."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = [
    """
import signal, torch
import rankwise as rw
before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
offset = 10

class Doubled(torch.nn.Module):
    def forward(self, x):
        return 2 * x + offset

def train(run, start: float = 1.0, fail_on: int = -1):
    if run.rank == fail_on:
        raise ValueError("the data is upside down")
    print("a word from rank", run.rank)
    return Doubled()(run.sum(start)), run.world_size
""",
    "rw.launch(train, devices=2, accelerator='cpu')",
    """
offset = 20
rw.launch(train, arguments={"start": 3.0}, devices=1, accelerator='cpu')
""",
    """
try:
    rw.launch(train, arguments={"fail_on": 0}, devices=2, accelerator='cpu')
except rw.errors.RankwiseError as error:
    print(error)
""",
    "rw.launch(train, devices=0)",
    """
after = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
print(after == before, torch.distributed.is_initialized())
""",
]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What stands below each cell, after one run of the notebook."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip()) for cell in CELLS])
    notebook.cells[4].metadata["tags"] = ["raises-exception"]
    folder: Path = tmp_path_factory.mktemp("notebook")
    NotebookClient(notebook, timeout=60, kernel_name="python3",
                   resources={"metadata": {"path": str(folder)}}).execute()
    return ["".join(output.get("text", "") or output.get("data", {}).get("text/plain", "")
                    or "\n".join(output.get("traceback", [])) for output in cell.outputs) for cell in notebook.cells]


def test_a_cell_trains_on_two_ranks(outputs: list[str]) -> None:
    """The function and the class of an earlier cell are shipped by value, and rank 0's value is the cell's."""
    assert "(tensor(14., dtype=torch.float64), 2)" in outputs[1]


def test_what_rank_0_prints_stands_below_the_cell(outputs: list[str]) -> None:
    """Rank 0's output appears in the notebook, the others' does not."""
    assert "a word from rank 0" in outputs[1]
    assert "a word from rank 1" not in outputs[1]


def test_one_device_runs_in_the_kernel(outputs: list[str]) -> None:
    """With one device the function sees the notebook as it is now."""
    assert "(tensor(26., dtype=torch.float64), 1)" in outputs[2]


def test_a_failure_shows_the_lines_of_the_cell(outputs: list[str]) -> None:
    """The error names the rank, and its traceback has the cell's source, once."""
    assert "Rank 0 of 2 failed: ValueError: the data is upside down" in outputs[3]
    assert outputs[3].count('raise ValueError("the data is upside down")') == 1


def test_a_message_of_rankwise_stands_alone(outputs: list[str]) -> None:
    """A wrong setting is its three parts below the cell, without a traceback."""
    assert outputs[4].splitlines()[0] == "UsageError: --devices is 0."
    assert "Traceback" not in outputs[4]


def test_the_kernel_is_as_before(outputs: list[str]) -> None:
    """Signal handlers are back, and no process group is open."""
    assert outputs[5].strip() == "True False"
