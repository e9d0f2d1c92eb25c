"""What is seen of a run, as it is shown: tables on a terminal, a line elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rankwise import quantities
from rankwise.stepparts import PARTS
from rankwise.watch.sight import Rank, Sight
from rankwise.world import ranks_in_words

_OTHER_LINES = 12   # of a screen, beside the ranks'


def screen(sight: Sight, height: int) -> RenderableType:
    """All of it, for a terminal of so many lines."""
    shown = _chosen(sight.ranks, max(2, (height - _OTHER_LINES) // 2))
    parts: list[RenderableType] = [Text(headline(sight), style="bold"), Text(_numbers(sight))]
    if shown:
        parts += [Text(), _ranks(shown)]
    if len(shown) < len(sight.ranks):
        parts.append(Text(f"and {len(sight.ranks) - len(shown)} more ranks", style="dim"))
    if sight.log.splits:
        parts += [Text(), *_split(sight, shown)]
    parts += [Text(line, style="yellow") for line in remarks(sight)]
    return Group(*parts)


def headline(sight: Sight) -> str:
    """Which run this is, and how it is laid out."""
    words = [f"{sight.name}: {sight.target}" if sight.target else sight.name]
    if sight.log.starts:
        words.append(f"mode {sight.log.starts[-1].mode}")
    if sight.ranks:
        size, attempt = sight.ranks[0].status.world_size, max(rank.status.attempt for rank in sight.ranks)
        words.append(f"{size} rank{'s' * (size != 1)}")
        words += [f"attempt {attempt + 1}"] if attempt else []
    return ", ".join(words)


def _numbers(sight: Sight) -> str:
    last = {name: value for event in sight.log.numbers for name, value in event.values.items()}
    if not last:
        return "no number is logged yet"
    rate = last.pop("samples_per_second", None)
    words = [f"{name} {'nan' if value is None else f'{value:.4g}'}" for name, value in last.items()]
    return ", ".join([f"logged last, at step {sight.log.numbers[-1].step}: {quantities.rate(rate, 'samples')}", *words])


def _chosen(ranks: Sequence[Rank], count: int) -> list[Rank]:
    """So many ranks, in order; those that do something else than train come first."""
    odd_first = sorted(ranks, key=lambda rank: rank.state.startswith("training"))
    return sorted(odd_first[:count], key=lambda rank: rank.status.rank)


def _ranks(ranks: Sequence[Rank]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("rank", "step", "epoch", "steps/s", "memory", "said", "state"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=name != "state")
    for rank in ranks:
        status = rank.status
        speed = status.steps_per_second
        table.add_row(str(status.rank), str(status.step), "-" if status.epoch is None else str(status.epoch + 1),
                      "-" if speed is None or status.has_ended else f"{speed:.3g}",
                      " ".join(map(quantities.byte_count, status.memory_bytes)) or "-",
                      f"{rank.age_seconds:.0f} s ago", Text(rank.state, style=_style(rank)))
    return table


def _style(rank: Rank) -> str:
    if rank.state.startswith("training"):
        return "green"
    return "red" if not rank.is_there and rank.state != "ended" else "" if rank.status.has_ended else "yellow"


def _split(sight: Sight, ranks: Sequence[Rank]) -> list[RenderableType]:
    """Shares of the step, of the latest interval that is on record."""
    split = sight.log.splits[-1]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("rank", "a step", *PARTS):
        table.add_column(name, justify="right", no_wrap=True)
    for rank in [rank.status.rank for rank in ranks if rank.status.rank < len(split.ranks)]:
        seconds = split.ranks[rank].seconds
        whole = sum(seconds.values())
        table.add_row(str(rank), quantities.seconds(whole), *(
            quantities.percent(seconds[phase] / whole if whole else None) for phase in PARTS))
    return [Text(f"where the time went, in the {split.steps} steps to step {split.step}"), table]


def remarks(sight: Sight) -> list[str]:
    """What is out of the ordinary."""
    found = []
    if not sight.ranks and not sight.is_over:
        found.append("No rank has said anything yet.")
    if sight.missing:
        found.append(f"{ranks_in_words(sight.missing)}: nothing is known. On another machine the files are there.")
    if sight.has_stalled:
        found.append("The ranks stalled, or one was lost: see stalls/report.txt in the run's folder.")
    return found


def line(sight: Sight) -> str:
    """The ranks in one line, by what they do."""
    if not sight.ranks:
        return "; ".join(remarks(sight)) or "no rank has said anything"
    by_state: dict[str, list[int]] = {}
    for rank in sight.ranks:
        by_state.setdefault(rank.state.partition(": ")[0] if rank.state.startswith("training") else rank.state,
                            []).append(rank.status.rank)
    speeds = [rank.status.steps_per_second for rank in sight.ranks if rank.status.steps_per_second is not None]
    words = [f"step {max(rank.status.step for rank in sight.ranks)}"]
    words += [f"{min(speeds):.3g} steps/s"] if speeds else []
    words += [f"{ranks_in_words(ranks)} {state}" for state, ranks in by_state.items()]
    return ", ".join(words)


def ending(sight: Sight) -> str:
    """How it ended, when it is over."""
    end = sight.log.end
    if end is not None:
        return "\n".join([f"{sight.name}: {end.how} at step {end.step}", *(f"  {each}" for each in end.lines)])
    return f"{sight.name}: over; no end is on record. {line(sight)}"
