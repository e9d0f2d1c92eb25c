"""Runs over several hosts, for which network namespaces stand: one is cut off, one is killed, one comes later."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "faults"))

from hosts import Host, hosts, needs_hosts
from launches import RANKWISE, Launch, only, run, wait_for

TRAINING = Path(__file__).parent / "faults" / "training.py"
PORT = 29517
pytestmark = [needs_hosts, pytest.mark.timeout(400)]   # whole interpreters, and time limits that must pass


def folder_with_script(folder: Path) -> Path:
    folder.mkdir()
    shutil.copy(TRAINING, folder)
    return folder


def launch(folder: Path, host: Host, number: int, nodes: str, *options: str, epochs: int = 6, pace: float = 0.02,
           timeout: int = 20) -> Launch:
    """The launcher of one host; all of them share the folder, as machines share a disk."""
    command = [*RANKWISE, "run", "training.py", "--accelerator", "cpu", "--devices", "1", "--name", "it", "--nodes",
               nodes, "--node-rank", str(number), "--endpoint", f"10.77.9.1:{PORT}", "--timeout", str(timeout),
               "--save-every", "5", *options, "--", "--epochs", str(epochs), "--pace", str(pace)]
    return Launch(command, folder, host.prefix)


def wait_for_steps(folder: Path, step: int) -> None:
    wait_for([folder / "runs" / "it" / "checkpoints" / f"step-{step:06d}"])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(folder / "final.pt", weights_only=True)
    return state


def alone(folder: Path, epochs: int) -> dict[str, torch.Tensor]:
    """What one process computes in exact mode, left alone: the bits that any number of hosts must end with."""
    ended = run([*RANKWISE, "run", "training.py", "--accelerator", "cpu", "--name", "it", "--exact", "6", "--",
                 "--epochs", str(epochs), "--pace", "0"], folder_with_script(folder))
    assert ended.code == 0, ended.text
    return weights(folder)


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def test_a_host_that_is_cut_off_ends_all_and_is_named(tmp_path: Path) -> None:
    """Nobody hears of a cut link: the limit ends every process on both sides, and each side names the other's rank."""
    folder = folder_with_script(tmp_path / "run")
    with hosts(2) as (first, second):
        launches = [launch(folder, host, number, "2", epochs=999, timeout=10)
                    for number, host in enumerate((first, second))]
        wait_for_steps(folder, 5)
        second.cut()
        ends = [each.ended(deadline_seconds=10 + 30) for each in launches]   # the limit, and twice what is promised
    for number, ended in enumerate(ends):
        assert ended.code == 1, ended.text
        assert "another rank did not come" in ended.err, ended.text
        assert "Traceback" not in ended.err
        assert ("Rank 1", "Rank 0's machine")[number] in ended.err, ended.text


@pytest.mark.soak
def test_a_run_goes_on_without_a_host_that_was_killed_and_with_one_that_comes(tmp_path: Path) -> None:
    """Three hosts, then two, then three: the bits are those of one process that was left alone."""
    expected = alone(tmp_path / "alone", 12)
    folder = folder_with_script(tmp_path / "run")
    options = ("2:3", "--max-restarts", "3", "--exact", "6")
    with hosts(4) as found:
        launches = [launch(folder, host, number, *options, epochs=12, pace=0.1)
                    for number, host in enumerate(found[:3])]
        wait_for_steps(folder, 10)
        launches[1].end_all()
        launches[1].process.communicate(timeout=10)
        wait_for_steps(folder, 30)
        later = launch(folder, found[3], 3, *options, epochs=12, pace=0.1)
        for each in (launches[0], launches[2], later):
            ended = each.ended(deadline_seconds=150)
            assert ended.code == 0, ended.text
            if each is launches[0]:
                assert "Restart 1 of 3, from step" in ended.err or "All ranks start again, from step" in ended.err
    assert_equal(weights(folder), expected)
    logs = sorted(path.name for path in (folder / "runs" / "it" / "logs").iterdir())
    assert logs == ["rank0.log", "rank1.log", "rank2.log"]
    assert "another number of ranks" not in (folder / "runs" / "it" / "logs" / "rank0.log").read_text()


