"""What README.md computes is current, and its commands exist."""

import importlib.util
import re
from pathlib import Path

import pytest

from gpulab.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def script():
    spec = importlib.util.spec_from_file_location(
        "update_docs", ROOT / "scripts" / "update_docs.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_results_table_is_generated_from_the_committed_records():
    update = script()
    assert update.between(README, "results", update.results()) == README


def test_a_stale_table_is_seen():
    update = script()
    assert update.between(README, "results", update.results() + "x") != README


def test_commands_of_the_readme_exist():
    used = set(re.findall(r"^gpulab (\w+)", README, re.MULTILINE))
    assert used
    assert used <= set(COMMANDS)


def test_run_output_is_there():
    block = README.split("<!-- run:begin")[1].split("<!-- run:end")[0]
    assert "PASS: " in block


@pytest.mark.parametrize("name", re.findall(r"`(docs/[\w./]+)`", README))
def test_named_documents_exist(name):
    assert (ROOT / name).exists()


def test_folders_of_the_map_exist():
    for name in re.findall(r"`([a-z_]+/(?:[a-z_]+/)?)`", README.split("## Map")[1]):
        places = (ROOT, ROOT / "raw_kernels", ROOT / "docs", ROOT / "tests")
        assert any((place / name).is_dir() for place in places), name
