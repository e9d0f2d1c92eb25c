"""Ray jobs: what is refused before anything runs; and real jobs on a real cluster of two nodes, where Ray is."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest

from hosts import Host, needs_hosts
from launches import RANKWISE, Ended, Launch, run, wait_for
from rankwise.errors import UsageError
from rankwise.settings import Settings
from rankwise.submit.ray import cluster
from rankwise.submit.ray.node import Part, problem_here, run_part
from rankwise.submit.ray.submission import job_of
from rankwise.submit.work import Work
from raycluster import RAY, drain, pids, ray_cluster

SCRIPT = """
import time
import torch
import rankwise as rw


def train(run, epochs: int = 2, seconds: float = 0.0, fails: bool = False) -> None:
    model = run.prepare(torch.nn.Linear(3, 1))
    optimizer = run.prepare(torch.optim.SGD(model.parameters(), 0.01))
    rows = torch.arange(63.0).reshape(21, 3) / 63
    loader = run.loader(torch.utils.data.TensorDataset(rows, rows.sum(1, keepdim=True)), 10)
    for epoch in run.epochs(epochs):
        for x, y in loader:
            run.step(torch.nn.functional.mse_loss(model(x), y), optimizer)
        time.sleep(seconds)
        if fails and run.rank == 1:
            raise ValueError("the second rank fails")
        run.save()


if __name__ == "__main__":
    rw.launch(train)
"""


def node(address: str, alive: bool = True, **resources: float) -> dict[str, Any]:
    """A node as `ray.nodes()` has it."""
    return {"NodeManagerAddress": address, "Alive": alive, "Resources": resources}


def work(target: str = "toy", **settings: Any) -> Work:
    return Work.of(target, ["--epochs", "3"], {**vars(Settings()), **settings}, is_module=False)


@pytest.mark.parametrize(("address", "says"), [
    ("127.0.0.1:1", "refused"), ("no-such-host.invalid:6379", "listens there")])
def test_addresses_where_no_cluster_is(address: str, says: str) -> None:
    """Refused at once."""
    with pytest.raises(UsageError, match=rf"--address is {address}(.|\n)*{says}"):
        cluster.reached(address)


@pytest.mark.parametrize(("address", "says"), [
    ("ray://head:10001", "client"), ("head", "HOST:PORT"), ("127.0.0.1:70000", "HOST:PORT"), (":6379", "HOST:PORT"),
    ("127.0.0.1:port", "HOST:PORT"), ("", "HOST:PORT")])
def test_what_is_no_address(address: str, says: str) -> None:
    """Refused before the cluster is asked, with --dry-run too."""
    with pytest.raises(UsageError, match=rf"--address is {address}(.|\n)*{says}"):
        job_of(work(), address=address, cores=1)


@pytest.mark.parametrize(("share", "nodes", "says"), [
    ({"nodes": 2, "devices": 2, "uses_gpus": True}, [node("a", CPU=8, GPU=4), node("b", CPU=8, GPU=1)],
     r"2 nodes, each with 2 CPU and 2 GPU(.|\n)*has 1 such \(a: 8 CPU, 4 GPU; b: 8 CPU, 1 GPU\)"),
    ({"nodes": 1, "devices": 3, "uses_gpus": False}, [node("a", CPU=2)], r"has 0 such \(a: 2 CPU\)"),
    ({"nodes": 1, "devices": 1, "uses_gpus": False}, [node("a", alive=False, CPU=2)], r"has 0 such \(\)"),
])
def test_too_many_devices(share: dict[str, Any], nodes: list[dict[str, Any]], says: str) -> None:
    """Refused, with what each node has."""
    with pytest.raises(UsageError, match=says):
        cluster.require_room(nodes, cluster.Share(cores=1, **share))


def test_a_cluster_with_room() -> None:
    """Exactly enough is enough."""
    cluster.require_room([node("a", CPU=4, GPU=2), node("b", CPU=4, GPU=2)],
                         cluster.Share(nodes=2, devices=2, cores=2, uses_gpus=True))


def test_what_each_node_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command as by hand, with places for the node's number and the endpoint; --dry-run shows it."""
    monkeypatch.chdir(tmp_path)
    job = job_of(work(nodes="2", devices=3, name="big", accelerator="cpu", max_restarts=4), address="auto", cores=2)
    assert " ".join(job.part.words) == (
        "run toy --devices 3 --accelerator cpu --name big --resume auto --max-restarts 4 "
        "--nodes 2 --node-rank {node} --endpoint {endpoint} -- --epochs 3")
    assert job.share.of_a_node == {"CPU": 6}
    assert "each on a node of its own with 6 CPU; started again 4 times" in job.described()
    assert f"cd {tmp_path}" in job.described()