@pytest.mark.soak
def test_a_cut_host_is_replaced_by_a_spare_one(tmp_path: Path) -> None:
    """Two of three hosts train; one is cut off, and the third takes its place. The cut one ends by itself."""
    expected = alone(tmp_path / "alone", 6)
    folder = folder_with_script(tmp_path / "run")
    options = ("2:2", "--max-restarts", "3", "--exact", "6")
    with hosts(3) as found:
        launches = [launch(folder, host, number, *options, pace=0.1, timeout=10)
                    for number, host in enumerate(found[:2])]
        wait_for_steps(folder, 5)
        launches.append(launch(folder, found[2], 2, *options, pace=0.1, timeout=10))
        wait_for_steps(folder, 15)
        found[1].cut()
        ended = [each.ended(deadline_seconds=150) for each in launches]
    assert [each.code for each in ended] == [0, 1, 0], "\n".join(each.text for each in ended)
    assert "waits for its next start" in ended[2].err
    assert "10.77.9.1" in ended[1].err
    assert_equal(weights(folder), expected)


def test_a_machine_that_does_not_come_back_is_named(tmp_path: Path) -> None:
    """With no machine to spare the run ends when the limit for the next start has passed, and says who is missing."""
    folder = folder_with_script(tmp_path / "run")
    with hosts(2) as found:
        launches = [launch(folder, host, number, "2", "--max-restarts", "3", epochs=999, timeout=8)
                    for number, host in enumerate(found)]
        wait_for_steps(folder, 5)
        launches[1].end_all()
        launches[1].process.communicate(timeout=10)
        ended = launches[0].ended(deadline_seconds=60)
    assert ended.code == 1, ended.text
    assert "Of machine 1 nothing was heard." in ended.err
    assert "Traceback" not in ended.err


def test_two_hosts_make_one_run_whatever_their_names(tmp_path: Path) -> None:
    """Hosts whose own name resolves to loopback meet at the endpoint, and gloo takes the link between them."""
    folder = folder_with_script(tmp_path / "run")
    with hosts(2) as found:
        launches = [launch(folder, host, number, "2", epochs=1, pace=0) for number, host in enumerate(found)]
        for ended in [each.ended() for each in launches]:
            assert ended.code == 0, ended.text
    assert only(folder / "runs").name == "it"
    assert (folder / "final.pt").exists()


LINKED = '''
import torch
import rankwise as rw

def train(run):
    model = run.prepare(torch.nn.Linear(1000, 1250))   # 5 MB of gradients
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 1e-3))
    loader = run.loader(torch.randn(21, 1000, generator=torch.Generator().manual_seed(1)), 7)
    for _ in run.epochs(3):
        for rows in loader:
            run.step(model(rows).square().mean(), optimizer)

if __name__ == "__main__":
    rw.launch(train)
'''


def test_communication_takes_what_the_link_takes(tmp_path: Path) -> None:
    """Two hosts at 200 Mbit/s: each sends the 5 MB of gradients once a step, which takes 0.2 s; the books say the same,
    and the bytes are those that the network's own counter saw."""
    (tmp_path / "train.py").write_text(LINKED)
    with hosts(2) as found:
        for host in found:
            host.slow_down("200mbit")
        before = [host.sent_bytes() for host in found]
        command = [*RANKWISE, "run", "train.py", "--accelerator", "cpu", "--devices", "1", "--threads", "1", "--nodes",
                   "2", "--endpoint", f"10.77.9.1:{PORT + 9}", "--name", "it", "--node-rank"]
        launches = [Launch([*command, str(number)], tmp_path, host.prefix) for number, host in enumerate(found)]
        ended = [each.ended(deadline_seconds=90) for each in launches]
        sent = [host.sent_bytes() - earlier for host, earlier in zip(found, before, strict=True)]
    assert [each.code for each in ended] == [0, 0], ended[0].text
    lines = [json.loads(line) for line in (tmp_path / "runs" / "it" / "metrics.jsonl").read_text().splitlines()]
    splits = [line for line in lines if line.get("record") == "split"]
    assert sum(split["steps"] for split in splits) == 9
    gradients, link_seconds = 4 * (1000 * 1250 + 1250), 0.2
    for rank in range(2):
        books = [split["ranks"][rank] for split in splits]
        for book in books[1:]:
            assert 0.9 * link_seconds < book["communication"] < 2 * link_seconds
            assert book["communication_total"] > 0.9 * link_seconds
            assert gradients <= book["wire_bytes"] < 1.01 * gradients
        counted = sum(book["wire_bytes"] * split["steps"] for book, split in zip(books, splits, strict=True))
        half = gradients / 2   # of the first weights, which rank 0 sends alone: the books have the mean over the ranks
        assert 0.98 < (sent[rank] - (half if rank == 0 else -half)) / counted < 1.3   # headers, and what is sent again
    assert "advice        communication-bound:" in ended[0].out
