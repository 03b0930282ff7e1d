"""On a card every yes of the capability report is proven by an executed product."""

import pytest

from gpulab.errors import DeviceMissingError
from gpulab.report.capability import PROBED, capability_report
from gpulab.report.probe import run_probes
from gpulab.runtime.select import open_device

pytestmark = pytest.mark.gpu


def test_every_yes_is_executed():
    try:
        device = open_device("cuda")
    except DeviceMissingError as missing:
        pytest.skip(f"no card: {missing.message}")
    lines = capability_report(device.capability, run_probes(device, PROBED))
    for line in lines:
        if line.supported:
            assert line.status == "executed", [r.reason for r in line.proof]
