"""Many submissions: judged in parallel, written as each finishes, resumable.

Each of ``jobs`` judges is a process of its own that keeps the references of one seed; submissions
run in workers below it. Where there are cards, a judge has one of them. If a judge dies, the
submission it had is tried once more alone and then called inconclusive: it never decides about
another.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, replace
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import IO, Any

from gpulab.check import cards, confine
from gpulab.check.evidence import Diagnosis, Result, printable
from gpulab.check.session import Options
from gpulab.errors import DeviceMissingError, GpulabError, UsageError
from gpulab.numerics.cache import Cache

Record = dict[str, Any]
Progress = Callable[[str], object]
_STATE: dict[str, Cache] = {}
_FIRST = "how"
_BEGINNING = f'{{"{_FIRST}": '.encode()
"""Of every line of a journal."""


def _silent(_: str) -> None:
    return None


def collect(paths: Sequence[Path]) -> list[Path]:
    """The submissions of files and folders, in order, each once.

    Raises:
        UsageError: a path that is not there, or nothing to check.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = [p for p in sorted(path.rglob("*")) if p.suffix.lower() in (".cu", ".py")]
            there = (p for p in inside if p.is_file() or not p.exists())  # or a link to nothing
            found += [p for p in there if not _hidden(p, path)]
        elif path.exists():
            found.append(path)
        else:
            raise UsageError(
                f"no such file or folder: {path}", fix="name a .cu or .py file, or a folder of them"
            )
    if not found:
        raise UsageError(
            f"no .cu or .py file in {', '.join(map(str, paths))}", fix="name a file or a folder"
        )
    return list(dict.fromkeys(found))


def _hidden(path: Path, below: Path) -> bool:
    return any(p.startswith((".", "__")) for p in path.relative_to(below).parts)


class Journal:
    """Finished results, one JSON object a line, each flushed to disk as it comes.

    The file is one run's: a second that would write it meanwhile is refused, and so is one that
    would write over anything but results.

    Args:
        path: the file.
        options: how the submissions are checked; a result of other options is not taken over.
    """

    def __init__(self, path: Path, options: Options) -> None:
        self.path = path
        facts = {k: v for k, v in asdict(options).items() if k not in ("seed", "only")}
        self.how = json.dumps(facts, sort_keys=True, default=str)
        self._file: IO[bytes] | None = None

    def _opened(self) -> IO[bytes]:
        """The file, locked until ``close``.

        Raises:
            UsageError: another run writes it, or it holds something else than results.
        """
        if self._file is not None:
            return self._file
        file = self._file = self.path.open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise UsageError(
                f"--results: another run writes {self.path}", fix="wait for it, or name a new file"
            ) from None
        except OSError:  # a file system without locks
            pass
        file.seek(0)
        begins = file.read(len(_BEGINNING))
        if begins and begins != _BEGINNING:
            self.close()
            raise UsageError(
                f"--results: {self.path} holds something else than results",
                fix="name a new file: it would be written over",
            )
        return file

    def close(self) -> None:
        """Leave the file to others."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def read(self) -> tuple[dict[tuple[str, str], Record], int | None]:
        """Results by (file, digest of its content), and the seed they were made with.

        Raises:
            UsageError: the file is not this run's.
        """
        found: dict[tuple[str, str], Record] = {}
        seed = None
        file = self._opened()
        file.seek(0)
        for line in file.read().decode(errors="replace").splitlines():
            try:
                entry = json.loads(line)
                record, how = entry["record"], entry[_FIRST]
                key = (str(record["file"]), str(entry["digest"]))
            except (ValueError, KeyError, TypeError):
                continue  # cut off by the end of the run that wrote it
            if how == self.how:
                found[key] = record
                seed = record.get("seed", seed)
        return found, seed

    def start(self) -> None:
        """Begin anew.

        Raises:
            UsageError: the file is not this run's.
        """
        self._opened().truncate(0)

    def add(self, record: Record, digest: str) -> None:
        """Append a result; it is on disk when this returns.

        Raises:
            UsageError: the file is not this run's.
        """
        file = self._opened()
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # the last line was cut off
                file.write(b"\n")
        line = json.dumps({_FIRST: self.how, "digest": digest, "record": record})
        file.write(line.encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def content_digest(path: Path) -> str:
    """Of a file's bytes, empty where it cannot be read."""
    import hashlib

    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def check_one(path: Path, options: Options, progress: Progress = _silent) -> Record:
    """Check a file in this process; never raises but for a missing device.

    Args:
        path: the file.
        options: how.
        progress: told what happens next.

    Raises:
        DeviceMissingError: there is no such device.
    """
    from gpulab.check.judge import check

    cache = _STATE.setdefault("cache", Cache())
    try:
        return check(path, options, cache=cache, progress=progress).to_json()
    except DeviceMissingError:
        raise
    except GpulabError as error:
        return _gave_up(path, options, error.message)
    except Exception as error:
        return _gave_up(
            path, options, f"the checker itself failed: {type(error).__name__}: {error}"
        )


