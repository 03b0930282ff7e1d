"""Results for other programs: JUnit XML, Markdown, SARIF.

Sources: the JUnit XML schema as CI servers read it; SARIF 2.1.0 (OASIS).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import gpulab
from gpulab.check.evidence import beside

Record = dict[str, Any]
_NOT_XML = re.compile(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")


def _headline(record: Record) -> str:
    found = record.get("diagnosis")
    text = f"{found['slug']}: {found['text']}" if found else str(record["reason"] or "")
    return _NOT_XML.sub("?", text)


def junit(records: Sequence[Record]) -> str:
    """One test case a submission, named after the file, its exercise as the class."""
    failed = [r for r in records if r["verdict"] == "FAIL" and r["exit_code"] == 1]
    broken = [r for r in records if r["verdict"] == "FAIL" and r["exit_code"] != 1]
    open_ = [r for r in records if r["verdict"] == "INCONCLUSIVE"]
    suite = ElementTree.Element(
        "testsuite",
        name="gpulab check",
        tests=str(len(records)),
        failures=str(len(failed)),
        errors=str(len(broken)),
        skipped=str(len(open_)),
        time=f"{sum(r.get('seconds') or 0 for r in records):.2f}",
    )
    for r in records:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            name=_NOT_XML.sub("?", str(r["file"])),
            classname=str(r.get("exercise") or "unknown"),
            time=f"{r.get('seconds') or 0:.2f}",
        )
        if r["verdict"] == "PASS":
            continue
        tag = "skipped" if r in open_ else "error" if r in broken else "failure"
        node = ElementTree.SubElement(case, tag, message=_headline(r).splitlines()[0])
        fix = (r.get("diagnosis") or {}).get("fix") or ""
        replay = f"\nreplay: {r['replay']}" if r.get("replay") else ""
        node.text = _NOT_XML.sub("?", f"{_headline(r)}\n{fix}{replay}")
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def markdown(records: Sequence[Record]) -> str:
    """A table, and a paragraph for each submission that does not pass."""

    def cell(text: Any) -> str:
        return str(text).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")

    def code(text: Any) -> str:
        return f"`{cell(text).replace('`', chr(39))}`"

    lines = [
        "| submission | exercise | verdict | diagnosis | arithmetic fraction |",
        "| --- | --- | --- | --- | --- |",
    ]
    for r in records:
        share = (r.get("arithmetic_gate") or {}).get("fraction")
        lines.append(
            f"| {code(r['file'])} | {r.get('exercise') or '-'} | {r['verdict']} | {beside(r)} | "
            f"{'-' if share is None else f'{share:.3g}'} |"
        )
    for r in records:
        if r["verdict"] == "PASS":
            continue
        found = r.get("diagnosis") or {}
        lines += ["", f"**{code(r['file'])}**: {cell(found.get('text', r['reason']))}"]
        if found.get("fix"):
            lines += ["", f"Next: {cell(found['fix'])}"]
    return "\n".join(lines) + "\n"


def sarif(records: Sequence[Record]) -> str:
    """Every submission that does not pass; at its line where one is known."""
    slugs = sorted({(r.get("diagnosis") or {}).get("slug", "unknown") for r in records if _bad(r)})
    results = []
    for r in records:
        if not _bad(r):
            continue
        error = r.get("error") or {}
        line = error.get("line")
        place: Record = {"artifactLocation": {"uri": quote(str(r["file"]))}}
        if isinstance(line, int) and line > 0:
            place["region"] = {"startLine": line}
            if isinstance(error.get("column"), int):
                place["region"]["startColumn"] = error["column"]
        fix = (r.get("diagnosis") or {}).get("fix")
        results.append(
            {
                "ruleId": (r.get("diagnosis") or {}).get("slug", "unknown"),
                "level": "error" if r["verdict"] == "FAIL" else "warning",
                "message": {"text": _headline(r) + (f"\n{fix}" if fix else "")},
                "locations": [{"physicalLocation": place}],
            }
        )
    report = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "gpulab check",
                        "version": gpulab.__version__,
                        "rules": [{"id": slug} for slug in slugs],
                    }
                },
                "results": results,
            }
        ],
    }
    return json.dumps(report, indent=2) + "\n"


def _bad(record: Record) -> bool:
    return bool(record["verdict"] != "PASS")
