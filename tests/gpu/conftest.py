"""The card and the emulated device that is compared with it."""

import os

import pytest
from equality import Devices

from gpulab.errors import DeviceMissingError
from gpulab.runtime.cache import Store
from gpulab.runtime.emulated import EmulatedDevice


@pytest.fixture(scope="session")
def devices(tmp_path_factory):
    """Both devices with one compiler, so that both run the same PTX."""
    folder = tmp_path_factory.mktemp("equality")
    store = Store(folder / "cache")
    if os.environ.get("GPULAB_EQUALITY_AGAINST") == "emulated":
        card = EmulatedDevice((9, 0), store=store)
    else:
        from gpulab.runtime.cuda import CudaDevice
        from gpulab.runtime.cuda_context import connect

        try:
            card = CudaDevice(connection=connect(), store=store)
        except DeviceMissingError as missing:
            pytest.skip(f"no usable card: {missing.message}")
        if card.capability != (9, 0):
            pytest.skip(f"the instructions were modelled on 9.0; this card is {card.name}")
    return Devices(card, EmulatedDevice((9, 0), store=store, kit=card.kit), folder)