def test_what_a_node_says_of_itself(tmp_path: Path) -> None:
    """Another rankwise, a folder that is not shared, and a script that is not there."""
    from rankwise import __version__
    token = tmp_path / "token"
    assert "no disk that both share" in problem_here("/here", str(token), None, __version__)
    token.touch()
    assert "another" not in problem_here("/here", str(token), None, __version__)
    assert "/here/train.py" in problem_here("/here", str(token), "/here/train.py", __version__)
    assert "it has rankwise" in problem_here("/here", str(token), None, "0.0.1")
    assert problem_here("/here", str(token), None, __version__) == ""


@pytest.mark.parametrize(("words", "code", "says"), [(("--version",), 0, "rankwise"), (("nonsense",), 2, "nonsense")])
def test_what_a_worker_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int,
                            says: str) -> None:
    """It runs rankwise with these words, as node 0 of a Ray that is made up, and keeps what that says."""
    made_up = {name: ModuleType(name) for name in ("ray", "ray.train", "ray.train.collective", "ray.util")}
    train, collective, util = made_up["ray.train"], made_up["ray.train.collective"], made_up["ray.util"]
    vars(train).update(get_context=lambda: SimpleNamespace(get_world_rank=lambda: 0), get_preemption_info=lambda: None,
                       collective=collective)
    vars(collective).update(broadcast_from_rank_zero=lambda value: value)
    vars(util).update(get_node_ip_address=lambda: "127.0.0.1")
    vars(made_up["ray"]).update(train=train, util=util)
    for name, module in made_up.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert run_part(Part(words=words, folder=str(tmp_path), output=str(tmp_path), threads=1)) == code
    assert says in (tmp_path / "node0.log").read_text()


def test_ray_is_not_installed(tmp_path: Path) -> None:
    """One message, with the command that installs it."""
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError")
    ended = run([*RANKWISE, "submit", "ray", "toy"], tmp_path, PYTHONPATH=str(tmp_path))
    assert ended.code == 2, ended.text
    assert "pip install 'rankwise[ray]'" in ended.err
    assert not (tmp_path / "runs").exists()


def require_ray() -> None:
    if not RAY.exists():
        pytest.skip("needs Ray: pip install 'rankwise[ray]'")


@pytest.fixture(scope="class")
def head() -> Iterator[Host]:
    """The first of two hosts that are one Ray cluster."""
    require_ray()
    with (tempfile.TemporaryDirectory(prefix="rr-", ignore_cleanup_errors=True) as folder,   # a socket's path is short
          ray_cluster(2, Path(folder)) as found):
        yield found[0]


def submitted(head: Host, folder: Path, *words: str) -> Launch:
    (folder / "train.py").write_text(SCRIPT)
    command = [*RANKWISE, "submit", "ray", "train.py", "--address", f"{head.address}:6379", "--accelerator", "cpu",
               "--nodes", "2", "--name", "big", *words]
    return Launch(command, folder, head.prefix)


def ended(head: Host, folder: Path, *words: str) -> Ended:
    return submitted(head, folder, *words).ended(110)


