"""Tasks of Slurm's srun: what its variables say, which ranks and launchers they become; a real Slurm agrees."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwise import environment
from rankwise.errors import UsageError
from rankwise.launcher.srun import meeting, placed
from rankwise.srun import Step, first_host, tasks_of_each_node
from slurm import Slurm, needs_slurm, slurm_on_one_machine

# What `srun -N2 -n3 env` showed to its last task, in Slurm 22.05.8.
LAST_OF_THREE = {
    "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "1", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_STEP_NODELIST": "gpu[08-09]", "SLURM_PROCID": "2", "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1", "SLURM_GPUS_ON_NODE": "2", "SLURM_STEP_GPUS": "0,1"}
LISTS = st.lists(st.sampled_from(["n1", "n[1-3,7]", "gpu[001-010]", "r2-[08-09,11]", "login.site", "127.0.0.[1-2]"]),
                 min_size=1, max_size=4)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm_on_one_machine(tmp_path_factory.mktemp("slurm")) as running:
        yield running


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes this process a task of a step."""
    def put(**changes: str) -> None:
        for name, value in {**LAST_OF_THREE, **changes}.items():
            monkeypatch.setenv(name, value)
    return put


def test_a_task_knows_its_place() -> None:
    """Each number is where it belongs; the machines meet at the first of the step, at a port of job and step."""
    assert Step.detect(LAST_OF_THREE) == Step(task=2, tasks=3, local_task=0, local_tasks=1, node=1, nodes=2,
                                              host="gpu08", port=20_000 + 12 + 101, has_own_devices=False)


@pytest.mark.parametrize("changes", [
    {"SLURM_STEP_ID": None},              # a batch script, whose machine has SLURM_PROCID and SLURM_NTASKS too
    {"SLURM_STEP_ID": "4294967290"},      # an interactive shell, which is a step of Slurm's own
    {"SLURM_STEP_NUM_TASKS": "1"},        # alone: as without srun
    {"SLURM_STEP_TASKS_PER_NODE": "many"},
    {"SLURM_NODEID": "7"},
])
def test_what_is_no_task_of_several(changes: dict[str, str | None]) -> None:
    found = {**LAST_OF_THREE, **changes}
    assert Step.detect({name: value for name, value in found.items() if value is not None}) is None


def test_tasks_become_ranks(variables: Any) -> None:
    """A rank has torchrun's variables by then; another launcher's word counts more, and a place that the user set."""
    variables()
    world = environment.world()
    assert world is not None
    assert (world.rank, world.size, world.local_rank, world.local_size, world.node) == (2, 3, 0, 1, 1)
    assert environment.meeting_place()["MASTER_ADDR"] == "gpu08"
    variables(MASTER_ADDR="10.0.0.9", MASTER_PORT="77")
    assert {environment.meeting_place()[name] for name in ("MASTER_ADDR", "MASTER_PORT")} == {"10.0.0.9", "77"}
    variables(RANK="0", WORLD_SIZE="1")
    assert environment.meeting_place() == {}


@pytest.mark.parametrize(("on_node", "seen", "own"), [("2", "1", True), ("1", "0", False), ("2", "0,1", False)])
def test_a_task_that_was_given_one_gpu_calls_it_its_first(on_node: str, seen: str, own: bool) -> None:
    """--gpus-per-task=1 hides the others; one GPU that two tasks share, and all for each, are as with torchrun."""
    step = Step.detect({**LAST_OF_THREE, "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NUM_TASKS": "4",
                        "SLURM_LOCALID": "1", "SLURM_GPUS_ON_NODE": on_node, "SLURM_STEP_GPUS": seen})
    assert step is not None
    assert (step.as_torchrun()["LOCAL_RANK"], step.as_torchrun()["LOCAL_WORLD_SIZE"]) == (
        ("0", "1") if own else ("1", "2"))


def test_a_task_a_machine_is_a_launcher(variables: Any) -> None:
    """What its command line leaves out, srun says; an explicit choice stays."""
    plain = {"nodes": "1", "node_rank": 0, "endpoint": None, "devices": 4}
    assert placed(plain, {"devices"}) == plain, "no srun"
    variables(SLURM_STEP_NUM_TASKS="2", SLURM_STEP_TASKS_PER_NODE="1(x2)")
    assert placed(plain, set()) == {"nodes": "2", "node_rank": 1, "endpoint": "gpu08:20113", "devices": 4}
    assert placed({**plain, "nodes": "1"}, {"nodes"})["endpoint"] is None
    assert placed({**plain, "endpoint": "a:1"}, {"endpoint"})["endpoint"] == "a:1"


