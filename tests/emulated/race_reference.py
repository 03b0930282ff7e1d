"""Races by definition: full vector clocks, every access kept, one thread at a time. No arrays."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.emulator.observe import WARP

Thread = tuple[int, int]
HARMLESS = ({"load"}, {"atomic"})


@dataclass
class Past:
    """One earlier access of one byte."""

    thread: Thread
    kind: str
    clock: int


class Reference:
    """Threads are (block, thread). ``races`` says what an access races with, ``keep`` keeps it."""

    def __init__(self, threads: int, blocks: int) -> None:
        self.everybody = [(b, t) for b in range(blocks) for t in range(threads)]
        self.clock = dict.fromkeys(self.everybody, 1)
        self.knows = {t: {t: 0} for t in self.everybody}
        self.past: dict[tuple[int | None, int], list[Past]] = {}

    def meet(self, group: list[Thread]) -> None:
        joined: dict[Thread, int] = {}
        for t in group:
            for u, c in self.knows[t].items():
                joined[u] = max(joined.get(u, 0), c)
            joined[t] = max(joined.get(t, 0), self.clock[t])
        for t in group:
            self.knows[t] = dict(joined)
            self.clock[t] += 1

    def barrier(self, block: int) -> None:
        self.meet([t for t in self.everybody if t[0] == block])

    def warp_sync(self, block: int, lanes: list[int], members: dict[int, int]) -> None:
        """Groups of lanes with the same member mask meet."""
        groups: dict[Thread, list[Thread]] = {}
        for t in lanes:
            groups.setdefault((t // WARP, members[t]), []).append((block, t))
        for group in groups.values():
            self.meet(group)

    def _ordered(self, past: Past, thread: Thread) -> bool:
        return past.thread == thread or self.knows[thread].get(past.thread, 0) >= past.clock

    def _observed(self, past: Past, here: list[Past], thread: Thread) -> bool:
        """Whether the last atomic at a byte is ordered before now: it read what all before left."""
        last = max((i for i, p in enumerate(here) if p.kind == "atomic"), default=None)
        if past.kind != "atomic" or last is None:
            return False
        return self._ordered(here[last], thread)

    def races(
        self, space: str, kind: str, lanes: list[tuple[Thread, int]], nbytes: int
    ) -> set[tuple[Thread, Thread]]:
        """(first thread, second thread) of every race of this access (lanes: thread, address)."""
        found = set()
        fresh: dict[tuple[int | None, int], list[Thread]] = {}
        for thread, address in lanes:
            for byte in range(address, address + nbytes):
                key = (thread[0] if space == "shared" else None, byte)
                here = self.past.get(key, [])
                for past in here:
                    if {past.kind, kind} in HARMLESS or self._ordered(past, thread):
                        continue
                    if not self._observed(past, here, thread):
                        found.add((past.thread, thread))
                if kind == "store":
                    found |= {(other, thread) for other in fresh.setdefault(key, [])}
                    fresh[key].append(thread)
        return found

    def keep(self, space: str, kind: str, lanes: list[tuple[Thread, int]], nbytes: int) -> None:
        for thread, address in lanes:
            past = Past(thread, kind, self.clock[thread])
            for byte in range(address, address + nbytes):
                key = (thread[0] if space == "shared" else None, byte)
                self.past.setdefault(key, []).append(past)
