"""Where a process stands among the processes of a run, as plain numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankwise.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class World:
    """Rank, world size and node of one process, as torchrun defines them."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone writes to the console and to shared files."""
        return self.rank == 0

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> World | None:
        """Read the variables that torchrun sets; None where no launcher started this process.

        Raises UsageError where the variables contradict each other.
        """
        if "RANK" not in environ or "WORLD_SIZE" not in environ:
            return None
        names = {"rank": "RANK", "size": "WORLD_SIZE", "local_rank": "LOCAL_RANK",
                 "local_size": "LOCAL_WORLD_SIZE", "node": "GROUP_RANK"}
        try:
            values = {field: int(environ[name]) for field, name in names.items() if name in environ}
        except ValueError:
            given = ", ".join(f"{name}={environ[name]!r}" for name in names.values() if name in environ)
            raise UsageError(f"The launcher's environment has {given}.", "These must be whole numbers.",
                             "Start the script with `rankwise run` or torchrun, or unset RANK and WORLD_SIZE."
                             ) from None
        world = cls(**{"local_rank": 0, "local_size": 1, **values})
        if not (0 <= world.rank < world.size and 0 <= world.local_rank < world.local_size <= world.size):
            raise UsageError(f"The launcher's environment gives rank {world.rank} of {world.size}, "
                             f"local rank {world.local_rank} of {world.local_size}.",
                             "A rank is smaller than the world size, a local rank smaller than the local world size.",
                             "Start the script with `rankwise run` or torchrun, which set all of them.")
        return world


def listed(ranks: Sequence[int]) -> str:
    """0, 1 and 5; long lists are cut."""
    shown = [str(rank) for rank in ranks[:8]]
    if len(ranks) > len(shown):
        return f"{', '.join(shown)} and {len(ranks) - len(shown)} more"
    return f"{', '.join(shown[:-1])} and {shown[-1]}" if len(shown) > 1 else "".join(shown)


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Rank 1; Ranks 0, 2 and 3."""
    return f"Rank{'s' * (len(ranks) > 1)} {listed(ranks)}"
