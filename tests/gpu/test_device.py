"""One device: each number is the one that the library gave, and no other."""

from __future__ import annotations

import math

import pytest

from tests.gpu.machine import GPU_IS_LOST, NO_PERMISSION, NOT_SUPPORTED, uuid
from trainobs.gpu.gpm import METRICS
from trainobs.gpu.reading import AMOUNT_NAMES, LEVEL_NAMES

MEBIBYTE = 1024**2


def test_every_number_has_its_place_and_unit(machine):
    read = machine.run("read", uuid(0), 1.0)
    (values,) = read["readings"]
    window_s = values["gpu/window_ns"] / 1e9
    assert 1.0 <= window_s < 1.5
    # Counters move every 100 ms.
    counted = {"rel": 0.11 / window_s}
    assert values == {
        "gpu/window_ns": values["gpu/window_ns"],
        "gpu/sm_active_ratio": 0.875,
        "gpu/sm_occupancy_ratio": 0.4375,
        "gpu/tensor_active_ratio": 0.3125,
        "gpu/dram_active_ratio": 0.625,
        "gpu/sm_clock_mhz": 1755,
        "gpu/memory_clock_mhz": 2619,
        "gpu/temperature_c": 61,
        "gpu/memory_used_bytes": 2**35,
        "gpu/throttle_power_ratio": pytest.approx(0.25, **counted),
        "gpu/throttle_thermal_ratio": pytest.approx(0.125, **counted),
        "gpu/throttle_hardware_ratio": 0,
        "gpu/power_w": pytest.approx(612, **counted),
        "gpu/energy_mj": pytest.approx(612_000, **counted),
        "gpu/pcie_sent_bytes": 1000 * MEBIBYTE,
        "gpu/pcie_received_bytes": 3000 * MEBIBYTE,
        "gpu/nvlink_received_bytes": 5000 * MEBIBYTE,
        "gpu/nvlink_sent_bytes": 7000 * MEBIBYTE,
    }
    assert values.keys() == {*LEVEL_NAMES, *AMOUNT_NAMES}
    assert read["about"] == {
        "uuid": uuid(0),
        "name": "Stand-in 0",
        "driver": "999.1 (a stand-in)",
        "gpm": "on",
    }


@pytest.mark.parametrize("reasons", [0x08, 0x40, 0x80])
def test_the_hardware_brakes(machine, reasons):
    machine.set(0, reasons=reasons)
    (values,) = machine.run("read", uuid(0), 0.1)["readings"]
    assert values["gpu/throttle_hardware_ratio"] == 1


def test_a_counter_that_is_not_there_is_no_share_of_time(machine):
    machine.set(0, power_limited=None)
    (values,) = machine.run("read", uuid(0), 0.3)["readings"]
    assert "gpu/throttle_power_ratio" not in values
    assert "gpu/throttle_thermal_ratio" in values


def test_without_gpm_pcie_comes_from_counters_and_what_only_gpm_knows_is_missing(machine):
    machine.set(0, gpm=0)
    read = machine.run("read", uuid(0), 1.0)
    (values,) = read["readings"]
    assert read["about"]["gpm"] == "not supported by this device"
    assert values.keys() & METRICS.keys() == {"gpu/pcie_sent_bytes", "gpu/pcie_received_bytes"}
    assert values["gpu/pcie_sent_bytes"] == pytest.approx(2e9, rel=0.11)
    assert values["gpu/pcie_received_bytes"] == pytest.approx(4e9, rel=0.11)
    assert machine.calls("nvmlGpmSampleAlloc") == []


def test_a_pcie_counter_that_comes_round_too_often_is_not_used(machine):
    machine.set(0, gpm=0, short_pcie=1)
    (values,) = machine.run("read", uuid(0), 0.5)["readings"]
    assert "gpu/pcie_sent_bytes" not in values
    assert values["gpu/power_w"] > 0


def test_one_gpm_metric_that_is_not_supported_is_missing_alone(machine):
    machine.set(0, gpm__60=None)
    (values,) = machine.run("read", uuid(0), 0.2)["readings"]
    assert METRICS.keys() - values.keys() == {"gpu/nvlink_received_bytes"}


def test_samples_too_close_to_each_other_are_not_taken(machine):
    first, second = machine.run("read", uuid(0), 0.0, 0.1)["readings"]
    assert METRICS.keys() - first.keys() == METRICS.keys() - {
        "gpu/pcie_sent_bytes",
        "gpu/pcie_received_bytes",
    }
    assert second["gpu/sm_active_ratio"] == 0.875
    assert not any(math.isnan(value) for value in (*first.values(), *second.values()))
    assert len(machine.calls("nvmlGpmSampleGet")) == 2