@needs_hosts
@pytest.mark.environment
@pytest.mark.timeout(200)
class TestRealCluster:
    """Two nodes of two cores each."""

    def test_a_training_over_both_nodes(self, head: Host, tmp_path: Path) -> None:
        """Two ranks on each node train together, and node 0 is heard here."""
        result = ended(head, tmp_path, "--devices", "2", "--", "--epochs", "3")
        assert result.code == 0, result.text
        assert "4 cpu devices" in result.out
        assert "epoch 3/3" in result.out
        assert (tmp_path / "runs/big/checkpoints/step-000009").is_dir()
        assert sorted(path.name for path in (tmp_path / "runs/big/logs").iterdir()) == [
            f"rank{rank}.log" for rank in range(4)]

    def test_a_training_that_fails(self, head: Host, tmp_path: Path) -> None:
        """Its exit code is 1, whichever node failed, and what that node said lies in the run's folder."""
        result = ended(head, tmp_path, "--", "--fails")
        assert result.code == 1, result.text
        assert "the second rank fails" in (tmp_path / "runs/big/nodes/node1.log").read_text()
        assert str(tmp_path / "runs/big/nodes") in result.err

    def test_an_option_that_cannot_be_used(self, head: Host, tmp_path: Path) -> None:
        """The training's own refusal comes through with its exit code."""
        result = ended(head, tmp_path, "--", "--no-such-option")
        assert result.code == 2, result.text
        assert "--no-such-option" in result.out

    def test_more_than_the_cluster_has(self, head: Host, tmp_path: Path) -> None:
        """Refused before anything runs."""
        result = ended(head, tmp_path, "--devices", "3")
        assert result.code == 2, result.text
        assert "each with 3 CPU" in result.err
        assert not (tmp_path / "runs").exists()

    def test_ctrl_c_ends_all_of_it(self, head: Host, tmp_path: Path) -> None:
        """130, and on no node is a rank left."""
        launch = submitted(head, tmp_path, "--", "--epochs", "500", "--seconds", "0.2")
        wait_for([tmp_path / "runs/big/checkpoints"])
        launch.process.send_signal(signal.SIGINT)
        assert launch.ended(60).code == 130
        assert not ranks_of(tmp_path)

    def test_a_node_that_loses_its_worker(self, head: Host, tmp_path: Path) -> None:
        """Ray starts all parts again, and the run goes on from its newest checkpoint."""
        launch = submitted(head, tmp_path, "--max-restarts", "1", "--", "--epochs", "12", "--seconds", "0.4")
        wait_for([tmp_path / "runs/big/checkpoints/step-000006"])
        worker = next(process for process in map(psutil.Process, pids(head)) if "RayTrainWorker" in process.name())
        worker.kill()
        result = launch.ended(110)
        assert result.code == 0, result.text
        assert result.out.count("epoch  1/12") == 1
        assert "epoch 12/12" in result.out


@needs_hosts
@pytest.mark.environment
@pytest.mark.timeout(300)
def test_a_node_that_is_taken_away(tmp_path: Path) -> None:
    """Ray gives notice; the ranks of all nodes save and end, and the run goes on with the node that is left over."""
    require_ray()
    with (tempfile.TemporaryDirectory(prefix="rr-", ignore_cleanup_errors=True) as folder,
          ray_cluster(3, Path(folder)) as found):
        launch = submitted(found[0], tmp_path, "--save-every", "1000", "--", "--epochs", "50", "--seconds", "0.5")
        wait_for([tmp_path / "runs/big/checkpoints/step-000006"])
        drain(found[0], next(host for host in found[1:] if has_worker(host)), seconds=20)
        result = launch.ended(200)
    assert result.code == 0, result.text
    assert "asked to end" in result.out
    assert result.out.count("epoch  1/50") == 1
    assert "epoch 50/50" in result.out


def has_worker(host: Host) -> bool:
    return any("RayTrainWorker" in process.name() for process in map(psutil.Process, pids(host)))


def ranks_of(folder: Path) -> list[str]:
    """Processes that run in this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.pid != os.getpid():
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found
