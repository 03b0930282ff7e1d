"""The probe kernel on the emulated device: products equal the model, no line says executed."""

import pytest
from click.testing import CliRunner

from gpulab import arch
from gpulab.cli import main
from gpulab.report.capability import PROBED, capability_report
from gpulab.report.probe import run_probes
from gpulab.runtime.select import open_device


@pytest.mark.parametrize("capability", arch.EMULATED, ids=lambda c: f"{c[0]}.{c[1]}")
def test_every_yes_is_emulated(capability):
    device = open_device("emulated", capability=capability)
    results = run_probes(device, PROBED)
    lines = capability_report(capability, results)
    for line in lines:
        if not line.supported:
            assert not line.proof
            continue
        assert line.status == "emulated", [r.reason for r in line.proof]
        for result in line.proof:
            assert (result.outputs, result.different) == (128, 0)
            assert "executed" not in result.reason


def test_the_command_reports_what_was_emulated():
    done = CliRunner().invoke(main, ["formats", "--device", "emulated", "--capability", "9.0"])
    assert done.exit_code == 0
    assert done.stdout.count("yes, emulated") == 4
    assert "executed" not in done.stdout
