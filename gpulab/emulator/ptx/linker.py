"""From a module and an entry name to one flat kernel: every call expanded in place.

Expanding calls keeps the whole kernel in one program order, so that "lowest instruction first" is
a correct reconvergence rule across calls as well. Recursion and calls through pointers have no
finite expansion and are refused by name. ``.param`` variables of calls become registers where all
accesses are whole pieces, which is nearly always, and local memory otherwise.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import NoReturn

from gpulab.emulator.ptx.nodes import (
    Function,
    Instr,
    Label,
    Mem,
    Module,
    Negated,
    Operand,
    Reg,
    Sym,
    Variable,
    Vec,
    symbols_of,
)
from gpulab.emulator.ptx.promote import promote_params
from gpulab.errors import BuildError


@dataclass
class Kernel:
    """A flat kernel.

    Args:
        name: entry name.
        code: instructions; targets are keys of ``labels``.
        labels: label to index into ``code`` (may equal its length).
        registers: register to declared type.
        params: entry parameters with their byte offset.
        param_bytes: size of the parameter block.
        frame: local variable to byte offset in a lane's local memory.
        frame_bytes: local memory of a lane.
        shared: shared variable to offset in the block's window.
        shared_static: bytes of it that do not depend on the launch (start of dynamic memory).
        max_threads: launch bound, or None.
        cluster: blocks of a cluster (x, y, z).
    """

    name: str
    code: list[Instr] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    registers: dict[str, str] = field(default_factory=dict)
    params: dict[str, tuple[int, Variable]] = field(default_factory=dict)
    param_bytes: int = 0
    frame: dict[str, int] = field(default_factory=dict)
    frame_bytes: int = 0
    shared: dict[str, int] = field(default_factory=dict)
    shared_static: int = 0
    max_threads: tuple[int, ...] | None = None
    cluster: tuple[int, int, int] = (1, 1, 1)


def _aligned(offset: int, align: int) -> int:
    return -(-offset // align) * align


def link(module: Module, entry: str, builtins: Collection[str]) -> Kernel:
    """Flatten ``entry``; functions without a body must be among ``builtins``.

    Raises:
        BuildError: unknown entry, recursion, a call through a pointer, an unresolved function.
    """
    function = module.functions.get(entry)
    if function is None or not function.is_entry or function.body is None:
        known = [f.name for f in module.functions.values() if f.is_entry]
        raise BuildError(f"no entry {entry!r} in this PTX", fix=f"entries: {', '.join(known)}")
    kernel = Kernel(entry, max_threads=function.max_threads, cluster=function.cluster)
    for variable in function.params:
        kernel.param_bytes = _aligned(kernel.param_bytes, variable.align)
        kernel.params[variable.name] = (kernel.param_bytes, variable)
        kernel.param_bytes += variable.nbytes
    expander = _Expander(module, kernel, builtins)
    expander.expand(function, "", {}, ())
    slots = promote_params(expander.code, kernel.registers, expander.slots)
    for item in expander.code:
        if isinstance(item, Label):
            kernel.labels[item.name] = len(kernel.code)
        else:
            kernel.code.append(item)
    _lay_out(kernel, expander, slots, module)
    return kernel


class _Expander:
    def __init__(self, module: Module, kernel: Kernel, builtins: Collection[str]) -> None:
        self.module = module
        self.kernel = kernel
        self.code: list[Instr | Label] = []
        self.builtins = builtins
        self.slots: dict[str, Variable] = {}  # .param variables of calls
        self.locals: dict[str, Variable] = {}
        self.shared: dict[str, Variable] = {}
        self.copies = 0

    def expand(
        self, function: Function, prefix: str, bound: dict[str, str], stack: tuple[str, ...]
    ) -> None:
        """Append the body of ``function`` with every name made unique by ``prefix``."""
        kernel = self.kernel
        names = dict(bound)
        for name, kind in function.registers.items():
            names[name] = prefix + name
            kernel.registers[prefix + name] = kind
        for name, variable in function.variables.items():
            if name in names or (not stack and variable.space == "param" and name in kernel.params):
                continue
            unique = f"{function.name}:{name}" if variable.space == "shared" else prefix + name
            names[name] = unique
            home = {"param": self.slots, "local": self.locals, "shared": self.shared}
            home[variable.space][unique] = replace(variable, name=unique)
        end = f"{prefix}$end"
        stack = (*stack, function.name)
        renamed = {name: unique for name, unique in names.items() if name != unique}
        for item in function.body or ():
            if isinstance(item, Label):
                self.code.append(Label(prefix + item.name))
                continue
            instr = item
            if renamed or prefix:
                instr = replace(
                    item,
                    operands=tuple(_renamed(o, renamed) for o in item.operands),
                    guard=None if item.guard is None else Reg(names[item.guard.name]),
                    targets=tuple(prefix + t for t in item.targets),
                )
            if instr.base == "call":
                self._call(instr, names, prefix, stack)
            elif instr.base == "ret" and prefix:
                self.code.append(replace(instr, opcode="bra", operands=(), targets=(end,)))
            else:
                self.code.append(instr)
        self.code.append(Label(end))

    def _call(
        self, instr: Instr, names: dict[str, str], prefix: str, stack: tuple[str, ...]
    ) -> None:
        assert instr.call is not None
        site = instr.call
        if isinstance(site.callee, Reg):
            _refuse(instr, "calls through a pointer are not supported")
        callee = self.module.functions.get(site.callee.name)
        if callee is None:
            _refuse(instr, f"{site.callee.name} is not declared")
        if callee.name in stack:
            _refuse(instr, f"{callee.name} is recursive, which is not supported")
        self.copies += 1
        inner = f"{callee.name}@{self.copies}:"
        skip = f"{inner}$skip"
        plain = replace(instr, guard=None, call=None, operands=())
        if instr.guard is not None:
            self.code.append(
                replace(
                    instr,
                    opcode="bra",
                    call=None,
                    operands=(),
                    guard_negated=not instr.guard_negated,
                    targets=(skip,),
                )
            )
        bound: dict[str, str] = {}
        after: list[Instr] = []
        for declared, operand, incoming in (
            *((v, o, True) for v, o in zip(callee.params, site.arguments, strict=True)),
            *((v, o, False) for v, o in zip(callee.results, site.results, strict=True)),
        ):
            value = _renamed(operand, names)
            if isinstance(value, Sym) and value.name in self.slots:
                bound[declared.name] = value.name
                continue
            slot = inner + declared.name
            self.slots[slot] = replace(declared, name=slot)
            bound[declared.name] = slot
            kind = f"b{8 * declared.nbytes}"
            if incoming:
                move = replace(plain, opcode=f"st.param.{kind}", operands=(Mem(Sym(slot)), value))
                self.code.append(move)
            else:
                move = replace(plain, opcode=f"ld.param.{kind}", operands=(value, Mem(Sym(slot))))
                after.append(move)
        if callee.body is not None:
            self.expand(callee, inner, bound, stack)
        elif callee.name in self.builtins:
            self._builtin(plain, callee, bound, inner)
        else:
            _refuse(instr, f"{callee.name} has no body in this PTX and is not known")
        self.code += after
        self.code.append(Label(skip))

    def _builtin(self, plain: Instr, callee: Function, bound: dict[str, str], inner: str) -> None:
        registers: list[Reg] = []
        loads, stores = [], []
        for variable in (*callee.results, *callee.params):
            if variable.nbytes not in (1, 2, 4, 8):
                _refuse(plain, f"{callee.name}: a parameter of {variable.nbytes} bytes")
            kind = f"b{8 * variable.nbytes}"
            register = Reg(f"{inner}{variable.name}$value")
            self.kernel.registers[register.name] = kind
            registers.append(register)
            cell = Mem(Sym(bound[variable.name]))
            if variable in callee.results:
                stores.append(replace(plain, opcode=f"st.param.{kind}", operands=(cell, register)))
            else:
                loads.append(replace(plain, opcode=f"ld.param.{kind}", operands=(register, cell)))
        call = replace(plain, opcode=f"builtin.{callee.name}", operands=tuple(registers))
        self.code += [*loads, call, *stores]


def _refuse(instr: Instr, why: str) -> NoReturn:
    where = f" ({instr.location.file}:{instr.location.line})" if instr.location else ""
    raise BuildError(f"{why}: {instr.text}{where}", text=instr.text, ptx_line=instr.ptx_line)


def _renamed(operand: Operand, names: dict[str, str]) -> Operand:
    if isinstance(operand, Reg):
        return Reg(names[operand.name]) if operand.name in names else operand
    if isinstance(operand, Sym):
        return Sym(names[operand.name], operand.offset) if operand.name in names else operand
    if isinstance(operand, Mem):
        base = _renamed(operand.base, names)
        assert isinstance(base, type(operand.base))
        return Mem(base, operand.offset, tuple(_renamed(o, names) for o in operand.place))
    if isinstance(operand, Vec):
        return Vec(tuple(_renamed(o, names) for o in operand.items), operand.pair)
    if isinstance(operand, Negated):
        return Negated(Reg(names.get(operand.reg.name, operand.reg.name)))
    return operand


def _lay_out(
    kernel: Kernel, expander: _Expander, slots: dict[str, Variable], module: Module
) -> None:
    """Give local and shared variables their places; unused module-scope ones take none."""
    for variable in (*expander.locals.values(), *slots.values()):
        kernel.frame_bytes = _aligned(kernel.frame_bytes, max(variable.align, 4))
        kernel.frame[variable.name] = kernel.frame_bytes
        kernel.frame_bytes += variable.nbytes
    kernel.frame_bytes = _aligned(kernel.frame_bytes, 16)
    used = {s for i in kernel.code for o in i.operands for s in symbols_of(o)}
    everything = {**module.variables, **expander.shared}
    shared = [(name, v) for name, v in everything.items() if v.space == "shared" and name in used]
    dynamic = [(name, v) for name, v in shared if v.extern]
    for name, variable in shared:
        if not variable.extern:
            kernel.shared_static = _aligned(kernel.shared_static, variable.align)
            kernel.shared[name] = kernel.shared_static
            kernel.shared_static += variable.nbytes
    start = _aligned(kernel.shared_static, max((v.align for _, v in dynamic), default=1))
    for name, _ in dynamic:
        kernel.shared[name] = start
    if dynamic:
        kernel.shared_static = start
