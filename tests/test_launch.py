"""Starting ranks: what a script, a module and a training function find on each of them."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest

import rankwise as rw
from launches import RANKWISE, TORCHRUN, Launch, only, run
from rankwise.errors import MisuseError, RankwiseError, UsageError
from rankwise.launcher import layout
from rankwise.launcher.rendezvous import Rendezvous, interface_towards, parse_endpoint
from rankwise.settings import Settings

pytestmark = pytest.mark.timeout(300)   # several whole interpreters each

PLAIN = """
import json, os, sys
import torch
import torch.distributed as dist
import beside

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "OMP_NUM_THREADS",
         "GLOO_SOCKET_IFNAME")
found = {name: os.environ.get(name) for name in names}
found |= {"total": total.item(), "argv": sys.argv[1:], "main": __name__, "file": __file__, "path": sys.path[0],
          "input": sys.stdin.read()}
with open(f"found{dist.get_rank()}.json", "w") as file:
    json.dump(found, file)
print("printed by", dist.get_rank())
print("complained by", dist.get_rank(), file=sys.stderr)
os.write(1, b"native by %d\\n" % dist.get_rank())
dist.destroy_process_group()
"""

TRAIN = '''
import pickle
import sys
import torch
import rankwise as rw

class Net(torch.nn.Linear):
    """A class of the script, which pickle finds by name."""

def doubled(value):
    return value * 2

def train(run: rw.Run, epochs: int = 3, fail_on: int = -1) -> dict:
    """Train.

    epochs: how often
    """
    if run.rank == fail_on:
        raise ValueError("the data is upside down")
    pickle.loads(pickle.dumps(Net(2, 2)))
    return {"ranks": run.sum(1.0).item(), "epochs": doubled(epochs), "rank": run.rank, "mode": run.mode,
            "seed": run.settings.seed, "argv": sys.argv[1:]}

if __name__ == "__main__":
    print(f"returned {rw.launch(train, seed=7)}")
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def returned(text: str) -> dict[str, object]:
    found, = returned_by_all(text)
    return found


def returned_by_all(text: str) -> list[dict[str, Any]]:
    """What each rank's call returned, in order of rank; ranks that share a pipe may print into one line."""
    found = [eval(match) for match in re.findall(r"returned (\{.*?\})", text)]  # noqa: S307 (our own script's repr)
    return sorted(found, key=lambda each: each["rank"])


