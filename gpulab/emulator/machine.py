"""The emulated machine: memory, programs, launches. See docs/emulator.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.arch import DEFAULT_EMULATED, Capability
from gpulab.emulator import builtins, ops
from gpulab.emulator.codegen import Compiler
from gpulab.emulator.executor import Executor
from gpulab.emulator.flow import Flow, split
from gpulab.emulator.globalmem import GlobalMemory
from gpulab.emulator.launching import chunks, prepare
from gpulab.emulator.observe import Allocation, LaunchInfo, Observer, places
from gpulab.emulator.ops.registry import Env
from gpulab.emulator.ptx.linker import Kernel, link
from gpulab.emulator.ptx.nodes import Module, symbols_of
from gpulab.emulator.ptx.parser import parse
from gpulab.emulator.spaces import GLOBAL_BASE
from gpulab.emulator.state import Launch, State
from gpulab.emulator.values import UNSET
from gpulab.errors import BuildError, UsageError

LANES_PER_CHUNK = 65536
LOCAL_BYTES_PER_CHUNK = 256 << 20
DEFAULT_BUDGET = 4_000_000

assert ops  # importing the package registers every instruction family


@dataclass
class Entry:
    """A kernel ready to run."""

    kernel: Kernel
    flow: Flow
    compiler: Compiler
    param_address: int


@dataclass
class Program:
    """A loaded PTX text: its entries, and the addresses of its global variables.

    Args:
        module: the text.
        entries: by name.
        addresses: of all global and constant variables, by name.
        referenced: those of them that an instruction names. C++ leaves constants behind that none
            does; without such a variable no launch can leave anything for the next.
    """

    module: Module
    entries: dict[str, Entry] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)
    referenced: set[str] = field(default_factory=set)


def _named(kernel: Kernel) -> set[str]:
    """The variables that instructions name, in whatever branch."""
    found: set[str] = set()
    for instr in kernel.code:
        operands = list(instr.operands)
        if instr.call is not None:
            operands += [*instr.call.results, *instr.call.arguments]
        for operand in operands:
            found |= symbols_of(operand)
    return found


@dataclass
class Report:
    """What a launch tells: counters of the observers, and printf output."""

    counters: dict[str, Any] | None = None
    printed: str = ""


class Machine:
    """An emulated card.

    Args:
        capability: whose tensor cores and approximate instructions are emulated; the PTX may be
            for a lower one.
        sanitize: look for races (shared and global memory).
        counters: count instructions, sectors, bank conflicts, ...
        budget: instructions that one chunk of blocks may execute, None for the default.
        track_uninitialised: report reads of bytes that nobody wrote (global and shared memory).
        lanes: threads that run together at most; bounds memory.
        unset: bits of registers and local memory before anything is put there.

    Attributes:
        blocks: linear ids of the blocks that launches run, with those of their clusters; None: all.
    """

    def __init__(
        self,
        capability: Capability = DEFAULT_EMULATED,
        sanitize: bool = False,
        counters: bool = False,
        budget: int | None = None,
        *,
        track_uninitialised: bool = True,
        lanes: int = LANES_PER_CHUNK,
        unset: int = UNSET,
    ) -> None:
        self.capability = capability
        self.budget = DEFAULT_BUDGET if budget is None else budget
        self.sanitize = sanitize
        self.counters = counters
        self.track = track_uninitialised
        self.lanes = lanes
        self.blocks: Sequence[int] | None = None
        self.unset = unset
        self.memory = GlobalMemory(track_uninitialised)

    # -- memory -------------------------------------------------------------------------------

    def alloc(self, nbytes: int, name: str = "") -> int:
        """Uninitialised global memory; the address of its first byte."""
        return self.memory.allocate(nbytes, name).start + GLOBAL_BASE

    def write(self, address: int, data: Any) -> None:
        """Copy bytes (any buffer) into an allocation."""
        self.memory.write(address, octets_of(data))

    def read(self, address: int, nbytes: int) -> NDArray[np.uint8]:
        """Copy bytes out of an allocation."""
        return self.memory.read(address, nbytes)

    def fill(self, address: int, nbytes: int, byte: int) -> None:
        """Set bytes that count as uninitialised when a kernel reads them."""
        self.memory.fill(address, nbytes, byte)

    def free(self, address: int) -> None:
        """Release an allocation after checking its guard zones.

        Raises:
            FaultError: something wrote outside the allocation.
        """
        self.memory.release(address)

    # -- programs -----------------------------------------------------------------------------

    def load(self, ptx_text: str) -> Program:
        """Parse PTX and prepare every entry.

        Raises:
            BuildError: not PTX, or an instruction that is not implemented (full text and line).
        """
        module = parse(ptx_text)
        program = Program(module)
        self._place_variables(module, program)
        for function in list(module.functions.values()):
            if function.is_entry and function.body is not None:
                kernel = link(module, function.name, builtins.NAMES)
                block = self.memory.allocate(
                    max(kernel.param_bytes, 1), f"parameters of {kernel.name}", owner="program"
                )
                block.read_only = True
                address = block.start + GLOBAL_BASE
                env = Env(kernel, program.addresses, self.capability, address)
                flow = split(kernel)
                compiler = Compiler(flow, kernel.registers, env)
                program.entries[kernel.name] = Entry(kernel, flow, compiler, address)
                program.referenced |= _named(kernel) & program.addresses.keys()
        return program

    def unload(self, program: Program) -> None:
        """Free the variables of a program."""
        for address in (
            *program.addresses.values(),
            *(e.param_address for e in program.entries.values()),
        ):
            self.memory.release(address)
        program.addresses.clear()
        program.entries.clear()

    def _place_variables(self, module: Module, program: Program) -> None:
        placed = [v for v in module.variables.values() if v.space in ("global", "const")]
        for variable in placed:
            block = self.memory.allocate(
                variable.nbytes, variable.name, owner="program", align=variable.align
            )
            program.addresses[variable.name] = block.start + GLOBAL_BASE
            block.read_only = variable.space == "const"
        for variable in placed:
            data = bytearray((variable.initial or b"").ljust(variable.nbytes, b"\0"))
            for at, width, symbol, addend in variable.relocations:
                if symbol not in program.addresses:
                    raise BuildError(f"{variable.name} is initialised with {symbol}, unknown here")
                value = program.addresses[symbol] + addend
                data[at : at + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
            self.write(program.addresses[variable.name], bytes(data))

    # -- launches -----------------------------------------------------------------------------

    def launch(
        self,
        program: Program,
        entry: str,
        grid: Sequence[int],
        block: Sequence[int],
        params: Sequence[bytes],
        shared_bytes: int = 0,
        *,
        observers: Sequence[Observer] = (),
    ) -> Report:
        """Run a kernel over a grid.

        Args:
            program: from ``load``.
            entry: name of the entry.
            grid: blocks (x, y, z).
            block: threads (x, y, z).
            params: one bytes object a parameter, of exactly its size.
            shared_bytes: dynamic shared memory of a block.
            observers: further watchers.

        Raises:
            FaultError: the kernel did something illegal.
            KernelTimeoutError: it exceeded the instruction budget.
            UsageError: entry, parameters or launch shape do not fit.
        """
        if entry not in program.entries:
            raise UsageError(
                f"no entry {entry!r}", fix=f"entries: {', '.join(program.entries) or 'none'}"
            )
        ready = program.entries[entry]
        watchers = (*self._observers(), *observers)
        launch = prepare(ready.kernel, grid, block, params, shared_bytes, self.capability, watchers)
        offset = ready.param_address - GLOBAL_BASE
        raw = np.frombuffer(launch.params, np.uint8)
        self.memory.data[offset : offset + raw.size] = raw
        self.memory.valid[offset : offset + raw.size] = 0xFF
        self._begin(launch)
        lanes = min(self.lanes, LOCAL_BYTES_PER_CHUNK // max(ready.kernel.frame_bytes, 1))
        with np.errstate(all="ignore"):
            for ids in chunks(launch, lanes, self.blocks):
                state = State(launch, self.memory, ids, self.track, self.unset)
                self.running = state
                for watcher in watchers:
                    watcher.chunk(ids)
                Executor(state, ready.flow, ready.compiler, self.budget).run()
                if state.stores is not None:
                    state.stores.finish()
        self.memory.settle()
        counters: dict[str, Any] | None = None
        for watcher in watchers:
            counters = (counters or {}) | watcher.end()
        return Report(counters, "".join(launch.printed))

    def _observers(self) -> list[Observer]:
        found: list[Observer] = []
        if self.counters:
            from gpulab.emulator.counters import Counters

            found.append(Counters())
        if self.sanitize:
            from gpulab.emulator.race import RaceDetector

            found.append(RaceDetector())
        return found

    def _begin(self, launch: Launch) -> None:
        if not launch.observers:
            return
        allocations = tuple(
            Allocation(b.start + GLOBAL_BASE, b.nbytes, b.name) for b in self.memory.blocks
        )
        info = LaunchInfo(
            launch.kernel.name,
            launch.grid,
            launch.block,
            launch.shared_bytes,
            allocations,
            self.capability,
            self._peek,
        )
        for watcher in launch.observers:
            watcher.begin(info)

    def _peek(
        self, space: str, blocks: NDArray[Any], addresses: NDArray[Any], nbytes: int
    ) -> NDArray[np.uint8]:
        span = np.arange(nbytes)
        where = np.asarray(addresses, np.int64)[:, None]
        if space == "global":
            found: NDArray[np.uint8] = self.memory.data[where - GLOBAL_BASE + span]
            return found
        state = self.running
        columns = places(state.blocks, blocks)[:, None]
        at = where + span
        octets = state.shared.data.view(np.uint8).reshape(state.shared.rows, -1, 4)
        picked: NDArray[np.uint8] = octets[at >> 2, columns, at & 3]
        return picked


def octets_of(data: Any) -> NDArray[np.uint8]:
    """The bytes of any buffer or array, in place where they lie in order."""
    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return np.frombuffer(bytes(data), np.uint8)