def test_several_launchers_on_a_machine_are_refused(variables: Any) -> None:
    variables()
    with pytest.raises(UsageError, match="3 tasks on 2 machines") as caught:
        placed({"nodes": "1", "node_rank": 0, "endpoint": None}, set())
    assert "srun python train.py" in caught.value.remedy


def test_ranks_leave_the_store_together(variables: Any) -> None:
    """Rank 0 keeps the store until the other one needs it no more, and then waits for nobody."""
    from torch.distributed import TCPStore
    port = 29_000 + threading.get_native_id() % 3_000
    variables(SLURM_STEP_NUM_NODES="1", SLURM_STEP_NUM_TASKS="2", SLURM_STEP_TASKS_PER_NODE="2", SLURM_NODEID="0",
              SLURM_PROCID="0", MASTER_PORT=str(port))
    heard = []

    def other() -> None:
        store = TCPStore("127.0.0.1", port, is_master=False)
        store.set("word", "late")
        heard.append(store.get("word"))
        store.add("rankwise/left", 1)

    with meeting():
        assert environment.store_is_served()
        thread = threading.Thread(target=other)
        thread.start()
    thread.join(10)
    assert heard == [b"late"]


def test_a_port_that_is_taken_is_said(variables: Any) -> None:
    from torch.distributed import TCPStore
    taken = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables(SLURM_STEP_NUM_NODES="1", SLURM_PROCID="0", SLURM_NODEID="0", SLURM_STEP_TASKS_PER_NODE="3",
              MASTER_PORT=str(taken.port))
    with pytest.raises(UsageError, match=f"port {taken.port} of 127.0.0.1"), meeting():
        pass


def test_counts_of_tasks() -> None:
    assert tasks_of_each_node("2(x3),1") == [2, 2, 2, 1]
    with pytest.raises(ValueError, match="2x3"):
        tasks_of_each_node("2x3")


@needs_slurm
@settings(max_examples=15, deadline=None)
@given(parts=LISTS)
def test_the_first_host_is_what_slurm_says(slurm: Slurm, parts: list[str]) -> None:
    """`scontrol show hostnames` is the reference."""
    assert first_host(",".join(parts)) == slurm.says("scontrol", "show", "hostnames", ",".join(parts)).splitlines()[0]


@needs_slurm
@pytest.mark.parametrize("options", [["-N2", "-n3"], ["-N1", "-n2"], ["-n4", "--gpus-per-task=1"],
                                     ["-N2", "-n4", "--distribution=cyclic"]])
def test_real_tasks_are_ranks_that_fit_together(slurm: Slurm, options: list[str], tmp_path: Path) -> None:
    """Every rank once, local ranks in order on each machine, and one place to meet."""
    code = ("import os; from rankwise.srun import Step; "
            "print(os.environ['SLURMD_NODENAME'], *Step.detect(os.environ).as_torchrun().values())")
    ended = slurm.run(["srun", *options, sys.executable, "-c", code], tmp_path)
    assert ended.code == 0, ended.text
    ranks = sorted((line.split() for line in ended.out.splitlines()), key=lambda words: int(words[1]))
    size = len(ranks)
    assert [(int(words[1]), int(words[2])) for words in ranks] == [(rank, size) for rank in range(size)]
    assert len({tuple(words[6:]) for words in ranks}) == 1
    hosts = {words[0] for words in ranks}
    assert ranks[0][6] == ("127.0.0.1" if len(hosts) == 1 else ranks[0][0])
    for host in hosts:
        local = sorted(int(words[3]) for words in ranks if words[0] == host)
        assert local == ([0, 0] if "--gpus-per-task=1" in options else list(range(len(local))))


@needs_slurm
def test_a_batch_script_is_no_task(slurm: Slurm, tmp_path: Path) -> None:
    """A script that was given two tasks finds SLURM_PROCID and is not one of two ranks."""
    code = "import os; from rankwise.srun import Step; print(Step.detect(os.environ), os.environ['SLURM_NTASKS'])"
    script = f"#!/bin/bash\n{sys.executable} -c \"{code}\"\n"
    (tmp_path / "job").write_text(script)
    job = slurm.run(["sbatch", "--parsable", "--ntasks=2", "job"], tmp_path).out.strip()
    slurm.wait_for("COMPLETED", "scontrol", "show", "job", job)
    assert (tmp_path / f"slurm-{job}.out").read_text() == "None 2\n"