def test_a_plain_script_finds_what_torchrun_gives_it(tmp_path: Path) -> None:
    """A script without a word of rankwise runs on two ranks, with its arguments, modules, output and log files."""
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "plain.py").write_text(PLAIN)
    (scripts / "beside.py").write_text("")
    (tmp_path / "json.py").write_text("raise SystemExit('a file of the current folder was imported')")
    os.environ.pop("OMP_NUM_THREADS", None)
    ended = run([*RANKWISE, "run", "scripts/plain.py", "--devices", "2", "--accelerator", "cpu", "--", "--lr", "$$1",
                 "${local_rank}"], tmp_path, PYTHONSAFEPATH="1")
    assert ended.code == 0, ended.text
    assert [line for line in ended.out.splitlines() if " by " in line] == ["printed by 0", "native by 0"]
    assert "complained by 0" in ended.err
    assert "by 1" not in ended.out + ended.err
    for rank in range(2):
        found = json.loads((tmp_path / f"found{rank}.json").read_text())
        assert found["total"] == 3.0
        assert found["argv"] == ["--lr", "$$1", "${local_rank}"]
        assert (found["RANK"], found["WORLD_SIZE"]) == (str(rank), "2")
        assert (found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"], found["GROUP_RANK"]) == (str(rank), "2", "0")
        assert found["MASTER_ADDR"] == "127.0.0.1"
        assert found["GLOO_SOCKET_IFNAME"] == "lo"
        assert (found["main"], found["path"]) == ("__main__", str(scripts))
        assert found["file"] == str(scripts / "plain.py")
    log = only(tmp_path / "runs") / "logs"
    assert (log / "rank1.log").read_text().splitlines() == ["native by 1", "printed by 1", "complained by 1"] or \
        {"native by 1", "printed by 1", "complained by 1"} <= set((log / "rank1.log").read_text().splitlines())
    assert {"printed by 0", "complained by 0"} <= set((log / "rank0.log").read_text().splitlines())


def test_a_module_runs_as_one_rank(tmp_path: Path) -> None:
    """`rankwise run -m` runs a module in place, with a process group of one rank where it opens one, and its log."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "work.py").write_text(textwrap.dedent("""
        import sys, torch.distributed as dist
        dist.init_process_group("gloo")
        print(__name__, __package__, sys.argv[1:], dist.get_world_size())
        sys.exit("no more work")
    """))
    ended = run([*RANKWISE, "run", "-m", "package.work", "--", "--fast"], tmp_path)
    assert ended.out.splitlines() == ["__main__ package ['--fast'] 1"], ended.text
    assert (ended.code, ended.err.strip()) == (1, "no more work")
    assert (only(tmp_path / "runs") / "logs" / "rank0.log").read_text().startswith("__main__ package")


def test_a_bare_script_takes_its_options_and_starts_its_ranks(folder: Path) -> None:
    """`python train.py --devices 2` ships the function, whose classes pickle by name, and rank 0's value comes back."""
    ended = run([sys.executable, "train.py", "--devices", "2", "--epochs", "5"], folder)
    assert ended.code == 0, ended.text
    assert returned(ended.out) == {"ranks": 2.0, "epochs": 10, "rank": 0, "mode": "ddp", "seed": 7,
                                   "argv": ["--devices", "2", "--epochs", "5"]}
    assert only(folder / "runs").name.startswith("train-")


def test_a_bare_script_is_one_rank_unless_told(folder: Path) -> None:
    """`python train.py` runs in its own process on one device, and --seed there beats the script's own."""
    ended = run([sys.executable, "train.py", "--seed", "8"], folder)
    assert ended.code == 0, ended.text
    assert returned(ended.out) == {"ranks": 1.0, "epochs": 6, "rank": 0, "mode": "single", "seed": 8,
                                   "argv": ["--seed", "8"]}


def test_every_way_to_start_calls_the_same_function(folder: Path) -> None:
    """`rankwise run train.py` and `torchrun train.py` make each rank a rank of one run, with the script's defaults."""
    under_rankwise = run([*RANKWISE, "run", "train.py", "--devices", "2", "--", "--epochs", "4"], folder)
    assert under_rankwise.code == 0, under_rankwise.text
    expected = {"ranks": 2.0, "epochs": 8, "rank": 0, "mode": "ddp", "seed": 7, "argv": ["--epochs", "4"]}
    assert returned(under_rankwise.out) == expected
    under_torchrun = run([*TORCHRUN, "2", "train.py", "--epochs", "4", "--seed", "9"], folder)
    assert under_torchrun.code == 0, under_torchrun.text
    assert returned_by_all(under_torchrun.out) == [
        {**expected, "rank": rank, "seed": 9, "argv": ["--epochs", "4", "--seed", "9"]} for rank in range(2)]
    assert len(list((folder / "runs").iterdir())) == 2


# In this process


def give_back(run: rw.Run, value: object) -> tuple[object, int]:
    return value, run.world_size


def raise_misuse(run: rw.Run) -> None:
    raise MisuseError("Given.", "Truth.", "Remedy.")


def test_a_program_launches_with_arguments(tmp_path: Path) -> None:
    """With `arguments` the command line is left alone, the value comes back, and errors are raised."""
    assert rw.launch(give_back, arguments={"value": [1]}, runs=str(tmp_path)) == ([1], 1)
    with pytest.raises(MisuseError, match=r"Given"):
        rw.launch(raise_misuse, arguments={}, runs=str(tmp_path))
    with pytest.raises(UsageError, match=r"`batch` is not a setting"):
        rw.launch(give_back, arguments={"value": 1}, batch=3)
    with pytest.raises(UsageError, match=r"unexpected keyword argument 'values'"):
        rw.launch(give_back, arguments={"value": 1, "values": 2}, runs=str(tmp_path))


def refuse(run: rw.Run, after_a_checkpoint: bool) -> None:
    if after_a_checkpoint:
        run.save()
    raise UsageError("Given.", "Truth.", "Remedy.")


@pytest.mark.parametrize("after_a_checkpoint", [False, True])
def test_a_refused_run_leaves_no_folder(tmp_path: Path, after_a_checkpoint: bool) -> None:
    """Without a launcher of ours, the folder of a run that was refused is removed, unless something is kept in it."""
    with pytest.raises(UsageError, match=r"Given"):
        rw.launch(refuse, arguments={"after_a_checkpoint": after_a_checkpoint}, runs=str(tmp_path / "runs"))
    assert (tmp_path / "runs").exists() == after_a_checkpoint


def test_a_program_launches_several_ranks(tmp_path: Path) -> None:
    """Several ranks from a program: rank 0's value comes back, and a closure goes with the function."""
    here = {"factor": 3}

    def scaled(run: rw.Run, value: int) -> tuple[int, int]:
        return value * here["factor"], run.world_size

    found = rw.launch(scaled, arguments={"value": 2}, devices=2, accelerator="cpu", threads=1, runs=str(tmp_path))
    assert found == (6, 2)


def test_what_cannot_be_sent_is_named(tmp_path: Path) -> None:
    """A function that holds an open file is refused before any rank starts."""
    with (tmp_path / "file").open("w") as file:
        def train(run: rw.Run) -> None:
            file.write("")

        with pytest.raises(UsageError, match=r"train cannot be sent.*\n.*cannot be pickled"):
            rw.launch(train, arguments={}, devices=2, accelerator="cpu", runs=str(tmp_path))
    assert not (tmp_path / "runs").exists()


# Devices


def has_accelerators(monkeypatch: pytest.MonkeyPatch, kind: str, count: int) -> None:
    monkeypatch.setattr("rankwise.device.kind_of_device", lambda asked: kind if asked == "auto" else asked)
    monkeypatch.setattr("rankwise.device.count", lambda kind: None if kind == "cpu" else count)


def test_more_accelerators_than_present_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks for two GPUs are refused with what is here; four on the CPU are not."""
    has_accelerators(monkeypatch, "cuda", 2)
    with pytest.raises(UsageError, match=r"--devices is 4\.\n.* 2 cuda devices"):
        layout.with_devices(Settings(devices=4))
    assert layout.with_devices(Settings(devices=4, accelerator="cpu")).devices == 4


def test_devices_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """One device unless told; ddp and dp by name take all accelerators."""
    has_accelerators(monkeypatch, "cuda", 8)
    found = {mode: layout.with_devices(Settings(mode=mode)).devices for mode in ("auto", "single", "dp", "ddp")}
    assert found == {"auto": 1, "single": 1, "dp": 8, "ddp": 8}
    has_accelerators(monkeypatch, "cpu", 0)
    assert layout.with_devices(Settings(mode="ddp")).devices == 1


def test_modes_of_one_process_are_refused_on_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """`single` with two devices, and `dp` on two machines, are refused with what would work."""
    has_accelerators(monkeypatch, "cpu", 0)
    with pytest.raises(UsageError, match=r"--mode is single and --devices is 2"):
        layout.with_devices(Settings(mode="single", devices=2))
    with pytest.raises(UsageError, match=r"--mode is dp with --nodes 2"):
        layout.with_devices(Settings(mode="dp", nodes=2, endpoint="127.0.0.1:29500"))


def test_more_ranks_than_cores_are_said_in_a_line(monkeypatch: pytest.MonkeyPatch,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    """Any number of CPU ranks is accepted; beyond the cores one line says so."""
    has_accelerators(monkeypatch, "cpu", 0)
    monkeypatch.setattr(layout, "cores", lambda: 2)
    assert layout.ranks_here(Settings(devices=2)) == 2
    assert capsys.readouterr().err == ""
    assert layout.ranks_here(Settings(devices=3)) == 3
    assert capsys.readouterr().err == "rankwise: 3 ranks share the 2 cores of this machine, and take turns.\n"


def test_threads_are_shared_out_unless_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A rank gets cores // ranks threads; --threads beats what the environment says, which beats that."""
    monkeypatch.setattr(layout, "cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert layout.surroundings(Settings(), 3, tmp_path)["OMP_NUM_THREADS"] == "2"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert "OMP_NUM_THREADS" not in layout.surroundings(Settings(), 3, tmp_path)
    assert layout.surroundings(Settings(threads=4), 3, tmp_path)["OMP_NUM_THREADS"] == "4"


# Meeting


def test_each_attempt_meets_on_a_free_loopback_port(tmp_path: Path) -> None:
    """On one machine the store listens on 127.0.0.1 alone, on a port that the system chose, anew for each attempt."""
    rendezvous = Rendezvous(Settings(), tmp_path)
    first, second = rendezvous.next_rendezvous(), rendezvous.next_rendezvous()
    first.store.set("key", "value")
    assert not second.store.check(["key"])
    ports = [info.bootstrap_store_info.master_port for info in (first, second)]
    assert len(set(ports)) == 2
    for port in ports:
        assert {each.laddr.ip for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN
                and each.laddr.port == port} == {"127.0.0.1"}


@pytest.mark.parametrize("endpoint", ["host", "host:", ":29500", "host:port", "host:70000",
                                      "no-such-host.invalid:29500"])
def test_an_endpoint_that_cannot_be_used_is_refused(endpoint: str) -> None:
    """HOST:PORT with a host that has an address, or a message that says so."""
    with pytest.raises(UsageError, match=r"--endpoint is"):
        parse_endpoint(endpoint)


def test_the_interface_towards_an_address() -> None:
    """What reaches 127.0.0.1 is the loopback interface, whatever the machine's own name resolves to."""
    assert interface_towards("127.0.0.1") == "lo"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def machines(folder: Path, endpoint: str, prefixes: list[list[str]], *arguments: str, script: str = TRAIN,
             timeout: int = 60) -> list[Launch]:
    launches = []
    for number, prefix in enumerate(prefixes):
        place = folder / f"machine{number}"
        place.mkdir()
        (place / "train.py").write_text(script)
        command = [*RANKWISE, "run", "train.py", "--accelerator", "cpu", "--devices", str(number + 1), "--nodes",
                   str(len(prefixes)), "--node-rank", str(number), "--endpoint", endpoint, "--timeout",
                   str(timeout), "--", *arguments]
        launches.append(Launch(command, place, prefix))
    return launches


def test_two_launchers_make_one_run(tmp_path: Path) -> None:
    """Two launchers at one endpoint, with one and two ranks: three ranks, one name of the run, a log file each."""
    ended = [launch.ended() for launch in machines(tmp_path, f"127.0.0.1:{free_port()}", [[], []])]
    assert [each.code for each in ended] == [0, 0], "\n".join(each.text for each in ended)
    assert returned(ended[0].out)["ranks"] == 3.0
    assert ended[1].out == ""
    folders = [only(tmp_path / f"machine{number}" / "runs") for number in range(2)]
    assert folders[0].name == folders[1].name
    assert [sorted(path.name for path in folder.glob("logs/*")) for folder in folders] == [
        ["rank0.log"], ["rank1.log", "rank2.log"]]


def test_a_machine_that_does_not_come_is_named(tmp_path: Path) -> None:
    """A launcher whose partner is never started ends within its time limit and says what it waited for."""
    (tmp_path / "train.py").write_text(TRAIN)
    launches = [Launch([*RANKWISE, "run", "train.py", "--nodes", "2", "--node-rank", str(number), "--endpoint",
                        f"127.0.0.1:{free_port()}", "--timeout", "3"], tmp_path) for number in range(2)]
    for number, launch in enumerate(launches):
        ended = launch.ended()
        assert ended.code == 1, ended.text
        assert f"Machine {number} did not meet the other 1 at 127.0.0.1:" in ended.err
        assert "Traceback" not in ended.err


def test_a_failure_on_one_machine_ends_the_other(tmp_path: Path) -> None:
    """A rank that fails on machine 1 is shown there, and machine 0 ends with a message that names it."""
    ended = [launch.ended() for launch in machines(tmp_path, f"127.0.0.1:{free_port()}", [[], []], "--fail-on", "2")]
    assert [each.code for each in ended] == [1, 1], "\n".join(each.text for each in ended)
    assert "Rank 2 of 3 failed: ValueError: the data is upside down" in ended[1].err
    assert "Rank 2 failed with ValueError" in ended[0].err, ended[0].text


def test_errors_of_ranks_are_raised_with_their_traceback(tmp_path: Path) -> None:
    """From a program, a rank's failure is an error that says whose it was and shows its traceback."""
    def fail(run: rw.Run) -> None:
        if run.rank == 1:
            raise KeyError("missing")
        run.barrier()

    with pytest.raises(RankwiseError, match=r"Rank 1 of 2 failed: KeyError: 'missing'") as caught:
        rw.launch(fail, arguments={}, devices=2, accelerator="cpu", threads=1, runs=str(tmp_path))
    assert 'raise KeyError("missing")' in str(caught.value)
