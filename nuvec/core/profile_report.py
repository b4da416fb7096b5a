"""What a profile shows: a table of operations, and Chrome's trace format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nuvec.core.profiler import BESIDE, MAIN, Event

if TYPE_CHECKING:
    from nuvec.core.profile import Span

Piece = tuple[int, int]  # of time: start and end
Spans = Mapping[int, "Span"]

SECTIONS = {
    "compute": "compute", "program": "compute",
    "communication": "communication", "wait": "communication",
    "trace": "tracing", "lower": "tracing",
}  # fmt: skip
WIDTH = 44  # of an operation's name
LEAST = 500  # bytes that are worth showing


def own_pieces(events: Sequence[Event]) -> list[tuple[Event, list[Piece]]]:
    """The events of one thread, each with the time in which none inside of it ran."""
    found: list[tuple[Event, list[Piece]]] = []
    open_: list[tuple[Event, list[Piece]]] = []
    last = 0

    def until(now: int) -> None:
        """All up to `now` belongs to the innermost open event."""
        nonlocal last
        while open_ and open_[-1][0].end <= now:
            event, pieces = open_.pop()
            if event.end > last:
                pieces.append((last, event.end))
                last = event.end
        if open_ and now > last:
            open_[-1][1].append((last, now))
        last = max(last, now)

    for event in sorted(events, key=lambda e: (e.start, -e.end)):
        until(event.start)
        found.append((event, []))
        open_.append(found[-1])
    until(max([e.end for e in events], default=0))
    return found


def union(pieces: Sequence[Piece]) -> list[Piece]:
    """The same time in pieces that do not overlap, in order."""
    merged: list[Piece] = []
    for start, end in sorted(pieces):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def length(pieces: Sequence[Piece]) -> int:
    return sum(end - start for start, end in pieces)


def common(a: Sequence[Piece], b: Sequence[Piece]) -> int:
    """How much time is in both."""
    a, b = union(a), union(b)
    return length(a) + length(b) - length(union([*a, *b]))


class _Rank:
    """The time of one rank's program, by what it went to; what does not add up to it is idle."""

    def __init__(self, events: Sequence[Event], span: Span) -> None:
        self.wall = span.end - span.start
        self.own = own_pieces([e for e in events if e.thread == MAIN])
        pieces: dict[str, list[Piece]] = {"compute": [], "communication": [], "tracing": []}
        for event, parts in self.own:
            pieces[SECTIONS[event.kind]].extend(parts)
        self.times = {section: length(parts) for section, parts in pieces.items()}
        self.times["idle"] = self.wall - sum(self.times.values())
        sent = [(e.start, e.end) for e in events if e.kind == "communication"]
        self.sent = length(union(sent))
        self.hidden = common(sent, pieces["compute"])
        self.rows = [(e, length(parts)) for e, parts in self.own]
        self.rows += [(e, e.end - e.start) for e in events if e.thread == BESIDE]


def table(events: Sequence[Event], spans: Spans) -> str:
    """The ranks' time by section, and all ranks' operations, the costliest first.

    An operation's time is its own, without that of operations inside of it (the steps of a loop or
    of a compiled call); bytes over the whole of its time are its GB/s."""
    ranks = {r: _Rank([e for e in events if e.rank == r], spans[r]) for r in sorted(spans)}
    wall = sum(r.wall for r in ranks.values())
    sections = ["compute", "communication", "tracing", "idle"]
    lines = [
        f"{'rank':>4} {'wall ms':>10} {'compute':>9} {'communication':>14} {'tracing':>9}"
        f" {'idle':>6} {'hidden':>8}"
    ]
    for number, rank in ranks.items():
        shares = [_percent(rank.times[s], rank.wall) for s in sections]
        hidden = _percent(rank.hidden, rank.sent) if rank.sent else "-"
        compute, communication, tracing, idle = shares
        lines.append(
            f"{number:>4} {rank.wall / 1e6:>10.3f} {compute:>9} {communication:>14} {tracing:>9}"
            f" {idle:>6} {hidden:>8}"
        )
    rows: dict[tuple[str, str], list[int]] = {}
    for rank in ranks.values():
        for event, own in rank.rows:
            row = rows.setdefault((SECTIONS[event.kind], event.name), [0, 0, 0, 0])
            for k, more in enumerate((1, own, event.bytes, event.end - event.start)):
                row[k] += more
    for section in sections[:-1]:
        chosen = sorted(
            ((name, row) for (s, name), row in rows.items() if s == section),
            key=lambda item: (-item[1][1], item[0]),
        )
        if chosen:
            lines += ["", _line(section, "calls", "ms", "% wall", "MB", "GB/s")]
        for name, (calls, own, size, whole) in chosen:
            moved = f"{size / 1e6:.3f}" if size >= LEAST else ""
            rate = f"{size / whole:.2f}" if size >= LEAST and whole else ""
            share = _percent(own, wall)
            lines.append(_line(f"  {name}", str(calls), f"{own / 1e6:.3f}", share, moved, rate))
    return "\n".join(lines)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole if whole else 0:.1f} %"


def _line(name: str, calls: str, ms: str, share: str, moved: str, rate: str) -> str:
    name = name if len(name) <= WIDTH else f"{name[: WIDTH - 3]}..."
    return f"{name:<{WIDTH}} {calls:>7} {ms:>10} {share:>8} {moved:>10} {rate:>7}".rstrip()


def chrome_trace(events: Sequence[Event], spans: Spans) -> dict[str, Any]:
    """Chrome's trace format (JSON object form): complete events, times in microseconds."""
    found: list[dict[str, Any]] = []
    lanes: dict[tuple[int, str], int] = {}
    for rank in sorted(spans):
        found.append(_named("process_name", rank, 0, f"rank {rank}"))
        # The order of lanes, whatever runs first.
        for lane in ("compute", "communication"):
            lanes[rank, lane] = len([k for k in lanes if k[0] == rank])
    for e in events:
        if (e.rank, e.lane) not in lanes:
            lanes[e.rank, e.lane] = len([k for k in lanes if k[0] == e.rank])
    for (rank, lane), number in lanes.items():
        found.append(_named("thread_name", rank, number, lane))
    for e in events:
        more: dict[str, Any] = {"bytes": e.bytes, "source": e.source}
        arguments = {**{k: v for k, v in more.items() if v}, **e.details}
        found.append({
            "name": e.name, "cat": e.kind, "ph": "X", "ts": e.start / 1000,
            "dur": (e.end - e.start) / 1000, "pid": e.rank, "tid": lanes[e.rank, e.lane],
            "args": arguments,
        })  # fmt: skip
    clocks = {str(rank): s.uncertainty / 1000 for rank, s in sorted(spans.items())}
    walls = {str(rank): [s.start / 1000, s.end / 1000] for rank, s in sorted(spans.items())}
    return {
        "traceEvents": found,
        "displayTimeUnit": "ms",
        "otherData": {"clock_uncertainty_us": clocks, "open_us": walls},
    }


def _named(what: str, rank: int, lane: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": rank, "tid": lane, "args": {"name": name}}