def _gave_up(path: Path, options: Options, text: str) -> Record:
    result = Result(str(path), reason=text, diagnosis=Diagnosis("checker", text))
    result.facts.update(device=options.device, seed=options.seed, exercise=None)
    return result.to_json()


def _prepare(parent: int, card: SimpleQueue[str] | None) -> None:
    confine.die_with_parent(parent)
    if card is not None:
        cards.pin(card.get())


def check_many(
    paths: Sequence[Path],
    options: Options,
    jobs: int,
    journal: Journal | None,
    *,
    resume: bool,
    progress: Progress = _silent,
) -> Iterator[Record]:
    """Results as they finish; those of an earlier run first.

    Args:
        paths: submissions.
        options: how; without a seed one is drawn for all of them.
        jobs: judges at a time.
        journal: where results are kept.
        resume: take over what the journal has of unchanged files.
        progress: told what happens next where files are checked one after the other.

    Raises:
        DeviceMissingError: there is no such device.
    """
    done: dict[tuple[str, str], Record] = {}
    seed = options.seed
    if journal is not None and resume:
        done, earlier = journal.read()
        seed = earlier if seed is None else seed
    elif journal is not None:
        journal.start()
    options = replace(options, seed=secrets.randbits(32) if seed is None else seed)
    waiting = []
    for path in paths:
        key = (printable(path), content_digest(path))
        if key in done:
            yield done[key]
        else:
            waiting.append((path, key[1]))

    def finish(record: Record, digest: str) -> Record:
        if journal is not None:
            journal.add(record, digest)
        return record

    if jobs <= 1 or len(waiting) <= 1:
        for path, digest in waiting:
            yield finish(check_one(path, options, progress), digest)
        return
    for path, digest, record in _parallel(waiting, options, jobs):
        if record is None:  # its judge died: once more, alone
            record = next((r for _, _, r in _parallel([(path, digest)], options, 1)), None)
        if record is None:
            record = _gave_up(path, options, "the judging process died twice on this file")
        yield finish(record, digest)


def _parallel(
    waiting: Sequence[tuple[Path, str]], options: Options, jobs: int
) -> Iterator[tuple[Path, str, Record | None]]:
    """(path, digest, record or None where the judge died), as they finish."""
    context = multiprocessing.get_context("spawn")
    present = cards.usable() if options.device == "cuda" else ()
    left = list(waiting)
    while left:
        places = context.SimpleQueue() if present else None
        if places is not None:
            for number in range(jobs):
                places.put(present[number % len(present)])
        with ProcessPoolExecutor(jobs, context, _prepare, (os.getpid(), places)) as pool:
            running: dict[Future[Record], tuple[Path, str]] = {}
            broken: list[tuple[Path, str]] = []
            while left or running:
                while left and len(running) < jobs and not broken:
                    pair = left.pop(0)
                    running[pool.submit(check_one, pair[0], options)] = pair
                if not running:
                    break
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    path, digest = running.pop(future)
                    try:
                        yield path, digest, future.result()
                    except BrokenProcessPool:
                        broken.append((path, digest))
        for path, digest in broken:
            yield path, digest, None