@pytest.mark.parametrize("answer", [NOT_SUPPORTED, NO_PERMISSION])
def test_what_is_refused_is_missing_and_not_asked_for_again(machine, answer):
    machine.set(0, fail__nvmlDeviceGetTemperature=answer)
    readings = machine.run("read", uuid(0), 0.1, 0.1, 0.1)["readings"]
    assert all("gpu/temperature_c" not in values for values in readings)
    assert all(values["gpu/sm_clock_mhz"] == 1755 for values in readings)
    assert len(machine.calls("nvmlDeviceGetTemperature")) == 1
    assert len(machine.calls("nvmlDeviceGetCurrentClocksEventReasons")) == 3


def test_a_fault_that_may_pass_is_asked_for_again(machine):
    machine.set(0, fail__nvmlDeviceGetTemperature=10)  # NVML_ERROR_TIMEOUT
    machine.run("read", uuid(0), 0.1, 0.1, 0.1)
    assert len(machine.calls("nvmlDeviceGetTemperature")) == 3


def test_a_board_without_an_energy_counter_has_the_power_of_its_sensor(machine):
    machine.set(0, energy=None)
    (values,) = machine.run("read", uuid(0), 0.2)["readings"]
    assert values["gpu/power_w"] == 598
    assert "gpu/energy_mj" not in values


def test_a_device_that_is_lost_says_so(machine):
    machine.set(0, fail__nvmlDeviceGetFieldValues=GPU_IS_LOST)
    result = machine.run("read", uuid(0), 0.1)
    assert result["failed"] == "a GPU cannot be read"
    machine.set(0, fail__nvmlDeviceGetFieldValues=None, fail__nvmlGpmMetricsGet=None)
    machine.set(0, fail__nvmlDeviceGetClockInfo=GPU_IS_LOST)
    (values,) = machine.run("read", uuid(0), 0.1)["readings"]
    assert values["found"].startswith(f"{uuid(0)}: ")


def test_a_uuid_as_torch_tells_it(machine):
    assert machine.run("read", uuid(0)[4:])["about"]["uuid"] == uuid(0)


def test_a_uuid_that_nobody_has(machine):
    assert machine.run("read", uuid(3))["found"].startswith(f"{uuid(3)}: ")


def test_a_mig_instance_has_its_own_activity_and_memory_and_the_boards_power(machine):
    machine.set(0, mig=2)
    for instance in (8, 9):
        machine.set(instance, gpm__2=10.0 * instance, memory_used=instance << 30)
    (values,) = machine.run("read", uuid(9), 1.0)["readings"]
    assert values["gpu/sm_active_ratio"] == pytest.approx(0.9)
    assert values["gpu/memory_used_bytes"] == 9 << 30
    assert values["gpu/power_w"] == pytest.approx(612, rel=0.11)
    assert values["gpu/sm_clock_mhz"] == 1755
    assert machine.calls("nvmlGpmSampleGet") == []


def test_of_a_board_in_mig_mode_it_is_the_instance_that_the_process_can_use(machine):
    machine.set(0, mig=1)
    assert machine.run("read", uuid(0))["about"]["uuid"] == uuid(8)
    machine.set(0, mig=3)
    visible = {"CUDA_VISIBLE_DEVICES": f"{uuid(9)},{uuid(8)}"}
    assert machine.run("read", uuid(0), **visible)["about"]["uuid"] == uuid(9)
    refused = machine.run("read", uuid(0), CUDA_VISIBLE_DEVICES="0")
    assert refused["found"] == "3 instances, CUDA_VISIBLE_DEVICES='0'"


def test_devices_are_listed_mig_instances_in_place_of_their_board(machine_of):
    machine = machine_of(3)
    machine.set(1, mig=2)
    assert machine.run("uuids") == [uuid(0), uuid(12), uuid(13), uuid(2)]


def test_without_a_library_or_a_driver_it_says_what_to_do(machine):
    machine.set(-1, **{"fail__init": 9})
    failed, found, do = machine.run("uuids").splitlines()
    assert (failed, do) == (
        "NVML cannot be opened",
        "  do:    install a driver of NVIDIA, with its NVML",
    )
    assert found.startswith("  found: ")
    assert "NVML cannot be opened" in machine.run("uuids", LD_LIBRARY_PATH="")
