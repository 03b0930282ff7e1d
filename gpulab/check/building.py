"""From a submission to PTX, with the errors of the first day put into words."""

from __future__ import annotations

import re
from typing import Any

from gpulab.check import excerpt, ptx
from gpulab.check.client import Client
from gpulab.check.evidence import printable
from gpulab.check.runner import Code
from gpulab.check.submission import Submission
from gpulab.check.worker import params_to
from gpulab.errors import BuildError
from gpulab.exercises.base import Exercise
from gpulab.registry import Capability

COMPILE_SECONDS = 60.0
LOG_LINES = 24
_HOST_CODE = re.compile(r'identifier "(?:cuda[A-Z]\w+|std)" is undefined|name must be a namespace')
_MAIN = re.compile(r"\bmain\s*\(")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NOISE = re.compile(
    r"__nv_name_map|pragma nv_mangled_name|compilation of|^\s*\^\s*$|^Remark:|^\s*ptxas (?:info|  )"
)
ONE_BY_ONE = "correct the first line that is named; what is said after it often follows from it"


def build(
    submission: Submission,
    exercise: Exercise,
    client: Client,
    capability: Capability,
    *,
    trusted: bool = False,
) -> tuple[Code, dict[str, bool]]:
    """Compile a submission in its own process.

    Args:
        submission: what was parsed.
        exercise: gives entry and signature.
        client: the worker that compiles CUDA C++.
        capability: to compile for.
        trusted: a Python file may run unconfined where it cannot be confined.

    Returns:
        The code, and which confinements held while it was made.

    Raises:
        BuildError: it does not compile, or has another signature.
        UsageError: a Python submission that cannot be confined here.
        KernelTimeoutError: the compiler was stopped.
    """
    if submission.language == "py":
        message: dict[str, Any] = {
            "entry": exercise.entry,
            "params": params_to(exercise.params),
            "capability": list(capability),
        }
        try:
            made, held = client.python_to_ptx(
                submission.path, message, COMPILE_SECONDS, trusted=trusted
            )
        except BuildError as error:
            raise BuildError(error.message, fix=error.fix or ONE_BY_ONE, **error.details) from None
        ptx.check_heap(made["ptx"], printable(submission.path.name))
        return Code(made["ptx"], made["entry"], "numba", submission.launch), held
    name = printable(submission.path.name)
    try:
        answer, _ = client.ask(
            {
                "do": "compile",
                "text": submission.text,
                "name": name,
                "appended": exercise.contract_check,
                "entry": exercise.entry,
                "capability": list(capability),
            },
            seconds=COMPILE_SECONDS,
            doing=f"compiling {name}",
        )
    except BuildError as error:
        raise _explained(error, submission, exercise) from None
    ptx.check_entry(answer["ptx"], exercise, name)
    ptx.check_heap(answer["ptx"], name)
    return Code(answer["ptx"], answer["entry"], "c", submission.launch, answer["log"]), client.held


def _no_kernel(submission: Submission, exercise: Exercise, name: str) -> BuildError:
    """The error for a kernel of another name, or none."""
    text = re.sub(r"__launch_bounds__\s*\([^)]*\)", " ", _COMMENT.sub(" ", submission.text))
    kernels = dict.fromkeys(re.findall(r"__global__\s+(?:\w+\s+)*?(\w+)\s*\(", text))
    there = f"; it has {', '.join(kernels)}" if kernels else ""
    return BuildError(
        f"{name}: there is no kernel {exercise.entry}{there}",
        fix=f"declare it as\n    {exercise.signature}",
        file=name,
    )


def _explained(error: BuildError, submission: Submission, exercise: Exercise) -> BuildError:
    """A compiler's refusal with the submission's own lines and what to do."""
    log = str(error.details.get("log", error.message))
    name = printable(submission.path.name)
    told = [line for line in log.splitlines() if line.strip() and not _NOISE.search(line)]
    told, errors = excerpt.errors_first(told)
    facts = {**error.details, "log": "\n".join(told[:LOG_LINES]), "errors": errors, "file": name}
    own_error = re.search(rf"^{re.escape(name)}\(\d+\): (?:catastrophic )?error", log, re.MULTILINE)
    missing = f'identifier "{exercise.entry}" is undefined' in log
    if missing and own_error is None:
        return _no_kernel(submission, exercise, name)
    if "gpulab: another parameter list" in log and not missing:
        return ptx.wrong_signature(exercise, name)
    fix = error.fix
    undefined = re.search(
        r'identifier "(__half|half|__nv_bfloat16|__nv_fp8_e4m3)\w*" is undef', log
    )
    if fix is None and undefined:
        fix = f"put at the top: {'  '.join(f'#include <{h}>' for h in exercise.headers)}"
    if (fix is None and "shared" in log and "exceed" in log) or "too much shared data" in log:
        fix = "a block has 48 KB of static shared memory: use smaller tiles"
    if fix is None and (_HOST_CODE.search(log) or _MAIN.search(submission.text)):
        fix = "submit the kernel alone, without main() and other host code: the checker allocates, "
        fix += "launches and compares"
    if fix is None and "already" in log and "extern" in log:
        fix = f"declare it as\n    {exercise.signature}"
    return BuildError(error.message, fix=fix or ONE_BY_ONE, **facts)
