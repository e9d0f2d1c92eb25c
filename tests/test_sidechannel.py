"""The line beside the training: texts get through while the training's own store client waits."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from rankwise.sidechannel import SideChannel
from rankwise.world import World


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> dist.TCPStore:
    served = dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=5))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(served.port))
    return served


def channel(rank: int) -> SideChannel:
    opened = SideChannel.open(World(rank=rank, size=2, local_rank=rank, local_size=2), limit_seconds=5)
    assert opened is not None
    return opened


def test_texts_arrive_while_the_store_is_waited_in(store: dist.TCPStore) -> None:
    """A wait in the training's client of the store does not hold up the line."""
    training = dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=3),
                             wait_for_workers=False)

    def wait() -> None:
        with pytest.raises(RuntimeError):
            training.get("never")

    waiting = threading.Thread(target=wait)
    waiting.start()
    first, second = channel(0), channel(1)
    assert second.read("place") is None
    first.post("place", "step 7")
    assert second.read("place") == "step 7"
    assert waiting.is_alive()
    waiting.join(10)


def test_what_was_posted_can_be_read(store: dist.TCPStore) -> None:
    """Once `post` has returned, every other rank reads the text, however soon it asks."""
    first, second = channel(0), channel(1)
    for step in range(2000):
        first.post("place", str(step))
        assert second.read("place") == str(step)


def test_one_rank_claims(store: dist.TCPStore) -> None:
    """All ranks hear of the one that was first."""
    first, second = channel(0), channel(1)
    assert [second.claim("reporter", "1"), first.claim("reporter", "0"), second.read("reporter")] == ["1", "1", "1"]


def test_attempts_do_not_read_each_other(store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was posted before a restart is not seen after it."""
    channel(0).post("place", "step 7")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert channel(1).read("place") is None


def test_alone_there_is_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single rank, or one that no launcher started, has nobody to talk to."""
    assert SideChannel.open(World(), limit_seconds=1) is None
    monkeypatch.delenv("MASTER_PORT", raising=False)
    assert SideChannel.open(World(rank=0, size=2, local_rank=0, local_size=2), limit_seconds=1) is None


def test_a_store_that_is_gone_is_a_connection_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody serves, and where the server has ended, the callers get one kind of error."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    served = dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=2))
    monkeypatch.setenv("MASTER_PORT", str(served.port))
    line = channel(0)
    del served
    with pytest.raises(ConnectionError):
        line.read("place")
    with pytest.raises(ConnectionError):
        SideChannel.open(World(rank=0, size=2, local_rank=0, local_size=2), limit_seconds=1)
